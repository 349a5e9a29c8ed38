"""Unmodified remoting clients for Java of RocketMQ 4 and 5: the scenarios of `java/src/Scenarios.java`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.cli.demo import free_ports
from tests.e2e.broker import DISK_OF_THE_TESTS, Broker, environment_of
from tests.e2e.languages import java_classes
from tests.e2e.members import ClusterOfBrokers, reachable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HERE: Final = Path(__file__).parent
VERSIONS: Final = ("4.9.8", "5.5.0")
SCENARIOS: Final = (
    "sends", "batch", "push", "tags", "sql", "retry", "dead-letter", "order", "broadcast", "lite-pull", "pull",
    "rebalance", "delay", "transaction", "large", "query", "request",
    "operators",
)  # fmt: skip
SINCE_5: Final = ("pop",)
"""Scenarios of clients that leave the choice of queues and messages to the broker."""
IN_A_CLUSTER: Final = (
    "push", "retry", "dead-letter", "order", "broadcast", "lite-pull", "rebalance", "transaction", "query", "request",
    "operators",
)  # fmt: skip
TIMEOUT_S: Final = 180

SIGNING: Final = """    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-acl</artifactId>
      <version>VERSION</version>
    </dependency>
"""
"""Dependency that signs requests: an artifact of its own before RocketMQ 5."""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server address of a broker."""
    directory = tmp_path_factory.mktemp("remoting")
    address, own = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {
        "remoting.listen": own,
        "remoting.names_listen": address,
        "index.hash_files": True,
        "transactions.check_after_ms": 2_000,
    }
    environment = {**DISK_OF_THE_TESTS, **environment_of(settings)}
    broker = Broker(directory / "store", logs=directory / "logs", environment=environment)
    broker.start()
    yield address
    broker.close()


def remoting_classes(version: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the client and the tools of one version, with the scenarios that are compiled with it."""
    project = tmp_path_factory.mktemp("java") / version
    shutil.copytree(HERE / "java", project)
    pom = project / "pom.xml"
    signing = SIGNING if version.startswith("4") else ""
    pom.write_text(pom.read_text().replace("ACL", signing).replace("VERSION", version))
    return java_classes(f"remoting-{version}", project)


@pytest.fixture(scope="module", params=VERSIONS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The version of the client, and the class path of the scenarios that are compiled with it."""
    return request.param, remoting_classes(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def names_of_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server addresses of a cluster: the messaging ports of its members."""
    settings = {"remoting.names_listen": "127.0.0.1:0", "index.hash_files": True, "transactions.check_after_ms": 2_000}
    cluster = ClusterOfBrokers(tmp_path_factory.mktemp("cluster"), settings=settings)
    try:
        brokers = [cluster.add() for _ in range(3)]
        cluster.agree(reachable, ["quarry-0", "quarry-1", "quarry-2"])
        yield ";".join(each.endpoint for each in brokers)
    finally:
        cluster.close()


def played(names: str, class_path: str, *words: str, options: Sequence[str] = ()) -> str:
    """Return what a scenario prints. The words are its topic and its name."""
    command = ["java", "-Drocketmq.client.logUseSlf4j=true", *options, "-cp", f"{HERE / 'java' / 'src'}:{class_path}"]
    done = subprocess.run(
        [*command, "Scenarios", names, *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["ok"], done.stdout[-3_000:] + done.stderr[-3_000:]
    return done.stdout


def play(names: str, program: tuple[str, str], scenario: str, tmp_path: Path) -> None:
    version, class_path = program
    topic = f"{scenario}-{version.replace('.', '-')}"
    kept = f"-Drocketmq.client.localOffsetStoreDir={tmp_path}"  # offsets of broadcasting consumers
    played(names, class_path, topic, scenario, options=[kept])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_client_of_rocketmq_does_all_that_it_can(
    names: str, program: tuple[str, str], scenario: str, tmp_path: Path
) -> None:
    play(names, program, scenario, tmp_path)


@pytest.mark.parametrize("program", VERSIONS[1:], indirect=True)
@pytest.mark.parametrize("scenario", SINCE_5)
def test_a_client_of_rocketmq_5_leaves_the_choice_to_the_broker(
    names: str, program: tuple[str, str], scenario: str, tmp_path: Path
) -> None:
    play(names, program, scenario, tmp_path)


@pytest.mark.parametrize("program", VERSIONS[1:], indirect=True)
@pytest.mark.parametrize("scenario", SINCE_5)
def test_a_client_of_rocketmq_5_leaves_the_choice_to_all_members(
    names_of_cluster: str, program: tuple[str, str], scenario: str, tmp_path: Path
) -> None:
    play(names_of_cluster, program, scenario, tmp_path)


@pytest.mark.parametrize("option", ["-Drocketmq.serialize.type=ROCKETMQ", "-Dtls.enable=true"])
@pytest.mark.parametrize("scenario", ["sends", "batch", "push", "query"])
def test_a_client_does_the_same_with_binary_headers_and_with_tls(
    names: str, program: tuple[str, str], scenario: str, option: str
) -> None:
    version, class_path = program
    topic = f"{scenario}-{version}-{option}".translate(str.maketrans(".=", "--"))
    played(names, class_path, topic, scenario, options=[option])


@pytest.mark.parametrize("scenario", IN_A_CLUSTER)
def test_a_cluster_is_one_to_clients_of_rocketmq(
    names_of_cluster: str, program: tuple[str, str], scenario: str, tmp_path: Path
) -> None:
    play(names_of_cluster, program, scenario, tmp_path)
