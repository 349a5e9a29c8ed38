"""The overview of a broker: its statistics now, and the last hour.

The cost of the overview does not depend on the number of queues.

The last hour is kept in one ring: a row of times, and a row of numbers for each series (ADR 41). Taking a sample costs
the event loop some 40 µs every 10 s: it reads `/proc`, and 13 histograms.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from math import isnan, nan
from typing import Final, NamedTuple, Protocol

import structlog

from quarry_mq.protocol.clock import Clock, Progress
from quarry_mq.server.admin.concerns import Concern, Concerns
from quarry_mq.server.admin.sources import Sources
from quarry_mq.server.cluster.membership import Members, SeenMember
from quarry_mq.server.counters import BucketHistogram, Rates
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.server.lag.consumer_lag import LagTotals
from quarry_mq.server.process.process_metrics import cpu_seconds, open_files, resident_bytes
from quarry_mq.store.errors import Invalid
from quarry_mq.store.fs import DiskSpace

log = structlog.get_logger(__name__)


RATE_SECONDS_MIN: Final = 1.0
"""The shortest time over which a rate is computed; a shorter one says little about a second."""

Read = Callable[[], float | None]
"""Read a value. None: not known."""


class Measure(Protocol):
    """Computes the next number of a series."""

    @property
    def series(self) -> Series: ...

    def next(self, seconds: float) -> float:
        """Return the next number. `seconds`: the time since the last one, or since the start. NaN: not known."""


class Gauge:
    """A number as it is read."""

    def __init__(self, name: str, unit: str, read: Read) -> None:
        self.series: Final = Series(name, unit)
        self._read = read

    def next(self, seconds: float) -> float:  # noqa: ARG002 - rates alone need the time
        value = self._read()
        return nan if value is None else value


class Rate:
    """The growth of a count per second. It is unknown if the count has become less, and so was restarted."""

    def __init__(self, name: str, unit: str, read: Read, *, factor: float = 1.0) -> None:
        """`factor`: the number of units that one count stands for."""
        self.series: Final = Series(name, unit)
        self._read = read
        self._factor = factor
        self._last = read()

    def next(self, seconds: float) -> float:
        last, self._last = self._last, self._read()
        if last is None or self._last is None or self._last < last or seconds < RATE_SECONDS_MIN:
            return nan
        return (self._last - last) * self._factor / seconds


class Percentile:
    """The 99th percentile of a histogram's observations since the last sample, in milliseconds. NaN without any."""

    def __init__(self, name: str, histogram: BucketHistogram, *, part: float = 0.99) -> None:
        """`histogram` is a histogram of seconds."""
        self.series: Final = Series(name, "ms")
        self._histogram = histogram
        self._part = part
        self._last = histogram.counts()

    def next(self, seconds: float) -> float:  # noqa: ARG002 - rates alone need the time
        last, self._last = self._last, self._histogram.counts()
        came = [now - before for now, before in zip(self._last, last, strict=True)]
        return 1000 * percentile(self._histogram.bounds, came, self._part)


def percentile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """Compute a percentile of a histogram. Values are taken as evenly spread within a bucket.

    Values above the last bound are taken as that bound. NaN if there are no values.
    """
    wanted = part * sum(counts)
    if not wanted:
        return nan
    lower = 0.0
    for upper, count in zip(bounds, counts, strict=False):
        if count and wanted <= count:
            return lower + (upper - lower) * wanted / count
        wanted -= count
        lower = upper
    return lower


class Moved(NamedTuple):
    """The number of messages that were sent and received."""

    sent: int
    received: int

    def since(self, other: Moved) -> Moved:
        return Moved(self.sent - other.sent, self.received - other.received)


