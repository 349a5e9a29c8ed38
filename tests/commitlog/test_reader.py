"""Reading views, decoding and scanning."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from quarry_mq.store.commitlog import CommitLogReader, CommitLogWriter, SegmentList
from quarry_mq.store.errors import OffsetOutOfRange, StoreDamaged
from quarry_mq.store.fs.posix import PosixDisk, PosixSegment
from quarry_mq.store.message import ConsumeQueueEntry, PhysicalOffset, QueueOffset
from quarry_mq.store.native import NATIVE, WHY_NOT
from quarry_mq.store.record import (
    Blank,
    Corrupt,
    EndOfData,
    StoredMessage,
    Torn,
    decode_record,
    parts_to_decode,
)
from quarry_mq.store.scan.log import scan_log
from quarry_mq.store.scan.resync import first_record, next_whole
from tests import golden
from tests.commitlog.records import append, open_log, record
from tests.conftest import GoldenStore
from tests.faults.disk import FaultyDisk

SEGMENT = 4096
START = PhysicalOffset(0)


def written(*sizes: int) -> tuple[SegmentList, CommitLogWriter, dict[PhysicalOffset, bytes]]:
    segments = open_log(FaultyDisk(), SEGMENT)
    writer = CommitLogWriter(segments, START)
    placed = dict(append(writer, size, number) for number, size in enumerate(sizes))
    writer.commit()
    return segments, writer, placed


def test_views_are_not_copied_and_not_writable() -> None:
    segments, _, placed = written(500, 700, 3000)
    reader = CommitLogReader(segments)
    for at, encoded in placed.items():
        view = reader.read(at, len(encoded))
        assert bytes(view) == encoded
        assert view.readonly
        assert view.obj is segments.segment_at(at).view().obj


@pytest.mark.parametrize(
    ("offset", "size"),
    [(-1, 1), (0, -1), (0, SEGMENT + 1), (SEGMENT - 1, 2), (SEGMENT, 501), (SEGMENT + 500, 0), (9 * SEGMENT, 1)],
)
def test_nothing_is_read_outside_the_log_or_over_a_segments_end(offset: int, size: int) -> None:
    segments, writer, _ = written(4000, 500)
    reader = CommitLogReader(segments, lambda: writer.end)
    with pytest.raises(OffsetOutOfRange):
        reader.read(PhysicalOffset(offset), size)


def test_a_live_log_is_read_to_its_published_end_and_no_further() -> None:
    segments, writer, _ = written(500)
    reader = CommitLogReader(segments, lambda: writer.end)
    segments.open_for_writing(START).write(500, record(500, 300))  # copied, not yet published
    with pytest.raises(OffsetOutOfRange):
        reader.read(PhysicalOffset(500), 300)
    with pytest.raises(OffsetOutOfRange):
        reader.decode(PhysicalOffset(500))
    assert list(reader.scan(START))[1:] == [EndOfData(PhysicalOffset(500))]
    append(writer, 300)
    writer.commit()
    assert isinstance(reader.decode(PhysicalOffset(500)), StoredMessage)


def test_a_record_that_reaches_over_the_published_end_is_none() -> None:
    segments, _, _ = written(500)
    reader = CommitLogReader(segments, lambda: PhysicalOffset(499))
    assert isinstance(reader.decode(START), Torn)


def test_a_scan_hops_segments_and_ends_with_one_end_of_data() -> None:
    segments, _, placed = written(2000, 2000, 2000, 100 + 2000, 400)
    outcomes = list(CommitLogReader(segments).scan(START))
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [StoredMessage] * 2 + [Blank] + [StoredMessage, Blank] + [StoredMessage] * 2 + [EndOfData]
    messages = [outcome.physical_offset for outcome in outcomes if isinstance(outcome, StoredMessage)]
    assert messages == list(placed)


def test_a_scan_ends_silently_after_a_last_segment_that_is_closed() -> None:
    segments, _, _ = written(4000, 500)
    segments.remove_after(START)
    kinds = [type(outcome) for outcome in CommitLogReader(segments).scan(START)]
    assert kinds == [StoredMessage, Blank]
    assert list(CommitLogReader(segments).scan(segments.end_of_files)) == []


def test_a_scan_of_an_empty_log_yields_nothing() -> None:
    assert list(CommitLogReader(open_log(FaultyDisk(), SEGMENT)).scan(START)) == []


@pytest.mark.parametrize("start", [-1, SEGMENT + 1])
def test_a_scan_from_outside_is_refused_before_the_first_step(start: int) -> None:
    segments, _, _ = written(500)
    with pytest.raises(OffsetOutOfRange):
        CommitLogReader(segments).scan(PhysicalOffset(start))


def test_a_scan_under_way_sees_what_is_committed_meanwhile() -> None:
    segments, writer, _ = written(500)
    scan = CommitLogReader(segments, lambda: writer.end).scan(START)
    assert next(scan).physical_offset == 0
    append(writer, 4000)
    writer.commit()
    assert [type(outcome) for outcome in scan] == [Blank, StoredMessage, EndOfData]


def test_damage_ends_a_scan_and_is_its_last_word() -> None:
    segments, _, placed = written(500, 600, 700)
    segment = segments.open_for_writing(START)
    segment.write(500 + 100, b"\xff")  # the body of the second record
    outcomes = list(CommitLogReader(segments).scan(START))
    assert [type(outcome) for outcome in outcomes] == [StoredMessage, Corrupt]
    assert len(list(CommitLogReader(segments).scan(START, check_crc=False))) == len(placed) + 1
    segment.write(0, b"\0\0\0\1")
    assert [type(outcome) for outcome in CommitLogReader(segments).scan(START)] in ([Corrupt], [Torn])


def test_a_segment_made_again_is_read_again() -> None:
    """A view of a removed file must not stand in for the file that took its name."""
    segments, _, placed = written(4000, 500)
    reader = CommitLogReader(segments)
    assert bytes(reader.read(PhysicalOffset(SEGMENT), 500)) == placed[PhysicalOffset(SEGMENT)]
    segments.remove_after(START)
    segments.append_segment().write(0, b"new")
    assert bytes(reader.read(PhysicalOffset(SEGMENT), 4)) == b"new\0"


@pytest.mark.parametrize("name", golden.NAMES)
def test_a_scan_of_a_log_by_rocketmq_finds_all_its_records(name: str, golden_store: GoldenStore) -> None:
    store: Path = golden_store(name)
    segments = SegmentList(PosixDisk(), store / "store" / "commitlog", None, writable=False)
    outcomes = list(CommitLogReader(segments).scan(segments.minimum))
    assert isinstance(outcomes.pop(), EndOfData)
    expected = golden.records(store)
    assert [(outcome.physical_offset, type(outcome)) for outcome in outcomes] == [
        (line["blank"], Blank) if "blank" in line else (line["phyOffset"], StoredMessage) for line in expected
    ]


CUT = 3 * 4096
LARGE = 16 * 4096


@pytest.fixture
def cut_log(tmp_path: Path) -> tuple[CommitLogReader, SegmentList, dict[PhysicalOffset, bytes]]:
    """Return a reader of two segments, of which the first was cut to `CUT` bytes after it was mapped.

    Pages after the cut end the process when they are read through the mapping, as those do that a device cannot give.
    """
    segments = SegmentList(PosixDisk(), tmp_path, LARGE)
    writer = CommitLogWriter(segments, START)
    sizes = [500, 900, 5_000, 20_000] * 4
    placed = dict(append(writer, size, number, crc_property=True) for number, size in enumerate(sizes))
    writer.commit()
    segments.segment_at(START)
    os.truncate(segments.path_of(START), CUT)
    return CommitLogReader(segments), segments, placed


@pytest.mark.parametrize("is_native", [False, True])
def test_records_that_the_device_cannot_give_are_corrupt_and_all_others_are_read(
    cut_log: tuple[CommitLogReader, SegmentList, dict[PhysicalOffset, bytes]], *, is_native: bool
) -> None:
    reader, segments, placed = cut_log
    if is_native:
        if NATIVE is None:
            pytest.skip(f"no native part: {WHY_NOT}")
        reader.use(NATIVE)
    lost = [at for at, encoded in placed.items() if at < LARGE and at + len(encoded) > CUT]
    assert 0 < len(lost) < len(placed) - 4
    for check_crc in (True, False):
        for at, encoded in placed.items():
            found = reader.decode(at, check_crc=check_crc)
            if at in lost:
                assert found == Corrupt(at, "its bytes cannot be read: Input/output error")
                assert not reader.is_replaced(at)
                with pytest.raises(StoreDamaged, match=f"the bytes at offset {at} cannot be read") as caught:
                    reader.read(at, len(encoded))
                assert caught.value.record_at == at
            else:
                assert isinstance(found, StoredMessage)
                assert bytes(reader.read(at, len(encoded))) == encoded
    entries = [
        ConsumeQueueEntry(QueueOffset(number), at, len(encoded), 0, 0)
        for number, (at, encoded) in enumerate(placed.items())
    ]
    whole = [each for each in entries if each.physical_offset not in lost]
    assert whole[-1].physical_offset >= LARGE > whole[0].physical_offset
    assert reader.read_all(whole) == [reader.decode(each.physical_offset, check_crc=True) for each in whole]
    assert reader.read_all(entries) is None
    joined = b"".join(placed[each.physical_offset] for each in whole)
    assert reader.join(whole) == (joined if is_native else None)
    assert reader.join(entries) is None
    if is_native:
        assert [reader.join([each]) is None for each in entries] == [each.physical_offset in lost for each in entries]
    first = lost[0]
    *_, last = reader.scan(START)
    assert last == Corrupt(first, "its bytes cannot be read: Input/output error")
    assert next_whole(segments, first) is None
    with pytest.raises(OSError, match=r"the file ends before position"):
        list(scan_log(segments, START))


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the positions and sizes of all that is fetched of segments."""
    parts: list[tuple[int, int]] = []
    fetch = PosixSegment.fetch

    def noted(segment: PosixSegment, position: int, size: int) -> None:
        parts.append((position, size))
        fetch(segment, position, size)

    monkeypatch.setattr(PosixSegment, "fetch", noted)
    return parts


