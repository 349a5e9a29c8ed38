"""Counts the results of a load: messages, bytes, times and errors.

Times are kept in a histogram of durations: an hour of load takes no more memory than a second of it.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Final

from quarry_mq.protocol.clock import Clock

EXACT_BITS: Final = 10
"""Bits of exact values: below 2^10 µs each microsecond has a bucket; above, each power of two has 2^9 buckets."""
_EXACT: Final = 1 << EXACT_BITS
_HALF: Final = _EXACT >> 1
_POWERS: Final = 32
LARGEST_US: Final = (1 << (EXACT_BITS + _POWERS)) - 1


class Latencies:
    """Durations in microseconds with an error of 1 in 512; the maximum is exact."""

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * (_EXACT + _POWERS * _HALF)))
        self.count = 0
        self.max_us = 0

    def add(self, seconds: float) -> None:
        """Add a duration. A negative one counts as zero."""
        microseconds = min(max(0, int(seconds * 1e6)), LARGEST_US)
        self._counts[_place(microseconds)] += 1
        self.count += 1
        self.max_us = max(self.max_us, microseconds)

    def percentile_us(self, share: float) -> int | None:
        """Return the duration that this share (0 to 1) of all durations does not exceed; None if there are none."""
        if not self.count:
            return None
        wanted = max(1, -(-self.count * share // 1))  # rounded up, so that of one duration every share is the first
        seen = 0
        for place, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return min(_upper_us(place), self.max_us)
        return self.max_us


def _place(microseconds: int) -> int:
    if microseconds < _EXACT:
        return microseconds
    shift = microseconds.bit_length() - EXACT_BITS
    return shift * _HALF + (microseconds >> shift)


def _upper_us(place: int) -> int:
    """Return the largest duration of a bucket."""
    if place < _EXACT:
        return place
    shift = place // _HALF - 1
    return ((place - shift * _HALF + 1) << shift) - 1


PERCENTILES: Final = (("p50Ms", 0.5), ("p99Ms", 0.99), ("p999Ms", 0.999))
_SENT: Final = 1
_RECEIVED: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The load to make. One of `duration_s` and `count` is given."""

    topic: str
    size: int
    rate: float | None
    """Messages per second of all producers together; None: as many as possible."""
    producers: int
    consumers: int
    in_flight: int
    """Sends of one producer that are not answered yet, at most."""
    duration_s: float | None
    count: int | None


class Stats:
    """The results, counted while the load runs. Times are on the clock's monotonic time."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.plan = plan
        self.sent = 0
        self.received = 0
        self.again = 0
        """Deliveries of messages that had been received before."""
        self.send_times = Latencies()
        self.end_to_end = Latencies()
        self.errors: Counter[str] = Counter()
        """Number of errors by call and code."""
        self.began_s = self.sent_until_s = self.received_until_s = clock.monotonic_s()
        self.missing = 0
        """Messages that the broker has acknowledged and that no consumer has received so far."""
        self._states = bytearray()
        self._clock = clock
        self._cpu_s = _cpu_s()
        self._cpu_used_s = 0.0
        self._ended_s = self.began_s

    def begin(self) -> None:
        """Start the clock of the load: all clients are connected."""
        self.began_s = self.sent_until_s = self.received_until_s = self._clock.monotonic_s()
        self._cpu_s = _cpu_s()

    def end(self) -> None:
        self._cpu_used_s = _cpu_s() - self._cpu_s
        self._ended_s = self._clock.monotonic_s()

    def new_number(self) -> int:
        """Return the number of a message that is about to be sent."""
        self._states.append(0)
        return len(self._states) - 1

    def was_sent(self, number: int, due_s: float) -> None:
        """Count a message as sent now; it should have been sent at `due_s`."""
        self.sent_until_s = self._clock.monotonic_s()
        self.sent += 1
        self.send_times.add(self.sent_until_s - due_s)
        self._mark(number, _SENT, _RECEIVED, 1)

    def was_received(self, number: int, due_s: float) -> None:
        if not 0 <= number < len(self._states):
            return
        if self._states[number] & _RECEIVED:
            self.again += 1
            return
        self.received_until_s = self._clock.monotonic_s()
        self.received += 1
        self.end_to_end.add(self.received_until_s - due_s)
        self._mark(number, _RECEIVED, _SENT, -1)

    def _mark(self, number: int, what: int, other: int, step: int) -> None:
        """Note one of two events of a message: the answer to its send, or its delivery. Either may come first."""
        if self.plan.consumers and bool(self._states[number] & other) is (step < 0):
            self.missing += step
        self._states[number] |= what

    def failed(self, call: str, code: str, count: int = 1) -> None:
        self.errors[f"{call} {code}"] += count

    @property
    def elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self.began_s

    def fields(self) -> dict[str, object]:
        """Return the results as JSON fields."""
        plan = self.plan
        received = None
        if plan.consumers:
            received = self._side(self.received, self.received_until_s, self.end_to_end)
        return {
            "topic": plan.topic,
            "size": plan.size,
            "rate": plan.rate,
            "producers": plan.producers,
            "consumers": plan.consumers,
            "inFlight": plan.in_flight,
            "seconds": round(self._ended_s - self.began_s, 3),
            "sent": self._side(self.sent, self.sent_until_s, self.send_times),
            "received": received,
            "again": self.again,
            "missing": self.missing,
            "errors": dict(sorted(self.errors.items())),
            "clientCpu": round(self._cpu_used_s / max(1e-9, self._ended_s - self.began_s), 2),
        }

    def _side(self, messages: int, until_s: float, times: Latencies) -> dict[str, object]:
        seconds = max(1e-9, until_s - self.began_s)
        fields: dict[str, object] = {
            "messages": messages,
            "bytes": messages * self.plan.size,
            "perSecond": round(messages / seconds, 1),
            "mbPerSecond": round(messages * self.plan.size / seconds / 1e6, 3),
        }
        for name, share in PERCENTILES:
            fields[name] = _ms(times.percentile_us(share))
        fields["maxMs"] = _ms(times.max_us if times.count else None)
        return fields


def _ms(microseconds: int | None) -> float | None:
    return None if microseconds is None else round(microseconds / 1000, 3)


def _cpu_s() -> float:
    """Return the CPU seconds that this process has used so far."""
    times = os.times()
    return times.user + times.system
