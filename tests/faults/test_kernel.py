"""The simulated kernel must be as unkind as it says, or the crash tests prove nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import segment_name
from quarry_mq.store.message import PhysicalOffset
from tests.faults.disk import PAGE, SECTOR, PowerCut
from tests.faults.kernel import Kernel

SIZE = 4 * PAGE


def machine(seed: int) -> tuple[Kernel, Disk, Path]:
    kernel = Kernel(Random(seed))
    disk = kernel.disk()
    disk.make_directories(kernel.path("/folder"))
    return kernel, disk, kernel.path("/folder/file")


def test_what_was_flushed_survives_every_power_loss() -> None:
    for seed in range(30):
        kernel, disk, path = machine(seed)
        segment = disk.create_segment(path, SIZE)
        segment.write(0, b"x" * SIZE)
        segment.flush()
        kernel.power_loss()
        assert disk.read(path) == b"x" * SIZE


def test_each_unflushed_page_of_a_mapping_is_lost_kept_or_torn_by_itself() -> None:
    fates: Counter[str] = Counter()
    together = set()
    for seed in range(100):
        kernel, disk, path = machine(seed)
        disk.create_segment(path, SIZE).write(0, b"x" * SIZE)
        kernel.power_loss()
        survivor = disk.read(path)
        assert len(survivor) == SIZE
        names = []
        for start in range(0, SIZE, PAGE):
            sectors = {survivor[at : at + SECTOR] for at in range(start, start + PAGE, SECTOR)}
            assert sectors <= {bytes(SECTOR), b"x" * SECTOR}
            names.append("torn" if len(sectors) == 2 else "kept" if survivor[start] else "lost")
        fates.update(names)
        together.add(tuple(names))
    assert min(fates[fate] for fate in ("lost", "kept", "torn")) > 30
    assert len(together) > 30


def test_the_kernel_may_have_written_back_an_earlier_state() -> None:
    found = set()
    for seed in range(200):
        kernel, disk, path = machine(seed)
        segment = disk.create_segment(path, SIZE)
        for value in (b"a", b"b", b"c"):
            segment.write(0, value)
        kernel.power_loss()
        found.add(disk.read(path)[:1])
    assert found == {b"\0", b"a", b"b", b"c"}


def test_names_that_were_not_synced_survive_in_their_order() -> None:
    found = set()
    for seed in range(60):
        kernel, disk, path = machine(seed)
        for name in "abc":
            kernel.close(kernel.open(path.with_name(name), 0o100, 0))  # type: ignore[arg-type]
        kernel.power_loss()
        found.add("".join(entry.name for entry in disk.list_directory(path.parent)))
    assert found == {"", "a", "ab", "abc"}


def test_a_file_is_replaced_whole_or_not_at_all_at_whatever_step_the_power_goes() -> None:
    found = set()
    for seed in range(200):
        kernel, disk, path = machine(seed)
        disk.replace_atomically(path, b"old" * 2000)
        kernel.crash_at = kernel.steps + 1 + seed % 5
        with pytest.raises(PowerCut):
            disk.replace_atomically(path, b"new!" * 2000)
        kernel.power_loss()
        found.add(disk.read(path))
    assert found == {b"old" * 2000, b"new!" * 2000}


@pytest.mark.parametrize("step", [1, 2])
def test_a_directory_that_a_dead_process_made_does_not_vanish_with_what_came_into_it(step: int) -> None:
    """It died after making the directory and before its name was durable; who comes next finds it made."""
    for seed in range(20):
        kernel, disk, path = machine(seed)
        kernel.crash_at = kernel.steps + step
        with pytest.raises(PowerCut):
            disk.make_directories(path.parent / "below")
        kernel.process_death()
        disk.make_directories(path.parent / "below")
        disk.create_segment(path.parent / "below" / "file", SIZE)
        kernel.power_loss()
        assert disk.exists(path.parent / "below" / "file")


def test_a_segment_that_a_dead_process_made_does_not_vanish_with_what_was_flushed_into_it() -> None:
    """It died before the name was durable; the next broker finds the file whole and goes on in it."""
    outcomes = set()
    for seed in range(40):
        kernel, disk, path = machine(seed)
        segment = path.parent / segment_name(PhysicalOffset(0))
        kernel.crash_at = kernel.steps + 5
        with pytest.raises(PowerCut):
            disk.create_segment(segment, SIZE)
        kernel.process_death()
        segments = SegmentList(disk, path.parent, SIZE)
        if len(segments):
            segments.open_for_writing(PhysicalOffset(0)).write(0, b"acknowledged")
            segments.segment_at(PhysicalOffset(0)).flush()
            kernel.power_loss()
            assert disk.read(segment)[:12] == b"acknowledged"
        outcomes.add(len(segments))
    assert 1 in outcomes


def test_the_death_of_the_process_keeps_the_page_cache_but_makes_nothing_durable() -> None:
    lost = 0
    for seed in range(20):
        kernel, disk, path = machine(seed)
        segment = disk.create_segment(path, SIZE)
        segment.write(0, b"x" * SIZE)
        kernel.cut()
        with pytest.raises(PowerCut):
            segment.write(0, b"y")
        kernel.process_death()
        assert disk.read(path) == b"x" * SIZE
        kernel.power_loss()
        lost += disk.read(path) != b"x" * SIZE
    assert lost > 10


def test_locks_end_with_the_process() -> None:
    kernel, disk, path = machine(0)
    lock = disk.lock(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    kernel.process_death()
    disk.lock(path).release()
    lock.release()
