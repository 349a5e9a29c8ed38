"""The faulty disk must be as unkind as it says, or the crash tests prove nothing."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.disk import PAGE, SECTOR, FaultyDisk, FaultySegment, PowerCut

FILE = Path("/a")
SIZE = 4 * PAGE


def disk_with_segment(**arguments: int) -> tuple[FaultyDisk, FaultySegment]:
    disk = FaultyDisk(**arguments)
    return disk, disk.create_segment(FILE, SIZE)


def test_what_was_flushed_survives_every_power_loss() -> None:
    disk, segment = disk_with_segment()
    segment.write(0, b"x" * SIZE)
    segment.flush()
    assert all(disk.power_loss(seed).read(FILE) == b"x" * SIZE for seed in range(30))


def test_each_unflushed_page_is_lost_kept_or_torn_by_itself() -> None:
    fates: Counter[str] = Counter()
    together = set()
    for seed in range(60):
        disk, segment = disk_with_segment()
        segment.write(0, b"x" * SIZE)
        survivor = disk.power_loss(seed).read(FILE)
        pages = [survivor[start : start + PAGE] for start in range(0, SIZE, PAGE)]
        names = []
        for page in pages:
            sectors = {page[start : start + SECTOR] for start in range(0, PAGE, SECTOR)}
            assert sectors <= {bytes(SECTOR), b"x" * SECTOR}
            names.append("torn" if len(sectors) == 2 else "kept" if page[0] else "lost")
        fates.update(names)
        together.add(tuple(names))
    assert min(fates[fate] for fate in ("lost", "kept", "torn")) > 30
    assert len(together) > 20


def test_one_seed_is_one_fate() -> None:
    disk, segment = disk_with_segment()
    segment.write(100, b"x" * 9000)
    assert disk.power_loss(7).read(FILE) == disk.power_loss(7).read(FILE)


def test_the_death_of_the_process_keeps_the_page_cache_but_makes_nothing_durable() -> None:
    disk, segment = disk_with_segment()
    segment.write(0, b"x" * SIZE)
    survivor = disk.process_death()
    assert survivor.read(FILE) == b"x" * SIZE
    assert any(survivor.power_loss(seed).read(FILE) != b"x" * SIZE for seed in range(5))
    with pytest.raises(PowerCut):
        segment.write(0, b"y")


def test_after_a_failed_flush_the_next_reports_success_over_lost_bytes() -> None:
    disk, segment = disk_with_segment()
    segment.write(0, b"x")
    disk.fail("flush")
    with pytest.raises(OSError, match="Input/output error") as caught:
        segment.flush()
    assert caught.value.filename == str(FILE)
    segment.flush()
    assert all(disk.power_loss(seed).read(FILE) == bytes(SIZE) for seed in range(10))


def test_faults_hit_the_operation_they_were_ordered_for() -> None:
    disk, segment = disk_with_segment()
    disk.fail("write", nth=2, error=errno.ENOSPC)
    segment.write(0, b"a")
    with pytest.raises(OSError, match="No space left"):
        segment.write(1, b"b")
    segment.write(2, b"c")
    assert bytes(segment.view()[:3]) == b"a\0c"


def test_the_disk_fills_up() -> None:
    disk, _ = disk_with_segment(capacity=2 * SIZE - 1)
    with pytest.raises(OSError, match="No space left"):
        disk.create_segment(Path("/b"), SIZE)
    assert not disk.exists(Path("/b"))
    disk.remove(FILE)
    disk.create_segment(Path("/b"), SIZE)


def test_the_operation_at_which_the_power_goes_is_done_by_half_and_the_rest_not_at_all() -> None:
    disk, segment = disk_with_segment(crash_at=2)
    with pytest.raises(PowerCut):
        segment.write(0, b"abcd")
    for act in (segment.flush, lambda: disk.read(FILE), lambda: disk.create_segment(Path("/b"), SIZE)):
        with pytest.raises(PowerCut):
            act()
    assert {disk.power_loss(seed).read(FILE)[:4] for seed in range(20)} == {b"ab\0\0", bytes(4)}