@pytest.mark.skipif(NATIVE is None, reason=f"no native part: {WHY_NOT}")
def test_records_of_one_queue_among_others_are_fetched_by_one_call(
    tmp_path: Path, fetched: list[tuple[int, int]]
) -> None:
    segments = SegmentList(PosixDisk(), tmp_path, 1 << 20)
    writer = CommitLogWriter(segments, START)
    placed = list(dict(append(writer, 2_000, number, crc_property=True) for number in range(400)).items())
    writer.commit()
    reader = CommitLogReader(segments)
    assert NATIVE is not None
    reader.use(NATIVE)
    for queue in range(8):
        entries = [
            ConsumeQueueEntry(QueueOffset(number), at, len(encoded), 0, 0)
            for number, (at, encoded) in enumerate(placed[queue : queue + 256 : 8])
        ]
        assert reader.join(entries) == b"".join(encoded for _, encoded in placed[queue : queue + 256 : 8])
    assert len(fetched) == 8
    assert max(size for _, size in fetched) < 256 * 2_500


def test_a_size_that_no_record_has_makes_nobody_read_up_to_it(tmp_path: Path) -> None:
    segments = SegmentList(PosixDisk(), tmp_path, 1 << 20)
    writer = CommitLogWriter(segments, START)
    (at, _), (following, _) = append(writer, 500, 0), append(writer, 500, 1)
    writer.commit()
    segment = segments.open_for_writing(at)
    segment.write(at, (1 << 19).to_bytes(4, "big"))
    parts = list(parts_to_decode(segment.view(), at))
    assert parts[0] == (at, at + 256)
    assert sum(end - begin for begin, end in parts) < 70_000
    expected = decode_record(segment.view(), at, at)
    assert CommitLogReader(segments).decode(at, check_crc=True) == expected
    assert isinstance(expected, Corrupt | Torn)
    assert next_whole(segments, at) == following


