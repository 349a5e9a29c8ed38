"""Define the series of the last hour, and the task that adds a sample to them.

Taking a sample costs the event loop some 40 µs every 10 s: it reads `/proc`, and 13 histograms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.admin.figures.days import DayTotals, Moved
from quarry_mq.server.admin.figures.history import INTERVAL_MS, History
from quarry_mq.server.admin.figures.measures import Gauge, Measure, Percentile, Rate
from quarry_mq.server.admin.figures.sources import Sources
from quarry_mq.server.counters.stages import Tally
from quarry_mq.server.process.system import cpu_seconds, resident_bytes

log = structlog.get_logger(__name__)

LOOP_LATE: Final = "loop_late_seconds"

MovedSource = Callable[[], Moved]
"""Return the number of messages sent and received since the start."""


class Recording:
    """Samples all series. Lives on the event loop's thread."""

    def __init__(self, measures: Iterable[Measure], moved: MovedSource, clock: Clock) -> None:
        self._measures = tuple(measures)
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


def make_recording(sources: Sources) -> Recording:
    traffic = sources.components.sends.metrics.traffic
    return Recording(
        [*_measures(sources), *_stage_measures(sources)],
        lambda: Moved(traffic.messages_sent, traffic.messages_received),
        sources.components.clock,
    )


def _measures(sources: Sources) -> Iterator[Measure]:
    """Yield the measures. They are documented in docs/admin-calls.md, in this order."""
    its, waiting, lag = sources.components, sources.background.waiting, sources.background.lag
    traffic, delivery, messages = its.sends.metrics.traffic, its.delivery, its.store.messages
    process, retention = sources.process, sources.upkeep.retention
    yield Rate("sent_per_second", "messages/s", lambda: traffic.messages_sent)
    yield Rate("received_per_second", "messages/s", lambda: traffic.messages_received)
    yield Rate("sent_bytes_per_second", "bytes/s", lambda: traffic.bytes_sent)
    yield Rate("received_bytes_per_second", "bytes/s", lambda: traffic.bytes_received)
    yield Rate("redelivered_per_second", "messages/s", lambda: delivery.redeliveries)
    yield Rate("dead_letters_per_second", "messages/s", lambda: traffic.messages_buried)
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
    calls: tuple[tuple[str, Iterable[tuple[str, Tally]]], ...] = (
        ("send", its.sends.commit.stages),
        ("receive", its.delivery.stages),
    )
    for call, stages in calls:
        for name, tally in stages:
            yield Percentile(f"{call}_{name}_p99_ms", tally)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * ratio
