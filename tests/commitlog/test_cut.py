"""Ending a log after its last good record."""

from __future__ import annotations

import pytest

from quarry_mq.store.commitlog import CommitLogReader, CommitLogWriter, SegmentList, cut
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.layout.paths import cut_directory
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import EndOfData, StoredMessage
from tests.commitlog.records import LOG, append, log_end, open_log, records_in
from tests.faults.disk import FaultyDisk, PowerCut

SEGMENT = 4096
START = PhysicalOffset(0)
BROKEN = cut_directory(LOG)


def written(disk: FaultyDisk, *sizes: int) -> tuple[SegmentList, dict[PhysicalOffset, bytes]]:
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    placed = dict(append(writer, size, number) for number, size in enumerate(sizes))
    writer.commit()
    return segments, placed


def broken_files(disk: FaultyDisk) -> dict[str, bytes]:
    return {entry.name: disk.read(BROKEN / entry.name) for entry in disk.list_directory(BROKEN)}


def test_cut_bytes_are_kept_up_to_the_last_one_that_is_not_zero() -> None:
    disk = FaultyDisk()
    segments, placed = written(disk, 500, 600, 700)
    report = cut(segments, PhysicalOffset(500))
    tail = placed[PhysicalOffset(500)] + placed[PhysicalOffset(1100)]
    assert broken_files(disk) == {"00000000000000000500.broken": tail}
    assert (report.at, report.kept_bytes, report.removed) == (500, 1300, ())
    assert report.kept == (BROKEN / "00000000000000000500.broken",)
    assert disk.read(segments.path_of(START)) == placed[START] + bytes(SEGMENT - 500)


def test_evidence_is_never_overwritten() -> None:
    disk = FaultyDisk()
    for round_number in range(3):
        segments = open_log(disk, SEGMENT)
        writer = CommitLogWriter(segments, START)
        append(writer, 500 + round_number)
        writer.commit()
        cut(segments, START)
        segments.close()
    assert {name: len(kept) for name, kept in broken_files(disk).items()} == {
        "00000000000000000000.broken": 500,
        "00000000000000000000.broken.1": 501,
        "00000000000000000000.broken.2": 502,
    }


def test_the_folder_of_evidence_is_no_obstacle_to_loading_the_log() -> None:
    """RocketMQ refuses a log with a plain file of another length in its folder, but passes over folders."""
    disk = FaultyDisk()
    segments, _ = written(disk, 500, 600)
    cut(segments, PhysicalOffset(500))
    assert all(entry.is_directory or entry.size == SEGMENT for entry in disk.list_directory(LOG))
    assert open_log(disk, None).strays == ()


def test_a_clean_tail_leaves_no_evidence_and_changes_nothing() -> None:
    disk = FaultyDisk()
    segments, placed = written(disk, 500, 600)
    report = cut(segments, PhysicalOffset(1100))
    assert (report.kept, report.kept_bytes, report.removed) == ((), 0, ())
    assert not disk.exists(BROKEN)
    assert records_in(segments) == placed


def test_later_segments_are_kept_as_evidence_and_removed() -> None:
    disk = FaultyDisk()
    segments, placed = written(disk, 3000, 3000, 3000)
    report = cut(segments, PhysicalOffset(3000))
    assert [path.name for path in report.removed] == [f"{2 * SEGMENT:020d}", f"{SEGMENT:020d}"]
    kept = broken_files(disk)
    assert sorted(kept) == [f"{at:020d}.broken" for at in (3000, SEGMENT, 2 * SEGMENT)]
    assert kept[f"{2 * SEGMENT:020d}.broken"] == placed[PhysicalOffset(2 * SEGMENT)]
    assert len(segments) == 1
    assert len(disk.read(segments.path_of(START)).rstrip(b"\0")) <= 3000


def test_an_untouched_segment_right_after_is_left_to_be_filled() -> None:
    disk = FaultyDisk()
    segments, _ = written(disk, 500, 600)
    segments.append_segment()
    segments.append_segment()
    report = cut(segments, PhysicalOffset(500))
    assert [path.name for path in report.removed] == [f"{2 * SEGMENT:020d}"]
    assert len(segments) == 2


