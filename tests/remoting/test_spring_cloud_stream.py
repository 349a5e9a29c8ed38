"""The samples of Spring Cloud Stream's binder for RocketMQ, unmodified, with released binders beside one broker.

The libraries are those of all samples together: a sample that does not ask for a web server has one, too. Options give
each sample the name server and a free port for its web server. The comprehensive sample needs one more: it names its
functions in `spring.cloud.stream.function.definition`, and with the binder 2023.0.1.2 none of them is bound unless
`spring.cloud.function.definition` has their names.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.cli.demo import free_ports
from tests.e2e.broker import DISK_OF_THE_TESTS, Broker, environment_of
from tests.e2e.languages import checkout, java_classes, run
from tests.remoting.client import prepare
from tests.remoting.spring_samples import Sample, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SPRING_BOOT: Final = {"2022.0.0.0": "3.0.2", "2023.0.1.2": "3.2.4"}
"""Version of the binder to the version of Spring Boot that it is made for. They have clients 4.9.4 and 5.1.4."""
TAG_OF_THE_SAMPLES: Final = "2022.0.0.0"
"""The samples of 2023.0.0.0-RC1 are the same."""
SAMPLES: Final = Path("spring-cloud-alibaba-examples", "rocketmq-example")
BROADCAST: Final = "rocketmq-broadcast-example"
PACKAGE: Final = "com.alibaba.cloud.examples"
POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>quarry</groupId>
  <artifactId>spring-cloud-stream-samples</artifactId>
  <version>1</version>
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>org.springframework.boot</groupId>
        <artifactId>spring-boot-dependencies</artifactId>
        <version>SPRING_BOOT</version>
        <type>pom</type>
        <scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>
  <dependencies>
    <dependency>
      <groupId>com.alibaba.cloud</groupId>
      <artifactId>spring-cloud-starter-stream-rocketmq</artifactId>
      <version>BINDER</version>
    </dependency>
    <dependency>
      <groupId>org.springframework.boot</groupId>
      <artifactId>spring-boot-starter-web</artifactId>
    </dependency>
    <dependency>
      <groupId>org.springframework.boot</groupId>
      <artifactId>spring-boot-starter-actuator</artifactId>
    </dependency>
  </dependencies>
</project>
"""

TOPICS: Final = ("num", "square", "broadcast", "delay", "orderly", "pollable", "sql", "tx")
GROUPS: Final = (
    "processor_group", "consumer_group", "delay-group", "orderly-consumer", "anonymous_pollable", "sql-group",
    "tx-group",
)  # fmt: skip
"""Groups that the samples name, and that of the sample that polls, which the binder names."""
SENT: Final = 100
"""Messages that each sample sends, unless it says how many."""
DELAY: Final = timedelta(seconds=5)
"""The delay of level 2, which the sample asks for."""


@pytest.fixture
def names(tmp_path: Path) -> Iterator[str]:
    """The name server address of a broker that has the topics and the groups of the samples."""
    address, own = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {"remoting.listen": own, "remoting.names_listen": address, "transactions.check_after_ms": 2_000}
    environment = {**DISK_OF_THE_TESTS, **environment_of(settings)}
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment)
    broker.start()
    prepare(own, TOPICS, GROUPS, queues=4)
    yield address
    broker.assert_no_stack_trace()
    broker.close()


def sources(name: str | Path) -> Path:
    return checkout("spring-cloud-alibaba", TAG_OF_THE_SAMPLES, owner="alibaba") / SAMPLES / name / "src" / "main"


