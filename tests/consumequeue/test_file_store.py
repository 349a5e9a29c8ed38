"""File queues as RocketMQ writes them: the same bytes, a bounded number of descriptors, and no trust after a crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random

import pytest

from quarry_mq.kv import EngineFull, KvError
from quarry_mq.store.consumequeue import FileConsumeQueues
from quarry_mq.store.consumequeue.files.layout import ENTRY, ENTRY_SIZE, FILLER_SIZE
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset
from tests.consumequeue.backings import UNITS_PER_FILE, FileBacking
from tests.consumequeue.samples import A0, A1, B0, LITE, offsets, physical, put, request
from tests.consumequeue.test_golden_stores import requests_of
from tests.descriptors import descriptors_below
from tests.faults.disk import FaultyDisk, PowerCut
from tests.faults.kernel import Kernel

GoldenStore = Callable[[str], Path]


@pytest.fixture
def backing(tmp_path: Path) -> FileBacking:
    return FileBacking(tmp_path / "consumequeue")


def files_below(directory: Path) -> dict[str, bytes]:
    """Unwritten units at a file's end are left out: RocketMQ and Quarry may make them of other lengths."""
    return {
        str(path.relative_to(directory)): path.read_bytes().rstrip(b"\0")
        for path in sorted(directory.rglob("0*"))
        if path.is_file()
    }


def densely(requests: list[DispatchRequest]) -> list[DispatchRequest]:
    """Light queues numbered by index, as file queues number them (`store.consumequeue.dispatch.DenseAssignment`)."""
    lengths: dict[str, int] = {}
    assigned = []
    for each in requests:
        lights = []
        for name, _ in each.light_queues:
            lights.append((name, QueueOffset(lengths.get(name, 0))))
            lengths[name] = lengths.get(name, 0) + 1
        assigned.append(each._replace(light_queues=tuple(lights)))
    return assigned


@pytest.mark.parametrize("name", ["file-clean", "file-kill"])
def test_the_same_bytes_as_rocketmq(golden_store: GoldenStore, tmp_path: Path, name: str) -> None:
    """Promise 1 across brokers: queues are a function of the log, whoever computes it."""
    theirs = golden_store(name) / "store/consumequeue"
    requests = densely(requests_of(golden_store(name)))
    some_file = next(path for path in theirs.rglob("0*") if path.is_file() and path.stat().st_size)
    queues = FileConsumeQueues(
        PosixDisk(),
        tmp_path / "ours",
        minimum_physical_offset=PhysicalOffset(0),
        dispatched_up_to=None,
        save_dispatched=lambda _, *, emptied: None,
        after_crash=False,
        units_per_file=some_file.stat().st_size // ENTRY_SIZE,
        cached_queues_max=16,
        open_files_max=4,
    )
    for start in range(0, len(requests), 64):
        queues.put(requests[start : start + 64], PhysicalOffset(0))
    queues.close()
    assert files_below(tmp_path / "ours") == {path: data for path, data in files_below(theirs).items() if data}


def test_rocketmqs_files_are_gone_on_with_in_place(golden_copy: GoldenStore) -> None:
    directory = golden_copy("file-clean") / "store/consumequeue"
    queue = QueueId("acme-orders", 0)
    queues = FileBacking(directory).open()
    before = queues.next_offset(queue)
    sizes = {path.stat().st_size for path in directory.rglob("0*") if path.is_file()}
    put(queues, [request(10_000_000, queue, before)])
    queues.flush()
    assert queues.bounds(queue) == (0, before + 1)
    assert {path.stat().st_size for path in directory.rglob("0*") if path.is_file()} == sizes
    again = FileBacking(directory).open()
    assert again.entries(queue, before, 10)[0].physical_offset == physical(10_000_000)


