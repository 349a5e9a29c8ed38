"""`quarry top` on a real terminal, of a real broker with traffic."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from quarry_mq.cli.online.connection.administration import admin_port
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.messaging import MessagingClient
from quarry_mq.client.requests import OutgoingMessage, Subscription
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from tests.e2e.broker import Broker, clean_environment, environment_of
from tests.terminal import Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("top")
    settings = {"metrics.lag_interval_ms": 1000, "store.segment_size": "16MiB"}
    broker = Broker(folder / "store", logs=folder / "logs", environment=environment_of(settings))
    try:
        broker.start()
        with admin_port(broker.admin) as port:
            for topic in ("orders", "payments", "refunds"):
                port.CreateTopic(pb.CreateTopicRequest(name=topic))
            for group in ("billing", "audit", "review"):
                port.CreateGroup(pb.CreateGroupRequest(name=group))
        yield broker
    finally:
        broker.close()


@contextmanager
def traffic(broker: Broker, topic: str = "payments", group: str = "audit") -> Iterator[None]:
    """Sends all the time. `billing` reads all of them; `group` has left with the first of nine in `topic`."""
    with MessagingClient(Endpoint(broker.endpoint)) as sender:
        for _ in range(9):
            sender.send(OutgoingMessage(topic=topic, body=b"a payment"))
    with MessagingClient(Endpoint(broker.endpoint), subscription=Subscription(group=group, topic=topic)) as auditor:
        assert auditor.receive(limit=1, invisible_s=300, wait_s=5)
    is_over = threading.Event()

    def send() -> None:
        with MessagingClient(Endpoint(broker.endpoint)) as client:
            while not is_over.wait(0.05):
                client.send(OutgoingMessage(topic="orders", body=b"an order"))

    def read() -> None:
        with MessagingClient(
            Endpoint(broker.endpoint), subscription=Subscription(group="billing", topic="orders")
        ) as client:
            while not is_over.is_set():
                for message in client.receive(limit=32, invisible_s=30, wait_s=1):
                    client.acknowledge(message)

    threads = [threading.Thread(target=each) for each in (send, read)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        is_over.set()
        for each in threads:
            each.join()


def environment(**more: str) -> Mapping[str, str]:
    kept = {name: text for name, text in clean_environment().items() if name in ("PATH", "HOME", "PYTHONPATH")}
    return {**kept, "LC_ALL": "C.UTF-8", "TERM": "tmux-256color", **more}


def watch(terminal: Terminal, broker: Broker, *words: str, **more: str) -> None:
    command = [sys.executable, "-m", "quarry_mq.cli.main", "top", "--admin", broker.admin, "--interval", "0.5", *words]
    terminal.run(command, environment(**more))


def see(terminal: Terminal, *texts: str) -> list[str]:
    """The first screen with all texts, whatever stands between their words."""

    def has_all(lines: list[str]) -> bool:
        words = " ".join(" ".join(lines).split())
        return all(text in words for text in texts)

    return terminal.until(has_all, f"{texts}")


def cells(lines: list[str], name: str) -> list[str]:
    """What stands in the row of a topic or group."""
    return next((line.split()[1:] for line in lines if line.split()[:1] == [name]), [])


def is_whole(height: int, lines: list[str]) -> bool:
    """The last line of the screen is that of the keys."""
    return len(lines) == height and lines[-1].lstrip().startswith("q quit")


@pytest.mark.slow
def test_a_person_watches_a_broker_with_traffic(broker: Broker, tmp_path: Path) -> None:
    with traffic(broker), Terminal(tmp_path / "tmux", columns=100, lines=30) as terminal:
        watch(terminal, broker)
        see(terminal, "quarry of DefaultCluster", "[1 overview]", "ready ", "migration phase rocksdb")
        terminal.until(lambda lines: cells(lines, "audit")[:2] == ["8", "1"], "what audit has not read")
        terminal.press("2")
        see(terminal, "[2 topics]", "2 of 3 topics, busiest first", "orders", "payments")
        terminal.press("/")
        terminal.press("PAY")
        lines = see(terminal, '1 topic with "PAY"')
        assert not cells(lines, "orders")
        terminal.press("Enter")
        terminal.until(lambda lines: "PAY" not in lines[-2], "the filter is kept")
        terminal.press("Enter")
        see(terminal, "topic payments", "GROUPS 1")
        terminal.press("Escape")
        see(terminal, "[2 topics]")
        terminal.press("4")
        see(terminal, "SENDS in the last", "% ", " most")
        terminal.press("5")
        see(terminal, "JOBS 0 open", "[rocksdb]", "next refused: the migration is complete")
        terminal.press("q")
        lines = see(terminal, "status=0")
        assert not any("Traceback" in line for line in lines)


@pytest.mark.slow
def test_a_broker_that_is_killed_is_missed_and_found_again(broker: Broker, tmp_path: Path) -> None:
    with Terminal(tmp_path / "tmux", columns=100, lines=30) as terminal:
        with traffic(broker, "refunds", "review"):
            watch(terminal, broker)
            terminal.until(lambda lines: cells(lines, "review")[:2] == ["8", "1"], "what review has not read")
            terminal.until(lambda lines: cells(lines, "in")[:1] not in ([], ["0"], ["unknown"]), "the rate of sends")
        broker.kill()
        lines = see(terminal, "no answer", "NO ANSWER since", "The data shown is OLD")
        assert cells(lines, "review")[:2] == ["8", "1"]
        for columns, height in ((80, 24), (40, 24), (40, 10), (24, 6), (120, 40)):
            terminal.resize(columns, height)
            terminal.until(partial(is_whole, height), f"the screen of {columns} x {height}")
        broker.start()
        lines = terminal.until(lambda lines: "ready " in lines[1] and "NO ANSWER" not in "".join(lines), "it is back")
        terminal.resize(40, 24)
        for key in "2345":
            terminal.press(key)
            see(terminal, f"[{key} ")
        terminal.press("C-c")
        lines = see(terminal, "status=0")
        assert not any("Traceback" in line for line in lines)


def test_a_terminal_that_cannot_be_drawn_on_gets_it_once(broker: Broker, tmp_path: Path) -> None:
    with Terminal(tmp_path / "tmux", columns=100, lines=70) as terminal:
        watch(terminal, broker, TERM="dumb", LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
        lines = see(terminal, "status=0")
    assert "the terminal (TERM=dumb) cannot be drawn on: printing once" in lines
    assert any(line.startswith("quarry of DefaultCluster") for line in lines)
    assert all(line.isascii() for line in lines)


def test_ctrl_c_ends_json_as_it_ends_other_commands(broker: Broker, tmp_path: Path) -> None:
    with Terminal(tmp_path / "tmux", columns=100, lines=30) as terminal:
        watch(terminal, broker, "--json")
        see(terminal, '"problems":{}')
        terminal.press("C-c")
        see(terminal, "status=130")