def test_the_search_for_a_record_finds_none_that_begins_before_its_start(tmp_path: Path) -> None:
    """The magic code of the second record lies on both sides of a border between parts that are fetched at once."""
    segments = SegmentList(PosixDisk(), tmp_path, 4 << 20)
    writer = CommitLogWriter(segments, START)
    _, (second, _), (third, _) = [append(writer, size) for size in ((1 << 20) - 7, 500, 500)]
    writer.commit()
    assert first_record(segments, second) == second
    assert first_record(segments, PhysicalOffset(second + 2)) == third


def test_what_lies_apart_is_fetched_alone_and_more_where_reading_goes_on(
    tmp_path: Path, fetched: list[tuple[int, int]]
) -> None:
    segments = SegmentList(PosixDisk(), tmp_path, 1 << 20)
    writer = CommitLogWriter(segments, START)
    placed = dict(append(writer, 1_000, number) for number in range(1_000))
    writer.commit()
    places = list(placed)
    size = len(placed[START])
    apart = places[500::100] + places[:400:100]
    reader = CommitLogReader(segments)
    for at in apart:
        reader.decode(at, size=size)
    assert len(fetched) == len(apart)
    assert max(part for _, part in fetched) <= 4096

    fetched.clear()
    reader = CommitLogReader(segments)
    for at in places:
        reader.decode(at)
    assert all(2 * small <= large for (_, small), (_, large) in pairwise(fetched[:5]))
    assert len(fetched) < 20
    for _, part in fetched:
        assert part <= 128 * 1024

    fetched.clear()
    reader = CommitLogReader(segments)
    for at in places[::10]:  # those between are of other queues
        reader.decode(at, size=size)
    assert len(fetched) < 20


def test_an_entry_of_any_size_is_read(tmp_path: Path) -> None:
    """Entries are not checked when they are read: a wrong one must not map a gigabyte, nor hide the record."""
    segments = SegmentList(PosixDisk(), tmp_path, 1 << 20)
    writer = CommitLogWriter(segments, START)
    placed = dict(append(writer, size, number) for number, size in enumerate([500, 200_000, 700]))
    writer.commit()
    for size in (-(2**31), -1, 0, 1, 2**31 - 1):
        for at, encoded in placed.items():
            found = CommitLogReader(segments).decode(at, size=size)
            assert isinstance(found, StoredMessage)
            assert found.size == len(encoded)
