"""Runs a load from its first connection to its last answer."""

from __future__ import annotations

import asyncio
import selectors
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from typing import Final

from quarry_mq.cli.online.bench.schedule import Schedule
from quarry_mq.cli.online.bench.sides import TAG, Consumer, Mark, Producer
from quarry_mq.cli.online.bench.stats import Plan, Stats
from quarry_mq.client.aio import AsyncMessagingClient
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.requests import Subscription
from quarry_mq.protocol.clock import Clock, Progress, ReportProgress

SILENCE_S: Final = 10.0
"""Seconds of silence after the last send, after which no more messages are expected."""

REPORT_INTERVAL_S: Final = 0.5
LOOK_INTERVAL_S: Final = 0.02
FULL_WAIT_S: Final = 0.0005


class Load:
    """A load. `run` it once; `figures` has the results, also after an interruption."""

    def __init__(
        self, plan: Plan, endpoint: Endpoint, *, run: str, group: str, clock: Clock, report: ReportProgress
    ) -> None:
        self.stats = Stats(plan, clock)
        self.is_interrupted = False
        self._plan = plan
        self._endpoint = endpoint
        self._mark = Mark(run, clock)
        self._subscription = Subscription(group=group, topic=plan.topic, expression=TAG)
        self._clock = clock
        self._report = report
        self._producers: Sequence[Producer] = ()
        self._consumers: Sequence[Consumer] = ()

    def run(self) -> None:
        """Run the load until it is over, or Ctrl-C or SIGTERM ends it.

        Raises OSError and CallRefused before it has begun.
        """
        # select waits to the microsecond, epoll only to the millisecond: messages have to be sent on time
        loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        read = [None] * self._plan.producers + [self._subscription] * self._plan.consumers
        sessions = [AsyncMessagingClient(self._endpoint, subscription=each, clock=self._clock) for each in read]
        keepers: list[asyncio.Task[None]] = []
        with self._interrupts() as interrupted:
            try:
                for session in sessions:
                    if not interrupted.is_set():
                        await session.open()
                if not interrupted.is_set():
                    keepers = [asyncio.create_task(session.keep()) for session in sessions]
                    await self._load(sessions, interrupted)
            finally:
                self.stats.end()
                for consumer in self._consumers:
                    consumer.is_stopped = True
                for keeper in keepers:
                    keeper.cancel()
                await asyncio.gather(*keepers, return_exceptions=True)
                await asyncio.gather(*(session.close() for session in sessions))

    async def _load(self, sessions: Sequence[AsyncMessagingClient], interrupted: asyncio.Event) -> None:
        plan, stats = self._plan, self.stats
        stats.begin()
        schedule = Schedule(plan, self._clock)
        self._producers = [
            Producer(each, schedule, stats, self._mark, self._clock) for each in sessions[: plan.producers]
        ]
        self._consumers = [Consumer(each, self._subscription, stats, self._mark) for each in sessions[plan.producers :]]
        reporting = asyncio.create_task(self._tell())
        try:
            for consumer in self._consumers:
                consumer.receive()
            await self._send(schedule, interrupted)
            schedule.stop()
            await self._take_the_rest(interrupted)
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
        unanswered = sum(each.open_sends for each in self._producers)
        if unanswered and not interrupted.is_set():
            stats.failed("send", "NO_ANSWER", unanswered)

    async def _send(self, schedule: Schedule, interrupted: asyncio.Event) -> None:
        """Send until no more messages are due."""
        if self._plan.rate is None:
            for producer in self._producers:
                producer.send_due()
        else:
            self._pump(schedule, cycle(self._producers))
        while not schedule.is_over and not interrupted.is_set():
            left_s = schedule.left_s
            await _set_within(interrupted, LOOK_INTERVAL_S if left_s is None else min(LOOK_INTERVAL_S, left_s))

    def _pump(self, schedule: Schedule, turns: Iterator[Producer]) -> None:
        """Send the messages that are due, by each producer in turn, and call again when the next message is due."""
        refused = 0
        while refused < len(self._producers):
            refused = 0 if next(turns).send_due(1) else refused + 1
        wait_s = schedule.waits_s()
        if wait_s is not None:
            # 0: all producers wait for answers
            asyncio.get_running_loop().call_later(wait_s or FULL_WAIT_S, self._pump, schedule, turns)

    async def _take_the_rest(self, interrupted: asyncio.Event) -> None:
        """Wait for answers and messages, until none come any more."""
        seen, since_s = self._progress(), self._clock.monotonic_s()
        while not interrupted.is_set() and not self._is_complete():
            await _set_within(interrupted, LOOK_INTERVAL_S)
            now_s = self._clock.monotonic_s()
            if (now := self._progress()) != seen:
                seen, since_s = now, now_s
            elif now_s - since_s > SILENCE_S:
                return

    def _is_complete(self) -> bool:
        if any(each.open_sends for each in self._producers):
            return False
        return not self.stats.missing and not any(each.open_acknowledgements for each in self._consumers)

    def _progress(self) -> tuple[int, ...]:
        stats = self.stats
        return (
            stats.sent,
            stats.received,
            stats.again,
            sum(each.open_acknowledgements for each in self._consumers),
        )

    async def _tell(self) -> None:
        """Report the rates to the user at intervals."""
        plan, stats = self._plan, self.stats
        before, before_s = (0, 0), 0.0
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            now, now_s = (stats.sent, stats.received), stats.elapsed_s
            sent, received = ((new - old) / (now_s - before_s) for new, old in zip(now, before, strict=True))
            before, before_s = now, now_s
            detail = f"{sent:,.0f} sent/s"
            if plan.consumers:
                detail += f", {received:,.0f} received/s, {stats.missing:,} not received yet"
            if stats.errors:
                detail += f", {stats.errors.total():,} errors"
            if plan.count is not None:
                self._report(Progress("load", stats.sent, plan.count, detail))
            else:
                total_ms = int((plan.duration_s or 0) * 1000)
                self._report(Progress("load", min(total_ms, int(now_s * 1000)), total_ms, detail))

    @contextmanager
    def _interrupts(self) -> Iterator[asyncio.Event]:
        """Set the event on Ctrl-C and SIGTERM while the block runs, then restore the old signal handlers."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def interrupt() -> None:
            self.is_interrupted = True
            event.set()

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.getsignal(number) for number in numbers]
        for number in numbers:
            loop.add_signal_handler(number, interrupt)
        try:
            yield event
        finally:
            for number, handler in zip(numbers, before, strict=True):
                loop.remove_signal_handler(number)
                signal.signal(number, handler)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
