"""File systems that are full, read-only or too small: real ones in memory, so these tests need the right to mount.

What must hold: nothing acknowledged is lost, refusals are answers in the protocol's own words, and the broker goes
on when there is room again.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests import golden
from tests.e2e.broker import Broker, environment_of, quarry, until
from tests.e2e.load.raw_client import Refused
from tests.hostile.caller import Client
from tests.hostile.conftest import SETTINGS

pytestmark = pytest.mark.slow

TOPIC: Final = "orders"
SMALL_SEGMENTS: Final = {
    **SETTINGS,
    "store.segment_size": "2MiB",
    "limits.body_size": "256KiB",
    "store.queue_flush_size": "1MiB",
}
INVISIBLE_S: Final = 3
RECOVERY_S: Final = 30.0
"""RocksDB looks for room every five seconds."""

Mount = Callable[[int], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """`mount(30)` is an empty file system of 30 MiB."""
    mounted: list[Path] = []

    def make(mebibytes: int) -> Path:
        path = tmp_path / f"mounted-{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "quarry-test", str(path)],
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"no right to mount: {done.stderr.decode().strip()}")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


def remount(path: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


def fill_up(path: Path) -> None:
    """Leave no block free."""
    with (path / "something-else").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - the end of the loop


class Sender:
    """Sends until it is refused, and knows what was acknowledged."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sent = 0
        self.acknowledged: set[str] = set()
        self.refusals: Counter[str] = Counter()

    def send(self, count: int, size: int = 20_000) -> int:
        """How many of them were taken."""
        before = len(self.acknowledged)
        for _ in range(count):
            self._sent += 1
            message_id = f"m{self._sent:05d}"
            try:
                self._client.send(TOPIC, message_id, size)
            except Refused as refused:
                self.refusals[str(refused).partition(":")[0]] += 1
            else:
                self.acknowledged.add(message_id)
        return len(self.acknowledged) - before


def harvest(client: Client, group: str) -> set[str]:
    """All that a group gets. Raises Refused."""
    got: set[str] = set()
    while received := client.receive(group, TOPIC, polling_s=0.1, invisible_s=INVISIBLE_S):
        got.update(received)
    return got


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Path], Broker]]:
    brokers: list[Broker] = []

    def make(store: Path) -> Broker:
        broker = Broker(store, logs=tmp_path / "logs", environment=environment_of(SMALL_SEGMENTS))
        brokers.append(broker)
        return broker.start()

    yield make
    for broker in brokers:
        broker.close()


def test_a_log_that_finds_no_room_refuses_sends_until_there_is_some(
    mount: Mount, start: Callable[[Path], Broker]
) -> None:
    disk = mount(30)
    broker = start(disk / "store")
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        taken = sender.send(1_600)
        assert 1_000 < taken < 1_600
        assert set(sender.refusals) == {"TOO_MANY_REQUESTS"}
        status, words = broker.get("/readyz")
        assert status == 200, "consumers are served"
        assert words.startswith("ready, but sends are refused: the commit log cannot grow")
        assert harvest(client, "while-full") == sender.acknowledged
        remount(disk, "size=60m")
        assert sender.send(100) == 100
        assert broker.get("/readyz") == (200, "ready\n")
        assert harvest(client, "afterwards") == sender.acknowledged
    broker.stop()
    assert (broker.start(), broker.get("/readyz"))[1] == (200, "ready\n")
    with Client(broker.endpoint) as client:
        assert harvest(client, "after-a-restart") == sender.acknowledged
    broker.stop()


def test_above_the_threshold_sends_are_refused_and_consumers_are_served(mount: Mount, tmp_path: Path) -> None:
    """rmq#4549: a nearly full disk deletes what nobody has read; here only if wanted, and then it is told."""
    disk = mount(60)
    settings = {
        **SMALL_SEGMENTS,
        "expiry.refuse_percent": 90,
        "expiry.interval_ms": 100,
        "expiry.start_delay_ms": 0,
    }
    ballast = disk / "something-else"
    broker = Broker(disk / "store", logs=tmp_path / "logs", environment=environment_of(settings))
    with closing(broker.start()), Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(1_200) == 1_200
        client.subscribe("slow", TOPIC)
        ballast.write_bytes(bytes(31 << 20))
        until(lambda: "sends are refused" in broker.get("/readyz")[1], "the disk is too full")
        assert sender.send(3) == 0
        assert set(sender.refusals) == {"TOO_MANY_REQUESTS"}
        assert harvest(client, "quick") == sender.acknowledged
        ballast.unlink()
        until(lambda: broker.get("/readyz")[1] == "ready\n", "there is room again")
        assert sender.send(1) == 1
        broker.stop()
    ballast.write_bytes(bytes(31 << 20))
    forced = Broker(
        disk / "store", logs=tmp_path / "logs", environment=environment_of({**settings, "expiry.force": "true"})
    )
    with closing(forced.start()), Client(forced.endpoint) as client:
        until(lambda: forced.get("/readyz")[1] == "ready\n", "the oldest segments make room")
        until(lambda: "expired segment removed" in forced.words(last=100_000), "they are removed")
        assert not (disk / "store" / "commitlog" / f"{0:020d}").exists()
        newest = max(sender.acknowledged)
        got = harvest(client, "slow")
        assert newest in got
        assert got < sender.acknowledged, "the oldest are gone"
        assert "messages expired that groups had not read" in forced.words(last=100_000)
        forced.stop()


