"""Consume queue files made by hand: every state in which RocketMQ may leave them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarry_mq.store.consumequeue import ConsumeQueueEntry, FileConsumeQueueReader
from quarry_mq.store.consumequeue.files.layout import ENTRY, FILLER_SIZE
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset

QUEUE = QueueId("TopicA", 0)
UNITS_PER_FILE = 10
FILE_SIZE = UNITS_PER_FILE * 20
FILLER = ENTRY.pack(0, FILLER_SIZE, 0)
ZERO = PhysicalOffset(0)


def packed(number: int) -> bytes:
    return ENTRY.pack(number * 100, 100, -number)


def entry(number: int, at: int) -> ConsumeQueueEntry:
    return ConsumeQueueEntry(QueueOffset(at), PhysicalOffset(number * 100), 100, -number, None)


def write(root: Path, queue: QueueId, first: int, entries: list[bytes], size: int = FILE_SIZE) -> None:
    """A file whose first unit has the index `first`, padded with zeros."""
    directory = root / queue.topic / str(queue.number)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{first * 20:020d}").write_bytes(b"".join(entries).ljust(size, b"\x00"))


@pytest.fixture
def reader(tmp_path: Path) -> FileConsumeQueueReader:
    return FileConsumeQueueReader(PosixDisk(), tmp_path)


def offsets(reader: FileConsumeQueueReader, start: int = 0, limit: int = 1_000) -> list[int]:
    return [each.queue_offset for each in reader.entries(QUEUE, QueueOffset(start), limit)]


def bounds(reader: FileConsumeQueueReader, minimum: int = 0) -> tuple[int, int]:
    return reader.bounds(QUEUE, PhysicalOffset(minimum))


def test_no_directory_is_no_queue(reader: FileConsumeQueueReader) -> None:
    assert list(reader.queues()) == []
    assert offsets(reader) == []
    assert bounds(reader) == (0, 0)


def test_one_file(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    write(tmp_path, QUEUE, 0, [packed(0), packed(3), packed(7)])
    assert reader.entries(QUEUE, QueueOffset(0), 9) == [entry(0, 0), entry(3, 1), entry(7, 2)]
    assert reader.entries(QUEUE, QueueOffset(1), 1) == [entry(3, 1)]
    assert offsets(reader, start=3) == []
    assert offsets(reader, limit=0) == []
    assert bounds(reader) == (0, 3)
    assert bounds(reader, 300) == (1, 3)
    assert bounds(reader, 701) == (3, 3)


def test_a_queue_goes_on_in_the_next_file(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    write(tmp_path, QUEUE, 10, [packed(number) for number in range(10, 20)])
    write(tmp_path, QUEUE, 20, [packed(number) for number in range(20, 25)])
    assert offsets(reader) == list(range(10, 25))
    assert offsets(reader, start=17, limit=5) == [17, 18, 19, 20, 21]
    assert bounds(reader) == (10, 25)
    assert bounds(reader, 2_150) == (22, 25)


def test_a_full_last_file(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    write(tmp_path, QUEUE, 0, [packed(number) for number in range(10)])
    assert bounds(reader) == (0, 10)
    write(tmp_path, QUEUE, 10, [])
    assert bounds(reader) == (0, 10), "an empty last file was made just before a crash"
    assert offsets(reader) == list(range(10))


def test_only_an_empty_file(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    write(tmp_path, QUEUE, 30, [])
    assert bounds(reader) == (30, 30)
    assert offsets(reader) == []
    assert list(reader.queues()) == [QUEUE]


@pytest.mark.parametrize("minimum", [0, 1, 1_300])
def test_filler_is_no_entry(reader: FileConsumeQueueReader, tmp_path: Path, minimum: int) -> None:
    """RocketMQ counts filler as a unit at offset 0 of the log when the log still begins there."""
    write(tmp_path, QUEUE, 10, [FILLER] * 3 + [packed(13), packed(14)])
    assert reader.entries(QUEUE, QueueOffset(0), 9) == [entry(13, 13), entry(14, 14)]
    assert bounds(reader, minimum) == (13, 15)


def test_only_filler_is_an_empty_queue_at_its_next_offset(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    write(tmp_path, QUEUE, 10, [FILLER] * 3)
    assert offsets(reader) == []
    assert bounds(reader) == (13, 13)


def test_a_gap_ends_the_queue_as_in_rocketmqs_recovery(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    write(tmp_path, QUEUE, 0, [packed(0), packed(1), bytes(20), packed(3)])
    assert offsets(reader) == [0, 1]
    assert bounds(reader) == (0, 2)


def test_a_negative_offset_or_size_is_no_entry(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    for broken in (ENTRY.pack(-1, 100, 0), ENTRY.pack(100, -1, 0), ENTRY.pack(100, 0, 5)):
        write(tmp_path, QUEUE, 0, [packed(0), broken])
        assert bounds(reader) == (0, 1)


def test_the_log_goes_as_far_as_the_last_record_of_any_queue(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    assert reader.log_end() == 0
    write(tmp_path, QueueId("TopicA", 1), 0, [FILLER])
    assert reader.log_end() == 0
    write(tmp_path, QUEUE, 10, [packed(number) for number in range(10, 20)])
    write(tmp_path, QUEUE, 20, [FILLER] * 3)
    write(tmp_path, QueueId("TopicB", 3), 0, [packed(7)])
    assert reader.log_end() == 2_000


def test_a_file_that_a_crash_left_empty_is_passed_over(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    write(tmp_path, QUEUE, 0, [packed(number) for number in range(10)])
    write(tmp_path, QUEUE, 10, [], size=0)
    assert bounds(reader) == (0, 10)
    assert offsets(reader) == list(range(10))
    assert reader.log_end() == 1_000


def test_the_files_tell_the_segment_size(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    """Also one that is not a multiple of a unit: the rest is not read."""
    write(tmp_path, QUEUE, 0, [packed(0), packed(1)], size=20 * 2 + 7)
    write(tmp_path, QUEUE, 2, [packed(2)], size=20 * 2 + 7)
    assert offsets(reader) == [0, 1, 2]
    assert bounds(reader) == (0, 3)


def test_long_files_are_read_in_steps(
    reader: FileConsumeQueueReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarry_mq.store.consumequeue.files.reader.ENTRIES_PER_STEP", 4)
    write(tmp_path, QUEUE, 0, [FILLER] * 5 + [packed(number) for number in range(5, 19)], size=20 * 40)
    assert offsets(reader) == list(range(5, 19))
    assert offsets(reader, start=7, limit=6) == list(range(7, 13))
    assert bounds(reader) == (5, 19)
    assert bounds(reader, 1_000) == (10, 19)


def test_queues_are_listed_and_strangers_passed_over(reader: FileConsumeQueueReader, tmp_path: Path) -> None:
    """rmq#10173: RocksDB may lie in the same directory."""
    light = QueueId("%LMQ%lite", 0)
    for queue in (QueueId("TopicB", 10), QueueId("TopicB", 9), QUEUE, light):
        write(tmp_path, queue, 0, [packed(0)])
    (tmp_path / "CURRENT").write_text("MANIFEST-000005\n")
    (tmp_path / "000008.sst").write_bytes(b"table")
    (tmp_path / ".DS_Store").write_bytes(b"")
    (tmp_path / "TopicB" / "lost+found").mkdir()
    (tmp_path / "TopicB" / "11").mkdir()
    (tmp_path / "TopicB" / "9" / "00000000000000000000.bak").write_bytes(packed(5))
    (tmp_path / "TopicB" / "9" / "00000000000000000007").write_bytes(packed(5))
    assert list(reader.queues()) == [light, QUEUE, QueueId("TopicB", 9), QueueId("TopicB", 10)]
    assert reader.entries(QueueId("TopicB", 9), QueueOffset(0), 9) == [entry(0, 0)]


@given(first=st.integers(0, 25), count=st.integers(0, 30), start=st.integers(0, 60), limit=st.integers(0, 40))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_agrees_with_a_list(
    tmp_path_factory: pytest.TempPathFactory, first: int, count: int, start: int, limit: int
) -> None:
    root = tmp_path_factory.mktemp("queues")
    end = first + count
    for base in range(first // UNITS_PER_FILE * UNITS_PER_FILE, end, UNITS_PER_FILE):
        indexes = range(base, min(base + UNITS_PER_FILE, end))
        write(root, QUEUE, base, [FILLER if at < first else packed(at) for at in indexes])
    reader = FileConsumeQueueReader(PosixDisk(), root)
    expected = [entry(at, at) for at in range(first, end) if at >= start][:limit]
    assert reader.entries(QUEUE, QueueOffset(start), limit) == expected
    if count:
        assert bounds(reader) == (first, end)
        assert bounds(reader, start * 100) == (min(max(first, start), end), end)
