"""Compares a broker with a million queues with one that has a thousand: start, sends, receives, and memory.

Both are filled through their messaging ports: ordinary topics of eight queues by sends, light queues by messages that
name many of them. They run with `async`, so that no disk hides a difference. Then both are loaded in turns over all of
their queues: with many, hardly a send goes to a queue that was in use since the start, and receives go from topic to
topic, to each until it is empty. Sends begin right after a start, and again when the broker has read into memory what
it reads after one; from then on each sample begins when both brokers are idle. Both are started again, after clean
stops and after kill -9 with as much new log. Required are nine tenths of the rates, at most 3 s more at a start, and at
most 400 MB more than an empty broker.

Light queues are not received from through the messaging port; `many_queues` reads them in process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from bench.harness import (
    BYTES_PER_MESSAGE,
    Case,
    Options,
    Sample,
    Scale,
    alternate,
    cpu_s_of,
    median_cpu_us,
    private_bytes_of,
    require_room,
    wait_until_at_rest,
)
from bench.peers.quarry import Quarry
from bench.queue_load import BATCH, CONNECTIONS, QueueLoad, send_body
from bench.scattered import scattered
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.store.settings import Durability

QUESTION: Final = "Does a broker with a million queues start, take and give as one with a thousand?"
QUEUES_PER_TOPIC: Final = 8
"""Queues of a topic: Quarry's default for a topic that a client sends to first."""

NAMES_PER_FILL: Final = 400
"""Light queues that one message of the filling goes to: the protocol's limit on properties allows that many."""

MESSAGES_PER_FILL: Final = 12
"""Messages of one send of the filling: they fit into one frame."""

NAMES_PER_SEND: Final = 10
ENTRIES: Final = 10
"""Messages in each queue of the broker with a million.

They are as many as a receive takes, so that it finds them in one queue, as it does in the few queues that have more.
"""

RECEIVES_PER_TOPIC: Final = QUEUES_PER_TOPIC * ENTRIES // BATCH
"""Receives of a topic, one after the other, until a topic of the broker with many queues is empty."""

DEPTH: Final = 8
"""Sends in flight on each connection, when many are in flight."""

BODY: Final = bytes(range(256)) * 4
SETTINGS: Final = {
    "QUARRY_DELIVERY_NEW_GROUP_START": "earliest",
    # sends create the topics, many more than a broker allows by default
    "QUARRY_LIMITS_TOPICS_PER_USER": "1000000",
}
MEMORY_TARGET_MB: Final = 400
START_TARGET_S: Final = 3.0
RATE_TARGET: Final = 0.9
RESTING_CPU_SHARE: Final = 0.04
"""Share of a core that a broker without connections may take to count as idle."""

REST_TIMEOUT_S: Final = 180.0
MB: Final = 1_000_000