def test_what_precedes_the_first_entry_is_filler(backing: FileBacking) -> None:
    """formats: a queue that begins above 0 has no earlier files, and filler in its first one."""
    queues = backing.open()
    put(queues, [request(1, A0, UNITS_PER_FILE + 2)])
    (only,) = (path for path in backing.directory.rglob("0*") if path.is_file())
    assert only.name == f"{UNITS_PER_FILE * ENTRY_SIZE:020d}"
    assert list(ENTRY.iter_unpack(only.read_bytes()))[:4] == [
        (0, FILLER_SIZE, 0),
        (0, FILLER_SIZE, 0),
        (physical(1), 100, -1),
        (0, 0, 0),
    ]
    assert queues.bounds(A0) == (UNITS_PER_FILE + 2, UNITS_PER_FILE + 3)
    assert offsets(backing.open(), A0) == [UNITS_PER_FILE + 2]


def test_descriptors_do_not_grow_with_the_queues(backing: FileBacking) -> None:
    queues = backing.open()
    before = descriptors_below(backing.directory)
    for at in range(3):
        put(queues, [request(100 * at + number, QueueId("TopicA", number), at) for number in range(100)])
    assert descriptors_below(backing.directory) <= before + 3
    assert [queues.bounds(QueueId("TopicA", number)) for number in range(100)] == [(0, 3)] * 100
    queues.close()
    assert descriptors_below(backing.directory) <= before


def test_names_that_are_no_file_names_have_no_queue(backing: FileBacking) -> None:
    """RocketMQ passes over light queues with a slash in file mode; nothing may be made outside of the directory."""
    queues = backing.open()
    put(queues, [request(0, A0, 0, ("%LMQ%../../up", 0), ("%LMQ%" + "x" * 300, 0), ("%LMQ%lite", 0))])
    assert list(queues.queues()) == [A0, LITE]
    assert queues.bounds(QueueId("%LMQ%../../up", 0)) == (0, 0)
    assert list(queues.queues("../..")) == []
    assert list(backing.directory.parent.iterdir()) == [backing.directory]


def test_a_file_of_another_size_is_refused_by_name(backing: FileBacking) -> None:
    put(backing.open(), [request(number, queue, 0) for number, queue in enumerate([A0, B0])])
    broken = backing.directory / "TopicB/0" / f"{0:020d}"
    with broken.open("ab") as file:
        file.write(b"more")
    with pytest.raises(StoreDamaged, match=r"TopicB/0/0+: has 144 bytes, the other queue files have 140"):
        backing.open().bounds(B0)


def test_a_short_file_is_completed_after_a_crash_and_refused_otherwise(backing: FileBacking) -> None:
    """A crash may take the length of a file that was never flushed; one that was flushed had its length for good."""
    put(backing.open(), [request(0, A0, 0), request(1, B0, 0)])
    backing.open().close()
    fresh, flushed = (backing.directory / topic / "0" / f"{0:020d}" for topic in ("TopicA", "TopicB"))
    for path in (fresh, flushed):
        os.truncate(path, 40)
    with pytest.raises(StoreDamaged, match="has 40 bytes"):
        backing.open().bounds(A0)
    backing.after_crash, backing.saved = True, physical(0)
    queues = backing.open_as_it_is()
    assert offsets(queues, A0) == [0]
    assert fresh.stat().st_size == UNITS_PER_FILE * ENTRY_SIZE
    backing.saved = physical(2)
    with pytest.raises(StoreDamaged, match=r"TopicB/0/0+: has 40 bytes"):
        backing.open_as_it_is().bounds(B0)


@pytest.mark.parametrize("before", [0, 3])
def test_an_entry_torn_while_it_was_zeroed_is_cut_off(backing: FileBacking, before: int) -> None:
    """Half of it zero: its size is still there, but not where its record is."""
    queues = backing.open()
    put(queues, [request(number, A0, 5 + number) for number in range(1, before + 2)])
    last = queues.bounds(A0).maximum - 1
    path = backing.directory / "TopicA/0" / f"{last // UNITS_PER_FILE * UNITS_PER_FILE * ENTRY_SIZE:020d}"
    with path.open("r+b") as file:
        file.seek(last % UNITS_PER_FILE * ENTRY_SIZE)
        file.write(bytes(8))
    again = backing.open()
    assert again.entries(A0, QueueOffset(last), 1)[0].physical_offset == 0
    again.truncate(physical(1_000))
    assert offsets(backing.open(), A0) == list(range(6, 6 + before))
    assert again.next_offset(A0) == last