def test_a_segment_with_bytes_right_after_a_clean_tail_goes() -> None:
    """Pages reach the disk in any order: the later segment came through, the blank before it did not."""
    disk = FaultyDisk()
    segments, _ = written(disk, 3000, 3000)
    disk.zero_from(segments.path_of(START), 3000)
    segments.append_segment()
    report = cut(segments, PhysicalOffset(3000))
    assert len(report.removed) == 2
    assert list(broken_files(disk)) == [f"{SEGMENT:020d}.broken"]
    assert len(segments) == 1


@pytest.mark.parametrize("at", [-1, SEGMENT + 1])
def test_a_cut_outside_the_log_is_refused(at: int) -> None:
    segments, _ = written(FaultyDisk(), 500)
    with pytest.raises(OffsetOutOfRange):
        cut(segments, PhysicalOffset(at))


def test_a_cut_at_the_end_of_the_files_does_nothing() -> None:
    disk = FaultyDisk()
    segments, _ = written(disk, 500)
    before = disk.operations
    assert cut(segments, segments.end_of_files).kept == ()
    assert disk.operations == before
    assert cut(open_log(FaultyDisk(), SEGMENT), START).removed == ()


def test_a_lost_record_does_not_come_back_when_one_of_equal_size_is_written_before_it() -> None:
    """The record behind the damage is whole and its offset is right: unzeroed, it would count as written."""
    disk = FaultyDisk()
    segments, placed = written(disk, 500, 600, 700)
    segments.open_for_writing(START).write(500 + 120, b"\xff")
    end = log_end(segments)
    assert end == 500
    assert isinstance(CommitLogReader(segments).decode(PhysicalOffset(1100)), StoredMessage)
    cut(segments, end)
    writer = CommitLogWriter(segments, end)
    at, encoded = append(writer, 600, 9)
    writer.commit()
    assert records_in(segments) == {START: placed[START], at: encoded}
    assert list(CommitLogReader(segments).scan(START))[-1] == EndOfData(PhysicalOffset(1100))


def test_a_full_disk_cuts_nothing() -> None:
    disk = FaultyDisk()
    segments, placed = written(disk, 500, 3000, 3000)
    disk.fail("replace", nth=2)
    with pytest.raises(OSError, match="Input/output"):
        cut(segments, PhysicalOffset(500))
    assert records_in(segments) == placed
    assert cut(segments, PhysicalOffset(500)).kept_bytes > 6000
    assert sorted(records_in(segments)) == [0]


@pytest.mark.parametrize("seed", range(8))
def test_a_crash_within_a_cut_loses_no_byte_and_the_next_cut_finishes(seed: int) -> None:
    """At every operation, with a random half of what was not synced: evidence first, then the removal."""
    crash_at = 0
    while True:
        crash_at += 1
        disk = FaultyDisk()
        segments, placed = written(disk, 500, 3000, 3000, 4000)
        for base in segments.bases:
            segments.open_for_writing(base).flush()
        disk.files[LOG / f"{0:020d}"].live[600:604] = disk.files[LOG / f"{0:020d}"].durable[600:604] = b"\xff" * 4
        segments = open_log(disk, None)
        disk.crash_at = disk.operations + crash_at
        try:
            cut(segments, log_end(segments))
            break
        except PowerCut:
            pass
        survivor = disk.power_loss(seed)
        segments = open_log(survivor, None)
        assert log_end(segments) == 500
        cut(segments, log_end(segments))
        assert records_in(segments) == {START: placed[START]}
        assert len(survivor.read(segments.path_of(START)).rstrip(b"\0")) <= 500
        kept = broken_files(survivor)
        for at in (SEGMENT, 2 * SEGMENT):
            assert kept[f"{at:020d}.broken"].startswith(placed[PhysicalOffset(at)]), f"{seed=} {crash_at=}"
        assert kept["00000000000000000500.broken"][200:3000] == placed[PhysicalOffset(500)][200:]
    assert crash_at > 5


def test_zeroing_that_was_not_yet_durable_is_repeated() -> None:
    """The process died between zeroing and fsync: the page cache shows zeros, the platter old bytes."""
    disk = FaultyDisk()
    segments, placed = written(disk, 500, 600)
    segments.open_for_writing(START).flush()
    segments.open_for_writing(START).write(500, bytes(600))
    disk = disk.process_death()
    segments = open_log(disk, None)
    cut(segments, log_end(segments))
    assert records_in(open_log(disk.power_loss(seed=0), None)) == {START: placed[START]}
