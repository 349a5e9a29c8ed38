"""Summarize a broker at a cost that does not depend on the number of queues, and list what needs attention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from quarry_mq.server.admin.stats.history import LOOP_LATE, History, Moved, Recording
from quarry_mq.server.admin.stats.sources import Sources
from quarry_mq.server.cluster.membership.members import Members, SeenMember
from quarry_mq.server.counters.stages import BucketHistogram
from quarry_mq.server.counters.traffic import Rates
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.server.lag.consumer_lag import LagTotals
from quarry_mq.server.process.certificates import WARN_BEFORE_S
from quarry_mq.server.process.system import cpu_seconds, open_files, resident_bytes
from quarry_mq.server.wire.places import without_places
from quarry_mq.store.errors import Invalid
from quarry_mq.store.fs import DiskSpace

DISPATCH_LAG_BYTES: Final = 64 << 20
"""Bytes of dispatch lag that flushes and batches do not cause on a disk that keeps up."""
LOOP_LATE_S: Final = 1.0
"""A third of the time that clients wait for a send."""
FAULTS_SHOWN: Final = 3
DAY_S: Final = 86_400


def concerns(sources: Sources, history: History) -> Iterator[str]:
    """Return what needs attention, the worst first; nothing if all is well."""
    yield from _health(sources)
    yield from _error_reporter(sources)
    yield from _maintenance(sources)
    yield from _certificate(sources)
    yield from _members(sources)
    late_s = history.latest(LOOP_LATE)
    if late_s is not None and late_s >= LOOP_LATE_S:
        yield f"the event loop was {late_s:.1f} s late in the last ten seconds"


def _health(sources: Sources) -> Iterator[str]:
    health = sources.health.look()
    if health.reason:
        yield f"poisoned: {health.reason}; only a restart helps"
    if health.sends_refused:
        yield f"sends are refused: {health.sends_refused}"
    lag_bytes = sources.dispatch_lag_bytes
    if lag_bytes > DISPATCH_LAG_BYTES:
        yield f"dispatch is {lag_bytes} bytes behind: consumers cannot see these messages yet"


def _error_reporter(sources: Sources) -> Iterator[str]:
    found = sources.components.edge.error_reporter.recent()
    yield from found[:FAULTS_SHOWN]
    if len(found) > FAULTS_SHOWN:
        yield f"{len(found) - FAULTS_SHOWN} more errors within five minutes: see the broker's log"


def _maintenance(sources: Sources) -> Iterator[str]:
    space, force_percent = sources.maintenance.retention.log_space, sources.maintenance.retention.force_percent
    if space is not None and space.used_percent >= force_percent:
        yield (
            f"the disk is {space.used_percent} % full: from {force_percent} % on, segments are deleted before their "
            "retention time"
        )
    for step, reason in sources.maintenance.retention.complaints.items():
        yield f"{step} of segments is held up: {reason}"
    for name, address in sources.open_to_everybody.items():
        yield f"network.{name} = {address} needs no authentication: anybody who can reach it can administer the broker"
    if sources.maintenance.descriptors.concern:
        yield sources.maintenance.descriptors.concern
    problem = sources.maintenance.migration.problem
    if problem is not None:
        yield f"migration is held up: {problem}"


def _certificate(sources: Sources) -> Iterator[str]:
    expires_s = sources.certificates.expires_s
    if expires_s is None:
        return
    left_s = expires_s - sources.components.clock.wall_ms() / 1000
    if left_s <= 0:
        yield "the TLS certificate has expired"
    elif left_s < WARN_BEFORE_S:
        yield f"the TLS certificate expires in {left_s / DAY_S:.0f} days"


def _members(sources: Sources) -> Iterator[str]:
    if sources.cluster is None:
        return
    for each in sources.cluster.members.all():
        if not each.is_reachable:
            yield f"member {each.member.name} is not reachable"


class StageTimes(NamedTuple):
    """The durations of one stage of `call`, which is `send` or `receive`, since the start."""

    call: str
    name: str
    histogram: BucketHistogram


class ProcessNow(NamedTuple):
    cpu_seconds: float
    resident_bytes: int | None
    open_files: int | None
    loop_late_seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """The state of a broker now. None stands for what is not known. Rates are messages/s over the last ten seconds."""

    at_ms: int
    readiness: str
    concerns: Sequence[str]
    rates: Rates
    moved: Moved
    today: Moved | None
    yesterday: Moved | None
    connections: int | None
    producers: int
    consumers: int
    topics: int | None
    groups: int | None
    disk: DiskSpace | None
    log_size: int
    oldest_stored_ms: int | None
    lag: LagTotals | None
    lag_is_whole: bool
    timers: int | None
    transactions: int | None
    lite_topics: int | None
    migration_phase: str
    migration_lag_bytes: int | None
    open_jobs: int
    stages: Sequence[StageTimes]
    process: ProcessNow


class Overviews:
    """Makes overviews. Lives on the event loop's thread."""

    def __init__(self, sources: Sources, recording: Recording, open_jobs: Callable[[], int]) -> None:
        self._sources = sources
        self._recording = recording
        self._open_jobs = open_jobs

    def now(self) -> Overview:
        sources, days, background = self._sources, self._recording.days, self._sources.background
        its, traffic = sources.components, sources.components.sends.metrics.traffic
        moved = Moved(traffic.messages_sent, traffic.messages_received)
        return Overview(
            at_ms=its.clock.wall_ms(),
            readiness=sources.health.look().readiness,
            concerns=list(map(without_places, concerns(sources, self._recording.history))),
            rates=sources.rates.totals(),
            moved=moved,
            today=days.today(moved),
            yesterday=days.yesterday,
            connections=sources.connections,
            producers=sources.producers,
            consumers=sources.consumers,
            topics=background.names.topics,
            groups=background.names.groups,
            disk=sources.maintenance.retention.log_space,
            log_size=its.store.messages.appended_up_to - its.store.expiry.minimum,
            oldest_stored_ms=background.waiting.oldest_stored_ms,
            lag=background.lag.totals,
            lag_is_whole=background.lag.is_whole,
            timers=background.waiting.timers,
            transactions=background.waiting.halves,
            lite_topics=sources.lite_topics,
            migration_phase=its.store.migration.phase.value,
            migration_lag_bytes=sources.migration_lag_bytes,
            open_jobs=self._open_jobs(),
            stages=list(self._stages()),
            process=self._process(),
        )

    def _stages(self) -> Iterator[StageTimes]:
        its = self._sources.components
        for name, histogram in its.sends.commit.stages:
            yield StageTimes("send", name, histogram)
        for name, histogram in its.delivery.stages:
            yield StageTimes("receive", name, histogram)

    def _process(self) -> ProcessNow:
        return ProcessNow(cpu_seconds(), resident_bytes(), open_files(), self._recording.history.latest(LOOP_LATE))


