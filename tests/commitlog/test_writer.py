"""Placing, adding, committing and discarding, on the disk in memory."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.store.commitlog import CommitLogReader, CommitLogWriter
from quarry_mq.store.errors import MessageTooLarge, OffsetOutOfRange, StoreDamaged, StorePoisoned
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import Blank, EndOfData, StoredMessage
from tests.commitlog.records import LOG, SMALLEST, append, log_end, open_log, record, records_in
from tests.faults.disk import FaultyDisk

SEGMENT = 4096
START = PhysicalOffset(0)


def new_writer(disk: FaultyDisk, *, lays_zeros: bool = False) -> CommitLogWriter:
    return CommitLogWriter(open_log(disk, SEGMENT), START, lays_zeros=lays_zeros)


def test_no_segment_is_made_before_the_first_record() -> None:
    disk = FaultyDisk()
    writer = new_writer(disk)
    assert writer.end == 0
    assert disk.list_directory(LOG) == []
    append(writer, 200)
    assert [entry.name for entry in disk.list_directory(LOG)] == ["0" * 20]


def test_nothing_is_in_the_log_before_commit_and_all_of_it_after() -> None:
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    placed = dict(append(writer, 200 + number, number) for number in range(5))
    assert bytes(segments.segment_at(START).view()) == bytes(SEGMENT)
    assert writer.end == 0
    end = writer.commit()
    assert end == writer.end == sum(len(encoded) for encoded in placed.values())
    assert records_in(segments) == placed


def test_many_records_of_one_segment_are_one_write() -> None:
    disk = FaultyDisk()
    writer = new_writer(disk)
    for number in range(9):
        append(writer, 300, number)
    writer.commit()
    assert [operation for operation, _ in disk.log if operation == "write"] == ["write"]


def test_a_call_over_three_segments_writes_each_once() -> None:
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    placed = dict(append(writer, 1000, number) for number in range(12))
    writer.commit()
    assert [name for operation, name in disk.log if operation == "write"] == [
        f"{index * SEGMENT:020d}" for index in range(3)
    ]
    assert records_in(segments) == placed


@pytest.mark.parametrize(("first", "rolls"), [(SEGMENT - 508, False), (SEGMENT - 507, True), (SEGMENT - 8, True)])
def test_a_record_moves_on_when_no_blank_fits_after_it(first: int, rolls: bool) -> None:
    """RocketMQ's rule: size + 8 bytes must be left."""
    segments = open_log(FaultyDisk(), SEGMENT)
    writer = CommitLogWriter(segments, START)
    append(writer, first)
    at, _ = append(writer, 500)
    writer.commit()
    assert at == (SEGMENT if rolls else first)
    blank = bytes(segments.segment_at(START).view()[first : first + 8])
    assert blank == struct.pack(">iI", SEGMENT - first, 0xCBD43194) if rolls else blank != bytes(8)


def test_the_largest_record_leaves_eight_bytes_and_one_more_is_refused() -> None:
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    with pytest.raises(MessageTooLarge, match="at most 4088"):
        writer.place(SEGMENT - 7)
    assert disk.list_directory(LOG) == []
    append(writer, SEGMENT - 8)
    append(writer, SEGMENT - 8)
    writer.commit()
    assert sorted(records_in(segments)) == [0, SEGMENT]


def test_add_refuses_a_record_that_has_no_room() -> None:
    writer = new_writer(FaultyDisk())
    at = writer.place(200)
    assert (writer.next, writer.room) == (at, SEGMENT - 8)
    writer.add(record(at, SEGMENT - 300))
    with pytest.raises(ValueError, match="293 bytes, but only 292 fit"):
        writer.add(record(writer.next, 293))
    writer.add(record(writer.next, 292))
    assert writer.room == 0
    assert writer.commit() == SEGMENT - 8


def test_discard_takes_back_everything_since_the_last_commit() -> None:
    segments = open_log(FaultyDisk(), SEGMENT)
    writer = CommitLogWriter(segments, START)
    kept = dict([append(writer, 700, 1)])
    writer.commit()
    append(writer, 500, 2)
    writer.discard()
    assert writer.end == 700
    kept.update([append(writer, 600, 3)])
    writer.commit()
    assert records_in(segments) == kept


