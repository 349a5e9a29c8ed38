"""Every decision of expiry, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quarry_mq.store.errors import Invalid
from quarry_mq.store.fs import DiskSpace
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.retention import (
    Candidate,
    Cause,
    ExpirySettings,
    FileSystem,
    Forced,
    Plan,
    Situation,
    decide,
    refusal,
)

SIZE = 100
HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
OLD, EDGE, YOUNG = NOW_MS - 73 * HOUR_MS, NOW_MS - 72 * HOUR_MS, NOW_MS - 72 * HOUR_MS + 1
LOG, QUEUES = Path("/store/commitlog"), Path("/store/consumequeue_rocksdb")
AGE, ROOM = Cause.AGE, Cause.ROOM


def on(directory: Path, percent: int) -> FileSystem:
    return FileSystem(directory, DiskSpace(percent * 100, 10_000 - percent * 100))


def segments(*newest_ms: int | None) -> list[Candidate]:
    return [Candidate(PhysicalOffset(index * SIZE), newest) for index, newest in enumerate(newest_ms)]


def causes(plan: Plan) -> list[Cause]:
    return [cause for _, cause in plan.segments]


def situation(
    *,
    hour: int = 12,
    log: int | None = 10,
    queues: int = 10,
    going_bytes: int = 0,
    requested: bool = False,
    futile: bool = False,
    now_ms: int = NOW_MS,
) -> Situation:
    return Situation(
        now_ms=now_ms,
        hour=hour,
        log=None if log is None else on(LOG, log),
        others=(on(QUEUES, queues),),
        going_bytes=going_bytes,
        requested=requested,
        futile=futile,
    )


@pytest.mark.parametrize(
    ("now", "newest_ms", "expected"),
    [
        pytest.param(situation(), [OLD, OLD], [], id="another hour"),
        pytest.param(situation(hour=4), [OLD, OLD], [AGE, AGE], id="the hour"),
        pytest.param(situation(hour=4), [EDGE], [AGE], id="retention is just over"),
        pytest.param(situation(hour=4), [YOUNG], [], id="retention is not quite over"),
        pytest.param(situation(hour=4), [OLD, YOUNG, OLD], [AGE], id="never past a young one"),
        pytest.param(situation(hour=4), [None, OLD], [], id="age unknown: stays"),
        pytest.param(situation(hour=4, now_ms=0), [OLD], [], id="a clock that was set back makes nothing old"),
        pytest.param(situation(requested=True), [OLD, YOUNG], [AGE], id="on request: any hour, no young one"),
        pytest.param(situation(log=75), [OLD], [], id="not above the first threshold"),
        pytest.param(situation(log=76), [OLD, YOUNG], [AGE], id="above it: any hour, no young one"),
        pytest.param(situation(queues=76), [OLD, YOUNG], [AGE], id="the queues' file system counts, too"),
        pytest.param(situation(log=85), [YOUNG], [], id="not above the second threshold"),
        pytest.param(situation(log=86), [YOUNG, YOUNG], [ROOM], id="above it: whatever the age, as many as needed"),
        pytest.param(situation(log=87), [OLD, YOUNG, YOUNG], [AGE, ROOM], id="what is old makes room, too"),
        pytest.param(
            situation(log=86), [OLD, OLD, OLD, YOUNG], [AGE, AGE, AGE], id="all that is old, whatever it makes"
        ),
        pytest.param(situation(log=86), [None], [ROOM], id="above it: age does not matter"),
        pytest.param(situation(log=86, going_bytes=100), [YOUNG], [], id="enough is going already"),
        pytest.param(situation(log=87, going_bytes=100), [YOUNG, YOUNG], [ROOM], id="some is going already"),
        pytest.param(situation(queues=99), [YOUNG], [], id="deleting makes no room on the queues' file system"),
        pytest.param(situation(log=None, hour=4), [OLD, YOUNG], [AGE], id="a file system that tells no size"),
        pytest.param(situation(log=99), [YOUNG] * 50, [ROOM] * 10, id="no more than a round's"),
        pytest.param(situation(hour=4), [OLD] * 50, [AGE] * 10, id="no more than a round's by age"),
        pytest.param(situation(log=99), [], [], id="nothing to delete"),
        pytest.param(situation(log=99, futile=True), [OLD, YOUNG], [AGE], id="force has made no room lately"),
    ],
)
def test_which_segments_go(now: Situation, newest_ms: list[int | None], expected: list[Cause]) -> None:
    plan = decide(ExpirySettings(), now, segments(*newest_ms), SIZE)
    assert causes(plan) == expected
    assert [candidate.base for candidate, _ in plan.segments] == [index * SIZE for index in range(len(expected))]
    assert plan.forced == expected.count(ROOM)


@pytest.mark.parametrize(
    ("used_bytes", "log_end", "futile"),
    [
        pytest.param(800, 0, False, id="all of it is back"),
        pytest.param(900, 0, False, id="half of it"),
        pytest.param(901, 0, True, id="less than half"),
        pytest.param(1_100, 300, False, id="new segments took some of it meanwhile"),
        pytest.param(1_300, 300, True, id="new segments and nothing back"),
    ],
)
def test_when_a_forced_deletion_was_for_nothing(used_bytes: int, log_end: int, futile: bool) -> None:
    forced = Forced(freed_bytes=200, used_bytes=1_000, log_end=PhysicalOffset(0))
    assert forced.was_futile(used_bytes, PhysicalOffset(log_end)) == futile


@pytest.mark.parametrize("hour", range(24))
def test_without_hours_every_hour_is_one(hour: int) -> None:
    anytime = ExpirySettings(delete_when=frozenset())
    assert causes(decide(anytime, situation(hour=hour), segments(OLD), SIZE)) == [AGE]


@pytest.mark.parametrize("hour", range(24))
def test_each_hour_of_the_list_counts_as_a_whole(hour: int) -> None:
    twice = ExpirySettings(delete_when=frozenset({4, 16}))
    expected = [AGE] if hour in (4, 16) else []
    assert causes(decide(twice, situation(hour=hour), segments(OLD), SIZE)) == expected


def test_with_force_off_nothing_young_is_ever_deleted() -> None:
    """rmq#4549: a full disk deleted what nobody had read."""
    gentle = ExpirySettings(force=False)
    assert causes(decide(gentle, situation(log=99), segments(OLD, YOUNG), SIZE)) == [AGE]


