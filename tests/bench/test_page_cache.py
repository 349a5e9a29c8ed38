"""A benchmark that fills the page cache leaves room on the disk, and nothing behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench import page_cache
from bench.page_cache import LEFT_FREE, full_page_cache
from quarry_mq.kv.options import MIB


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 3 MiB of free memory to fill."""
    told = tmp_path / "meminfo"
    told.write_text(f"MemTotal: 99999999 kB\nMemFree: {(LEFT_FREE + 3 * MIB) // 1024} kB\nBuffers: 5 kB\n")
    monkeypatch.setattr(page_cache, "_MEMORY", told)
    return told


def test_a_file_of_the_size_of_what_is_free_is_there_while_it_lasts(tmp_path: Path, memory: Path) -> None:
    with full_page_cache(tmp_path, kept_free_on_disk=0) as size:
        assert size == 3 * MIB == (tmp_path / "page-cache").stat().st_size
    assert list(tmp_path.iterdir()) == [memory]


def test_it_goes_with_an_error_too(tmp_path: Path, memory: Path) -> None:
    with pytest.raises(KeyError), full_page_cache(tmp_path, kept_free_on_disk=0):
        raise KeyError
    assert list(tmp_path.iterdir()) == [memory]


@pytest.mark.usefixtures("memory")
def test_what_is_to_stay_free_on_the_disk_does(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with full_page_cache(tmp_path, kept_free_on_disk=2 * free) as size:
        assert size == 0


def test_where_hardly_anything_is_free_nothing_is_filled(tmp_path: Path, memory: Path) -> None:
    memory.write_text("MemFree: 1 kB\n")
    with full_page_cache(tmp_path, kept_free_on_disk=0) as size:
        assert size == 0


def test_a_machine_that_does_not_tell_is_named(tmp_path: Path, memory: Path) -> None:
    memory.write_text("MemTotal: 5 kB\n")
    with pytest.raises(RuntimeError, match="meminfo does not tell"), full_page_cache(tmp_path, kept_free_on_disk=0):
        pass