@pytest.fixture(scope="module", params=SPRING_BOOT)
def libraries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of one version of the binder, and of what the samples have in common."""
    version = request.param
    project = tmp_path_factory.mktemp("java") / version
    shutil.copytree(sources("rocketmq-example-common") / "java", project / "src")
    pom = POM.replace("SPRING_BOOT", SPRING_BOOT[version]).replace("BINDER", version)
    (project / "pom.xml").write_text(pom)
    return java_classes(f"spring-cloud-stream-{version}", project)


class Samples:
    """The samples beside a broker. Each has a class path of its own, as it takes all that its package has."""

    def __init__(self, names: str, libraries: str, directory: Path) -> None:
        self._options = [f"--spring.cloud.stream.rocketmq.binder.name-server={names}", "--server.port=0"]
        self._libraries = libraries
        self._directory = directory

    def running(self, name: str | Path, program: str, *options: str) -> AbstractContextManager[Sample]:
        """Compile a sample and run its main class, whose name is relative to that of the package of the samples."""
        source = sources(name)
        classes = self._directory / program
        compiler = ["javac", "-nowarn", "-encoding", "UTF-8", "--release", "17", "-cp", self._libraries]
        run([*compiler, "-d", classes, *sorted(source.rglob("*.java"))], directory=self._directory)
        class_path = f"{classes}:{source / 'resources'}:{self._libraries}"
        # offsets of broadcasting consumers, and the log of the client, are in the home directory
        home = f"-Duser.home={self._directory}"
        output = self._directory / f"{program}.out"
        return running(class_path, f"{PACKAGE}.{program}", output, *self._options, *options, jvm=[home])


@pytest.fixture
def samples(names: str, libraries: str, tmp_path: Path) -> Samples:
    return Samples(names, libraries, tmp_path)


def test_a_supplier_a_processor_and_a_consumer(samples: Samples) -> None:
    functions = "--spring.cloud.function.definition=producer;consumer;processor"
    with samples.running("rocketmq-comprehensive-example", "RocketMQComprehensiveApplication", functions) as sample:
        sample.says(*(f"User{{id='{number**2}', name='not freeman'" for number in range(4)))
        users = sample.lines(
            r"User\{id='(\d+)', name='not freeman', meta=\{.hobbies.:\[.programming.\],.age.:21\}\}", count=4
        )
    squares = [int(user[1]) for user in users]
    assert {0, 1, 4, 9} <= set(squares)
    assert len(set(squares)) == len(squares)


def test_broadcasting(samples: Samples) -> None:
    one, other = (
        samples.running(
            Path(BROADCAST, f"rocketmq-broadcast-consumer{number}-example"),
            f"broadcast.RocketMQBroadcastConsumer{number}Application",
        )
        for number in (1, 2)
    )
    producer = samples.running(
        Path(BROADCAST, "rocketmq-broadcast-producer-example"), "broadcast.RocketMQBroadcastProducerApplication"
    )
    with one as first, other as second:
        for number, consumer in enumerate((first, second), 1):
            consumer.says(f"Started RocketMQBroadcastConsumer{number}Application")
        with producer:
            for number, consumer in enumerate((first, second), 1):
                received = consumer.lines(rf"Consumer{number} Receive New Messages: Hello RocketMQ (\d+)", count=SENT)
                assert sorted(int(each[1]) for each in received) == list(range(SENT))


def test_delays(samples: Samples) -> None:
    with samples.running("rocketmq-delay-consume-example", "delay.RocketMQDelayConsumeApplication") as sample:
        received = sample.lines(r"Consumer Receive New Messages: Delay RocketMQ (\d+)", count=SENT)
        (started,) = sample.lines("Started RocketMQDelayConsumeApplication in .*", count=1)
    assert sorted(int(each[1]) for each in received) == list(range(SENT))
    # it sends when it has started, and each line begins with its time
    first, begin = (datetime.fromisoformat(line[0].split()[0]) for line in (received[0], started))
    assert first - begin >= DELAY


def test_order_and_tags(samples: Samples) -> None:
    tags = "ABCDE"
    with samples.running("rocketmq-orderly-consume-example", "orderly.RocketMQOrderlyConsumeApplication") as sample:
        received = sample.lines(r"Receive New Messages: Hello RocketMQ (\d+) TAG:Tag(\w)", count=SENT * 3 // 5)
    # all messages of a tag are in one queue
    for tag in tags:
        numbers = range(tags.index(tag), SENT, len(tags)) if tag in "ACD" else ()
        assert [int(each[1]) for each in received if each[2] == tag] == list(numbers), tag


def test_a_consumer_that_polls(samples: Samples) -> None:
    with samples.running("rocketmq-pollable-consume-example", "pollable.RocketMQPollableConsumeApplication") as sample:
        received = sample.lines(r"Hello RocketMQ (\d+)", count=SENT)
    assert sorted(int(each[1]) for each in received) == list(range(SENT))


def test_filters_of_sql(samples: Samples) -> None:
    with samples.running("rocketmq-sql-consume-example", "sql.RocketMQSqlConsumeApplication") as sample:
        received = sample.lines(r"Receive New Messages: Hello RocketMQ (\d+) COLOR:(\w+) PRICE: (\d)", count=SENT // 5)
    expected = [(number, "red4", "4") for number in range(3, SENT, 5)]
    assert sorted((int(each[1]), each[2], each[3]) for each in received) == expected


def test_transactions(samples: Samples) -> None:
    with samples.running("rocketmq-tx-example", "tx.RocketMQTxApplication") as sample:
        received = sample.lines(r"Receive New Messages: Hello Tx msg (\d) ARG:.*", count=3)
        # the first message comes only after a check, so the second one, had it been committed, had come by then
        sample.says(*(f'executer: {{"msg":"Hello Tx msg {number}"}}' for number in range(1, 5)))
        sample.says('check: {"msg":"Hello Tx msg 1"}')
    assert sorted(each[1] for each in received) == ["1", "3", "4"]
