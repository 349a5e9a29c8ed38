"""Power loss at every operation of a random run.

What a flush covered is there afterwards, and whatever is read is what was written, byte for byte.
"""

from __future__ import annotations

import random

import pytest

from quarry_mq.store.commitlog import CommitLogFlusher, CommitLogWriter, SegmentList, cut
from quarry_mq.store.message import PhysicalOffset
from tests.commitlog.records import SMALLEST, append, log_end, open_log, records_in
from tests.faults.disk import FaultyDisk, PowerCut

SEGMENT = 4 * 4096
START = PhysicalOffset(0)


class Run:
    """Random appends and flushes, and what is known about them when the power goes."""

    def __init__(self, disk: FaultyDisk, chance: random.Random, segments: SegmentList, end: PhysicalOffset) -> None:
        self.chance = chance
        self.writer = CommitLogWriter(segments, end, lays_zeros=chance.random() < 0.5)
        self.flusher = CommitLogFlusher(segments, self.writer, START)
        self.written: dict[int, bytes] = {}
        self.durable_up_to = 0

    def go(self, steps: int) -> None:
        for number in range(steps):
            for _ in range(self.chance.choice((1, 1, 1, 5))):
                at, encoded = append(self.writer, self.size(), number)
                self.written[int(at)] = encoded
            if self.chance.random() < 0.1:
                self.writer.discard()
                self.written = {at: encoded for at, encoded in self.written.items() if at < self.writer.end}
            else:
                self.writer.commit()
            if self.chance.random() < 0.3:
                self.durable_up_to = int(self.flusher.flush())

    def size(self) -> int:
        # few sizes, so that new records end exactly where lost ones began
        return self.chance.choice((SMALLEST, 200, 200, 200, 777, 5000, SEGMENT - 8))


def survive(survivor: FaultyDisk, run: Run) -> tuple[SegmentList, PhysicalOffset]:
    """Recover as a start does, with everything asserted."""
    segments = open_log(survivor, SEGMENT)
    found = records_in(segments)
    for at, encoded in found.items():
        assert run.written.get(at) == encoded, f"offset {at} holds a record that was never written"
    for at, encoded in run.written.items():
        if at + len(encoded) <= run.durable_up_to:
            assert at in found, f"offset {at} was flushed and is lost"
    end = log_end(segments)
    cut(segments, end)
    assert records_in(segments) == found
    return segments, end


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
def test_power_loss_at_any_operation_and_again_after_recovery(seed: int) -> None:
    crashes = 0
    for crash_at in range(1, 150, 1 + seed % 4):
        disk = FaultyDisk(crash_at=crash_at)
        chance = random.Random(seed)
        try:
            run = Run(disk, chance, open_log(disk, SEGMENT), START)
        except PowerCut:
            continue
        try:
            run.go(steps=40)
        except PowerCut:
            crashes += 1
        survivor = disk.power_loss(seed * 1000 + crash_at)
        segments, end = survive(survivor, run)

        # a second life on what was left, and a second loss
        again = Run(survivor, chance, segments, end)
        again.written = {at: encoded for at, encoded in run.written.items() if at < end}
        again.flusher = CommitLogFlusher(segments, again.writer, START)
        again.durable_up_to = int(again.flusher.flush())
        again.go(steps=5)
        survive(survivor.power_loss(seed), again)
    assert crashes > 10, "the run is too short to be cut"


@pytest.mark.parametrize("seed", range(6))
def test_death_of_the_process_loses_nothing_committed(seed: int) -> None:
    disk = FaultyDisk()
    run = Run(disk, random.Random(seed), open_log(disk, SEGMENT), START)
    run.go(steps=30)
    end = run.writer.end
    append(run.writer, 300)
    segments, found_end = survive(disk.process_death(), run)
    assert found_end == end
    assert records_in(segments) == run.written
