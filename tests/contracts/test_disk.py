"""Every Disk keeps its contract: the real one, the real one over a simulated kernel, and one that fails on order."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from quarry_mq.store.fs.posix import PosixDisk
from quarry_mq.store.fs.protocol import DirectoryEntry, Disk, DiskSpace
from tests.faults.disk import FaultyDisk
from tests.faults.kernel import Kernel

SIZE = 4 * 4096


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(Random(0))


@pytest.fixture(params=["posix", "simulated", "faulty"])
def disk(request: pytest.FixtureRequest, kernel: Kernel) -> Disk:
    match request.param:
        case "posix":
            return PosixDisk()
        case "simulated":
            return kernel.disk()
        case _:
            return FaultyDisk()


@pytest.fixture
def folder(request: pytest.FixtureRequest, disk: Disk, kernel: Kernel, tmp_path: Path) -> Path:
    simulated = "simulated" in request.node.callspec.params.values()
    path = (kernel.path("/machine") if simulated else tmp_path) / "some" / "folder"
    disk.make_directories(path)
    return path


def test_a_new_segment_is_all_zeros_and_has_its_full_length_at_once(disk: Disk, folder: Path) -> None:
    segment = disk.create_segment(folder / "a", SIZE)
    assert (segment.path, segment.size) == (folder / "a", SIZE)
    assert segment.view() == bytes(SIZE)
    assert disk.list_directory(folder) == [DirectoryEntry("a", SIZE, is_directory=False)]


def test_creating_an_existing_file_fails_and_leaves_it_alone(disk: Disk, folder: Path) -> None:
    disk.create_segment(folder / "a", SIZE).write(0, b"kept")
    with pytest.raises(FileExistsError):
        disk.create_segment(folder / "a", SIZE)
    assert disk.read(folder / "a")[:4] == b"kept"


def test_creating_in_a_missing_directory_names_the_file(disk: Disk, folder: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        disk.create_segment(folder / "missing" / "a", SIZE)
    assert caught.value.filename is not None


def test_written_bytes_are_seen_by_every_view_and_reader(disk: Disk, folder: Path) -> None:
    segment = disk.create_segment(folder / "a", SIZE)
    other = disk.open_segment(folder / "a", writable=False)
    views = segment.view(), other.view()
    segment.write(5000, b"hello")
    segment.write(SIZE - 1, memoryview(b"!"))
    for view in views:
        assert bytes(view[5000:5005]) == b"hello"
        assert view[SIZE - 1] == ord("!")
    assert disk.read(folder / "a")[5000:5005] == b"hello"


def test_views_cannot_be_written_through(disk: Disk, folder: Path) -> None:
    view = disk.create_segment(folder / "a", SIZE).view()
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


@pytest.mark.parametrize(("position", "length"), [(SIZE - 3, 4), (SIZE, 1), (SIZE + 100, 1), (0, SIZE + 1)])
def test_a_write_over_the_end_is_refused_whole(disk: Disk, folder: Path, position: int, length: int) -> None:
    segment = disk.create_segment(folder / "a", SIZE)
    with pytest.raises(IndexError):
        segment.write(position, b"x" * length)
    assert segment.view() == bytes(SIZE)


def test_a_read_only_segment_refuses_writes_and_flushes_those_of_others(disk: Disk, folder: Path) -> None:
    disk.create_segment(folder / "a", SIZE).write(0, b"written")
    segment = disk.open_segment(folder / "a", writable=False)
    with pytest.raises(TypeError):
        segment.write(0, b"x")
    segment.flush()
    if isinstance(disk, FaultyDisk):
        disk = disk.power_loss(seed=3)
    assert disk.read(folder / "a")[:7] == b"written"
    segment.close()
    with pytest.raises(ValueError, match="closed"):
        segment.flush()


def test_opening_what_is_not_there_or_empty_fails(disk: Disk, folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open_segment(folder / "a", writable=True)
    disk.replace_atomically(folder / "empty", b"")
    with pytest.raises(OSError, match="empty file") as caught:
        disk.open_segment(folder / "empty", writable=False)
    assert caught.value.errno == errno.EINVAL
    assert caught.value.filename == str(folder / "empty")


def test_views_outlive_close_and_everything_else_ends(disk: Disk, folder: Path) -> None:
    segment = disk.create_segment(folder / "a", SIZE)
    segment.write(0, b"alive")
    view = segment.view()[0:5]
    segment.flush()
    segment.close()
    segment.close()
    assert bytes(view) == b"alive"
    for act in (
        segment.view,
        segment.flush,
        lambda: segment.write(0, b"x"),
    ):
        with pytest.raises(ValueError, match="closed"):
            act()


@pytest.mark.parametrize("position", [0, 1, 4096, 5003, SIZE - 1, SIZE])
def test_zero_from_zeroes_the_rest_and_keeps_the_length(disk: Disk, folder: Path, position: int) -> None:
    segment = disk.create_segment(folder / "a", SIZE)
    segment.write(0, b"x" * SIZE)
    view = segment.view()
    disk.zero_from(folder / "a", position)
    expected = b"x" * position + bytes(SIZE - position)
    assert disk.read(folder / "a") == expected
    assert view == expected
    segment.write(position, b"y" * (SIZE - position))
    assert disk.read(folder / "a") == b"x" * position + b"y" * (SIZE - position)


@pytest.mark.parametrize("last", [0, 4095, 4096, SIZE - 1])
def test_after_the_data_end_there_are_only_zeros(disk: Disk, folder: Path, last: int) -> None:
    segment = disk.create_segment(folder / "a", SIZE)
    segment.write(last, b"x")
    assert last < disk.data_end(folder / "a") <= SIZE


def test_data_end_of_a_fresh_segment_is_its_start(disk: Disk, folder: Path) -> None:
    disk.create_segment(folder / "a", SIZE)
    assert disk.data_end(folder / "a") == 0


def test_directories_list_sorted_with_sizes_and_kinds(disk: Disk, folder: Path) -> None:
    disk.replace_atomically(folder / "b", b"12345")
    disk.replace_atomically(folder / "a", b"")
    disk.make_directories(folder / "c" / "d")
    listed = [(entry.name, entry.is_directory) for entry in disk.list_directory(folder)]
    assert listed == [("a", False), ("b", False), ("c", True)]
    assert disk.list_directory(folder)[1].size == 5
    assert disk.list_directory(folder / "missing") == []


def test_replacing_leaves_the_new_bytes_and_no_other_file(disk: Disk, folder: Path) -> None:
    disk.replace_atomically(folder / "state", b"old")
    disk.replace_atomically(folder / "state", memoryview(b"newer"))
    assert disk.read(folder / "state") == b"newer"
    assert [entry.name for entry in disk.list_directory(folder)] == ["state"]


def test_replacing_in_a_missing_directory_fails(disk: Disk, folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.replace_atomically(folder / "missing" / "state", b"x")


def test_removing_twice_is_no_error(disk: Disk, folder: Path) -> None:
    disk.replace_atomically(folder / "a", b"x")
    assert disk.exists(folder / "a")
    disk.remove(folder / "a")
    disk.remove(folder / "a")
    assert not disk.exists(folder / "a")
    with pytest.raises(FileNotFoundError):
        disk.read(folder / "a")


def test_dropping_what_is_cached_keeps_what_was_written_and_makes_it_durable(disk: Disk, folder: Path) -> None:
    segment = disk.create_segment(folder / "a", SIZE)
    segment.write(0, b"head")
    segment.write(8000, b"tail")
    segment.close()
    disk.drop_cached(folder / "a")
    disk.fetch(folder / "a", 4096, SIZE)
    content = disk.read(folder / "a")
    assert (content[:4], content[8000:8004], len(content)) == (b"head", b"tail", SIZE)
    with pytest.raises(FileNotFoundError) as caught:
        disk.drop_cached(folder / "missing")
    assert caught.value.filename is not None
    with pytest.raises(FileNotFoundError) as caught:
        disk.fetch(folder / "missing", 0, 1)
    assert caught.value.filename is not None
    if isinstance(disk, FaultyDisk):
        assert disk.power_loss(seed=1).read(folder / "a") == content


def test_room_is_told_for_directories_that_exist(disk: Disk, folder: Path) -> None:
    if isinstance(disk, FaultyDisk):
        disk.capacity = 100 * SIZE
    before = disk.free_bytes(folder)
    assert before is None or before > SIZE
    with pytest.raises(FileNotFoundError) as caught:
        disk.free_bytes(folder / "missing")
    assert caught.value.filename is not None


def test_directories_exist_after_making_them_twice(disk: Disk, folder: Path) -> None:
    disk.make_directories(folder)
    assert disk.exists(folder)
    assert not disk.exists(folder / "other")


def test_a_lock_is_exclusive_within_the_process_until_released(disk: Disk, folder: Path) -> None:
    lock = disk.lock(folder / "lock")
    assert disk.read(folder / "lock") == b"lock"
    with pytest.raises(BlockingIOError) as caught:
        disk.lock(folder / "lock")
    assert caught.value.filename == str(folder / "lock")
    lock.release()
    lock.release()
    disk.lock(folder / "lock").release()


def test_a_shared_lock_excludes_the_exclusive_one_only(disk: Disk, folder: Path) -> None:
    disk.replace_atomically(folder / "lock", b"")
    readers = [disk.lock_shared(folder / "lock"), disk.lock_shared(folder / "lock")]
    assert disk.read(folder / "lock") == b""
    for reader in readers:
        with pytest.raises(BlockingIOError) as caught:
            disk.lock(folder / "lock")
        assert caught.value.filename == str(folder / "lock")
        reader.release()
        reader.release()
    writer = disk.lock(folder / "lock")
    with pytest.raises(BlockingIOError) as caught:
        disk.lock_shared(folder / "lock")
    assert caught.value.filename == str(folder / "lock")
    writer.release()


def test_a_shared_lock_makes_no_file(disk: Disk, folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.lock_shared(folder / "lock")
    assert not disk.exists(folder / "lock")


def test_locking_keeps_what_the_file_holds(disk: Disk, folder: Path) -> None:
    disk.replace_atomically(folder / "lock", b"something else")
    disk.lock(folder / "lock").release()
    assert disk.read(folder / "lock") == b"something else"


# -- sparse files


def test_a_sparse_file_is_made_once_and_read_and_written_by_position(disk: Disk, folder: Path) -> None:
    file = disk.open_sparse(folder / "a", SIZE)
    file.write(5000, b"hello")
    assert file.read(4998, 9) == b"\0\0hello\0\0"
    assert file.read(SIZE - 2, 10) == b"\0\0"
    again = disk.open_sparse(folder / "a", SIZE)
    assert again.read(5000, 5) == b"hello", "one that exists keeps length and bytes"
    assert disk.list_directory(folder) == [DirectoryEntry("a", SIZE, is_directory=False)]
    file.flush()
    disk.replace_atomically(folder / "short", b"left by a crash")
    short = disk.open_sparse(folder / "short", SIZE)
    assert short.read(0, 20) == b"left by a crash".ljust(20, b"\0")
    assert len(disk.read(folder / "short")) == SIZE
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read(0, 1)
    with pytest.raises(FileNotFoundError):
        disk.open_sparse(folder / "missing")


def test_holes_take_no_room(disk: Disk, folder: Path) -> None:
    file = disk.open_sparse(folder / "a", 1 << 20)
    file.write(500_000, b"hello")
    file.flush()
    file.close()
    assert 5 <= disk.allocated_bytes(folder / "a") < 1 << 19
    assert disk.allocated_bytes(folder / "missing") == 0


def test_directories_are_made_one_by_one_and_removed_when_empty(disk: Disk, folder: Path) -> None:
    disk.make_directory(folder / "a")
    disk.make_directory(folder / "a")
    disk.sync_directory(folder)
    with pytest.raises(FileNotFoundError):
        disk.make_directory(folder / "b" / "c")
    disk.open_sparse(folder / "a" / "file", SIZE).close()
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory(folder / "a")
    disk.remove(folder / "a" / "file")
    disk.remove_directory(folder / "a")
    disk.remove_directory(folder / "a")
    assert not disk.exists(folder / "a")
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(folder / "a")


def test_a_name_that_was_not_synced_may_be_lost_with_all_below_it() -> None:
    disk = FaultyDisk()
    for name in ("kept", "lost"):
        disk.make_directory(Path("/") / name)
        file = disk.open_sparse(Path("/") / name / "file", SIZE)
        file.write(0, b"bytes")
        file.flush()
    survivors = [disk_after.exists(Path("/lost/file")) for disk_after in (disk.power_loss(seed) for seed in range(20))]
    assert {True, False} == set(survivors)


# -- removing what expired


def test_a_moved_file_has_its_new_name_alone(disk: Disk, folder: Path) -> None:
    disk.replace_atomically(folder / "old", b"content")
    disk.make_directories(folder / "below")
    disk.move(folder / "old", folder / "below" / "new")
    assert not disk.exists(folder / "old")
    assert disk.read(folder / "below" / "new") == b"content"


def test_a_moved_directory_takes_all_that_it_holds_with_it(disk: Disk, folder: Path) -> None:
    disk.make_directories(folder / "old" / "below")
    disk.make_directories(folder / "older")
    for path in (folder / "old" / "a", folder / "old" / "below" / "b", folder / "older" / "c"):
        disk.replace_atomically(path, path.name.encode())
    disk.move(folder / "old", folder / "new")
    assert not disk.exists(folder / "old")
    assert disk.read(folder / "new" / "a") == b"a"
    assert disk.read(folder / "new" / "below" / "b") == b"b"
    assert disk.read(folder / "older" / "c") == b"c"


def test_moving_what_is_not_there_or_to_where_nothing_is_names_a_file(disk: Disk, folder: Path) -> None:
    disk.replace_atomically(folder / "old", b"content")
    for path, target in ((folder / "missing", folder / "new"), (folder / "old", folder / "missing" / "new")):
        with pytest.raises(FileNotFoundError) as caught:
            disk.move(path, target)
        assert caught.value.filename is not None
    assert disk.read(folder / "old") == b"content"


def test_a_truncated_file_keeps_its_beginning(disk: Disk, folder: Path) -> None:
    segment = disk.create_segment(folder / "a", SIZE)
    segment.write(0, b"begin")
    segment.close()
    del segment
    disk.truncate(folder / "a", 4096)
    assert disk.read(folder / "a") == b"begin" + bytes(4091)


def test_a_file_is_mapped_as_long_as_a_segment_or_a_view_is_there(disk: Disk, folder: Path) -> None:
    segment = disk.create_segment(folder / "a", SIZE)
    other = disk.create_segment(folder / "b", SIZE)
    view = segment.view()[10:20]
    assert disk.is_mapped(folder / "a")
    segment.close()
    del segment
    assert disk.is_mapped(folder / "a"), "a view is left"
    disk.move(folder / "a", folder / "moved")
    assert disk.is_mapped(folder / "moved")
    view.release()
    assert not disk.is_mapped(folder / "moved")
    assert disk.is_mapped(folder / "b")
    other.close()


def test_a_file_has_one_name_unless_somebody_links_it(disk: Disk, folder: Path) -> None:
    disk.replace_atomically(folder / "a", b"content")
    assert disk.name_count(folder / "a") == 1


def test_the_space_that_is_told_adds_up(disk: Disk, folder: Path) -> None:
    space = disk.space(folder)
    if space is not None:
        assert space.total_bytes == space.used_bytes + space.available_bytes > 0
        assert 0 <= space.used_percent <= 100


@pytest.mark.parametrize(
    ("used", "available", "percent"), [(0, 100, 0), (1, 999, 1), (750, 250, 75), (7501, 2499, 76), (100, 0, 100)]
)
def test_percents_are_rounded_up_as_df_does(used: int, available: int, percent: int) -> None:
    assert DiskSpace(used, available).used_percent == percent


def test_syncing_a_file_system_wants_a_directory_that_is_there(disk: Disk, folder: Path) -> None:
    disk.create_segment(folder / "a", SIZE).write(0, b"kept")
    disk.sync_file_system(folder)
    assert disk.read(folder / "a")[:4] == b"kept"
    with pytest.raises(FileNotFoundError) as caught:
        disk.sync_file_system(folder / "missing")
    assert caught.value.filename is not None


@pytest.mark.parametrize("seed", range(5))
def test_what_a_dead_process_wrote_is_durable_once_the_file_system_was_synced(seed: int) -> None:
    kernel = Kernel(Random(seed))
    folder = kernel.path("/machine")
    disk = kernel.disk()
    disk.make_directories(folder)
    disk.sync_directory(folder)
    disk.make_directory(folder / "queue")
    file = disk.open_sparse(folder / "queue" / "a", SIZE)
    file.write(SIZE - 4, b"last")
    kernel.process_death()
    disk = kernel.disk()
    disk.sync_file_system(folder)
    kernel.power_loss()
    assert kernel.disk().read(folder / "queue" / "a") == bytes(SIZE - 4) + b"last"


@pytest.mark.parametrize("seed", range(5))
def test_the_failing_disk_forgets_nothing_that_was_synced_with_its_file_system(seed: int) -> None:
    disk = FaultyDisk()
    disk.make_directory(Path("/queue"))
    disk.open_sparse(Path("/queue/a"), SIZE).write(SIZE - 4, b"last")
    disk.sync_file_system(Path("/"))
    assert disk.power_loss(seed).read(Path("/queue/a")) == bytes(SIZE - 4) + b"last"


def test_bytes_are_read_once_from_anywhere_and_only_up_to_the_end(disk: Disk, folder: Path) -> None:
    segment = disk.create_segment(folder / "a", 80 * 4096)
    content = Random(3).randbytes(segment.size)
    segment.write(0, content)
    for position, size in ((0, segment.size), (5, 4096), (4095, 200_000), (segment.size - 3, 100), (segment.size, 1)):
        assert disk.read_once(folder / "a", position, size) == content[position : position + size]
    with pytest.raises(FileNotFoundError) as caught:
        disk.read_once(folder / "b", 0, 1)
    assert caught.value.filename == str(folder / "b")
