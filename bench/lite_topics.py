"""Measures what a million lite topics cost.

Two brokers run side by side, with `async`, so that no disk hides a difference: one with a million lite topics and
10,000 clients, each subscribed to a hundred of them; the peer with as many messages in one ordinary topic and as many
clients on it. Half of the lite topics, every second one, are filled while the broker's clock is hours slow: they are
old at once when it is started again with the right clock, and stay so, since no more messages are sent to them.

The goals: 20 ms from a send to the waiting receive, for 99 of 100; at most 100 bytes of memory for an idle lite topic;
a start that takes at most 3 s longer; and at most twice the time for other sends while the old half expires.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from threading import Event, Thread
from typing import Final

from bench.call_loop import Loop
from bench.crowd import Crowd, Reading, send_body
from bench.harness import Case, Options, Sample, Scale, cpu_s_of, private_bytes_of, require_room
from bench.peers.quarry import Quarry
from bench.queue_load import QueueLoad
from bench.send_load import admin_channel, stats
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as admin
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.store.settings import Durability

QUESTION: Final = "What do a million lite topics cost: memory, wake-ups, a restart, their removal?"
TOPIC: Final = "bench-sessions"
GROUP: Final = "bench-devices"
AGE_S: Final = 36_000
"""Seconds that the clock is slow while the old half is made."""

TTL_MINUTES: Final = 300
"""Minutes until a lite topic expires, so that the newer half does not become old during the run."""

EXPIRY_INTERVAL_S: Final = 1
LOOK_SHARE: Final = 1 / 3
"""Interval between readings of metrics as a share of a stretch of load: a reading costs the broker a moment."""

REMOVING_SHARE: Final = 3
"""Time with expiry as a multiple of the time without it; both alternate."""

SETTINGS: Final = {
    "QUARRY_LITE_EXPIRY_INTERVAL_MS": str(EXPIRY_INTERVAL_S * 1000),
    "QUARRY_DELIVERY_NEW_GROUP_START": "latest",
}
MESSAGES_PER_FILL: Final = 40
IDLE_CORES: Final = 0.5
"""Cores below which a broker counts as idle after clients have connected."""

WAKE_TARGET_MS: Final = 20
BYTES_TARGET: Final = 100
START_TARGET_S: Final = 3.0
REMOVAL_TARGET: Final = 2.0
ROCKSDB_MEMORY: Final = ("memtable_bytes", "table_reader_bytes", "block_cache_bytes")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale.

    `load_s` is one stretch of load of `per_second` messages, `removal_s` the time that the old half may take to expire,
    `settled_s` the time after which a broker is idle.
    """

    clients: int
    wanted: int
    """Lite topics of each client."""
    connections: int
    per_second: float
    load_s: float
    rounds: int
    removal_s: float = 900
    settled_s: float = 2

    @property
    def lite_topics(self) -> int:
        return self.clients * self.wanted