def test_delivery_without_a_free_block_is_refused_and_loses_nothing(
    mount: Mount, start: Callable[[Path], Broker]
) -> None:
    """What was handed out while its rows could not be written must come again, also after a restart."""
    disk = mount(30)
    broker = start(disk / "store")
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(400) == 400
        client.subscribe("workers", TOPIC)
        got = set(client.receive("workers", TOPIC, invisible_s=INVISIBLE_S))
        fill_up(disk)
        refusals: list[str] = []
        while len(refusals) < 10:
            try:
                got.update(client.receive("workers", TOPIC, polling_s=0, invisible_s=INVISIBLE_S))
            except Refused as error:
                refusals.append(str(error).partition(":")[0])
        assert set(refusals) == {"TOO_MANY_REQUESTS"}
        sender.send(300, size=100)
        assert set(sender.refusals) <= {"TOO_MANY_REQUESTS"}
        assert broker.get("/healthz") == (200, "live\n")
        _assert_administration_is_refused(broker)
        (disk / "something-else").unlink()
        freed_s = time.monotonic()
        while not _takes_again(client, got):
            assert time.monotonic() < freed_s + RECOVERY_S, "delivery does not go on though there is room"
            time.sleep(0.5)
        print(f"delivery went on {time.monotonic() - freed_s:.1f} s after there was room")
        assert sender.send(50) == 50
        assert harvest(client, "others") == sender.acknowledged
    broker.kill()
    broker.start()
    with Client(broker.endpoint) as client:
        restarted_s = time.monotonic()
        while got != sender.acknowledged:
            assert time.monotonic() < restarted_s + 10 * INVISIBLE_S, f"{len(sender.acknowledged - got)} are missing"
            got |= harvest(client, "workers")
        assert harvest(client, "new-group") == sender.acknowledged
    broker.stop()


def test_queues_that_find_no_room_go_on_by_themselves_when_there_is_some(
    mount: Mount, start: Callable[[Path], Broker]
) -> None:
    """What was acknowledged before a flush of the queues failed is in the log, and is seen once they can be written."""
    disk = mount(100)
    broker = start(disk / "store")
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(10) == 10
        fill_up(disk)
        assert sender.send(400) < 400
        assert set(sender.refusals) == {"TOO_MANY_REQUESTS"}
        status, words = broker.get("/readyz")
        assert status == 200, "consumers are served"
        assert words.startswith("ready, but sends are refused: the disk is full: IO error: No space left on device")
        (disk / "something-else").unlink()
        freed_s = time.monotonic()
        while not sender.send(1):
            assert time.monotonic() < freed_s + RECOVERY_S, "no sends are taken though there is room"
            time.sleep(0.5)
        print(f"sends were taken again {time.monotonic() - freed_s:.1f} s after there was room")
        assert broker.get("/readyz") == (200, "ready\n")
        assert sender.send(50) == 50
        assert harvest(client, "afterwards") == sender.acknowledged
        fill_up(disk)
        sender.send(400)
        assert broker.get("/readyz")[1] != "ready\n"
    broker.stop()
    (disk / "something-else").unlink()
    assert (broker.start(), broker.get("/readyz"))[1] == (200, "ready\n")
    with Client(broker.endpoint) as client:
        assert harvest(client, "after-a-stop-while-full") == sender.acknowledged
    broker.stop()


def _assert_administration_is_refused(broker: Broker) -> None:
    for command in (
        ("group", "create", "new"),
        ("group", "reset-offset", "--yes", "workers", "--topic", TOPIC, "--to", "latest"),
    ):
        done = quarry(*command, "--admin", broker.admin)
        assert done.returncode == 2, (command, done.stdout)
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"{broker.admin}: resource exhausted: the disk is full: ")
        assert "quarry" in line  # the database, or a file of it
        assert str(broker.store) not in line, "where the store lies is in the log"


def _takes_again(client: Client, got: set[str]) -> bool:
    try:
        got.update(client.receive("workers", TOPIC, invisible_s=INVISIBLE_S))
    except Refused:
        return False
    return True


def test_read_only_and_tiny_file_systems_are_refused_by_name(mount: Mount, tmp_path: Path) -> None:
    disk = mount(40)
    _copy_golden("rocks-clean", tmp_path, disk)
    remount(disk, "ro")
    for store in (disk / "store", disk / "new"):
        line = _refusal(store)
        assert line.startswith(str(store))
        assert line.endswith(os.strerror(errno.EROFS))
    done = quarry("decode", str(disk / "store"), "--limit", "1", "--json")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), "reading needs no right to write"
    small = mount(1)
    line = _refusal(small / "store")
    assert line.startswith(f"{small / 'store' / 'commitlog'}: the first segment needs {2 << 20} bytes")
    tiny = mount(1)
    fill_up(tiny)
    line = _refusal(tiny / "store")
    assert line.startswith(str(tiny / "store"))
    assert "No space left on device" in line


def test_a_store_with_holes_on_a_full_disk_is_refused_and_not_killed_by_a_signal(mount: Mount, tmp_path: Path) -> None:
    """RocketMQ leaves the unwritten rest of a segment as a hole; writing there through a mapping is SIGBUS."""
    disk = mount(40)
    _copy_golden("file-clean", tmp_path, disk)
    fill_up(disk)
    line = _refusal(disk / "store")
    assert line.startswith(str(disk / "store"))
    assert "No space left on device" in line


def _copy_golden(name: str, unpack_in: Path, disk: Path) -> None:
    """With its holes, as RocketMQ left it."""
    unpacked = golden.unpack(name, unpack_in / "golden") / "store"
    subprocess.run(["cp", "-r", "--sparse=always", str(unpacked), str(disk / "store")], check=True)


def _refusal(store: Path) -> str:
    done = quarry(
        "serve", "--store", str(store), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--http", "127.0.0.1:0",
        environment=environment_of(SMALL_SEGMENTS),
    )  # fmt: skip
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    return line