@pytest.mark.parametrize("torn", [[2], [4], [2, 4], [3, 5]])
@pytest.mark.parametrize("durable", [0, 1, 2])
def test_after_a_crash_nothing_above_the_watermark_counts_torn_or_whole(
    backing: FileBacking, durable: int, torn: list[int]
) -> None:
    """A torn unit seems to lie further down in the log, and hides whole ones before and behind it from a search."""
    queues = backing.open()
    put(queues, [request(10 + number, A0, number) for number in range(6)])
    path = backing.directory / "TopicA/0" / f"{0:020d}"
    with path.open("r+b") as file:
        for number in torn:
            file.seek(number * ENTRY_SIZE)
            file.write(bytes(7))  # of its place in the log the last byte is left
    backing.saved, backing.after_crash = physical(10 + durable), True
    again = backing.open_as_it_is()
    again.remove_unflushed()
    assert offsets(again, A0) == list(range(durable))
    assert again.next_offset(A0) == durable
    assert path.read_bytes()[durable * ENTRY_SIZE :] == bytes((UNITS_PER_FILE - durable) * ENTRY_SIZE)


@pytest.mark.parametrize("whole", [1, 2, 4])
@pytest.mark.parametrize("durable", [0, 1])
def test_a_crash_in_the_middle_of_zeroing_leaves_no_entry_that_counts(
    backing: FileBacking, durable: int, whole: int
) -> None:
    """The zeros end in the middle of an entry, which then seems to lie where the log begins."""
    queues = backing.open()
    put(queues, [request(0 if number < durable else 10 + number, A0, number) for number in range(6)])
    path = backing.directory / "TopicA/0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(durable * ENTRY_SIZE)
        file.write(bytes(whole * ENTRY_SIZE + 7))
    backing.saved, backing.after_crash = physical(10), True
    again = backing.open_as_it_is()
    again.remove_unflushed()
    assert offsets(again, A0) == list(range(durable))
    assert again.next_offset(A0) == durable
    assert path.read_bytes()[durable * ENTRY_SIZE :] == bytes((UNITS_PER_FILE - durable) * ENTRY_SIZE)


def test_without_a_watermark_all_stays_until_the_log_was_read(backing: FileBacking) -> None:
    put(backing.open(), [request(number, A0, number) for number in range(3)])
    backing.saved, backing.after_crash = None, True
    again = backing.open_as_it_is()
    again.remove_unflushed()
    assert offsets(again, A0) == [0, 1, 2]


def test_files_of_expired_entries_are_removed_but_the_last(backing: FileBacking) -> None:
    queues = backing.open()
    count = 3 * UNITS_PER_FILE + 2
    put(queues, [request(number, A0, number) for number in range(count)])
    queues.set_minimum_physical_offset(physical(UNITS_PER_FILE + 1))
    assert list(queues.with_expired_files(physical(UNITS_PER_FILE - 1))) == [None]
    assert list(queues.with_expired_files(physical(UNITS_PER_FILE + 1))) == [A0]
    assert queues.remove_expired(A0, physical(UNITS_PER_FILE + 1), files_max=9) == (1, UNITS_PER_FILE)
    assert queues.bounds(A0) == (UNITS_PER_FILE + 1, count)
    queues.set_minimum_physical_offset(physical(1_000))
    assert queues.remove_expired(A0, physical(1_000), files_max=1) == (1, UNITS_PER_FILE)
    assert queues.remove_expired(A0, physical(1_000), files_max=9) == (1, UNITS_PER_FILE)
    assert queues.remove_expired(A0, physical(1_000), files_max=9) == (0, 0)
    assert list(queues.with_expired_files(physical(1_000))) == [None]
    assert queues.bounds(A0) == (count, count)
    assert backing.open(physical(1_000)).next_offset(A0) == count