class DayTotals:
    """Message counts of today and yesterday, in the broker's time zone. A day counts if the broker has seen it begin.

    Messages between two calls of `note` count for the day of the first call: call it at midnight.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._day = self._today()
        self._began_with: Moved | None = None
        """The counts when this day began; None if the broker did not see it begin."""
        self._yesterday: Moved | None = None

    def note(self, total: Moved) -> None:
        """Note the counts since the start. To be called every few seconds."""
        day, before = self._today(), self._day
        if day == before:
            return
        is_next = day == before + timedelta(days=1)
        known = is_next and self._began_with is not None
        self._yesterday = total.since(self._began_with) if known and self._began_with is not None else None
        # if the clock was set, or the machine slept over a midnight, the counts at the day's beginning are unknown
        self._began_with = total if is_next else None
        self._day = day

    def today(self, total: Moved) -> Moved | None:
        """Return the counts of today, given those since the start; None if the broker has not run all day."""
        if self._began_with is None or self._today() != self._day:
            return None
        return total.since(self._began_with)

    @property
    def yesterday(self) -> Moved | None:
        """The counts of yesterday; None if the broker has not run all of that day."""
        return self._yesterday if self._today() == self._day else None

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000).date()


INTERVAL_MS: Final = 10_000
SAMPLES_MAX: Final = 360
"""Samples in the last hour."""


class Series(NamedTuple):
    """The name and unit of a series. `unit` is a word for people, such as `messages/s`."""

    name: str
    unit: str


class SeriesValues(NamedTuple):
    """Hold one number of a series for each time of the excerpt; NaN: not known."""

    series: Series
    values: Sequence[float]


class Excerpt(NamedTuple):
    """A part of the history: times in milliseconds since the Unix epoch, ascending, and the values at these times."""

    at_ms: Sequence[int]
    series: Sequence[SeriesValues]


class History:
    """The samples of the last hour, 8 bytes per number: 100 KiB for 35 series. Lives on the event loop's thread."""

    def __init__(self, series: Sequence[Series], samples_max: int = SAMPLES_MAX) -> None:
        self._series = {each.name: index for index, each in enumerate(series)}
        self._all = tuple(series)
        self._samples_max = samples_max
        self._at_ms = array("q", bytes(8 * samples_max))
        self._rows = [array("d", bytes(8 * samples_max)) for _ in series]
        self._next = 0
        """The index of the next sample, unless samples are dropped."""
        self._count = 0

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def add(self, at_ms: int, values: Sequence[float]) -> None:
        """Add a sample: one number for each series, in their order.

        Times ascend: if the clock was set back, samples with later times are dropped.
        """
        while self._count and self._at_ms[self._next - 1] >= at_ms:
            self._next = (self._next - 1) % self._samples_max
            self._count -= 1
        self._at_ms[self._next] = at_ms
        for row, value in zip(self._rows, values, strict=True):
            row[self._next] = value
        self._next = (self._next + 1) % self._samples_max
        self._count = min(self._count + 1, self._samples_max)

    def excerpt(self, names: Sequence[str] = (), after_ms: int | None = None) -> Excerpt:
        """Return these series in this order, or all; only samples after a time. Raises Invalid for an unknown name."""
        wanted = [self._index(name) for name in names] or range(len(self._all))
        places = [place for place in self._places() if after_ms is None or self._at_ms[place] > after_ms]
        return Excerpt(
            [self._at_ms[place] for place in places],
            [SeriesValues(self._all[each], [self._rows[each][place] for place in places]) for each in wanted],
        )

    def latest(self, name: str) -> float | None:
        """Return the series' number in the last sample; None if it is not known."""
        value = self._rows[self._index(name)][self._next - 1] if self._count else nan
        return None if isnan(value) else value

    def _places(self) -> list[int]:
        """Return the indexes of the samples in the ring, the oldest first."""
        first = self._next - self._count
        return [place % self._samples_max for place in range(first, self._next)]

    def _index(self, name: str) -> int:
        index = self._series.get(name)
        if index is None:
            raise Invalid(f"series: there is no series {name[:60]!r}; `quarry history` lists all")
        return index


LOOP_LATE: Final = "loop_late_seconds"

MovedSource = Callable[[], Moved]
"""Return the number of messages sent and received since the start."""


class OtherSamples(Protocol):
    """Samples that are taken at the same times."""

    def sample(self, at_ms: int) -> None: ...


class Recording:
    """Samples all series, and then `others`. Lives on the event loop's thread."""

    def __init__(
        self, measures: Iterable[Measure], moved: MovedSource, clock: Clock, others: Sequence[OtherSamples] = ()
    ) -> None:
        self._measures = tuple(measures)
        self._others = others
        self._moved = moved
        self._clock = clock
        self._sampled_s = clock.monotonic_s()
        self.history: Final = History([each.series for each in self._measures])
        self.days: Final = DayTotals(clock)

    def sample(self) -> None:
        """Add a sample to each series. Times are multiples of the interval, so that those of members match."""
        now_s = self._clock.monotonic_s()
        seconds, self._sampled_s = now_s - self._sampled_s, now_s
        at_ms = round(self._clock.wall_ms() / INTERVAL_MS) * INTERVAL_MS
        self.history.add(at_ms, [each.next(seconds) for each in self._measures])
        self.days.note(self._moved())
        for each in self._others:
            each.sample(at_ms)

    async def run(self) -> None:
        """Take samples until cancelled. In any time zone, one sample is at midnight."""
        while True:
            await asyncio.sleep(until_next_ms(self._clock.wall_ms()) / 1000)
            try:
                self.sample()
            except Exception as error:  # noqa: BLE001 - figures are no reason for a broker to stop
                log.warning("figures could not be made", error=str(error) or type(error).__name__)


