"""The scan of a log of several segments, and what recovery needs of it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.consumequeue import ConsumeQueueEntry, RocksConsumeQueues
from quarry_mq.store.consumequeue.dispatch import DenseAssignment, OffsetAssignment, StoredAssignment
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import segment_name
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.record import Blank, Decoded, EndOfData, StoredMessage, Torn, encode_blank
from quarry_mq.store.scan import FoundRecords, LogScan, scan_in_bulk, scan_log, scan_records
from tests import golden
from tests.commitlog.records import LOG, open_log
from tests.consumequeue.backings import BACKINGS
from tests.faults.disk import FaultyDisk
from tests.record.records import message, record
from tests.scan.logs import SEGMENT_SIZE, log_files, random_messages, sent, write_log

GoldenStore = Callable[[str], Path]
START = PhysicalOffset(0)
FROM_START = QueueOffset(0)
ALL = KeyRange(b"", None)
SCANS: list[LogScan] = [scan_records, scan_in_bulk]


def outcomes(
    segments: SegmentList, start: int, end: int | None = None, *, from_device: bool = False
) -> Iterator[Decoded]:
    """What a scan finds, as `CommitLogReader.scan` tells it."""
    last_end = None if end is None else PhysicalOffset(end)
    for batch in scan_log(segments, PhysicalOffset(start), last_end, from_device=from_device):
        yield from (batch.record(row) for row in range(len(batch)))
        if batch.ended_by is not None:
            yield batch.ended_by


@pytest.mark.parametrize("from_device", [False, True])
@pytest.mark.parametrize("tail", [b"", encode_blank(8), b"torn", bytes(8)])
def test_a_log_of_several_segments(tail: bytes, from_device: bool) -> None:
    segments = write_log(FaultyDisk(), random_messages(Random(5), 300), first=3 * SEGMENT_SIZE, tail=tail)
    expected = list(CommitLogReader(segments).scan(segments.minimum))
    assert sum(isinstance(each, Blank) for each in expected) > 3
    found = list(outcomes(segments, segments.minimum, from_device=from_device))
    assert found == expected
    for start in expected[:: len(expected) // 7]:
        assert list(outcomes(segments, start.physical_offset)) == list(
            CommitLogReader(segments).scan(start.physical_offset)
        )


@pytest.mark.parametrize("from_device", [False, True])
def test_real_files_of_several_portions(tmp_path: Path, from_device: bool) -> None:
    random, segment_size = Random(8), 12 << 20
    disk = PosixDisk()
    log = bytearray()
    for _ in range(36):
        log += record(message(body=random.randbytes(random.randrange(700_000))), len(log))
        if len(log) % segment_size > segment_size - 800_000:
            log += encode_blank(-len(log) % segment_size) + bytes(-len(log) % segment_size - 8)
    for base in range(0, len(log), segment_size):
        segment = disk.create_segment(tmp_path / segment_name(PhysicalOffset(base)), segment_size)
        segment.write(0, bytes(log[base : base + segment_size]))
        segment.close()
    read, scanned = (SegmentList(disk, tmp_path, None, writable=False) for _ in range(2))
    found = list(outcomes(scanned, START, from_device=from_device))
    assert found == list(CommitLogReader(read).scan(START))
    assert len(found) == 36 + len(log) // segment_size + 1
    del found
    for each in (read, scanned):
        each.close()


def test_a_log_that_fills_its_last_segment_ends_without_ending() -> None:
    disk = FaultyDisk()
    segments = write_log(disk, [])
    assert list(scan_log(segments, START)) == []
    some = [sent(message())] * 3
    used = write_log(FaultyDisk(), some)
    *records, _ = CommitLogReader(used).scan(START)
    end = sum(each.size for each in records if isinstance(each, StoredMessage))
    segments = write_log(disk, some, tail=encode_blank(SEGMENT_SIZE - end))
    *_, last = scan_log(segments, START)
    assert last.ended_by == Blank(PhysicalOffset(end), SEGMENT_SIZE - end)
    assert last.end == segments.end_of_files == SEGMENT_SIZE
    assert list(scan_log(segments, last.end)) == []


def test_a_segment_may_be_full_to_its_last_byte() -> None:
    """No writer does that, and readers go on at the next one."""
    disk = FaultyDisk()
    disk.make_directories(LOG)
    for number in range(2):
        base = number * SEGMENT_SIZE
        padding = SEGMENT_SIZE - len(record(message(body=b""), base))
        segment = disk.create_segment(LOG / segment_name(PhysicalOffset(base)), SEGMENT_SIZE)
        segment.write(0, record(message(body=b"x" * padding), base))
    segments = open_log(disk, SEGMENT_SIZE)
    expected = list(CommitLogReader(segments).scan(START))
    assert len(expected) == 2
    assert list(outcomes(segments, START)) == expected


def test_nothing_from_the_end_on_is_looked_at() -> None:
    """A log that is written meanwhile: what lies behind the end may be anything."""
    segments = write_log(FaultyDisk(), random_messages(Random(6), 200))
    whole = list(CommitLogReader(segments).scan(START))
    for cut in range(0, len(whole) - 1, 17):
        end = whole[cut].physical_offset
        assert list(outcomes(segments, START, end)) == whole[:cut]


@pytest.mark.parametrize("start", [-1, SEGMENT_SIZE + 1])
def test_a_start_outside_the_log_is_refused_at_once(start: int) -> None:
    segments = write_log(FaultyDisk(), [sent(message())])
    with pytest.raises(OffsetOutOfRange):
        scan_log(segments, PhysicalOffset(start))


def test_a_scan_may_be_given_up() -> None:
    segments = write_log(FaultyDisk(), random_messages(Random(7), 300))
    batches = scan_log(segments, START)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert list(batches) == []


def test_a_scan_that_is_given_up_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may end it in a thread that is being started, where joining another waits for ever."""
    segments = write_log(FaultyDisk(), random_messages(Random(7), 300))
    batches = scan_log(segments, START)
    next(batches)
    monkeypatch.setattr(Thread, "join", lambda _thread, _timeout=None: pytest.fail("a thread was waited for"))
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("from_device", [False, True])
def test_what_the_device_cannot_read_is_an_error_of_the_scan(*, from_device: bool) -> None:
    """Through a mapping it would be the process's end (SIGBUS)."""

    class FailingDisk(FaultyDisk):
        def fetch(self, path: Path, begin: int, end: int) -> None:
            raise OSError(errno.EIO, "Input/output error", str(path))

    disk = FailingDisk()
    segments = write_log(disk, [sent(message())])
    with pytest.raises(OSError, match="Input/output error"):
        list(scan_log(segments, START, from_device=from_device))


