"""Summarize a broker at a cost that does not depend on the number of queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quarry_mq.server.admin.figures.concerns import concerns
from quarry_mq.server.admin.figures.days import Moved
from quarry_mq.server.admin.figures.recorder import LOOP_LATE, Recording
from quarry_mq.server.admin.figures.sources import Sources
from quarry_mq.server.counters.stages import Tally
from quarry_mq.server.counters.traffic import Rates
from quarry_mq.server.lag.consumer_lag import LagTotals
from quarry_mq.server.process.system import cpu_seconds, open_files, resident_bytes
from quarry_mq.server.wire.places import without_places
from quarry_mq.store.fs import DiskSpace


class StageTimes(NamedTuple):
    """The durations of one stage of `call`, which is `send` or `receive`, since the start."""

    call: str
    name: str
    tally: Tally


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
            disk=sources.upkeep.retention.log_space,
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
        for name, tally in its.sends.commit.stages:
            yield StageTimes("send", name, tally)
        for name, tally in its.delivery.stages:
            yield StageTimes("receive", name, tally)

    def _process(self) -> ProcessNow:
        return ProcessNow(cpu_seconds(), resident_bytes(), open_files(), self._recording.history.latest(LOOP_LATE))
