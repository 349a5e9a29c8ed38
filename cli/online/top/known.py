"""Keeps what is known of a broker: the last answer of each call, since when answers are missing, and recent answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from quarry_mq.cli.online.top.facts import GroupPage, History, Job, Member, Migration, Overview, TopicPage
from quarry_mq.cli.online.top.readings import CallFailed, Failure, Reading, Wish
from quarry_mq.cli.online.top.stats import Histogram, StageStats, between, busy_share, left_s, stage_stats
from quarry_mq.protocol.clock import Clock

LOOK_BACK_S: Final = 10.0
"""Seconds over which latencies are computed, once watched for that long: one receive of 17 is timed."""

JOB_LOOK_BACK_S: Final = 60.0

_Fact = TypeVar("_Fact")


@dataclass(slots=True)
class Answer(Generic[_Fact]):
    """The state of one kind of call: its last value with the time, and the failure since then."""

    value: _Fact | None = None
    at_ms: int | None = None
    problem: CallFailed | None = None
    problem_since_ms: int | None = None


class Known:
    """The collected answers of one broker. Belongs to one thread."""

    def __init__(self, address: str, clock: Clock) -> None:
        self.address: Final = address
        self._clock = clock
        self.overview: Final = Answer[Overview]()
        self.members: Final = Answer[tuple[Member, ...]]()
        self.history: Final = Answer[History]()
        self.topics: Final = Answer[TopicPage]()
        self.groups: Final = Answer[GroupPage]()
        self.migration: Final = Answer[Migration]()
        self.jobs: Final = Answer[tuple[Job, ...]]()
        self._overviews: deque[tuple[float, Overview]] = deque()
        self._jobs: deque[tuple[float, dict[int, int]]] = deque()

    @property
    def now_ms(self) -> int:
        return self._clock.wall_ms()

    @property
    def is_old(self) -> bool:
        """Return whether the broker does not answer now, so that the shown values are old."""
        return self.overview.problem is not None and self.overview.value is not None

    def take(self, kind: str, got: Any) -> None:
        """Store the answer of a call of `CALLS`, or the CallFailed that was raised instead."""
        answer: Answer[Any] = getattr(self, kind)
        now_ms = self._clock.wall_ms()
        if isinstance(got, CallFailed):
            if answer.problem is None:
                answer.problem_since_ms = now_ms
            answer.problem = got
            return
        answer.value, answer.at_ms = got, now_ms
        answer.problem = answer.problem_since_ms = None
        if kind == "overview":
            self._note_overview(got)
        elif kind == "jobs":
            _note(self._jobs, (self._clock.monotonic_s(), {job.id: job.done for job in got}), JOB_LOOK_BACK_S)

    def _note_overview(self, overview: Overview) -> None:
        if self._overviews and self._overviews[-1][1].started_at_ms != overview.started_at_ms:
            self._overviews.clear()
        _note(self._overviews, (self._clock.monotonic_s(), overview), LOOK_BACK_S)

    # -- differences of two answers

    @property
    def watched_s(self) -> float | None:
        """Return the seconds that latencies are computed over; None: the time since the broker's start."""
        if len(self._overviews) < 2:
            return None
        return self._overviews[-1][0] - self._overviews[0][0]

    def stages(self) -> list[StageStats]:
        """Return the stages' statistics over the watched time; empty before the first answer."""
        if not self._overviews:
            return []
        last = {(stage.call, stage.name): stage.histogram for stage in self._overviews[-1][1].stages}
        if len(self._overviews) < 2:
            return stage_stats(last)
        first = {(stage.call, stage.name): stage.histogram for stage in self._overviews[0][1].stages}
        differences: dict[tuple[str, str], Histogram] = {}
        for stage, histogram in last.items():
            difference = between(first[stage], histogram) if stage in first else None
            differences[stage] = histogram if difference is None else difference
        return stage_stats(differences)

    def last_bound_s(self, call: str, name: str) -> float | None:
        """Return the last bound of a stage's histogram, above which durations are not known."""
        value = self.overview.value
        bounds = (
            [each.histogram.bounds_s for each in value.stages if (each.call, each.name) == (call, name)]
            if value
            else []
        )
        return bounds[0][-1] if bounds and bounds[0] else None

    def busy_share(self) -> float | None:
        """Return the share of one processor that the broker's process uses."""
        if len(self._overviews) < 2:
            return None
        (first_s, first), (last_s, last) = self._overviews[0], self._overviews[-1]
        if first.process is None or last.process is None:
            return None
        return busy_share(last.process.cpu_seconds, first.process.cpu_seconds, apart_s=last_s - first_s)

    def left_s(self, job: Job) -> float | None:
        """Estimate the seconds until a running job is done, from its recent pace."""
        if job.state != "running" or not self._jobs:
            return None
        last_s, _ = self._jobs[-1]
        for at_s, done in self._jobs:
            if job.id in done:
                return left_s(job.done, job.total, earlier_done=done[job.id], apart_s=last_s - at_s)
        return None


def _note(kept: deque[tuple[float, _Fact]], noted: tuple[float, _Fact], look_back_s: float) -> None:
    """Append a value. Keep one that is at least `look_back_s` old, and all after it."""
    kept.append(noted)
    while len(kept) > 2 and noted[0] - kept[1][0] >= look_back_s:
        kept.popleft()


CALLS: Final[dict[str, Callable[[Reading, Wish], object]]] = {
    "overview": lambda reading, _: reading.overview(),
    "history": lambda reading, _: reading.history(),
    "topics": lambda reading, wish: reading.topics(wish),
    "groups": lambda reading, wish: reading.groups(wish),
    "migration": lambda reading, _: reading.migration(),
    "jobs": lambda reading, _: reading.jobs(),
    "members": lambda reading, _: reading.members(),
}
"""The calls by kind, in the order in which `look` makes them."""


def ask(kind: str, reading: Reading, wish: Wish) -> object:
    """Make a call, and return its answer or the CallFailed that it raised."""
    try:
        return CALLS[kind](reading, wish)
    except CallFailed as failed:
        return failed


def look(known: Known, reading: Reading, wish: Wish) -> None:
    """Make one call of each kind; if the first gets no answer, no other."""
    for kind in CALLS:
        known.take(kind, ask(kind, reading, wish))
        problem = known.overview.problem
        if problem is not None and problem.failure in (Failure.GONE, Failure.STRANGER):
            return
