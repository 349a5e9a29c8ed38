"""A reader that comes once leaves the page cache as it was."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from quarry_mq.store.fs.posix import PosixDisk

LIBC = ctypes.CDLL(None, use_errno=True)
PAGES = 512
PAGE = 4096


def cached(path: Path) -> set[int]:
    """Return the pages of a file that are in the page cache. Asking loads none."""
    size = path.stat().st_size
    vector = (ctypes.c_ubyte * -(-size // PAGE))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapping:
        anchor = ctypes.c_char.from_buffer(mapping)
        failed = LIBC.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(size), vector)
        del anchor
    assert not failed
    return {page for page, flags in enumerate(vector) if flags & 1}


def test_what_is_read_once_does_not_stay_in_the_cache_and_what_was_there_does(tmp_path: Path) -> None:
    disk, path = PosixDisk(), tmp_path / "a"
    path.write_bytes(os.urandom(PAGES * PAGE))
    disk.drop_cached(path)
    if cached(path):
        pytest.skip("this file system is in memory, or cannot tell what is cached")
    disk.fetch(path, 96 * PAGE, 160 * PAGE)
    before = cached(path)
    assert set(range(96, 160)) <= before
    assert len(before) < PAGES / 2
    reads = [(100 * PAGE, 20 * PAGE), (300 * PAGE + 77, 1_000), *((at * PAGE, 64 * PAGE) for at in range(0, PAGES, 64))]

    read = [disk.read_once(path, position, size) for position, size in reads]
    after = cached(path)
    assert after - before == set(), "nothing else is in the cache now"
    assert set(range(96, 160)) <= after, "what was in the cache still is"
    content = path.read_bytes()
    assert read == [content[position : position + size] for position, size in reads]