def test_discard_after_a_roll_leaves_the_log_byte_for_byte_and_usable() -> None:
    """The segment that was added stays, empty; the next roll fills it. No blank is written before a commit."""
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    kept = dict([append(writer, 3000, 1)])
    writer.commit()
    before = disk.read(segments.path_of(START))
    for number in range(4):
        append(writer, 2000, number)
    writer.discard()
    assert disk.read(segments.path_of(START)) == before
    assert writer.end == 3000
    assert isinstance(list(CommitLogReader(segments).scan(START))[-1], EndOfData)
    kept.update([append(writer, 900, 5), append(writer, 3000, 6)])
    writer.commit()
    assert records_in(segments) == kept
    assert list(kept) == [0, 3000, SEGMENT]


def test_discard_of_the_very_first_roll_starts_over() -> None:
    segments = open_log(FaultyDisk(), SEGMENT)
    writer = CommitLogWriter(segments, START)
    append(writer, 3000)
    writer.discard()
    placed = dict([append(writer, 2000)])
    writer.commit()
    append(writer, 500)
    writer.discard()
    placed.update([append(writer, 300)])
    writer.commit()
    assert records_in(segments) == placed


def test_a_full_disk_at_a_roll_refuses_the_record_and_takes_it_later() -> None:
    disk = FaultyDisk(capacity=SEGMENT)
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    append(writer, 3000, 1)
    writer.commit()
    append(writer, 500, 2)
    for _ in range(2):
        with pytest.raises(OSError, match="No space") as caught:
            writer.place(1000)
        assert caught.value.errno == errno.ENOSPC
    assert [entry.size for entry in disk.list_directory(LOG)] == [SEGMENT]
    writer.discard()
    assert writer.end == 3000
    disk.capacity = 2 * SEGMENT
    append(writer, 2000, 3)
    writer.commit()
    assert sorted(records_in(segments)) == [0, SEGMENT]


def test_a_failed_write_poisons_the_writer_and_publishes_nothing() -> None:
    disk = FaultyDisk()
    writer = new_writer(disk)
    append(writer, 500)
    disk.fail("write")
    with pytest.raises(StorePoisoned, match="writing to the commit log failed"):
        writer.commit()
    writer.discard()
    assert writer.end == 0
    with pytest.raises(StorePoisoned):
        writer.place(100)
    with pytest.raises(StorePoisoned):
        writer.commit()


def test_the_next_segment_is_prepared_at_half_of_the_last() -> None:
    disk = FaultyDisk()
    writer = new_writer(disk)
    append(writer, 2000)
    writer.commit()
    assert len(disk.list_directory(LOG)) == 1
    append(writer, 110)
    writer.commit()
    assert len(disk.list_directory(LOG)) == 2
    append(writer, 3000)
    writer.commit()
    assert len(disk.list_directory(LOG)) == 3
    assert sum(operation == "create" for operation, _ in disk.log) == 3


def test_zeros_lie_ahead_of_the_log_in_steps() -> None:
    disk = FaultyDisk()
    segments = open_log(disk, 8 * 1024 * 1024)
    writer = CommitLogWriter(segments, START, lays_zeros=True)
    placed: dict[PhysicalOffset, bytes] = {}
    writes = []
    for number in range(80):
        before = len(disk.log)
        placed.update([append(writer, 100_000, number)])
        writer.commit()
        writes.append(sum(operation == "write" for operation, _ in disk.log[before:]))
    assert set(writes) == {1, 2}
    assert 26 <= writes.count(2) <= 32, "zeros are laid when the log gets to where they end"
    assert records_in(segments) == placed


def test_zeros_end_where_the_segment_does() -> None:
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START, lays_zeros=True)
    placed = dict(append(writer, 1000, number) for number in range(30))
    writer.commit()
    placed.update(append(writer, 1000, number) for number in range(30, 60))
    writer.commit()
    assert len(segments) > 3
    assert records_in(segments) == placed


def test_zeros_that_cannot_be_laid_poison_the_log() -> None:
    disk = FaultyDisk()
    writer = new_writer(disk, lays_zeros=True)
    disk.fail("write", error=errno.EIO)
    append(writer, 500)
    with pytest.raises(StorePoisoned):
        writer.commit()