SIZES: Final = {
    Scale.FULL: Sizes(10_000, 100, connections=100, per_second=300, load_s=15, rounds=3),
    Scale.QUICK: Sizes(200, 100, connections=10, per_second=200, load_s=4, rounds=2),
    Scale.TINY: Sizes(4, 10, connections=2, per_second=50, load_s=0.5, rounds=1, settled_s=0.1),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    require_room(options.scratch, sizes.lite_topics * 6_000 + 3 * 1024 * MIB)
    random = Random(options.seed)
    loop = Loop(random)
    ours = _Side(options.scratch / "lite", sizes, loop, random, is_lite=True)
    theirs = _Side(options.scratch / "ordinary", sizes, loop, random, is_lite=False)
    with closing(ours.broker), closing(theirs.broker):
        cases = [_made(sizes, ours, theirs), _subscribed(sizes, ours, theirs)]
        cases += [_starts(sizes, ours, theirs, after, end) for after, end in ENDS.items()]
        memory = _come_back(ours, theirs)
        return [*cases, _wakes(sizes, ours, theirs, memory), _removal(sizes, ours)]


class _Side:
    """Hold one broker, its topic, and the clients of the topic."""

    def __init__(self, directory: Path, sizes: Sizes, loop: Loop, random: Random, *, is_lite: bool) -> None:
        self.broker = Quarry(directory, Durability.ASYNC, SETTINGS)
        self.crowd = Crowd(
            loop,
            topic=TOPIC,
            group=GROUP,
            clients=sizes.clients,
            connections=sizes.connections,
            wants=(lambda client: [_name(client * sizes.wanted + each) for each in range(sizes.wanted)])
            if is_lite
            else (lambda _: ()),
        )
        self._sizes = sizes
        self._loop = loop
        self._random = random
        self._is_lite = is_lite

    def make(self) -> tuple[Sample, dict[str, float]]:
        """Make all messages that exist before the load; return the memory of their second half in the idle broker."""
        self.broker.start(program=("bench.peers.behind", str(AGE_S)))
        self._create()
        first = self._fill(0)
        self.broker.close()
        self.broker.start()
        before = self.memory()
        second = self._fill(1)
        time.sleep(self._sizes.settled_s)
        return first.joined(second), _difference(self.memory(), before)

    def load(self, is_over: Callable[[float], bool]) -> Reading:
        """Send messages to lite topics of the newer half, or to one of the ordinary topic's queues."""
        numbers = range(1, self._sizes.lite_topics, 2)
        names = iter(lambda: _name(self._random.choice(numbers)) if self._is_lite else "", None)
        return self.crowd.load(self.broker, names, per_second=self._sizes.per_second, is_over=is_over)

    def come(self) -> dict[str, float]:
        """Connect all clients and let them wait; return the cost."""
        begin_s, cpu_s, memory = time.monotonic(), cpu_s_of(self.broker.pid), self.memory()
        self.crowd.come(self.broker)
        self.crowd.wait()
        self._until_idle()
        come_s, come_cpu_s = time.monotonic() - begin_s, cpu_s_of(self.broker.pid) - cpu_s
        grown = _difference(self.memory(), memory)
        return {
            "come_s": round(come_s, 1),
            "come_cpu_s": round(come_cpu_s, 1),
            "bytes_per_client": round(grown["own"] / self._sizes.clients),
            "idle_cores": round(self._cores(self._sizes.load_s), 3),
        }

    def memory(self) -> dict[str, float]:
        """Return the private memory of the process: RocksDB's own count of it, and the rest."""
        rocksdb = sum(self.stats(*(f"quarry_rocksdb_{each}" for each in ROCKSDB_MEMORY)))
        return {"rocksdb": rocksdb, "own": private_bytes_of(self.broker.pid) - rocksdb}

    def stats(self, *names: str) -> list[float]:
        """Return metrics of the broker, each summed over its labels."""
        values = stats(self.broker)
        return [sum(value for key, value in values.items() if key.partition("{")[0] == name) for name in names]

    def set_ttl(self, minutes: int | None) -> None:
        """Set the expiration of lite topics; None: they are kept forever."""
        with admin_channel(self.broker) as channel:
            stub = AdminServiceStub(channel)
            attributes = {"lite.topic.expiration": str(-1 if minutes is None else minutes)}
            stub.UpdateTopic(admin.UpdateTopicRequest(name=TOPIC, attributes=attributes))

    def _create(self) -> None:
        kind = admin.TOPIC_TYPE_LITE if self._is_lite else admin.TOPIC_TYPE_NORMAL
        bound = {"lite.bind.topic": TOPIC} if self._is_lite else {}
        with admin_channel(self.broker) as channel:
            stub = AdminServiceStub(channel)
            stub.CreateTopic(admin.CreateTopicRequest(name=TOPIC, type=kind))
            stub.CreateGroup(admin.CreateGroupRequest(name=GROUP, attributes=bound))

    def _fill(self, half: int) -> Sample:
        names = range(half, self._sizes.lite_topics, 2)
        sends = (
            send_body(TOPIC, [_name(each) if self._is_lite else "" for each in names[at : at + MESSAGES_PER_FILL]])
            for at in range(0, len(names), MESSAGES_PER_FILL)
        )
        with closing(QueueLoad(self.broker, self._random)) as load:
            return load.sends(sends)

    def _until_idle(self) -> None:
        while self._cores(self._sizes.settled_s) > IDLE_CORES:
            pass

    def _cores(self, seconds: float) -> float:
        """Return the cores that the broker uses while nothing is sent."""
        cpu_s, end_s = cpu_s_of(self.broker.pid), time.monotonic() + seconds
        self._loop.run_until(lambda: time.monotonic() > end_s, "a moment")
        return (cpu_s_of(self.broker.pid) - cpu_s) / seconds


# -- the cases


def _made(sizes: Sizes, ours: _Side, theirs: _Side) -> Case:
    made, grown = ours.make()
    peer, peer_grown = theirs.make()
    half = sizes.lite_topics // 2
    return Case(
        name=f"{sizes.lite_topics:,} lite topics made",
        unit="lite topics",
        peer="as many messages to an ordinary topic",
        ours=[made],
        theirs=[peer],
        details={
            "lite_topics": sizes.lite_topics,
            "bytes_grown_each": round(grown["own"] / half, 1),
            "rocksdb_bytes_grown_each": round(grown["rocksdb"] / half, 1),
            "peer_bytes_grown_each": round(peer_grown["own"] / half, 1),
            "load_1m": _load(),
        },
    )


def _subscribed(sizes: Sizes, ours: _Side, theirs: _Side) -> Case:
    """Measure subscriptions. The peer repeats the same subscriptions, as clients do every 30 seconds."""
    ours.crowd.come(ours.broker)
    before, cpu_s = ours.memory(), cpu_s_of(ours.broker.pid)
    first = ours.crowd.subscribe(fresh=True)
    between_s = cpu_s_of(ours.broker.pid)
    grown = _difference(ours.memory(), before)
    cpu_begin_s = cpu_s_of(ours.broker.pid)
    again = ours.crowd.subscribe(fresh=False)
    cpu_again_s = cpu_s_of(ours.broker.pid) - cpu_begin_s
    ours.crowd.go()
    theirs.crowd.come(theirs.broker)  # its group begins where the topic ends
    theirs.crowd.go()
    return Case(
        name=f"{sizes.clients:,} clients subscribe to {sizes.wanted} each",
        unit="subscriptions",
        peer="the same said again",
        ours=[first._replace(cpu_s=between_s - cpu_s)],
        theirs=[again._replace(cpu_s=cpu_again_s)],
        details={
            "clients": sizes.clients,
            "bytes_per_subscription": round(grown["own"] / sizes.lite_topics, 1),
            "rocksdb_bytes_per_subscription": round(grown["rocksdb"] / sizes.lite_topics, 1),
            "load_1m": _load(),
        },
    )


ENDS: Final[dict[str, Callable[[Quarry], None]]] = {"kill -9": Quarry.kill, "a clean stop": Quarry.close}


def _starts(sizes: Sizes, ours: _Side, theirs: _Side, after: str, end: Callable[[Quarry], None]) -> Case:
    """Measure starts. The peer reads as much of a log."""

    def sample(side: _Side) -> Sample:
        end(side.broker)
        begin_s = time.perf_counter()
        side.broker.start()
        return Sample(1, time.perf_counter() - begin_s, cpu_s_of(side.broker.pid))

    samples = sample(ours), sample(theirs)
    time.sleep(sizes.settled_s)
    beyond = _difference(ours.memory(), theirs.memory())
    return Case(
        name=f"start after {after}",
        unit="starts",
        peer="as many messages in an ordinary topic",
        ours=[samples[0]],
        theirs=[samples[1]],
        details={
            "ready_s": round(samples[0].wall_s, 3),
            "peer_ready_s": round(samples[1].wall_s, 3),
            "longer_s": round(samples[0].wall_s - samples[1].wall_s, 3),
            "longer_target_s": START_TARGET_S,
            "bytes_per_idle": round(beyond["own"] / sizes.lite_topics, 1),
            "rocksdb_bytes_per_idle": round(beyond["rocksdb"] / sizes.lite_topics, 1),
            "bytes_target": BYTES_TARGET,
            "load_1m": _load(),
        },
    )


def _come_back(ours: _Side, theirs: _Side) -> dict[str, object]:
    return {**ours.come(), **{f"peer_{name}": value for name, value in theirs.come().items()}}


def _wakes(sizes: Sizes, ours: _Side, theirs: _Side, memory: dict[str, object]) -> Case:
    def is_over(seconds: float) -> bool:
        return seconds >= sizes.load_s

    rounds = [(ours.load(is_over), theirs.load(is_over)) for _ in range(sizes.rounds)]
    readings, peers = ([pair[at] for pair in rounds] for at in (0, 1))
    theirs.crowd.go()
    theirs.broker.close()
    return Case(
        name=f"sends to random lite topics, {sizes.clients:,} clients wait",
        unit="messages",
        peer="sends to an ordinary topic, as many clients wait",
        ours=[each.sample for each in readings],
        theirs=[each.sample for each in peers],
        details={
            "sent_per_second": sizes.per_second,
            **_times("", readings),
            **_times("peer_", peers),
            "wake_target_ms": WAKE_TARGET_MS,
            **memory,
            "load_1m": _load(),
        },
    )


def _removal(sizes: Sizes, ours: _Side) -> Case:
    """Measure the expiry of the old half; the peer is the same load while the topic has no `lite.topic.expiration`.

    Both alternate until the old half is gone, because other work of the machine changes over minutes.
    """
    left, removing, quiet = sizes.lite_topics // 2, list[Reading](), list[Reading]()
    with _counted(ours, sizes) as there:

        def is_gone() -> bool:
            return there[-1:] == [left]

        ours.load(lambda seconds: seconds >= sizes.load_s and there[-1:] == [sizes.lite_topics])
        while not is_gone() and sum(each.sample.wall_s for each in removing) < sizes.removal_s:
            ours.set_ttl(TTL_MINUTES)
            removing.append(ours.load(lambda seconds: seconds > sizes.load_s * (1 if is_gone() else REMOVING_SHARE)))
            ours.set_ttl(None)
            quiet.append(ours.load(lambda seconds: seconds >= sizes.load_s))
    removed = sizes.lite_topics - there[-1]
    ours.crowd.go()
    p99s = [_percentile([ms for each in readings for ms in each.wakes_ms], 0.99) for readings in (removing, quiet)]
    return Case(
        name="the old half of them expires",
        unit="messages",
        peer="the same load while none does",
        ours=[each.sample for each in removing],
        theirs=[each.sample for each in quiet],
        details={
            "to_remove": sizes.lite_topics - left,
            "removed": removed,
            "removed_per_second": round(removed / sum(each.sample.wall_s for each in removing)),
            **_times("", removing),
            **_times("peer_", quiet),
            "wake_p99_of_all_ms": round(p99s[0], 2),
            "peer_wake_p99_of_all_ms": round(p99s[1], 2),
            "wake_p99_ratio": round(p99s[0] / p99s[1], 2),
            "wake_p99_ratio_target": REMOVAL_TARGET,
            "load_1m": _load(),
        },
    )


@contextmanager
def _counted(side: _Side, sizes: Sizes) -> Iterator[list[float]]:
    """Read the number of lite topics again and again from another thread, while the block runs."""
    seen: list[float] = []
    is_over = Event()

    def watch() -> None:
        while not is_over.wait(LOOK_SHARE * sizes.load_s):
            seen.extend(side.stats("quarry_lite_topics"))

    watcher = Thread(target=watch, name="watcher")
    watcher.start()
    try:
        yield seen
    finally:
        is_over.set()
        watcher.join()


def _times(prefix: str, readings: Sequence[Reading]) -> dict[str, float]:
    """Return medians of the readings' percentiles, and the worst of all."""
    facts = {}
    for what, lists in (
        ("wake", [each.wakes_ms for each in readings]),
        ("send", [each.sends_ms for each in readings]),
    ):
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            facts[f"{prefix}{what}_{name}_ms"] = round(median(_percentile(each, share) for each in lists), 2)
        facts[f"{prefix}{what}_max_ms"] = round(max(map(max, lists)), 1)
    return facts


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def _difference(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: value - before[name] for name, value in after.items()}


def _name(number: int) -> str:
    return f"session-{number:07d}"


def _load() -> float:
    return round(os.getloadavg()[0], 1)