def test_a_full_disk_is_told_as_such(backing: FileBacking) -> None:
    disk = FaultyDisk()
    queues = FileBacking(Path("/consumequeue"), disk).open()
    put(queues, [request(0, A0, 0)])
    disk.fail("write", error=28)
    with pytest.raises(EngineFull, match="00000000000000000000: No space"):
        put(queues, [request(1, A0, 1)])
    assert queues.bounds(A0) == (0, 1)
    disk.fail("flush")
    with pytest.raises(KvError):
        queues.flush()
    queues.flush()


HISTORY = [
    [
        request(number, (A0, A1, B0)[number % 3], number // 3, ("%LMQ%lite", number))
        for number in range(start, start + 6)
    ]
    for start in range(0, 42, 6)
]
EXPECTED = {A0: 14, A1: 14, B0: 14, LITE: 42}


CUT = physical(30)


def run_history(backing: FileBacking, begins_to_truncate: Callable[[], None] = lambda: None) -> None:
    queues = backing.open_as_it_is()
    for index, batch in enumerate(HISTORY):
        put(queues, batch)
        if index % 2:
            queues.flush()
    begins_to_truncate()
    queues.truncate(CUT)
    for batch in HISTORY[5:]:
        put(queues, batch)
    queues.flush()


def operations_of_history() -> int:
    disk = FaultyDisk()
    run_history(FileBacking(Path("/consumequeue"), disk))
    return disk.operations


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_operation_loses_nothing_below_the_watermark(seed: int) -> None:
    """The log says what is to come: queues are cut at its end and completed from the watermark on."""
    for crash_at in range(1, operations_of_history() + 1):
        backing = FileBacking(Path("/consumequeue"), FaultyDisk(crash_at=crash_at))
        log_ends: list[PhysicalOffset] = []
        with pytest.raises(PowerCut):
            run_history(backing, lambda log_ends=log_ends: log_ends.append(CUT))  # type: ignore[misc]
        assert isinstance(backing.disk, FaultyDisk)
        survivor = FileBacking(backing.directory, backing.disk.power_loss(seed), backing.saved)
        survivor.after_crash, survivor.units_per_file = True, UNITS_PER_FILE
        queues = survivor.open_as_it_is()
        # the watermark falls last: until then the log's end tells what the queues may have lost
        durable = min(survivor.saved or physical(0), *log_ends, physical(42))
        log = [each for batch in HISTORY for each in batch]
        for queue in EXPECTED:
            kept = {each.physical_offset for each in queues.entries(queue, QueueOffset(0), 100)}
            told = {each.physical_offset for each in log if queue in (LITE, (each.topic, each.queue_number))}
            assert {at for at in told if at < durable} <= kept <= told, (crash_at, queue)
        end = physical(36)
        queues.truncate(end)
        put(queues, [each for each in log if durable <= each.physical_offset < end] or [log[0]])
        for queue, count in EXPECTED.items():
            known = count * 36 // 42
            assert queues.bounds(queue) == (0, known), (crash_at, queue)
            assert offsets(queues, queue) == list(range(known)), (crash_at, queue)


@pytest.mark.parametrize("seed", range(20))
def test_an_entry_taken_away_by_a_recovery_that_was_killed_stays_away_after_a_power_cut(seed: int) -> None:
    """It would point at another record by then. The recovery after the kill sees it gone, in the cache."""
    kernel = Kernel(Random(seed))
    backing = FileBacking(kernel.path("/consumequeue"), kernel.disk())
    queues = backing.open()
    put(queues, [request(1, A0, 0), request(2, A0, 1)])
    queues.flush()

    def reopen() -> FileConsumeQueues:
        backing.disk, backing.after_crash = kernel.disk(), True
        return backing.open_as_it_is()

    queues = reopen()
    kernel.log.clear()
    kernel.crash_at = kernel.steps + 2
    with pytest.raises(PowerCut):
        queues.truncate(physical(2))
    assert kernel.log[0].startswith("store"), "the unit is zeros in the cache"
    assert kernel.log[1].startswith("fsync"), "the platter still has it, perhaps"
    kernel.process_death()
    queues = reopen()
    assert offsets(queues, A0) == [0]
    queues.truncate(physical(2))
    kernel.power_loss()
    assert offsets(reopen(), A0) == [0]


def test_a_file_of_which_a_power_cut_left_the_name_alone_goes_with_the_recovery(backing: FileBacking) -> None:
    """Its queue was never in the log. After the next clean stop it would have been taken for a damaged one."""
    queues = backing.open()
    put(queues, [request(1, A0, 0)])
    queues.flush()
    left = backing.directory / LITE.topic / "0" / f"{0:020d}"
    left.parent.mkdir(parents=True)
    left.touch()
    backing.after_crash = True
    queues = backing.open_as_it_is()
    queues.truncate(physical(2))
    assert not left.parent.exists()
    backing.after_crash = False
    queues = backing.open()
    assert queues.next_offset(LITE) == 0
    assert offsets(queues, A0) == [0]


def many_files(backing: FileBacking) -> FileConsumeQueues:
    """Two queues of TopicA with three files each, and one of another topic."""
    queues = backing.open()
    put(
        queues,
        [request(2 * at + queue.number, queue, at) for at in range(2 * UNITS_PER_FILE + 1) for queue in (A0, A1)],
    )
    put(queues, [request(10_000, B0, 0)])
    queues.flush()
    return queues


def test_a_crash_in_a_deletion_leaves_the_whole_topic_or_nothing_of_it() -> None:
    """A file more or less would be a queue that has lost something, and RocksDB beside it would disagree for ever."""
    probe = FaultyDisk()
    queues = many_files(FileBacking(Path("/store/consumequeue"), probe))
    before = probe.operations
    queues.delete_topic("TopicA")
    operations = probe.operations
    assert operations - before > 6, "the files are removed one by one"
    seen = set()
    for crash_at, odd in product(range(before + 1, operations + 1), (0, 1)):
        disk = FaultyDisk(crash_at=crash_at + odd)
        backing = FileBacking(Path("/store/consumequeue"), disk)
        queues = many_files(backing)
        for _ in range(odd):  # which makes the other of a rename that is cut short
            disk.sync_directory(Path("/"))
        with pytest.raises(PowerCut):
            queues.delete_topic("TopicA")
        backing.disk = after = disk.power_loss(seed=crash_at)
        queues = backing.open_as_it_is()
        left = [len(offsets(queues, queue)) for queue in (A0, A1)]
        assert left in ([2 * UNITS_PER_FILE + 1] * 2, [0, 0])
        seen.add(tuple(left))
        assert offsets(queues, B0) == [0]
        assert queues.topics_after("", 10) == (["TopicA", "TopicB"] if any(left) else ["TopicB"])
        assert not after.exists(Path("/store/consumequeue/.deleted"))
        queues.delete_topic("TopicA")
        put(queues, [request(20_000, A0, 0)])
        queues.flush()
        assert offsets(queues, A0) == [0]
    assert len(seen) == 2


def test_a_topic_with_a_file_of_somebody_else_is_refused_whole(backing: FileBacking) -> None:
    queues = many_files(backing)
    stranger = backing.directory / "TopicA" / "1" / "notes.txt"
    stranger.write_bytes(b"mine")
    put(queues, [request(30_000, A0, 2 * UNITS_PER_FILE + 1)])
    with pytest.raises(KvError, match=r"notes\.txt: is not a queue file"):
        queues.delete_topic("TopicA")
    assert stranger.read_bytes() == b"mine"
    assert offsets(queues, A0) == list(range(2 * UNITS_PER_FILE + 2))
    stranger.unlink()
    queues.delete_topic("TopicA")
    assert not (backing.directory / "TopicA").exists()


def test_a_topic_may_be_deleted_while_a_deletion_before_it_left_its_files(backing: FileBacking) -> None:
    queues = many_files(backing)
    left = backing.directory / ".deleted" / "topic" / "0"
    left.mkdir(parents=True)
    (left / f"{0:020d}").write_bytes(bytes(100))
    assert queues.topics_after("", 10) == ["TopicA", "TopicB"]
    assert set(queues.queues()) == {A0, A1, B0}
    queues.delete_topic("TopicA")
    assert sorted(path.name for path in backing.directory.iterdir()) == ["TopicB"]
