"""Damage that an operator gives up: what is whole stays, what is not is kept aside and replaced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from quarry_mq.kv import EngineCorrupt
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.errors import MessageGivenUp, StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.opening.repair import Damage, Orders, find_damage, replace_all
from quarry_mq.store.record import Corrupt, StoredMessage, Torn
from quarry_mq.store.recovery.verdict import Stop
from quarry_mq.store.settings import StoreSettings
from tests.faults.disk import FaultyDisk, PowerCut
from tests.store.assembly import LOG, SEGMENT_SIZE, assemble, message, queue_engine
from tests.store.test_golden_stores import entries_of, opened, records_of

QUEUE = QueueId("orders", 0)
GIVE_UP = Orders(replace_damaged=True)


def repaired(root: Path, orders: Orders = GIVE_UP) -> OpenStore:
    return open_store(
        StoreSettings(root=root), disk=PosixDisk(), clock=SystemClock(), report=lambda _: None, orders=orders
    )


@dataclass
class Log:
    """A log in several segments, all of it durable."""

    disk: FaultyDisk
    places: list[tuple[int, int]]
    end: PhysicalOffset

    def content(self) -> bytes:
        return b"".join(self.disk.read(path) for path in sorted(self.disk.files) if path.parent == LOG)

    def write(self, at: int, data: bytes) -> None:
        """Overwrite, in whatever segments the bytes lie."""
        while data:
            base = at - at % SEGMENT_SIZE
            piece = data[: base + SEGMENT_SIZE - at]
            segment = self.disk.open_segment(LOG / f"{base:020d}", writable=True)
            segment.write(at - base, piece)
            segment.flush()
            at, data = at + len(piece), data[len(piece) :]

    def damage(self, stop: Stop = Stop.UNCLEAN, durable_up_to: PhysicalOffset | None = None) -> Damage:
        up_to = self.end if durable_up_to is None else durable_up_to
        return find_damage(self.disk, LOG, durable_up_to=up_to, stop=stop, report=lambda _: None)


def log_of(seed: int, records: int = 120) -> Log:
    chance = Random(seed)
    disk = FaultyDisk()
    live = assemble(disk, queue_engine())
    places = []
    for number in range(records):
        body = b"" if chance.random() < 0.1 else chance.randbytes(chance.randrange(1, 4_000))
        (each,) = live.store.append([message("o" if number % 4 else "orders", number % 3, body)])
        places.append((int(each.physical_offset), each.size))
    return Log(disk, places, live.store.flush())


def whole(log: Log) -> dict[int, int]:
    """Place and size of every record a reader meets that is no replacement; fails when it cannot get to the end."""
    segments = SegmentList(log.disk, LOG, None, writable=False)
    found = {}
    for each in CommitLogReader(segments).scan(segments.minimum):
        assert not isinstance(each, Torn | Corrupt), each
        if isinstance(each, StoredMessage) and each.topic != "~":
            found[int(each.physical_offset)] = each.size
    return found


@pytest.mark.parametrize("seed", range(20))
def test_every_record_that_is_not_touched_is_kept(seed: int) -> None:
    chance = Random(seed)
    log = log_of(seed)
    lost = set()
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(log.end)
        length = chance.choice((1, 4, 100, 512, 4_096, 10_000))
        length = min(length, log.end - at)
        before = log.content()[at : at + length]
        data = chance.choice((bytes(length), bytes(byte ^ 0x55 for byte in before), chance.randbytes(length)))
        log.write(at, data)
        if data != before:
            lost |= {place for place, size in log.places if place < at + length and place + size > at}
    replace_all(log.disk, LOG, log.damage())
    found = whole(log)
    assert {place: size for place, size in log.places if place not in lost}.items() <= found.items(), f"{seed=}"
    assert not log.damage(), f"done once, nothing is left to do: {seed=}"
    engine = queue_engine()
    assert assemble(log.disk, engine, flushed_up_to=log.end).report.end == log.end, f"{seed=}"


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_write_leaves_a_repair_that_can_be_done_again(seed: int) -> None:
    chance = Random(seed)
    log = log_of(seed, records=40)
    lost = chance.sample(range(len(log.places)), 6)
    for number in lost:
        at, size = log.places[number]
        log.write(at + chance.randrange(size // 2), b"\xff\x00\xff")
    before = log.content()
    for crash_at in range(1, 60):
        disk = log.disk.process_death()
        disk.files = {path: type(file)(bytes(file.live)) for path, file in log.disk.files.items()}
        disk.crash_at = crash_at
        trial = Log(disk, log.places, log.end)
        try:
            replace_all(disk, LOG, trial.damage())
            finished = True
            disk.crash_at = None
        except PowerCut:
            finished = False
            trial.disk = disk.power_loss(seed)
        replace_all(trial.disk, LOG, trial.damage())
        kept = {
            place
            for place, size in log.places
            if all(not place <= log.places[number][0] < place + size for number in lost)
        }
        assert kept <= whole(trial).keys(), f"{seed=} {crash_at=}"
        assert not trial.damage(), f"{seed=} {crash_at=}"
        copies = [trial.disk.read(path) for path in trial.disk.files if path.parent == LOG / "broken"]
        for number in lost:
            at, size = log.places[number]
            assert any(before[at : at + size].rstrip(b"\0") in copy for copy in copies), f"{seed=} {crash_at=}"
        if finished:
            return
    raise AssertionError("the repair takes more writes than are tried")


def test_a_repair_that_has_ended_outlives_a_power_cut() -> None:
    """A start that follows writes behind it, and groups were set back for it: it must not be to do again."""
    for seed in range(20):
        log = log_of(seed, records=40)
        for number in (3, 17, 30):
            at, size = log.places[number]
            log.write(at + size // 2, b"\xff\x00\xff")
        kept_before = {path for path in log.disk.files if path.parent == LOG / "broken"}
        replace_all(log.disk, LOG, log.damage())
        repaired, copies = whole(log), log.disk.files.keys() - kept_before
        after = Log(log.disk.power_loss(seed), log.places, log.end)
        assert not after.damage(), f"{seed=}"
        assert whole(after) == repaired, f"{seed=}"
        assert after.disk.files.keys() >= copies, f"{seed=}"


def test_a_record_in_the_body_of_a_damaged_one_is_not_taken_for_the_next() -> None:
    """A producer may send anything, such as a piece of the log it is about to be in."""
    log = log_of(3, records=5)
    inner = bytearray(log.content()[log.places[0][0] : sum(log.places[0])])
    disk = FaultyDisk()
    live = assemble(disk, queue_engine())
    live.store.append([message(body=b"before")])
    first = live.store.appended_up_to
    place = first + 88
    inner[28:36] = place.to_bytes(8, "big")
    live.store.append([message(body=bytes(inner) + b"rest")])
    later = live.store.append([message(body=b"behind")])[0]
    trial = Log(disk, [], live.store.flush())
    trial.write(first + 10, b"\xff")  # a bit of the body's CRC: the size is as it was
    (stretch,) = trial.damage().stretches
    assert (stretch.begin, stretch.end) == (first, later.physical_offset)


def test_what_was_not_durable_is_left_to_recovery() -> None:
    log = log_of(1)
    log.write(log.places[80][0] + 4, b"\xff")
    durable = PhysicalOffset(log.places[70][0])
    assert not log.damage(durable_up_to=durable)
    (stretch,) = log.damage(Stop.CLEAN, durable_up_to=durable).stretches
    assert stretch.begin == log.places[80][0], "a clean stop flushes everything"


def damaged_store(root: Path, numbers: list[int], count: int = 10) -> None:
    """A store that was killed, with damage in these messages of the queue, which were told durable."""
    live = opened(root.with_name("live"), segment_size=1 << 20)
    places = live.messages.append([message(body=b"%d" % number * 50) for number in range(count)])
    live.messages.flush()
    live.messages.dispatch(live.messages.flushed_up_to)
    live.messages.flush_queues()
    live.identity.flushed_up_to = live.messages.flushed_up_to
    shutil.copytree(root.with_name("live"), root)
    live.close()
    for number in numbers:
        place = places[number]
        with (StorePaths(root).commit_log / f"{0:020d}").open("r+b") as file:
            file.seek(place.physical_offset + 100)
            file.write(b"\xff\xff")


def bodies(messages: MessageStore) -> list[bytes | None]:
    """Every message of the queue, None for one that was given up."""
    found: list[bytes | None] = []
    for entry in messages.entries(QUEUE, QueueOffset(0), 1_000):
        try:
            found.append(bytes(messages.read(entry).body))
        except MessageGivenUp:
            found.append(None)
    return found


@pytest.mark.parametrize("numbers", [[0], [3], [3, 4, 5], [9], [0, 9], list(range(10))])
def test_a_store_opens_again_and_hands_out_everything_else(numbers: list[int], tmp_path: Path) -> None:
    root = tmp_path / "store"
    damaged_store(root, numbers)
    store = repaired(root)
    expected = [None if number in numbers else b"%d" % number * 50 for number in range(10)]
    assert bodies(store.messages) == expected
    assert store.messages.append([message(body=b"next")])[0].queue_offset == 10, "numbers are not used again"
    store.messages.dispatch(store.messages.flush())
    store.close()
    store = opened(root)
    assert bodies(store.messages) == [*expected, b"next"]
    store.close()
    assert {path.suffix for path in (StorePaths(root).commit_log / "broken").iterdir()} == {".broken"}


def test_without_the_order_nothing_is_replaced(tmp_path: Path) -> None:
    live = opened(tmp_path / "live", segment_size=1 << 20)
    places = live.messages.append([message(body=b"%d" % number * 50) for number in range(10)])
    live.messages.flush()
    live.checkpoint.save()
    root = shutil.copytree(tmp_path / "live", tmp_path / "store")
    live.close()
    segment = StorePaths(root).commit_log / f"{0:020d}"
    with segment.open("r+b") as file:
        file.seek(places[4].physical_offset + 120)
        file.write(b"\xff")
    before = segment.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"quarry recover .*/store --replace-damaged"):
            opened(root)
    assert segment.read_bytes() == before
    store = repaired(root)
    store.messages.dispatch(store.messages.flush())
    assert bodies(store.messages) == [b"%d" % number * 50 for number in range(10) if number != 4]
    store.close()


def test_an_end_whose_segments_are_gone_is_given_up(golden_copy: Callable[[str], Path]) -> None:
    """Groups that stood behind it are set back, or they would pass over what comes in its place."""
    root = golden_copy("rocks-clean") / "store"
    opened(root).close()
    log = StorePaths(root).commit_log
    (log / f"{2_097_152:020d}").unlink()
    with pytest.raises(StoreDamaged, match="the files end there"):
        opened(root)
    store = repaired(root)
    assert store.given_up is not None
    assert store.given_up.tail_is_lost
    assert store.recovery.end == 2_097_152
    for group in store.groups.list():
        for queue, offset in store.offsets.of_group(group.name):
            assert offset <= store.messages.bounds(queue).maximum
    store.close()
    opened(root).close()


@pytest.mark.parametrize("name", ["file-clean", "rocks-clean"])
def test_damage_that_a_start_does_not_come_across_is_found_too(name: str, golden_copy: Callable[[str], Path]) -> None:
    """After a clean stop only what lies behind the queues' watermark is read."""
    root = golden_copy(name) / "store"
    damaged = records_of(root.parent)[1_000]
    with (StorePaths(root).commit_log / f"{0:020d}").open("r+b") as file:
        file.seek(damaged["phyOffset"] + 100)
        file.write(b"\xff\xff")
    store = repaired(root)
    assert store.given_up is not None
    (stretch,) = store.given_up.stretches
    assert (stretch.begin, stretch.end) == (damaged["phyOffset"], damaged["phyOffset"] + damaged["storeSize"])
    last = records_of(root.parent)[-1]
    assert store.recovery.end == last["phyOffset"] + last["storeSize"]
    store.close()