def test_segments_after_the_decision_are_not_looked_at() -> None:
    """Looking costs a read of the disk."""
    looked_at = []

    def candidates() -> Iterator[Candidate]:
        for candidate in segments(OLD, YOUNG, YOUNG, YOUNG):
            looked_at.append(candidate.base)
            yield candidate

    decide(ExpirySettings(), situation(hour=4), candidates(), SIZE)
    assert looked_at == [0, SIZE]
    looked_at.clear()
    decide(ExpirySettings(), situation(), candidates(), SIZE)
    assert not looked_at


@pytest.mark.parametrize(
    ("now", "named"),
    [
        pytest.param(situation(log=90, queues=90), None, id="not above"),
        pytest.param(situation(log=91), LOG, id="the log's"),
        pytest.param(situation(queues=91), QUEUES, id="the queues'"),
        pytest.param(situation(log=None, queues=10), None, id="no size is told"),
        pytest.param(situation(log=None, queues=95), QUEUES, id="only the other tells its size"),
    ],
)
def test_when_sends_are_refused(now: Situation, named: Path | None) -> None:
    reason = refusal(ExpirySettings(), now)
    assert (str(named) in reason) if named is not None else not reason


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"clean_percent": 86}, "percent"),
        ({"force_percent": 91}, "percent"),
        ({"refuse_percent": 101}, "percent"),
        ({"clean_percent": 0}, "percent"),
        ({"delete_when": frozenset({24})}, "delete_when"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object], key: str) -> None:
    with pytest.raises(Invalid, match=key):
        ExpirySettings(**wrong)  # type: ignore[arg-type]