@pytest.mark.parametrize(
    ("sizes", "end"), [((), 0), ((500,), 500), ((500, 3588), SEGMENT), ((500, 3588, 500), SEGMENT + 500)]
)
def test_writing_goes_on_where_a_log_ends(sizes: tuple[int, ...], end: int) -> None:
    """At the start, within a segment, and behind a last segment that a blank closes."""
    disk = FaultyDisk()
    first = open_log(disk, SEGMENT)
    writer = CommitLogWriter(first, START)
    placed = dict(append(writer, size, number) for number, size in enumerate(sizes))
    writer.commit()
    if end == SEGMENT:
        append(writer, 500)
        writer.commit()
        first.remove_after(START)
    first.close()
    again = open_log(disk, SEGMENT)
    assert log_end(again) == end
    writer = CommitLogWriter(again, PhysicalOffset(end))
    at, encoded = append(writer, 400, 7)
    writer.commit()
    assert at == end
    assert records_in(again) == {**placed, at: encoded}


def test_a_trailing_empty_segment_left_by_a_crash_is_filled_next() -> None:
    disk = FaultyDisk()
    writer = new_writer(disk)
    append(writer, 3000, 1)
    writer.commit()
    assert len(disk.list_directory(LOG)) == 2
    segments = open_log(disk.process_death(), None)
    assert len(segments) == 2
    writer = CommitLogWriter(segments, PhysicalOffset(3000))
    append(writer, 2000, 2)
    writer.commit()
    assert sorted(records_in(segments)) == [0, SEGMENT]
    assert len(segments) == 2


def test_close_removes_segments_that_hold_nothing_but_never_the_first() -> None:
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    append(writer, 3000, 1)
    writer.commit()
    append(writer, 3000, 2)
    writer.close()
    segments.close()
    assert [entry.name for entry in disk.list_directory(LOG)] == ["0" * 20]
    reopened = open_log(disk, None)
    assert (reopened.minimum, reopened.end_of_files) == (0, SEGMENT)


def test_close_keeps_an_empty_segment_that_alone_tells_the_offset() -> None:
    disk = FaultyDisk()
    disk.make_directories(LOG)
    disk.create_segment(LOG / f"{5 * SEGMENT:020d}", SEGMENT)
    segments = open_log(disk, SEGMENT)
    CommitLogWriter(segments, PhysicalOffset(5 * SEGMENT)).close()
    assert segments.minimum == 5 * SEGMENT
    assert len(disk.list_directory(LOG)) == 1


def test_an_end_that_cannot_be_is_refused() -> None:
    disk = FaultyDisk()
    new = open_log(disk, SEGMENT)
    with pytest.raises(OffsetOutOfRange):
        CommitLogWriter(new, PhysicalOffset(1))
    new.append_segment()
    with pytest.raises(StoreDamaged, match="there is no space for a blank"):
        CommitLogWriter(new, PhysicalOffset(SEGMENT - 7))
    CommitLogWriter(new, PhysicalOffset(SEGMENT - 8))


ACTIONS = st.lists(
    st.one_of(
        st.integers(SMALLEST, SEGMENT - 8),
        st.integers(SMALLEST, 400),
        st.sampled_from(["commit", "discard", "reopen", "refuse"]),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(ACTIONS)
def test_agrees_with_a_model(actions: list[int | str]) -> None:
    """Whatever is placed, committed, discarded and refused: a scan finds the committed records, no others."""
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT, mapped_max=2)
    writer = CommitLogWriter(segments, START)
    committed: dict[int, bytes] = {}
    pending: dict[int, bytes] = {}
    for number, action in enumerate(actions):
        match action:
            case "commit":
                writer.commit()
                committed |= pending
                pending = {}
            case "discard":
                writer.discard()
                pending = {}
            case "refuse":
                with pytest.raises(MessageTooLarge):
                    writer.place(SEGMENT - 7)
            case "reopen":
                end = writer.end
                pending = {}
                writer.close()
                segments.close()
                segments = open_log(disk, SEGMENT, mapped_max=2)
                writer = CommitLogWriter(segments, end)
            case int(size):
                pending.update([append(writer, size, number)])
        assert records_in(segments) == committed
    outcomes = list(CommitLogReader(segments, lambda: writer.end).scan(START))
    assert [out.physical_offset for out in outcomes if isinstance(out, StoredMessage)] == sorted(committed)
    assert sum(not isinstance(out, StoredMessage | Blank) for out in outcomes) <= 1