@pytest.mark.parametrize("name", ["rocks-clean", "file-clean", "double-clean"])
def test_damaged_queues_are_made_again(name: str, golden_copy: Callable[[str], Path]) -> None:
    """rmq#9705: a database that a power cut damaged kept the broker from starting."""
    root = golden_copy(name) / "store"
    store = opened(root)
    before = {queue: entries_of(store.messages, queue) for queue in store.messages.iterate_queues()}
    store.close()
    paths = StorePaths(root)
    (directory,) = (path for path in (paths.consume_queue, paths.consume_queue_rocksdb) if (path / "CURRENT").exists())
    topics = {path.name for path in directory.iterdir() if path.is_dir()}
    (directory / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    with pytest.raises(StoreDamaged, match=r"quarry recover .*store --rebuild-queues"):
        opened(root)
    store = repaired(root, Orders(rebuild_queues=True))
    after = {queue: entries_of(store.messages, queue) for queue in store.messages.iterate_queues()}
    if name == "double-clean":
        # nobody knows any more where double write began, so light queues are numbered as their records say
        before, after = ({each: rows[each] for each in rows if "%LMQ%" not in each.topic} for rows in (before, after))
    assert after == before
    store.close()
    aside = directory.with_name(f"{directory.name}.set-aside-0")
    assert (aside / "CURRENT").exists()
    assert {path.name for path in directory.iterdir() if path.is_dir()} >= topics, "queue files stay where they are"


def test_setting_the_queues_aside_can_be_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    damaged_store(root, [])
    expected = [b"%d" % number * 50 for number in range(10)]
    with ExitStack() as moving:
        count = 0

        def move(disk: PosixDisk, path: Path, target: Path) -> None:
            nonlocal count
            count += 1
            if count == 3:
                raise PowerCut
            path.rename(target)

        patched = moving.enter_context(monkeypatch.context())
        patched.setattr(PosixDisk, "move", move)
        with suppress(PowerCut):
            repaired(root, Orders(rebuild_queues=True))
    with pytest.raises((StoreDamaged, EngineCorrupt)):
        opened(root)
    store = repaired(root, Orders(rebuild_queues=True))
    assert bodies(store.messages) == expected
    store.close()
