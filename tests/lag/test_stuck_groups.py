"""Groups are judged by what several sweeps of the lag found."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.lag.consumer_lag import PairLag
from quarry_mq.server.lag.measurement import GroupTopic
from quarry_mq.server.lag.stuck_groups import SHOWN, Stuck, StuckGroups

LIMIT_MS: Final = 600_000
MINUTE_MS: Final = 60_000


class Sweeps:
    """Groups whose lag the test sets, with one sweep a minute."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.found: dict[GroupTopic, PairLag] = {}
        self.consumers = 1
        self.judge = StuckGroups(lambda: self.found, self._count, limit_ms=LIMIT_MS, clock=self.clock)

    def _count(self, _group: str, _topic: str) -> int:
        return self.consumers

    def minute(
        self, *, ready: int, age_ms: int, done: int, group: str = "billing", queueing_ms: int | None = None
    ) -> dict[Stuck, int]:
        """A sweep, a minute after the last one. Returns how many groups there are of each kind."""
        self.clock.advance(60)
        waits_ms = age_ms if queueing_ms is None else queueing_ms
        self.found[GroupTopic(group, "orders")] = PairLag(group, "orders", False, ready, 0, age_ms, waits_ms, done)
        for _ in self.judge.steps():
            pass
        return {kind: each.groups for kind, each in self.judge.summaries.items()}


def test_a_group_that_keeps_up_is_none() -> None:
    sweeps = Sweeps()
    for minute in range(60):
        assert sweeps.minute(ready=100, age_ms=LIMIT_MS - 1, done=minute) == {}


def test_without_a_consumer_the_age_alone_counts() -> None:
    sweeps = Sweeps()
    sweeps.consumers = 0
    assert sweeps.minute(ready=1, age_ms=LIMIT_MS - 1, done=0) == {}
    assert sweeps.minute(ready=1, age_ms=LIMIT_MS, done=1) == {Stuck.NO_CONSUMER: 1}
    [stuck] = sweeps.judge.summaries[Stuck.NO_CONSUMER].shown
    assert stuck.since_ms == sweeps.clock.wall_ms() - LIMIT_MS
    assert sweeps.minute(ready=0, age_ms=0, done=2) == {}


def test_nothing_done_for_the_whole_limit() -> None:
    sweeps = Sweeps()
    judged = [sweeps.minute(ready=5, age_ms=LIMIT_MS + minute * MINUTE_MS, done=7) for minute in range(12)]
    assert judged[:10] == [{Stuck.LAG_OLD: 1}] * 10
    assert judged[10:] == [{Stuck.NOTHING_DONE: 1}] * 2
    [stuck] = sweeps.judge.summaries[Stuck.NOTHING_DONE].shown
    assert stuck.since_ms == sweeps.clock.wall_ms() - 11 * MINUTE_MS
    assert sweeps.minute(ready=4, age_ms=LIMIT_MS, done=8) == {Stuck.LAG_OLD: 1}, "one acknowledgement ends that"


def test_a_lag_that_grows() -> None:
    sweeps = Sweeps()
    judged = [sweeps.minute(ready=100 + minute, age_ms=LIMIT_MS, done=minute) for minute in range(25)]
    assert judged[9] == {Stuck.LAG_OLD: 1}
    assert judged[-1] == {Stuck.LAG_GROWS: 1}
    shrinks = [sweeps.minute(ready=100 - minute, age_ms=LIMIT_MS, done=30 + minute) for minute in range(25)]
    assert shrinks[-1] == {Stuck.LAG_OLD: 1}


def test_one_message_that_is_tried_again_is_none() -> None:
    sweeps = Sweeps()
    for minute in range(60):
        assert sweeps.minute(ready=10, age_ms=2 * LIMIT_MS, queueing_ms=0, done=minute) == {}


def test_what_is_not_known_is_no_concern() -> None:
    sweeps = Sweeps()
    sweeps.consumers = 0
    sweeps.found[GroupTopic("broken", "orders")] = PairLag("broken", "orders", False, 5, None, None, None, None)
    assert sweeps.minute(ready=0, age_ms=0, done=0) == {}


def test_the_worst_are_shown_and_all_are_counted() -> None:
    sweeps = Sweeps()
    sweeps.consumers = 0
    for number in range(50):
        counted = sweeps.minute(group=f"group-{number}", ready=1, age_ms=LIMIT_MS + number, done=0)
    assert counted == {Stuck.NO_CONSUMER: 50}
    shown = sweeps.judge.summaries[Stuck.NO_CONSUMER].shown
    assert [each.lag.group for each in shown] == ["group-49", "group-48", "group-47"][:SHOWN]
