"""Loading, mapping and removing segments."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quarry_mq.store.commitlog import CommitLogReader, CommitLogWriter, SegmentList
from quarry_mq.store.errors import NotAStore, OffsetOutOfRange, StoreDamaged
from quarry_mq.store.fs.posix import PosixDisk
from quarry_mq.store.fs.protocol import SegmentFile
from quarry_mq.store.layout.paths import segment_name
from quarry_mq.store.message import PhysicalOffset
from tests.commitlog.records import LOG, SameThread, append, open_log, records_in
from tests.descriptors import descriptors_below
from tests.faults.disk import FaultyDisk, FaultyFile, PowerCut

SEGMENT = 4096


def disk_with(*bases: int, size: int = SEGMENT) -> FaultyDisk:
    disk = FaultyDisk()
    disk.make_directories(LOG)
    for base in bases:
        disk.create_segment(LOG / segment_name(PhysicalOffset(base)), size)
    return disk


def put(disk: FaultyDisk, name: str, content: bytes) -> None:
    disk.files[LOG / name] = FaultyFile(content)


def test_a_new_log_is_empty_and_begins_at_zero() -> None:
    segments = open_log(disk_with(), SEGMENT)
    assert (len(segments), segments.minimum, segments.end_of_files) == (0, 0, 0)
    assert segments.base_of(PhysicalOffset(0)) == 0
    with pytest.raises(OffsetOutOfRange):
        segments.segment_at(PhysicalOffset(0))


def test_a_log_whose_first_segments_expired_begins_later() -> None:
    segments = open_log(disk_with(3 * SEGMENT, 4 * SEGMENT), None)
    assert segments.segment_size == SEGMENT
    assert segments.bases == [3 * SEGMENT, 4 * SEGMENT]
    assert (segments.minimum, segments.end_of_files) == (3 * SEGMENT, 5 * SEGMENT)


def test_the_size_must_be_known_from_somewhere() -> None:
    with pytest.raises(NotAStore) as caught:
        open_log(disk_with(), None)
    assert caught.value.path == LOG
    with pytest.raises(ValueError, match="is too small for a record"):
        open_log(disk_with(), 8)


@pytest.mark.parametrize("size", [None, SEGMENT])
@pytest.mark.parametrize("wrong", [1, SEGMENT - 1, SEGMENT + 1])
def test_a_file_of_another_length_is_damage_that_names_it(size: int | None, wrong: int) -> None:
    disk = disk_with(0)
    put(disk, segment_name(PhysicalOffset(SEGMENT)), bytes(wrong))
    with pytest.raises(StoreDamaged, match=f"has {wrong} bytes, a segment of this log {SEGMENT}") as caught:
        open_log(disk, size)
    assert caught.value.path.name == segment_name(PhysicalOffset(SEGMENT))


@pytest.mark.parametrize("cut", range(3))
def test_the_file_that_was_cut_short_is_the_one_that_is_named(cut: int) -> None:
    for count in (2, 3):
        if cut < count:
            disk = disk_with(*(base * SEGMENT for base in range(count) if base != cut))
            put(disk, segment_name(PhysicalOffset(cut * SEGMENT)), bytes(SEGMENT // 2))
            with pytest.raises(StoreDamaged) as caught:
                open_log(disk, None)
            assert caught.value.path.name == segment_name(PhysicalOffset(cut * SEGMENT))


def test_an_empty_file_that_is_not_the_last_is_damage() -> None:
    disk = disk_with(SEGMENT)
    put(disk, segment_name(PhysicalOffset(0)), b"")
    with pytest.raises(StoreDamaged):
        open_log(disk, SEGMENT)


def test_an_empty_last_file_is_removed_when_writable_and_passed_over_when_not() -> None:
    disk = disk_with(0)
    path = LOG / segment_name(PhysicalOffset(SEGMENT))
    put(disk, path.name, b"")
    assert len(SegmentList(disk, LOG, None, writable=False)) == 1
    assert disk.exists(path)
    assert len(open_log(disk, None)) == 1
    assert not disk.exists(path)


def test_a_missing_segment_is_damage_that_names_it() -> None:
    with pytest.raises(StoreDamaged, match=f"segment {2 * SEGMENT:020d} is missing"):
        open_log(disk_with(0, SEGMENT, 3 * SEGMENT), SEGMENT)


def test_strangers_are_reported_and_left_alone_and_folders_skipped() -> None:
    disk = disk_with(0)
    for name in (".DS_Store", "0", "00000000000000004096.bak", "9" * 20):
        put(disk, name, b"whatever")
    disk.make_directories(LOG / "broken")
    disk.make_directories(LOG / segment_name(PhysicalOffset(SEGMENT)))
    segments = open_log(disk, SEGMENT)
    assert {path.name for path in segments.strays} == {".DS_Store", "0", "00000000000000004096.bak", "9" * 20}
    assert len(segments) == 1
    assert len(disk.list_directory(LOG)) == 7


@pytest.mark.parametrize(
    ("offset", "base"),
    [(SEGMENT, SEGMENT), (2 * SEGMENT - 1, SEGMENT), (2 * SEGMENT, 2 * SEGMENT), (3 * SEGMENT, 2 * SEGMENT)],
)
def test_offsets_lead_to_their_segment_and_the_end_to_the_last(offset: int, base: int) -> None:
    segments = open_log(disk_with(SEGMENT, 2 * SEGMENT), None)
    assert segments.base_of(PhysicalOffset(offset)) == base
    assert segments.path_of(PhysicalOffset(offset)).name == segment_name(PhysicalOffset(base))


@pytest.mark.parametrize("offset", [-1, 0, SEGMENT - 1, 3 * SEGMENT + 1])
def test_offsets_outside_the_log_are_refused(offset: int) -> None:
    segments = open_log(disk_with(SEGMENT, 2 * SEGMENT), None)
    with pytest.raises(OffsetOutOfRange):
        segments.base_of(PhysicalOffset(offset))
    with pytest.raises(OffsetOutOfRange):
        segments.segment_at(PhysicalOffset(offset))
    with pytest.raises(OffsetOutOfRange):
        segments.open_for_writing(PhysicalOffset(3 * SEGMENT))


def test_a_read_only_list_changes_nothing() -> None:
    disk = disk_with(0)
    before = disk.operations
    segments = SegmentList(disk, LOG, None, writable=False)
    for act in (
        segments.append_segment,
        segments.prepare_next,
        lambda: segments.remove_after(PhysicalOffset(0)),
        lambda: segments.open_for_writing(PhysicalOffset(0)),
    ):
        with pytest.raises(ValueError, match="read-only"):
            act()
    segments.close()
    assert disk.operations == before


def test_a_segment_that_cannot_be_made_ahead_is_told_before_it_is_needed() -> None:
    disk = FaultyDisk()
    disk.make_directories(LOG)
    segments = SegmentList(disk, LOG, SEGMENT, executor=SameThread())
    segments.append_segment()
    disk.fail("create", error=errno.ENOSPC)
    with capture_logs() as lines:
        segments.prepare_next()
    (line,) = lines
    assert (line["log_level"], line["path"]) == ("warning", str(LOG / f"{SEGMENT:020d}"))
    assert "No space left" in line["error"]
    segments.append_segment()
    assert len(segments) == 2


class CountingDisk(FaultyDisk):
    """Counts how often files are opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open_segment(self, path: Path, *, writable: bool) -> SegmentFile:  # type: ignore[override]
        self.opened.append(f"{int(path.name) // SEGMENT}{'w' if writable else 'r'}")
        return super().open_segment(path, writable=writable)