class Kind(Enum):
    """The kind of the queues."""

    ORDINARY = "queues of topics"
    LIGHT = "light queues"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale: `sends` and `receives` are calls per sample, `killed` are sends before each kill -9."""

    many: int
    few: int
    few_entries: int
    """Messages in each queue of the broker with few queues: enough for all receives."""
    sends: int
    receives: int
    killed: int
    rounds: int
    starts: int
    entries: int = ENTRIES
    """Messages in each queue of the broker with many queues."""


SIZES: Final = {
    Scale.FULL: Sizes(1_000_000, 1_000, 1_000, sends=60_000, receives=5_000, killed=100_000, rounds=5, starts=3),
    Scale.QUICK: Sizes(50_000, 1_000, 200, sends=10_000, receives=1_000, killed=10_000, rounds=3, starts=1),
    Scale.TINY: Sizes(400, 80, 20, sends=50, receives=10, killed=50, rounds=1, starts=1),
}


def run(options: Options) -> list[Case]:
    return compare(options, SIZES[options.scale], list(Kind))


def compare(options: Options, sizes: Sizes, kinds: Sequence[Kind]) -> list[Case]:
    """Return the cases of both brokers for each kind of queue. Raises CannotRun without enough free disk."""
    filled = (sizes.many * sizes.entries if Kind.ORDINARY in kinds else 0) + sizes.few * sizes.few_entries
    sent = 2 * (3 * sizes.rounds * sizes.sends + sizes.starts * sizes.killed)
    needed = (filled + sent) * BYTES_PER_MESSAGE + 6 * 1024 * MIB
    require_room(options.scratch, needed)
    with closing(Quarry(options.scratch / "empty", Durability.ASYNC, SETTINGS)) as empty:
        empty.start()
        empty_mb = _private_mb(empty)
    return [case for kind in kinds for case in _Comparison(options, sizes, kind, empty_mb).cases()]


class _Queues:
    """Hold one broker with a number of queues, and the progress of the load on it."""

    def __init__(self, directory: Path, kind: Kind, queues: int, random: Random) -> None:
        self.broker = Quarry(directory, Durability.ASYNC, SETTINGS)
        self.count = queues
        self._kind = kind
        self._random = random
        self._topics = queues // QUEUES_PER_TOPIC
        self._sent, self._received = count(), count()

    def fill(self, messages: int) -> Sample:
        """Put this number of messages in each queue."""
        with self._load() as load:
            return self._fill(load, messages)

    def sends(self, calls: int) -> Sample:
        with self._load() as load:
            return load.sends(self._next_send(next(self._sent)) for _ in range(calls))

    def sends_in_flight(self, calls: int) -> Sample:
        """Send with many calls in flight.

        Requests are made before: made one by one they would cost more than their answers.
        """
        requests = [self._next_send(next(self._sent)) for _ in range(calls)]
        with self._load() as load:
            return load.sends_in_flight(iter(requests), DEPTH)

    def receives(self, calls: int) -> Sample:
        with self._load() as load:
            return load.receives(
                _topic(scattered(next(self._received) // RECEIVES_PER_TOPIC, self._topics)) for _ in range(calls)
            )

    def _load(self) -> AbstractContextManager[QueueLoad]:
        """Give connections for one sample: while another broker is loaded, this one's pings would not be answered."""
        return closing(QueueLoad(self.broker, self._random))

    def _fill(self, load: QueueLoad, messages: int) -> Sample:
        if self._kind is Kind.LIGHT:
            return load.sends(
                self._to_light_queues(range(begin, min(begin + NAMES_PER_FILL, self.count)))
                for _ in range(messages)
                for begin in range(0, self.count, NAMES_PER_FILL)
            )
        # as many sends as a topic has queues, one after the other: each goes to the next queue
        return load.sends(
            send_body(_topic(number), BODY, messages=min(MESSAGES_PER_FILL, messages - begin))
            for number in range(self._topics)
            for begin in range(0, messages, MESSAGES_PER_FILL)
            for _ in range(QUEUES_PER_TOPIC)
        )

    def _next_send(self, number: int) -> bytes:
        if self._kind is Kind.ORDINARY:
            return send_body(_topic(scattered(number, self._topics)), BODY)
        first = number * NAMES_PER_SEND
        return self._to_light_queues(scattered(each, self.count) for each in range(first, first + NAMES_PER_SEND))

    def _to_light_queues(self, numbers: Iterable[int]) -> bytes:
        names = ",".join(f"%LMQ%bench-{number:07d}" for number in numbers)
        return send_body("bench-lights", BODY, properties={LIGHT_QUEUES: names})