TIMEOUT_S: Final = 2.0

Ask = Callable[[str], Awaitable[bytes]]
"""Ask the member of this name for its serialized overview. Raises MemberUnreachable, NotAMember, Invalid."""


class Answered(NamedTuple):
    """A member's overview, or the reason why there is none; both are empty for the broker that asks."""

    seen: SeenMember
    overview: bytes | None = None
    problem: str = ""


class OverviewsOfMembers:
    """Asks all known members, reachable or not, so that one that has just come back is seen at once."""

    def __init__(self, members: Members, ask: Ask, timeout_s: float = TIMEOUT_S) -> None:
        self._members = members
        self._ask = ask
        self._timeout_s = timeout_s

    async def all(self) -> list[Answered]:
        """Return the answers of all members by name."""
        return list(await asyncio.gather(*[self._answer(each) for each in self._members.all()]))

    async def _answer(self, seen: SeenMember) -> Answered:
        if seen.is_self:
            return Answered(seen)
        try:
            async with asyncio.timeout(self._timeout_s):
                return Answered(seen, await self._ask(seen.member.name))
        except TimeoutError:
            return Answered(seen, problem=f"no answer within {self._timeout_s:g} s")
        except (MemberUnreachable, NotAMember, Invalid) as error:
            return Answered(seen, problem=str(error))
