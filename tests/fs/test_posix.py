"""Behaviour that only the real disk can show: other processes, blocks, descriptors, limits of the system."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quarry_mq.store.fs import hold_descriptors
from quarry_mq.store.fs.posix import RESERVE, PosixDisk
from tests.descriptors import descriptors_below, in_own_process, starved
from tests.fs.test_page_cache import cached

SIZE = 64 * 1024
HUGE = 256 * 1024 * 1024

# What Java's FileChannel.tryLock(0, 1, false) does, and with it RocketMQ.
TRY_LOCK_LIKE_ROCKETMQ = """
import fcntl, os, sys
number = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except BlockingIOError:
    print("held", flush=True)
else:
    print("taken", flush=True)
    sys.stdin.read()
"""

WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from quarry_mq.store.fs.posix import PosixDisk
segment = PosixDisk().create_segment(Path(sys.argv[1]), 65536)
segment.write(40000, b"written before death")
os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Files of this process may not grow over `size`: EFBIG, the nearest to a full disk without being root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def other_process(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TRY_LOCK_LIKE_ROCKETMQ, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def verdict_of_another_process(path: Path) -> str:
    with other_process(path) as process:
        return process.communicate()[0].strip()


def test_the_lock_keeps_rocketmq_out_and_is_free_after_release(tmp_path: Path) -> None:
    lock = PosixDisk().lock(tmp_path / "lock")
    assert verdict_of_another_process(tmp_path / "lock") == "held"
    lock.release()
    assert verdict_of_another_process(tmp_path / "lock") == "taken"


def test_the_lock_survives_that_the_file_is_read_and_closed(tmp_path: Path) -> None:
    """A classic record lock is dropped when any descriptor of the file is closed in the process."""
    lock = PosixDisk().lock(tmp_path / "lock")
    assert PosixDisk().read(tmp_path / "lock") == b"lock"
    with pytest.raises(BlockingIOError):
        PosixDisk().lock(tmp_path / "lock")
    assert verdict_of_another_process(tmp_path / "lock") == "held"
    lock.release()


def test_a_lock_held_by_rocketmq_is_respected(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"lock")
    with other_process(tmp_path / "lock") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        with pytest.raises(BlockingIOError):
            PosixDisk().lock(tmp_path / "lock")
        process.communicate()
    PosixDisk().lock(tmp_path / "lock").release()


def test_what_was_written_survives_the_death_of_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_AND_DIE, str(tmp_path / "a")]
    died = subprocess.run(command, check=False, cwd=Path(__file__).parents[2])
    assert died.returncode == -signal.SIGKILL
    assert PosixDisk().read(tmp_path / "a")[40000:40020] == b"written before death"


def test_new_segments_have_all_their_blocks(tmp_path: Path) -> None:
    PosixDisk().create_segment(tmp_path / "a", SIZE)
    assert (tmp_path / "a").stat().st_blocks * 512 >= SIZE


def test_opening_for_writing_fills_the_holes_that_rocketmq_leaves(tmp_path: Path) -> None:
    """Storing into a hole of a full disk through a mapping is SIGBUS."""
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.write(b"data")
        file.truncate(SIZE)
    sparse = path.stat().st_blocks
    PosixDisk().open_segment(path, writable=False)
    assert path.stat().st_blocks == sparse
    segment = PosixDisk().open_segment(path, writable=True)
    assert path.stat().st_blocks * 512 >= SIZE
    assert bytes(segment.view()).rstrip(b"\0") == b"data"


def test_pages_that_cannot_be_read_are_an_error_of_fetch(tmp_path: Path) -> None:
    """Through the view they would be SIGBUS."""
    path = tmp_path / "a"
    segment = PosixDisk().create_segment(path, 16 * mmap.PAGESIZE)
    os.truncate(path, 5 * mmap.PAGESIZE + 1)
    segment.fetch(100, 6 * mmap.PAGESIZE - 100)
    assert segment.view()[6 * mmap.PAGESIZE - 1] == 0
    for begin, size in ((0, 16 * mmap.PAGESIZE), (6 * mmap.PAGESIZE - 1, 2), (9 * mmap.PAGESIZE, 1)):
        with pytest.raises(OSError, match=rf"Input/output error: '{path}'") as caught:
            segment.fetch(begin, size)
        assert caught.value.errno == errno.EIO
    segment.fetch(16 * mmap.PAGESIZE, 0)
    with pytest.raises(OSError, match=f"the file ends before position {16 * mmap.PAGESIZE}"):
        PosixDisk().fetch(path, 0, 16 * mmap.PAGESIZE)


def test_an_old_kernel_that_cannot_fetch_pages_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.fs.posix.MADV_POPULATE_READ", 9_999)
    PosixDisk().create_segment(tmp_path / "a", SIZE).fetch(0, SIZE)


def test_zeroing_keeps_the_blocks(tmp_path: Path) -> None:
    PosixDisk().create_segment(tmp_path / "a", SIZE).write(0, b"x" * SIZE)
    PosixDisk().zero_from(tmp_path / "a", 100)
    assert (tmp_path / "a").stat().st_blocks * 512 >= SIZE


def test_a_segment_that_gets_no_space_leaves_no_file(tmp_path: Path) -> None:
    with file_size_limit(SIZE - 1), pytest.raises(OSError, match="File too large") as caught:
        PosixDisk().create_segment(tmp_path / "a", SIZE)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    del caught
    assert descriptors_below(tmp_path) == 0


def test_a_replacement_that_fails_leaves_the_old_bytes_and_nothing_else(tmp_path: Path) -> None:
    disk = PosixDisk()
    disk.replace_atomically(tmp_path / "state", b"old")
    with file_size_limit(100), pytest.raises(OSError, match="File too large"):
        disk.replace_atomically(tmp_path / "state", b"x" * 200)
    assert disk.read(tmp_path / "state") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_descriptors_are_given_back_with_the_last_view(tmp_path: Path) -> None:
    segment = PosixDisk().create_segment(tmp_path / "a", SIZE)
    assert descriptors_below(tmp_path) == 2
    view = segment.view()[10:20]
    segment.close()
    assert descriptors_below(tmp_path) == 1
    assert bytes(view) == bytes(10)
    del view
    assert descriptors_below(tmp_path) == 0
    segment = PosixDisk().open_segment(tmp_path / "a", writable=False)
    assert descriptors_below(tmp_path) == 1
    del segment
    assert descriptors_below(tmp_path) == 0


def test_closing_does_not_pull_the_descriptor_from_under_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = PosixDisk().create_segment(tmp_path / "a", SIZE)
    really_sync = os.fdatasync
    synced = []

    def close_meanwhile(descriptor: int) -> None:
        segment.close()
        really_sync(descriptor)
        synced.append(descriptor)

    monkeypatch.setattr(os, "fdatasync", close_meanwhile)
    segment.flush()
    assert len(synced) == 1


def test_an_error_of_the_flush_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = PosixDisk().create_segment(tmp_path / "a", SIZE)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match=r"Input/output error: '.*/a'"):
        segment.flush()


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = PosixDisk().create_segment(tmp_path / "a", SIZE)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda number, data, position: write(number, data[:7], position))
    segment.write(5, b"a record of the log")
    assert bytes(segment.view()).strip(b"\0") == b"a record of the log"


def test_a_refused_write_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = PosixDisk().create_segment(tmp_path / "a", SIZE)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match=r"Input/output error: '.*/a'"):
        segment.write(0, b"x")


def test_the_data_end_of_a_huge_segment_is_found_without_reading_it(tmp_path: Path) -> None:
    disk = PosixDisk()
    segment = disk.create_segment(tmp_path / "a", HUGE)
    segment.write(5_000_000, b"last")
    assert 5_000_004 <= disk.data_end(tmp_path / "a") < HUGE // 4
    disk.zero_from(tmp_path / "a", 5_000_002)
    assert bytes(segment.view()[5_000_000:5_000_004]) == b"la\0\0"
    # what is read counts as data from then on: the holes were not
    assert disk.data_end(tmp_path / "a") < HUGE // 4


def test_the_page_cache_is_dropped_and_filled_from_the_device(tmp_path: Path) -> None:
    """What was cached before it, clean or not, is not what is seen after it."""
    plain = tmp_path / "plain"
    plain.write_bytes(bytes(SIZE))
    number = os.open(plain, os.O_RDONLY)
    os.fsync(number)
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(number)
    try:
        in_memory = 0 in cached(plain)
    except OSError as error:
        pytest.skip(f"this file system does not tell what is cached: {error}")
    if in_memory:
        pytest.skip("this file system lives in the page cache")
    path = tmp_path / "segment"
    segment = PosixDisk().create_segment(path, HUGE)
    segment.write(0, b"x" * SIZE)
    segment.write(HUGE // 2, b"y" * SIZE)
    segment.close()
    assert 0 in cached(path)
    PosixDisk().drop_cached(path)
    assert HUGE // 2 // mmap.PAGESIZE not in cached(path)
    PosixDisk().fetch(path, HUGE // 2, HUGE)
    assert 0 not in cached(path), "forgotten"
    assert HUGE // 2 // mmap.PAGESIZE in cached(path), "read again"


@in_own_process
def test_the_store_writes_its_small_files_when_all_descriptors_are_in_use(tmp_path: Path) -> None:
    disk = PosixDisk()
    checkpoint = tmp_path / "checkpoint"
    segment = disk.create_segment(tmp_path / "segment", SIZE)
    segment.close()
    with starved(), pytest.raises(OSError, match="Too many open files"):
        disk.replace_atomically(checkpoint, b"first")
    assert not checkpoint.exists()
    hold_descriptors()
    try:
        for content in (b"second", b"third"):
            with starved():
                disk.replace_atomically(checkpoint, content)
                assert disk.read(checkpoint) == content
                disk.open_segment(tmp_path / "segment", writable=True).close()
                assert {each.name for each in disk.list_directory(tmp_path)} == {"checkpoint", "segment"}
            disk.exists(checkpoint)
            disk.read(checkpoint)  # takes a descriptor back into the reserve
    finally:
        RESERVE.release()
