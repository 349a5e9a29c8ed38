"""Find the groups whose oldest message waits for too long, and why: after each sweep of the lag, from its result.

A group in a topic is looked at once per sweep, in small steps, and what is kept of it is four numbers. Only groups that
are behind are kept, so this is bounded as the sweep is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from heapq import nlargest
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import SYSTEM_GROUP_PREFIX
from quarry_mq.server.counters import OTHER
from quarry_mq.server.lag.consumer_lag import PairLag
from quarry_mq.server.lag.measurement import GroupTopic

SHOWN: Final = 3
"""Findings of one kind that are named, the worst first. Of more there is one concern that counts the rest."""


class Stuck(Enum):
    """The reason why a group is behind. The value is the kind of the concern."""

    NO_CONSUMER = "group-without-consumer"
    NOTHING_DONE = "group-acknowledges-nothing"
    LAG_GROWS = "lag-grows"
    LAG_OLD = "lag-old"


class StuckGroup(NamedTuple):
    """A group that is behind in a topic. `since_ms` is the wall time since which that is so, as far as it is known."""

    kind: Stuck
    lag: PairLag
    since_ms: int


class StuckSummary(NamedTuple):
    """The groups of one kind: the worst of them, and how many there are."""

    shown: list[StuckGroup]
    groups: int


class _Mark(NamedTuple):
    at_s: float
    lag: int


class _Watched(NamedTuple):
    """Earlier sweeps found this: since when no message was done, and two earlier counts of the lag."""

    done: int | None
    done_since_s: float
    earlier: _Mark
    later: _Mark


class StuckGroups:
    """Judges all groups after each sweep of the lag. Lives on the event loop's thread."""

    def __init__(
        self,
        found: Callable[[], Mapping[GroupTopic, PairLag]],
        consumers: Callable[[str, str], int],
        *,
        limit_ms: int,
        clock: Clock,
    ) -> None:
        """`found` returns the result of the last sweep, `consumers` the connected consumers of a group in a topic."""
        self._found = found
        self._consumers = consumers
        self._limit_ms = limit_ms
        self._clock = clock
        self._watched: dict[GroupTopic, _Watched] = {}
        self.summaries: Mapping[Stuck, StuckSummary] = {}
        """The result of the last sweep, without kinds of which there is no group."""

    def steps(self) -> Iterator[None]:
        """Judge all groups, one at a time. A group that could not be read is left out until it can be."""
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        watched: dict[GroupTopic, _Watched] = {}
        worst: dict[Stuck, list[StuckGroup]] = {}
        counts: Counter[Stuck] = Counter()
        for key, lag in self._found().items():
            yield
            if not lag.lag or key.group == OTHER or key.group.startswith(SYSTEM_GROUP_PREFIX):
                continue
            seen = watched[key] = self._next(self._watched.get(key), lag, now_s)
            stuck = self._judged(lag, seen, now_s, now_ms)
            if stuck is not None:
                counts[stuck.kind] += 1
                worst[stuck.kind] = nlargest(SHOWN, [*worst.get(stuck.kind, ()), stuck], key=_age_ms)
        self._watched = watched
        self.summaries = {kind: StuckSummary(worst[kind], counts[kind]) for kind in Stuck if kind in worst}

    def _next(self, before: _Watched | None, lag: PairLag, now_s: float) -> _Watched:
        mark = _Mark(now_s, lag.lag)
        if before is None:
            return _Watched(lag.done, now_s, mark, mark)
        is_same = lag.done is None or lag.done == before.done
        done = before.done if lag.done is None else lag.done
        earlier, later = before.earlier, before.later
        if now_s - later.at_s >= self._limit_ms / 1000:
            earlier, later = later, mark
        return _Watched(done, before.done_since_s if is_same else now_s, earlier, later)

    def _judged(self, lag: PairLag, seen: _Watched, now_s: float, now_ms: int) -> StuckGroup | None:
        if lag.lag_ms is None or lag.lag_ms < self._limit_ms:
            return None
        stored_ms = now_ms - lag.lag_ms
        if not self._consumers(lag.group, lag.topic):
            return StuckGroup(Stuck.NO_CONSUMER, lag, stored_ms)
        idle_ms = int(1000 * (now_s - seen.done_since_s))
        if idle_ms >= self._limit_ms:
            return StuckGroup(Stuck.NOTHING_DONE, lag, now_ms - idle_ms)
        if lag.lag > seen.earlier.lag and now_s - seen.earlier.at_s >= self._limit_ms / 1000:
            return StuckGroup(Stuck.LAG_GROWS, lag, stored_ms)
        # one message that is tried again and again is old, too, while all others are done in time
        if lag.queueing_ms is not None and lag.queueing_ms >= self._limit_ms:
            return StuckGroup(Stuck.LAG_OLD, lag, now_ms - lag.queueing_ms)
        return None


def _age_ms(stuck: StuckGroup) -> int:
    return stuck.lag.lag_ms or 0
