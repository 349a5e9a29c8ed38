"""Messaging ports of shards stay open while a shard is away."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.cli.demo import free_ports
from tests.e2e.broker import environment_of, quarry, until
from tests.e2e.clients import Outgoing, Producer
from tests.e2e.conftest import QUICK, StartClients, start_clients
from tests.shards.conftest import RunPrograms
from tests.shards.running import Supervisor, flags, kill, ports_of_two_shards, reachable

__all__ = ["start_clients"]

SLOW_S: Final = 0.5
ANSWER_ONE: Final = """
import os, socket
assert os.environ["LISTEN_PID"] == str(os.getpid())
passed = [socket.socket(fileno=3 + each) for each in range(int(os.environ["LISTEN_FDS"]))]
print("ports", *(each.getsockname()[1] for each in passed), flush=True)
connection, _ = passed[0].accept()
connection.sendall(connection.recv(100))
"""


def test_who_connects_while_a_shard_is_away_waits_for_the_next_one(run_programs: RunPrograms) -> None:
    first, second = free_ports(2)
    supervisor = run_programs(
        f"exec {sys.executable} -c '{ANSWER_ONE}'", kept_open=[f"127.0.0.1:{first}", f"localhost:{second}"]
    )
    supervisor.until_said(f"shard-0 | ports {first} {second}")
    for number in (1, 2):
        with socket.create_connection(("127.0.0.1", first), timeout=20) as connection:
            connection.sendall(b"%d" % number)
            assert connection.recv(100) == b"%d" % number
        until(
            lambda: len(supervisor.events("a shard has ended, it is started again")) == number,  # noqa: B023 - `until` calls it at once
            "the shard has ended",
        )
    # it has died twice within a minute, and comes back after a longer pause
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", first), timeout=20)
    supervisor.until_said(f"shard-0 | ports {first} {second}", times=3)


def test_a_port_that_is_taken_is_the_shard_s_to_tell(run_programs: RunPrograms) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        supervisor = run_programs("echo ${LISTEN_FDS:-none}; exit 2", kept_open=[f"127.0.0.1:{taken.getsockname()[1]}"])
        assert supervisor.ended() == 2
        assert supervisor.output[0] == "shard-0 | none"


class Sender:
    """Sends to a topic without a pause, and counts what its client library raised."""

    def __init__(self, producer: Producer, message_groups: list[str | None]) -> None:
        self._producer = producer
        self._message_groups = message_groups
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.sent = 0
        self.longest_s = 0.0
        self.slow = 0
        self.raised: Counter[str] = Counter()
        self._thread.start()

    def _send(self) -> None:
        while not self._stop.is_set():
            for group in self._message_groups:
                topic = "orders" if group is None else "ledger"
                message = Outgoing(topic, b"body", message_group=group)
                began_s = time.monotonic()
                (receipt,) = self._producer.request("send", messages=[message.line()])["receipts"]
                took_s = time.monotonic() - began_s
                self.longest_s = max(self.longest_s, took_s)
                self.slow += took_s > SLOW_S
                self.sent += 1
                if "error" in receipt:
                    self.raised[receipt["error"]["text"][:200]] += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def stats(self) -> dict[str, object]:
        return {
            "sent": self.sent,
            "raised": self.raised.total(),
            "slow": self.slow,
            "longest_s": round(self.longest_s, 2),
        }


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[tuple[Supervisor, list[int]]]:
    ports = ports_of_two_shards()
    arguments = ["quarry_mq.cli.main", "serve", "--shards", "2", *flags(tmp_path / "store", ports)]
    supervisor = Supervisor(arguments, tmp_path, environment=environment_of(QUICK))
    try:
        supervisor.until_said("2 shards are ready.")
        yield supervisor, ports
    finally:
        supervisor.close()


@pytest.mark.slow
def test_sends_go_on_while_shards_are_killed(
    shards: tuple[Supervisor, list[int]], start_clients: StartClients, tmp_path: Path
) -> None:
    supervisor, ports = shards
    admin = f"127.0.0.1:{ports[1]}"
    for topic, kind in (("orders", "normal"), ("ledger", "fifo")):
        done = quarry("topic", "create", topic, "--type", kind, "--queues", "2", "--admin", admin)
        assert done.returncode == 0, done.stderr
    until(lambda: reachable(ports[1]) == ["quarry-0", "quarry-1"], "they are one cluster")
    clients = start_clients("python", f"127.0.0.1:{ports[0]}")
    senders = {
        "ordinary": Sender(clients.producer("orders"), [None]),
        "of message groups": Sender(clients.producer("ledger"), [f"group-{each}" for each in range(8)]),
    }
    for shard in ("shard-1", "shard-0"):
        time.sleep(2)
        kill(supervisor.process_of(shard))
        supervisor.until_said(f"{shard} | Quarry is ready.", times=2)
    time.sleep(2)
    for sender in senders.values():
        sender.stop()
    stats = {name: sender.stats() for name, sender in senders.items()}
    print(json.dumps(stats))
    (tmp_path / "figures.json").write_text(json.dumps(stats))
    for sender in senders.values():
        assert sender.sent > 100
        assert not sender.raised, stats
