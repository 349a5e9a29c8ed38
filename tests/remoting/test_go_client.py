"""The examples of the unmodified remoting client for Go, `rocketmq-client-go`, each run beside one broker.

Its examples have the addresses of a name server and of a broker in their text, and the secret of a user. Another
loopback address takes their place, and a secret that is long enough for Quarry. Nothing else is changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from quarry_mq.protocol.remoting.codes import RequestCode
from tests.e2e.accounts import make_accounts
from tests.e2e.broker import DELIVERED_TIMEOUT_S, DISK_OF_THE_TESTS, Broker, environment_of, until
from tests.e2e.clients import Login
from tests.e2e.languages import cache, installed, locked, need, run
from tests.remoting.client import ask, prepare, send_fields

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

MODULE: Final = "github.com/apache/rocketmq-client-go/v2@v2.1.2"
HOST, HOST_WITH_USERS = "127.76.9.11", "127.76.9.12"
"""Loopback addresses on which nothing else listens: the ports of the examples are RocketMQ's own."""
SECRET: Final = "secret-of-the-examples"
SIGNING: Final = ("acl", "namespace")
"""Examples that sign their requests."""

TOPICS: Final = ("test", "TopicTest", "TopicTest5", "RequestTopic", "min", "ns%test-topic", "namespace%test")
GROUPS: Final = ("testGroup", "namespace%testGroup", "ns%testPullGroup")
SENT: Final = "send message success"
IDS: Final = re.compile(r"msgIds=([0-9A-Fa-f]*), offsetMsgId=([0-9A-F]+(?:,[0-9A-F]+)*)")
"""The id of a message in the output of a producer. The messages of a batch have none but their places in the log."""


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """The examples, compiled. Whoever has them is alone with their addresses."""
    need("go")

    def install(folder: Path) -> None:
        found = subprocess.run(["go", "mod", "download", "-json", MODULE], capture_output=True, text=True, check=True)
        source = folder / "source"
        shutil.copytree(json.loads(found.stdout)["Dir"], source, copy_function=shutil.copyfile)
        for path in [source, *source.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        for program in (source / "examples").rglob("*.go"):
            host = HOST_WITH_USERS if program.parent.name in SIGNING else HOST
            text = program.read_text().replace("127.0.0.1:", f"{host}:")
            program.write_text(text.replace('"12345678"', f'"{SECRET}"'))
        (folder / "bin").mkdir()
        for program in sorted((source / "examples").rglob("*.go")):
            name = "-".join(program.parent.relative_to(source / "examples").parts)
            package = f"./{program.parent.relative_to(source)}"
            run(["go", "build", "-p", "1", "-buildvcs=false", "-o", folder / "bin" / name, package], directory=source)
        shutil.rmtree(source)

    with locked(cache() / "rocketmq-client-go.lock"):
        yield installed(f"rocketmq-client-go-{MODULE.rpartition('@')[2]}", install) / "bin"


def _ids(output: str) -> list[str]:
    return list(dict.fromkeys(each for own, places in IDS.findall(output) for each in (own or places).split(",")))


class Example:
    """A running example, whose output a test reads."""

    def __init__(self, programs: Path, name: str, home: Path) -> None:
        self.name = name
        self._path = home / f"{name}.out"
        with self._path.open("wb") as output:
            environment = {**os.environ, "HOME": str(home), "ROCKETMQ_GO_LOG_LEVEL": "error"}
            self._process = subprocess.Popen(
                [programs / name], stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=home
            )

    @property
    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def says(self, *texts: str, times: int = 1) -> None:
        """Wait until it has written each of the texts so often."""

        def missing() -> list[str]:
            output = self.output
            return [each for each in texts if output.count(each) < times]

        try:
            until(lambda: not missing(), self.name, timeout_s=DELIVERED_TIMEOUT_S)
        except AssertionError:
            raise AssertionError(f"{self.name} did not write {missing()[:5]}:\n{self.output[-4_000:]}") from None

    def end(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def ends(self) -> str:
        """Wait for its end, and return what it wrote."""
        assert self._process.wait(DELIVERED_TIMEOUT_S) == 0, self.output[-4_000:]
        return self.output


class Examples:
    """The examples beside a broker that has their topics, and where their groups begin with the first message."""

    def __init__(self, programs: Path, broker: Broker, home: Path, address: str, user: tuple[str, str] | None) -> None:
        """`address` is that of the broker for remoting; `user` has a name and a secret."""
        self.broker = broker
        self._address = address
        self._programs = programs
        self._home = home
        self._user = user

    @contextmanager
    def running(self, name: str) -> Iterator[Example]:
        example = Example(self._programs, name, self._home)
        try:
            yield example
        finally:
            example.end()

    def sent_by(self, name: str, count: int) -> list[str]:
        """Run a producer to its end, and return the ids of its messages."""
        with self.running(name) as producer:
            output = producer.ends()
        ids = _ids(output)
        assert len(ids) == count, output[-4_000:]
        return ids

    def prepare(self) -> None:
        prepare(self._address, TOPICS, GROUPS, queues=2, user=self._user)

    def send(self, topic: str, *bodies: str, **properties: str) -> None:
        fields = send_fields(topic, 0, **properties)
        ask(self._address, *((RequestCode.SEND_MESSAGE_V2, fields, body.encode()) for body in bodies), user=self._user)


@contextmanager
def beside(
    programs: Path,
    directory: Path,
    host: str,
    settings: Mapping[str, object] = MappingProxyType({}),
    user: tuple[str, str] | None = None,
) -> Iterator[Examples]:
    own: dict[str, object] = {
        "remoting.listen": f"{host}:10911",
        "remoting.names_listen": f"{host}:9876",
        "transactions.check_after_ms": 2_000,
    }
    environment = {**DISK_OF_THE_TESTS, **environment_of({**own, **settings})}
    broker = Broker(directory / "store", logs=directory / "logs", environment=environment)
    broker.start()
    try:
        examples = Examples(programs, broker, directory, f"{host}:10911", user)
        examples.prepare()
        yield examples
        broker.assert_no_stack_trace()
    finally:
        broker.close()


@pytest.fixture(scope="module")
def examples(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    with beside(programs, tmp_path_factory.mktemp("go"), HOST) as started:
        yield started


def test_producers_and_a_push_consumer(examples: Examples) -> None:
    counts = {
        "simple": 10, "async": 10, "batch": 10, "delay": 10, "tag": 3, "interceptor": 10, "trace": 1,
    }  # fmt: skip
    ids = [each for name, count in counts.items() for each in examples.sent_by(f"producer-{name}", count)]
    with examples.running("consumer-simple") as consumer:
        consumer.says(*ids, *(f"Hello RocketMQ Go Client! num: {number}" for number in range(10)))


def test_ordered_consumers(examples: Examples) -> None:
    bodies = [f"ordered-{number:02}" for number in range(20)]
    examples.send("TopicTest", *bodies)
    with examples.running("consumer-orderly") as consumer:
        consumer.says(*bodies)
        output = consumer.output
    places = [output.index(each) for each in bodies]
    assert places == sorted(places)


def test_filters_by_tag(examples: Examples) -> None:
    for tag in "ABC":
        examples.send("TopicTest", f"with-tag-{tag}", TAGS=f"Tag{tag}")
    with examples.running("consumer-tag") as consumer:
        consumer.says("with-tag-A", "with-tag-C")
        assert "with-tag-B" not in consumer.output


def test_broadcasting(examples: Examples) -> None:
    examples.send("min", "to-all-of-them")
    with examples.running("consumer-broadcast") as consumer:
        consumer.says("to-all-of-them")


@pytest.mark.parametrize("name", ["strategy", "interceptor", "trace", "delay"])
def test_other_push_consumers(examples: Examples, name: str) -> None:
    examples.send("TopicTest", f"for-{name}", UNIQ_KEY=f"UNIQUE{name}")
    with examples.running(f"consumer-{name}") as consumer:
        consumer.says(f"UNIQUE{name}")


def test_retries_and_dead_letters(examples: Examples) -> None:
    """A consumer that never succeeds gets a message again after a second; an ordered one at once, until it gives up."""
    examples.send("TopicTest", "again-and-again")
    with examples.running("consumer-retry-concurrent") as consumer:
        consumer.says("msg ReconsumeTimes > 5. msg: [Message=[topic=TopicTest, body=again-and-again")
    examples.send("TopicTest", "given-up")
    with examples.running("consumer-retry-order") as ordered:
        ordered.says("given-up", times=6)
        dead = "%DLQ%testGroup"
        until(lambda: "given-up" in examples.broker.administer("browse", dead), dead, timeout_s=DELIVERED_TIMEOUT_S)


def test_transactions(examples: Examples) -> None:
    """The example commits those of ten transactions whose number leaves 0 over 3, and is asked again for the others."""
    with examples.running("producer-transaction") as producer:
        producer.says(SENT, times=10)
        producer.says("checkLocalTransaction COMMIT_MESSAGE", times=3)
        producer.says("checkLocalTransaction ROLLBACK_MESSAGE", times=4)
        producer.says("checkLocalTransaction unknow", times=6)


@pytest.mark.parametrize("name", ["producer-rpc-sync", "producer-rpc-async"])
def test_requests_and_replies(examples: Examples, name: str) -> None:
    """The reply has no body: version 2.1.2 of the client takes the example's for properties."""
    with examples.running("consumer-rpc") as consumer, examples.running(name) as producer:
        consumer.says("reply to ")
        producer.says("MSG_TYPE:reply")


@pytest.mark.parametrize("name", ["poll", "pull"])
def test_pull_consumers(examples: Examples, name: str) -> None:
    examples.send("ns%test-topic", f"to-{name}", TAGS="testPull")
    with examples.running(f"consumer-pull-{name}") as consumer:
        consumer.says(f"to-{name}")


def test_administration(examples: Examples) -> None:
    with examples.running("admin-topic") as admin:
        output = admin.ends()
        assert "TopicTest5" in output
        assert "error:" not in output
    with examples.running("admin-group") as admin:
        output = admin.ends()
        assert "testGroup" in output
        assert "error:" not in output


def test_signatures_and_namespaces(programs: Path, tmp_path: Path) -> None:
    user = ("RocketMQ", SECRET)
    accounts = make_accounts(tmp_path / "store", administrator=Login(*user))
    with beside(programs, tmp_path, HOST_WITH_USERS, accounts.settings, user) as examples:
        for name in SIGNING:
            with examples.running(f"producer-{name}") as producer, examples.running(f"consumer-{name}") as consumer:
                producer.says(SENT, times=20)
                consumer.says(*_ids(producer.output)[:20])
