"""A flush makes the log durable, and one that fails ends the writing."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from quarry_mq.store.commitlog import BegunFlush, CommitLogFlusher, CommitLogReader, CommitLogWriter, SegmentList
from quarry_mq.store.errors import StorePoisoned
from quarry_mq.store.fs.posix import PosixDisk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import StoredMessage
from tests.commitlog.records import append, log_end, open_log, records_in
from tests.descriptors import descriptors_below
from tests.faults.disk import FaultyDisk

SEGMENT = 4096
START = PhysicalOffset(0)


def flushed_segments(disk: FaultyDisk) -> list[int]:
    return [int(name) // SEGMENT for operation, name in disk.log if operation == "flush"]


def test_a_flush_covers_what_was_committed_and_only_the_segments_it_lies_in() -> None:
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    flusher = CommitLogFlusher(segments, writer, START)
    placed: dict[PhysicalOffset, bytes] = {}
    for number, (size, expected) in enumerate(
        [(2000, [0]), (2000, [0]), (2000, [0, 1]), (2000, [1]), (4000, [1, 2]), (4000, [2, 3])]
    ):
        placed.update([append(writer, size, number)])
        writer.commit()
        disk.log.clear()
        assert flusher.flush() == flusher.flushed_up_to == writer.end
        assert flushed_segments(disk) == expected
        assert records_in(open_log(disk.power_loss(number), None)) == placed
        disk = disk.process_death()
        segments = open_log(disk, None)
        writer = CommitLogWriter(segments, log_end(segments))
        flusher = CommitLogFlusher(segments, writer, writer.end)


def test_without_anything_new_the_disk_is_left_alone() -> None:
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    flusher = CommitLogFlusher(segments, writer, START)
    assert flusher.flush() == 0
    append(writer, 500)
    assert flusher.flush() == 0
    writer.commit()
    assert [flusher.flush(), flusher.flush()] == [500, 500]
    assert flushed_segments(disk) == [0]


def test_what_recovery_found_unflushed_is_flushed_with_the_rest() -> None:
    disk = FaultyDisk()
    writer = CommitLogWriter(open_log(disk, SEGMENT), START)
    placed = dict(append(writer, 3000, number) for number in range(3))
    writer.commit()
    disk = disk.process_death()
    segments = open_log(disk, None)
    writer = CommitLogWriter(segments, log_end(segments))
    CommitLogFlusher(segments, writer, START).flush()
    assert flushed_segments(disk) == [0, 1, 2]
    assert records_in(open_log(disk.power_loss(seed=5), None)) == placed


def test_flushing_a_log_of_very_many_segments_keeps_few_of_them_mapped(tmp_path: Path) -> None:
    """The first opening of a store that RocketMQ wrote flushes all of it."""
    segments = SegmentList(PosixDisk(), tmp_path, SEGMENT, mapped_max=4)
    writer = CommitLogWriter(segments, START)
    for number in range(50):
        append(writer, 4000, number)
    writer.commit()
    segments.close()
    segments = SegmentList(PosixDisk(), tmp_path, None, mapped_max=4)
    writer = CommitLogWriter(segments, log_end(segments))
    before = descriptors_below(tmp_path)
    assert CommitLogFlusher(segments, writer, START).flush() == writer.end
    assert descriptors_below(tmp_path) <= before + 4
    segments.close()


def test_a_failed_flush_is_final_although_the_next_would_say_that_all_is_well() -> None:
    """fsyncgate: after one failure the kernel counts the pages as clean."""
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    flusher = CommitLogFlusher(segments, writer, START)
    append(writer, 500)
    writer.commit()
    disk.fail("flush")
    with pytest.raises(StorePoisoned, match="flushing the commit log failed") as caught:
        flusher.flush()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EIO

    segments.open_for_writing(START).flush()  # the disk itself reports success now
    lost = records_in(open_log(disk.power_loss(seed=0), None))
    assert lost == {}

    for act in (flusher.flush, lambda: writer.place(200), writer.commit):
        with pytest.raises(StorePoisoned, match="flushing the commit log failed") as again:
            act()
        assert again.value.__cause__ is caught.value.__cause__
    assert flusher.flushed_up_to == 0


def test_a_writer_that_failed_is_flushed_no_more() -> None:
    disk = FaultyDisk()
    segments = open_log(disk, SEGMENT)
    writer = CommitLogWriter(segments, START)
    flusher = CommitLogFlusher(segments, writer, START)
    append(writer, 500)
    disk.fail("write", error=errno.ENOSPC)
    with pytest.raises(StorePoisoned):
        writer.commit()
    with pytest.raises(StorePoisoned, match="writing to the commit log failed"):
        flusher.flush()


def test_flushed_segments_may_be_unmapped() -> None:
    segments = open_log(FaultyDisk(), SEGMENT, mapped_max=1)
    writer = CommitLogWriter(segments, START)
    for number in range(5):
        append(writer, 3000, number)
    writer.commit()
    first = [segments.segment_at(base) for base in segments.bases]
    assert [segments.segment_at(base) for base in segments.bases] == first
    CommitLogFlusher(segments, writer, START).flush()
    again = [segments.segment_at(base) for base in segments.bases]
    assert [one is other for one, other in zip(first, again, strict=True)] == [False] * 4 + [True]


def test_flushing_beside_appends_and_reads_on_a_real_disk(tmp_path: Path) -> None:
    segments = SegmentList(PosixDisk(), tmp_path, 64 * 1024, mapped_max=2)
    writer = CommitLogWriter(segments, START)
    flusher = CommitLogFlusher(segments, writer, START)
    reader = CommitLogReader(segments, lambda: writer.end)
    done = threading.Event()
    failures: list[BaseException] = []

    def keep_flushing() -> None:
        try:
            while not done.is_set():
                before = writer.end
                assert flusher.flush() >= before
        except BaseException as error:
            failures.append(error)

    def keep_reading() -> None:
        try:
            while not done.is_set():
                *records, last = reader.scan(START) if writer.end else [None]
                assert not records or last is not None
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (keep_flushing, keep_flushing, keep_reading)]
    for thread in threads:
        thread.start()
    placed: dict[PhysicalOffset, bytes] = {}
    try:
        for number in range(400):
            placed.update([append(writer, 200 + number * 7, number)])
            writer.commit()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert flusher.flush() == writer.end
    messages = [found for found in reader.scan(START) if isinstance(found, StoredMessage)]
    assert [found.physical_offset for found in messages] == list(placed)
    writer.close()
    segments.close()


class Halves:
    """A log on a real disk, whose flushes are made in two halves."""

    def __init__(self, directory: Path) -> None:
        self.segments = SegmentList(PosixDisk(), directory, SEGMENT)
        self.writer = CommitLogWriter(self.segments, START)
        self.flusher = CommitLogFlusher(self.segments, self.writer, START)

    def commit(self, size: int) -> PhysicalOffset:
        append(self.writer, size)
        return self.writer.commit()

    def begin(self) -> BegunFlush:
        begun = self.flusher.begin()
        assert begun is not None
        return begun


def test_a_flush_in_two_halves_counts_once_the_second_is_told(tmp_path: Path) -> None:
    log = Halves(tmp_path)
    assert log.flusher.begin() is None, "nothing was ever written"
    end = log.commit(500)
    begun = log.begin()
    log.commit(500)
    assert os.path.samestat(os.fstat(begun.file.fileno()), begun.path.stat())
    assert log.flusher.flushed_up_to == START
    log.flusher.end(begun, None)
    assert log.flusher.flushed_up_to == end, "and not what was committed meanwhile"
    log.flusher.end(log.begin(), None)
    assert log.flusher.flushed_up_to == log.writer.end
    assert log.flusher.begin() is None, "nothing is left"


def test_while_one_is_begun_no_other_flush_asks_the_disk(tmp_path: Path) -> None:
    """Of two at once the kernel tells one of an error, and the other one that all is well."""
    log = Halves(tmp_path)
    log.commit(500)
    begun = log.begin()
    assert log.flusher.begin() is None
    other = threading.Thread(target=log.flusher.flush)
    other.start()
    other.join(0.05)
    assert other.is_alive()
    log.flusher.end(begun, None)
    other.join(10)
    assert not other.is_alive()


def test_a_second_half_that_failed_is_final(tmp_path: Path) -> None:
    log = Halves(tmp_path)
    log.commit(500)
    begun = log.begin()
    with pytest.raises(StorePoisoned, match=r"flushing the commit log failed \(\[Errno 5\] .*0{20}"):
        log.flusher.end(begun, OSError(errno.EIO, os.strerror(errno.EIO), str(begun.path)))
    assert log.flusher.flushed_up_to == START
    for again in (log.flusher.begin, log.flusher.flush):
        with pytest.raises(StorePoisoned, match="Errno 5"):
            again()
    with pytest.raises(StorePoisoned, match="Errno 5"):
        log.commit(500)


def test_a_flush_of_two_files_is_made_as_one(tmp_path: Path) -> None:
    log = Halves(tmp_path)
    log.commit(3000)
    log.commit(3000)
    assert log.flusher.begin() is None
    assert log.flusher.flush() == log.writer.end, "and it holds nobody up"
    log.commit(500)
    log.flusher.end(log.begin(), None)


def test_a_disk_without_descriptors_has_no_halves() -> None:
    segments = open_log(FaultyDisk(), SEGMENT)
    writer = CommitLogWriter(segments, START)
    flusher = CommitLogFlusher(segments, writer, START)
    append(writer, 500)
    writer.commit()
    assert flusher.begin() is None
    assert flusher.flush() == writer.end
