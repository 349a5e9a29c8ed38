"""Measures the cost of a scrape of a broker with a million queues, and whether sends are delayed by it.

Two brokers, one with a million light queues and one with a thousand, both with topics of their own for the load. They
are scraped without a pause while one connection sends, one call at a time, so that everything that stops the event loop
shows in the time of a send. The same sends are made without scrapes. The target is at most 200 ms per scrape.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from threading import Event, Thread
from typing import Final
from urllib.request import urlopen

from bench.harness import Case, Options, Sample, Scale, alternate, require_room
from bench.peers.quarry import Quarry
from bench.queue_load import QueueLoad, send_body
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.store.settings import Durability

QUESTION: Final = "What does a scrape of a broker with a million queues cost, and does anybody wait for it?"
NAMES_PER_FILL: Final = 400
BODY: Final = bytes(range(200))
SCRAPE_TARGET_MS: Final = 200
SETTINGS: Final = {"QUARRY_DELIVERY_NEW_GROUP_START": "earliest"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale. `topics` are the topics of the load; `sends` are calls per sample."""

    many: int
    few: int
    topics: int
    sends: int
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes(1_000_000, 1_000, topics=2_000, sends=20_000, rounds=5),
    Scale.QUICK: Sizes(50_000, 1_000, topics=500, sends=5_000, rounds=3),
    Scale.TINY: Sizes(1_000, 10, topics=10, sends=200, rounds=1),
}


@dataclass(slots=True)
class Seen:
    """Times of single scrapes and sends, in milliseconds."""

    scrapes_ms: list[float] = field(default_factory=list)
    sends_ms: list[float] = field(default_factory=list)
    undisturbed_ms: list[float] = field(default_factory=list)
    series: int = 0

    def facts(self, prefix: str) -> dict[str, object]:
        return {
            f"{prefix}series": self.series,
            f"{prefix}scrapes": len(self.scrapes_ms),
            f"{prefix}scrape_median_ms": round(median(self.scrapes_ms), 2),
            f"{prefix}scrape_max_ms": round(max(self.scrapes_ms), 2),
            f"{prefix}send_max_ms": round(max(self.sends_ms), 2),
            f"{prefix}send_p99_ms": _percentile(self.sends_ms, 0.99),
            f"{prefix}undisturbed_send_max_ms": round(max(self.undisturbed_ms), 2),
            f"{prefix}undisturbed_send_p99_ms": _percentile(self.undisturbed_ms, 0.99),
        }


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    require_room(options.scratch, sizes.many * 500 + 4 * 1024 * MIB)
    random = Random(options.seed)
    ours, theirs = (_Broker(options.scratch / name, sizes, random) for name in ("many", "few"))
    with _filled(ours, sizes.many), _filled(theirs, sizes.few):
        samples = alternate(sizes.rounds, ours.sample, theirs.sample)
    return [
        Case(
            name=f"{sizes.many:,} queues: sends while it is scraped without a pause",
            unit="messages",
            peer=f"the same with {sizes.few:,}",
            ours=samples[0],
            theirs=samples[1],
            details={
                "queues": sizes.many,
                "peer_queues": sizes.few,
                **ours.seen.facts(""),
                **theirs.seen.facts("peer_"),
                "scrape_target_ms": SCRAPE_TARGET_MS,
            },
        )
    ]


class _Broker:
    def __init__(self, directory: Path, sizes: Sizes, random: Random) -> None:
        self.broker = Quarry(directory, Durability.ASYNC, SETTINGS)
        self.seen = Seen()
        self._sizes = sizes
        self._random = random

    def fill(self, queues: int) -> None:
        """Put a message in each queue, and send to and receive from topics, so that metrics know them."""
        with closing(QueueLoad(self.broker, self._random)) as load:
            load.sends(
                send_body("bench-lights", BODY, properties={LIGHT_QUEUES: _names(range(begin, begin + NAMES_PER_FILL))})
                for begin in range(0, queues, NAMES_PER_FILL)
            )
            load.sends(send_body(_topic(number), BODY) for number in range(self._sizes.topics))
            load.receives(_topic(number) for number in range(self._sizes.topics))

    def sample(self) -> Sample:
        """Measure sends while the broker is scraped, after as many undisturbed sends."""
        self._timed_sends(self.seen.undisturbed_ms)
        over = Event()
        scraper = Thread(target=self._scrape_until, args=(over,), name="scraper")
        scraper.start()
        try:
            return self._timed_sends(self.seen.sends_ms)
        finally:
            over.set()
            scraper.join()

    def _timed_sends(self, times_ms: list[float]) -> Sample:
        """Send on one connection, each call after the last answer, so that the time between calls is a send's."""

        def bodies() -> Iterator[bytes]:
            began_s = 0.0
            for number in range(self._sizes.sends):
                now_s = time.perf_counter()
                if number:
                    times_ms.append((now_s - began_s) * 1000)
                body = send_body(_topic(number % self._sizes.topics), BODY)
                began_s = time.perf_counter()
                yield body

        with closing(QueueLoad(self.broker, self._random, connections=1)) as load:
            return load.sends(bodies())

    def _scrape_until(self, over: Event) -> None:
        while True:
            began_s = time.perf_counter()
            with urlopen(f"http://{self.broker.http}/metrics") as answer:
                text = answer.read()
            self.seen.scrapes_ms.append((time.perf_counter() - began_s) * 1000)
            self.seen.series = sum(1 for line in text.splitlines() if not line.startswith(b"#"))
            if over.is_set():
                return


@contextmanager
def _filled(broker: _Broker, queues: int) -> Iterator[None]:
    broker.broker.start()
    try:
        broker.fill(queues)
        yield
    finally:
        broker.broker.close()


def _topic(number: int) -> str:
    return f"bench-{number:07d}"


def _names(numbers: Iterable[int]) -> str:
    return ",".join(f"%LMQ%bench-{number:07d}" for number in numbers)


def _percentile(values: list[float], part: float) -> float:
    return round(sorted(values)[int(part * (len(values) - 1))], 2)
