"""The times at which the broker was down or in some phase, by which the calls of clients are judged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from tests.e2e.ledger import Call

GRACE_S: Final = 10.0
"""After a start, until clients that have lost their connection have made another and subscribed again."""


class Span(NamedTuple):
    """A stretch of the monotonic clock, in seconds."""

    name: str
    began_s: float
    ended_s: float

    def overlaps(self, began_s: float, ended_s: float) -> bool:
        return began_s <= self.ended_s and self.began_s <= ended_s


class Timeline:
    """Written by the thread that walks, read by all."""

    def __init__(self) -> None:
        self.outages: list[Span] = []
        self.spans: list[Span] = []

    @contextmanager
    def outage(self, name: str) -> Iterator[None]:
        """The broker is down, or about to be."""
        began_s = time.monotonic()
        self.outages.append(Span(name, began_s, float("inf")))
        yield
        self.outages[-1] = Span(name, began_s, time.monotonic())

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Nobody touches the broker but those who use it."""
        began_s = time.monotonic()
        yield
        self.spans.append(Span(name, began_s, time.monotonic()))

    def excuses(self, began_s: float, ended_s: float) -> bool:
        """Whether a restart explains that a call was refused, or took long."""
        return any(each.overlaps(began_s - GRACE_S, ended_s) for each in self.outages)

    def unexplained(self, refusals: Iterable[Call]) -> list[Call]:
        return [each for each in refusals if not self.excuses(each.began_s, each.ended_s)]

    def pauses(self, sends: Iterable[Call]) -> dict[str, dict[str, float]]:
        """Per name of a span: its seconds, how many sends began in it, how long they took at most and at p99.

        Those that a restart has slowed down are left out.
        """
        found: dict[str, tuple[float, list[float]]] = {}
        quiet = sorted((each for each in sends if not self.excuses(each.began_s, each.ended_s)), key=_began)
        for span in self.spans:
            seconds, times_ms = found.get(span.name, (0.0, []))
            times_ms += [1e3 * (each.ended_s - each.began_s) for each in quiet if span.overlaps(*each[1:3])]
            found[span.name] = seconds + span.ended_s - span.began_s, times_ms
        return {name: _stats(seconds, sorted(times_ms)) for name, (seconds, times_ms) in found.items()}


def _began(call: Call) -> float:
    return call.began_s


def _stats(seconds: float, times_ms: list[float]) -> dict[str, float]:
    stats: dict[str, float] = {"seconds": round(seconds, 2), "sends": len(times_ms)}
    if times_ms:
        stats["p50_ms"] = round(times_ms[len(times_ms) // 2], 1)
        stats["p99_ms"] = round(times_ms[len(times_ms) * 99 // 100], 1)
        stats["worst_ms"] = round(times_ms[-1], 1)
    return stats