# -- what recovery needs


def runs_as_one(
    scan: LogScan, segments: SegmentList, start: int, dispatch_from: int, assignment: OffsetAssignment
) -> tuple[list[DispatchRequest], FoundRecords]:
    runs = list(
        scan(
            segments,
            PhysicalOffset(start),
            dispatch_from=PhysicalOffset(dispatch_from),
            assignment=assignment,
            from_device=False,
        )
    )
    stamps = [run.last_stored_ms for run in runs if run.last_stored_ms is not None]
    assert all(run.stopped_by is None for run in runs[:-1])
    requests = [request for run in runs for request in run.requests]
    total = FoundRecords(
        runs[-1].end,
        sum(run.records for run in runs),
        sum(run.dispatched for run in runs),
        [],
        stamps[-1] if stamps else None,
        runs[-1].stopped_by,
    )
    return requests, total


@pytest.mark.parametrize("seed", range(6))
def test_requests_are_those_of_the_exact_way(seed: int) -> None:
    """Light queues, transactions, delays, repeated and broken properties: equal requests for equal records."""
    random = Random(seed)
    segments = write_log(
        FaultyDisk(), random_messages(random, 400), tail=b"torn" if seed % 2 else b"", crc_property=seed % 3 == 0
    )
    starts = [each.physical_offset for each in CommitLogReader(segments).scan(START)]
    for dispatch_from in [0, starts[len(starts) // 3], starts[-1] + 1]:
        expected = runs_as_one(scan_records, segments, 0, dispatch_from, StoredAssignment())
        found = runs_as_one(scan_in_bulk, segments, 0, dispatch_from, StoredAssignment())
        assert found == expected
    assert any(request.light_queues for request in runs_as_one(scan_in_bulk, segments, 0, 0, StoredAssignment())[0])


@pytest.mark.parametrize("name", golden.NAMES)
def test_requests_of_golden_stores(golden_store: GoldenStore, name: str) -> None:
    directory = golden_store(name) / "store/commitlog"
    segments = SegmentList(PosixDisk(), directory, None, writable=False)
    try:
        expected = runs_as_one(scan_records, segments, segments.minimum, 0, StoredAssignment())
        assert runs_as_one(scan_in_bulk, segments, segments.minimum, 0, StoredAssignment()) == expected
        assert expected[1].records == sum("blank" not in line for line in golden.records(golden_store(name)))
    finally:
        segments.close()


def recovered(segments: SegmentList, scan: LogScan, *, dense: bool, cached_queues_max: int) -> list[object]:
    """The queues, and both families of their database, after all that this scan finds was put into them."""
    engine = MemoryEngine((ENTRIES_FAMILY, OFFSET_FAMILY))
    start = segments.minimum
    queues = RocksConsumeQueues(engine, minimum_physical_offset=start, cached_queues_max=cached_queues_max)
    assignment = DenseAssignment(queues) if dense else StoredAssignment()
    for run in scan(segments, start, dispatch_from=start, assignment=assignment, from_device=True):
        queues.put(run.requests, run.end)
    listed = [(queue, queues.bounds(queue), queues.next_offset(queue)) for queue in queues.queues()]
    assert listed
    return [listed, *(engine.family(name).scan(ALL) for name in (ENTRIES_FAMILY, OFFSET_FAMILY))]


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("cached_queues_max", [2, 1000])
def test_queues_hold_the_same_after_either_scan(dense: bool, cached_queues_max: int) -> None:
    segments = write_log(FaultyDisk(), random_messages(Random(11), 500))
    expected, found = (recovered(segments, scan, dense=dense, cached_queues_max=cached_queues_max) for scan in SCANS)
    assert found == expected


@pytest.mark.parametrize("way", ["put", "put_again", "put_missing"])
@pytest.mark.parametrize("name", BACKINGS)
def test_all_kinds_of_queues_take_columns_as_they_take_requests(name: str, way: str, tmp_path: Path) -> None:
    segments = write_log(FaultyDisk(), random_messages(Random(12), 200))
    kept: list[dict[QueueId, tuple[QueueBounds, list[ConsumeQueueEntry]]]] = []
    for scan in SCANS:
        backing = BACKINGS[name](tmp_path / str(len(kept)))
        queues = backing.open()
        for run in scan(segments, START, dispatch_from=START, assignment=DenseAssignment(queues), from_device=False):
            if way == "put_missing":
                queues.put_missing(run.requests)
            else:
                getattr(queues, way)(run.requests, run.end)
        kept.append(
            {queue: (queues.bounds(queue), queues.entries(queue, FROM_START, 1000)) for queue in queues.queues()}
        )
        backing.close()
    assert kept[0] == kept[1]
    assert sum(len(entries) for _, entries in kept[0].values()) > 100


@pytest.mark.parametrize("name", golden.NAMES)
@pytest.mark.parametrize("dense", [False, True])
def test_queues_of_golden_logs_hold_the_same_after_either_scan(
    golden_store: GoldenStore, tmp_path: Path, name: str, dense: bool
) -> None:
    def copied(folder: str) -> SegmentList:
        (tmp_path / folder).mkdir()
        for path in log_files(golden_store(name)):
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
        return SegmentList(PosixDisk(), tmp_path / folder, None)

    expected, found = (
        recovered(copied(str(number)), scan, dense=dense, cached_queues_max=1000) for number, scan in enumerate(SCANS)
    )
    assert found == expected


def test_a_run_says_what_stopped_it() -> None:
    segments = write_log(FaultyDisk(), [sent(message())], tail=b"\0\0\1\0")
    for scan in SCANS:
        _, total = runs_as_one(scan, segments, 0, 0, StoredAssignment())
        assert isinstance(total.stopped_by, Torn)
    segments = write_log(FaultyDisk(), [sent(message())])
    for scan in SCANS:
        _, total = runs_as_one(scan, segments, 0, 0, StoredAssignment())
        assert total.stopped_by == EndOfData(total.end)