def counting_disk(count: int) -> CountingDisk:
    disk = CountingDisk()
    disk.make_directories(LOG)
    for index in range(count):
        disk.create_segment(LOG / segment_name(PhysicalOffset(index * SEGMENT)), SEGMENT)
    return disk


def test_the_least_recently_used_mapping_goes_first() -> None:
    disk = counting_disk(4)
    segments = open_log(disk, None, mapped_max=2)
    for index in (0, 1, 0, 2, 0, 1, 2):
        segments.segment_at(PhysicalOffset(index * SEGMENT + 5))
    assert disk.opened == ["0r", "1r", "2r", "1r", "2r"]


def test_segments_being_written_stay_mapped_until_they_are_durable() -> None:
    disk = counting_disk(4)
    segments = open_log(disk, None, mapped_max=1)
    writing = segments.open_for_writing(PhysicalOffset(0))
    for index in (1, 2, 3):
        segments.segment_at(PhysicalOffset(index * SEGMENT))
    assert segments.segment_at(PhysicalOffset(0)) is writing
    segments.release(PhysicalOffset(SEGMENT - 1))
    segments.segment_at(PhysicalOffset(SEGMENT))
    assert segments.segment_at(PhysicalOffset(0)) is writing
    segments.release(PhysicalOffset(SEGMENT))
    assert segments.segment_at(PhysicalOffset(0)) is writing
    segments.segment_at(PhysicalOffset(SEGMENT))
    assert segments.segment_at(PhysicalOffset(0)) is not writing