class _Comparison:
    """Hold two brokers with queues of one kind, one with many and one with few."""

    def __init__(self, options: Options, sizes: Sizes, kind: Kind, empty_mb: float) -> None:
        self._sizes = sizes
        self._kind = kind
        self._empty_mb = empty_mb
        random = Random(options.seed)
        name = kind.name.lower()
        self._many = _Queues(options.scratch / f"{name}-many", kind, sizes.many, random)
        self._few = _Queues(options.scratch / f"{name}-few", kind, sizes.few, random)

    def cases(self) -> list[Case]:
        filled = self._filled()
        clean = self._starts("after a clean stop", lambda _: None)
        rates = self._rates()
        return [filled, clean, *rates, self._starts("after kill -9", self._kill)]

    def _filled(self) -> Case:
        """Fill both brokers, with as many messages in each queue; entries of queues are counted."""

        def sample(queues: _Queues, entries: int) -> Sample:
            with _serving(queues):
                done = queues.fill(entries)
            return done._replace(done=queues.count * entries)

        ours, theirs = alternate(
            1, lambda: sample(self._many, self._sizes.entries), lambda: sample(self._few, self._sizes.few_entries)
        )
        return self._case("made and filled", "entries", ours, theirs, {})

    def _starts(self, after: str, spoil: Callable[[_Queues], None]) -> Case:
        """Measure starts. `spoil` is applied to the broker before it is started again."""

        def sample(queues: _Queues) -> Sample:
            spoil(queues)
            begin_s = time.perf_counter()
            queues.broker.start()
            try:
                return Sample(1, time.perf_counter() - begin_s, cpu_s_of(queues.broker.pid))
            finally:
                queues.broker.close()

        ours, theirs = alternate(self._sizes.starts, lambda: sample(self._many), lambda: sample(self._few))
        ready_s, peer_ready_s = (median(each.wall_s for each in samples) for samples in (ours, theirs))
        details = {"ready_s": ready_s, "peer_ready_s": peer_ready_s, "longer_s": ready_s - peer_ready_s}
        rounded: dict[str, object] = {name: round(value, 3) for name, value in details.items()}
        return self._case(f"start {after}", "starts", ours, theirs, {**rounded, "longer_target_s": START_TARGET_S})

    def _kill(self, queues: _Queues) -> None:
        """Leave new messages that are only durable in the log."""
        queues.broker.start()
        queues.sends(self._sizes.killed)
        queues.broker.kill()

    def _rates(self) -> list[Case]:
        sizes = self._sizes
        os.sync()  # writes of the filling that the disk has not done yet
        with _serving(self._many), _serving(self._few):

            def compared(
                what: str, sample: Callable[[_Queues], Sample], details: dict[str, object], *, rests: bool = True
            ) -> Case:
                def measured(queues: _Queues) -> Sample:
                    if rests:
                        self._let_rest()
                    return sample(queues)

                samples = alternate(sizes.rounds, lambda: measured(self._many), lambda: measured(self._few))
                return self._rate_case(what, *samples, details | self._memory("after"))

            def sends(queues: _Queues) -> Sample:
                return queues.sends(sizes.sends)

            # for half a minute topics and max offsets of queues are read into memory meanwhile
            cases = [compared("sends right after a start", sends, self._memory("idle"), rests=False)]
            cases.append(compared("sends", sends, {}))
            what = f"sends, {CONNECTIONS * DEPTH} in flight"
            cases.append(compared(what, lambda queues: queues.sends_in_flight(sizes.sends), {"depth": DEPTH}))
            if self._kind is Kind.ORDINARY:
                what = "receives and acknowledgements"
                cases.append(compared(what, lambda queues: queues.receives(sizes.receives), {"batch": BATCH}))
        return cases

    def _let_rest(self) -> None:
        """Wait until both brokers are idle, so that the next sample does not pay for pending compactions and writes."""
        brokers = [self._many.broker.pid, self._few.broker.pid]
        wait_until_at_rest(brokers, look_s=0.5, cpu_share=RESTING_CPU_SHARE, timeout_s=REST_TIMEOUT_S)

    def _memory(self, when: str) -> dict[str, object]:
        """Return the memory beyond that of an empty broker, in MB. Mapped segments of the log are not counted."""
        return {
            f"{name}_mb_{when}": round(_private_mb(queues.broker) - self._empty_mb, 1)
            for name, queues in (("memory", self._many), ("peer_memory", self._few))
        }

    def _rate_case(self, what: str, ours: list[Sample], theirs: list[Sample], details: dict[str, object]) -> Case:
        cpu_ratio = median_cpu_us(ours) / median_cpu_us(theirs)
        details |= {
            "server_cpu_ratio": round(cpu_ratio, 3),
            "target": RATE_TARGET,
            "memory_target_mb": MEMORY_TARGET_MB,
        }
        return self._case(what, "messages", ours, theirs, details)

    def _case(self, what: str, unit: str, ours: list[Sample], theirs: list[Sample], details: dict[str, object]) -> Case:
        return Case(
            name=f"{self._sizes.many:,} {self._kind.value}: {what}",
            unit=unit,
            peer=f"the same with {self._sizes.few:,}",
            ours=ours,
            theirs=theirs,
            details={"queues": self._sizes.many, "peer_queues": self._sizes.few, **details, "load_1m": _load()},
        )


@contextmanager
def _serving(queues: _Queues) -> Iterator[None]:
    queues.broker.start()
    try:
        yield
    finally:
        queues.broker.close()


def _topic(number: int) -> str:
    return f"bench-{number:07d}"


def _private_mb(broker: Quarry) -> float:
    return private_bytes_of(broker.pid) / MB


def _load() -> float:
    return round(os.getloadavg()[0], 1)