def until_next_ms(now_ms: int) -> int:
    """Return the ms until the next multiple of the interval, or the one after it if less than a tenth is left."""
    left_ms = INTERVAL_MS - now_ms % INTERVAL_MS
    return left_ms if left_ms >= INTERVAL_MS // 10 else left_ms + INTERVAL_MS


def make_recording(sources: Sources, others: Sequence[OtherSamples] = ()) -> Recording:
    traffic = sources.components.sends.metrics.traffic
    return Recording(
        [*_measures(sources), *_stage_measures(sources)],
        lambda: Moved(traffic.messages_sent, traffic.messages_received),
        sources.components.clock,
        others,
    )


def _measures(sources: Sources) -> Iterator[Measure]:
    """Yield the measures. They are documented in docs/admin-calls.md, in this order."""
    its, waiting, lag = sources.components, sources.background.waiting, sources.background.lag
    traffic, delivery, messages = its.sends.metrics.traffic, its.delivery, its.store.messages
    process, retention = sources.process, sources.maintenance.retention
    yield Rate("sent_per_second", "messages/s", lambda: traffic.messages_sent)
    yield Rate("received_per_second", "messages/s", lambda: traffic.messages_received)
    yield Rate("sent_bytes_per_second", "bytes/s", lambda: traffic.bytes_sent)
    yield Rate("received_bytes_per_second", "bytes/s", lambda: traffic.bytes_received)
    yield Rate("redelivered_per_second", "messages/s", lambda: delivery.redeliveries)
    yield Rate("dead_letters_per_second", "messages/s", lambda: traffic.messages_dead_lettered)
    yield Rate("log_bytes_per_second", "bytes/s", lambda: messages.appended_up_to)
    yield Gauge("ready_messages", "messages", lambda: (totals := lag.totals) and totals.ready)
    yield Gauge("in_flight_messages", "messages", lambda: (totals := lag.totals) and totals.in_flight)
    yield Gauge("lag_seconds", "seconds", lambda: _seconds((totals := lag.totals) and totals.lag_ms))
    yield Gauge("timers", "messages", lambda: waiting.timers)
    yield Gauge("transactions", "messages", lambda: waiting.halves)
    yield Gauge("lite_topics", "lite topics", lambda: sources.lite_topics)
    yield Gauge("connections", "connections", lambda: sources.connections)
    yield Gauge("clients", "clients", lambda: len(its.edge.clients))
    yield Gauge("dispatch_lag_bytes", "bytes", lambda: sources.dispatch_lag_bytes)
    yield Gauge("migration_lag_bytes", "bytes", lambda: sources.migration_lag_bytes)
    yield Gauge("disk_used_percent", "percent", lambda: _percent(retention.used_ratios.get("log")))
    yield Gauge("resident_bytes", "bytes", resident_bytes)
    yield Rate("cpu_percent", "percent", cpu_seconds, factor=100)
    yield Gauge(LOOP_LATE, "seconds", lambda: None if process is None else process.take_latest_s())


def _stage_measures(sources: Sources) -> Iterator[Measure]:
    its = sources.components
    yield Percentile("send_p99_ms", its.sends.metrics.send_duration)
    calls: tuple[tuple[str, Iterable[tuple[str, BucketHistogram]]], ...] = (
        ("send", its.sends.commit.stages),
        ("receive", its.delivery.stages),
    )
    for call, stages in calls:
        for name, histogram in stages:
            yield Percentile(f"{call}_{name}_p99_ms", histogram)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * ratio


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
    concerns: Sequence[Concern]
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
    log_check: Progress | None
    log_checked_at_ms: int | None
    stages: Sequence[StageTimes]
    process: ProcessNow


class Overviews:
    """Makes overviews. Lives on the event loop's thread."""

    def __init__(
        self, sources: Sources, recording: Recording, concerns: Concerns, open_jobs: Callable[[], int]
    ) -> None:
        self._sources = sources
        self._recording = recording
        self._concerns = concerns
        self._open_jobs = open_jobs

    def now(self) -> Overview:
        sources, days, background = self._sources, self._recording.days, self._sources.background
        its, traffic = sources.components, sources.components.sends.metrics.traffic
        sweeps = sources.maintenance.verification.sweeps
        moved = Moved(traffic.messages_sent, traffic.messages_received)
        return Overview(
            at_ms=its.clock.wall_ms(),
            readiness=sources.health.look().readiness,
            concerns=self._concerns.now(),
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
            log_check=sweeps.progress,
            log_checked_at_ms=None if sweeps.finished is None else sweeps.finished.ended_at_ms,
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
