"""Pauses, lateness and recovery, as they are counted."""

from __future__ import annotations

import gc

from quarry_mq.protocol.clock import ManualClock, Progress, SystemClock
from quarry_mq.server.process.process_metrics import ProcessStats, RecoveryStats


def count(stats: ProcessStats) -> float:
    return list(stats.pauses.buckets())[-1][1]


def test_searches_for_garbage_are_timed_while_they_are_watched() -> None:
    stats = ProcessStats(SystemClock())
    watchers = len(gc.callbacks)
    with stats.watching_garbage():
        gc.collect()
    assert count(stats) >= 1
    assert len(gc.callbacks) == watchers
    before = count(stats)
    gc.collect()
    assert count(stats) == before


def test_a_phase_takes_from_the_report_before_it_to_its_last() -> None:
    clock = ManualClock()
    stats = RecoveryStats(clock)
    for seconds, phase, done in ((2, "recovering", 0), (3, "recovering", 50), (4, "looking for held messages", 9)):
        clock.advance(seconds)
        stats.report(Progress(phase, done, 100))
    found = {name: (phase.ended_s - phase.began_s, phase.done_bytes) for name, phase in stats.phases()}
    assert found == {"recovering": (5, 50), "looking for held messages": (4, 9)}


def test_the_loop_was_as_late_as_it_was_at_worst_since_somebody_asked() -> None:
    stats = ProcessStats(ManualClock())
    assert stats.take_latest_s() is None
    for seconds in (0.01, 0.3, 0.02):
        stats.late(seconds)
    assert stats.take_latest_s() == 0.3
    assert stats.take_latest_s() is None, "nobody has looked since"
    stats.late(0.0)
    assert stats.take_latest_s() == 0.0
    assert list(stats.loop_late.buckets())[-1][1] == 4