def test_opening_for_writing_replaces_a_read_only_mapping() -> None:
    disk = counting_disk(1)
    segments = open_log(disk, None)
    view = segments.segment_at(PhysicalOffset(0)).view()
    segments.open_for_writing(PhysicalOffset(0)).write(7, b"seen")
    assert bytes(view[7:11]) == b"seen"
    assert disk.opened == ["0r", "0w"]


def test_removing_goes_from_the_end_and_forgets_the_mappings() -> None:
    disk = disk_with(0, SEGMENT, 2 * SEGMENT, 3 * SEGMENT)
    segments = open_log(disk, None)
    segments.segment_at(PhysicalOffset(2 * SEGMENT))
    segments.prepare_next()
    removed = segments.remove_after(PhysicalOffset(SEGMENT))
    assert [path.name for path in removed] == [f"{3 * SEGMENT:020d}", f"{2 * SEGMENT:020d}"]
    assert segments.end_of_files == 2 * SEGMENT
    assert len(disk.list_directory(LOG)) == 2
    with pytest.raises(OffsetOutOfRange):
        segments.segment_at(PhysicalOffset(2 * SEGMENT))


def test_a_prepared_segment_is_taken_or_removed_at_close() -> None:
    disk = disk_with(0)
    segments = open_log(disk, None)
    segments.prepare_next()
    segments.prepare_next()
    assert len(disk.list_directory(LOG)) == 2
    segments.append_segment()
    assert len(disk.list_directory(LOG)) == 2
    segments.prepare_next()
    assert len(disk.list_directory(LOG)) == 3
    segments.close()
    segments.close()
    assert len(disk.list_directory(LOG)) == 2


def test_a_failed_preparation_surfaces_when_the_segment_is_needed() -> None:
    disk = disk_with(0)
    segments = open_log(disk, None)
    disk.capacity = SEGMENT
    segments.prepare_next()
    with pytest.raises(OSError, match="No space") as caught:
        segments.append_segment()
    assert caught.value.errno == errno.ENOSPC
    segments.prepare_next()
    disk.capacity = None
    segments.append_segment()
    assert len(segments) == 2


def test_a_crash_while_a_segment_is_made_leaves_a_log_that_opens() -> None:
    disk = disk_with(0)
    segments = open_log(disk, None)
    disk.crash_at = disk.operations + 1
    with pytest.raises(PowerCut):
        segments.prepare_next()
    survivor = disk.power_loss(seed=1)
    assert [entry.size for entry in survivor.list_directory(LOG)] == [SEGMENT, 0]
    assert len(open_log(survivor, None)) == 1
    assert len(survivor.list_directory(LOG)) == 1


def test_on_a_real_disk_a_background_thread_prepares_and_close_leaves_no_descriptor(tmp_path: Path) -> None:
    segments = SegmentList(PosixDisk(), tmp_path, SEGMENT, mapped_max=3)
    writer = CommitLogWriter(segments, PhysicalOffset(0))
    placed: dict[PhysicalOffset, bytes] = {}
    for number in range(40):
        placed.update([append(writer, 1900, number)])
        writer.commit()
    assert records_in(segments) == placed
    assert len(segments) == 20
    segments.release(writer.end)
    for base in segments.bases:
        segments.segment_at(base)
    # three mappings kept, the segment being written with two, each a descriptor
    assert descriptors_below(tmp_path) <= 2 * 3 + 2
    writer.close()
    segments.close()
    del writer
    assert descriptors_below(tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 20


def test_a_view_that_is_still_read_survives_everything(tmp_path: Path) -> None:
    segments = SegmentList(PosixDisk(), tmp_path, SEGMENT, mapped_max=1)
    writer = CommitLogWriter(segments, PhysicalOffset(0))
    at, encoded = append(writer, 2000)
    append(writer, 3000)
    writer.commit()
    view = CommitLogReader(segments).read(at, 2000)
    segments.release(writer.end)
    segments.remove_after(PhysicalOffset(-1))
    segments.close()
    assert bytes(view) == encoded
