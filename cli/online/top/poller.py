"""Calls a broker at intervals, and keeps what is known of it. No kind of call waits for another kind.

Known are the last answer of each call, since when answers are missing, and recent answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

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


ALWAYS: Final = frozenset({"overview", "members"})
REST_MIN_S: Final = {"history": 10.0, "members": 5.0}
"""Least seconds between two calls of a kind: these values change slowly, or cost the broker calls to other members."""


class Task(Protocol):
    """A task that can be cancelled."""

    def cancel(self) -> object: ...


class Follower:
    """Makes each kind of call in its own task and thread, one at a time: a slow kind delays no other.

    Belongs to one event loop, on which `on_news` is called after each answer.
    """

    def __init__(self, reading: Reading, known: Known, *, interval_s: float, on_news: Callable[[], None]) -> None:
        self.reading: Final = reading
        self.known: Final = known
        self.interval_s = interval_s
        self._on_news = on_news
        self._wish = Wish()
        self._wanted: Collection[str] = frozenset(CALLS)
        self._is_paused = False
        self._wakes = {kind: asyncio.Event() for kind in CALLS}
        self._tasks: list[Task] = []
        self._threads = ThreadPoolExecutor(max_workers=len(CALLS), thread_name_prefix="top")

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def start(self, spawn: Callable[[Coroutine[Any, Any, None]], Task]) -> None:
        """Start the calls. `spawn` runs a coroutine as a task, and reports its errors."""
        self._tasks = [spawn(self._follow(kind)) for kind in CALLS]

    def stop(self) -> None:
        """Stop all calls at once; their answers are dropped."""
        for task in self._tasks:
            task.cancel()
        self.reading.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def want(self, kinds: Collection[str], wish: Wish) -> None:
        """Set which kinds of calls are made, besides `ALWAYS`. Kinds that are new or changed are called at once."""
        before, self._wanted = self._wanted, frozenset(kinds)
        changed = {"topics", "groups"} if wish != self._wish else set()
        self._wish = wish
        if not self._is_paused:
            self._wake((self._wanted - frozenset(before)) | (self._wanted & changed))

    def pause(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        if not is_paused:
            self.refresh()

    def pace(self, interval_s: float) -> None:
        self.interval_s = interval_s
        if not self._is_paused:
            self.refresh()

    def refresh(self) -> None:
        """Make all calls once now, also while paused."""
        self._wake(ALWAYS | frozenset(self._wanted))

    def _wake(self, kinds: Collection[str]) -> None:
        for kind in kinds:
            self._wakes[kind].set()

    async def _follow(self, kind: str) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_wanted(kind):
            await self._rest(kind)
        while True:
            self._wakes[kind].clear()
            got = await loop.run_in_executor(self._threads, ask, kind, self.reading, self._wish)
            self.known.take(kind, got)
            self._on_news()
            await self._rest(kind)

    async def _rest(self, kind: str) -> None:
        wake = self._wakes[kind]
        while not wake.is_set():
            is_resting = self._is_paused or not self._is_wanted(kind)
            rest_s = max(self.interval_s, REST_MIN_S.get(kind, 0.0))
            try:
                await asyncio.wait_for(wake.wait(), None if is_resting else rest_s)
            except TimeoutError:
                if not self._is_paused and self._is_wanted(kind):
                    return

    def _is_wanted(self, kind: str) -> bool:
        return kind in ALWAYS or kind in self._wanted
