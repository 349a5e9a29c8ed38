"""Measures whether two shards on one machine have twice the capacity of one broker, as far as the processor goes.

Load generators need cores too, so rates by the wall clock say little on a small machine: two shards and their load
share the cores that one broker has for itself. Compared is capacity by CPU time: messages per second of CPU time of all
threads of a broker, which is what one core gives when the broker has it to itself; for two shards it is the sum, with
half of their supervisor's CPU time on each. The peer is a `quarry serve` without cluster and supervisor, measured in
turns with them.

The event loop bounds a single broker, however many cores there are: `loop_…` are the same numbers by the CPU time of
its busiest thread alone. Further results are each sample's rate by the wall clock, and the cost of a load of a fixed
rate, twice as much for two shards as for one. Clients are a process for each broker, with requests to it alone: a real
client goes by the route, which names the queues of both. Of messages with message groups each process sends either
those of the groups for which the route names its broker, as the Java and Go clients do, or those of all groups, as
clients with another hash do: then every second message is forwarded to the shard that owns its group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import cycle, islice, repeat
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import Final, NamedTuple, TypeVar

import grpc

from bench.harness import Case, Options, Sample, Scale, cpu_s_of
from bench.peers.quarry import Quarry, QuarryShards, Shard
from bench.queue_load import BATCH, QueueLoad, grouped_body, send_body
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as admin
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.server.cluster.membership import siphash
from quarry_mq.store.settings import Durability

QUESTION: Final = "Do two shards of one machine give at least 1.7 times the capacity of one broker?"
TOPIC: Final = "bench-orders"
GROUPED_TOPIC: Final = "bench-accounts"
MESSAGE_GROUPS: Final = 1_000
SHARDS: Final = 2
BODY: Final = bytes(range(256)) * 4
SETTINGS: Final = {"QUARRY_DELIVERY_NEW_GROUP_START": "earliest"}
RATIO_TARGET: Final = 1.7
PACED_SHARE: Final = 0.2
"""Share of one core's capacity for the load of a fixed rate: clients and shards leave the machine some rest then."""

CLIENT: Final = "bench-host@4711@1@abcdefgh"
ROUTE_TIMEOUT_S: Final = 20.0
QUERY_ROUTE: Final = "/apache.rocketmq.v2.MessagingService/QueryRoute"

WRITABLE: Final = (definition.WRITE, definition.READ_WRITE)
MODES: Final = {
    "send": "send",
    "send grouped": "send, of message groups, by the route",
    "send grouped anywhere": "send, of message groups, anywhere",
    "receive": f"receive {BATCH}, acknowledge each",
}

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale. `messages` are those of one sample, on each broker."""

    messages: int
    rounds: int
    idle_s: float
    paced_s: float
    durabilities: Sequence[Durability] = tuple(Durability)


SIZES: Final = {
    Scale.FULL: Sizes(messages=40_000, rounds=5, idle_s=10, paced_s=5),
    Scale.QUICK: Sizes(messages=10_000, rounds=2, idle_s=3, paced_s=2),
    Scale.TINY: Sizes(messages=200, rounds=1, idle_s=0.2, paced_s=0.1, durabilities=[Durability.ASYNC]),
}


class Load(NamedTuple):
    """The load of one broker. `calls_per_second` None: as fast as it answers."""

    mode: str
    messages: int
    calls_per_second: float | None = None


class Reading(NamedTuple):
    """The measurements of one broker: its sample, and the CPU time of its busiest thread."""

    sample: Sample
    loop_s: float


class Round(NamedTuple):
    """The measurements of all brokers of one side, loaded at the same time.

    `others_cpu_s` is their supervisor's CPU time.
    """

    readings: Sequence[Reading]
    others_cpu_s: float

    @property
    def capacity(self) -> Sample:
        """The capacity: its rate is that of brokers with a core each."""
        cpu_s = [each.sample.cpu_s + self.others_cpu_s / len(self.readings) for each in self.readings]
        rate = sum(each.sample.done / spent_s for each, spent_s in zip(self.readings, cpu_s, strict=True))
        return Sample(self.done, self.done / rate, sum(cpu_s))

    @property
    def done(self) -> int:
        return sum(each.sample.done for each in self.readings)

    @property
    def loops_per_second(self) -> float:
        """Rate that the event loops would reach if each had a core, and all other threads had others."""
        return sum(each.sample.done / each.loop_s for each in self.readings)

    @property
    def loop_share(self) -> float:
        return sum(each.loop_s for each in self.readings) / sum(each.sample.cpu_s for each in self.readings)

    @property
    def wall_per_second(self) -> float:
        return self.done / max(each.sample.wall_s for each in self.readings)

    @property
    def cores(self) -> float:
        """Cores of the machine that the brokers used."""
        return (sum(each.sample.cpu_s for each in self.readings) + self.others_cpu_s) / max(
            each.sample.wall_s for each in self.readings
        )


class _Side:
    """Run one broker, or the shards of one machine."""

    def __init__(self, clients: ProcessPoolExecutor, brokers: Sequence[Shard], supervisor: int | None) -> None:
        self._clients = clients
        self._brokers = brokers
        self._supervisor = supervisor

    def under(self, load: Load) -> Round:
        before_s = self._supervisor_s()
        readings = list(self._clients.map(_load, self._brokers, repeat(load)))
        return Round(readings, self._supervisor_s() - before_s)

    def idle_cores(self, seconds: float) -> float:
        """Return the cores that all processes use while idle."""
        pids = [*(each.pid for each in self._brokers), *([] if self._supervisor is None else [self._supervisor])]
        before_s, begin_s = sum(map(cpu_s_of, pids)), time.perf_counter()
        time.sleep(seconds)
        return (sum(map(cpu_s_of, pids)) - before_s) / (time.perf_counter() - begin_s)

    def _supervisor_s(self) -> float:
        return 0.0 if self._supervisor is None else cpu_s_of(self._supervisor)


def run(options: Options) -> list[Case]:
    return [case for durability in SIZES[options.scale].durabilities for case in _cases(options, durability)]


def _cases(options: Options, durability: Durability) -> list[Case]:
    sizes = SIZES[options.scale]
    scratch = options.scratch / durability.value
    scratch.mkdir()
    with ExitStack() as running:
        one, two = running.enter_context(closing(_Brokers(scratch, durability))).start()
        clients = running.enter_context(ProcessPoolExecutor(SHARDS, get_context("spawn")))
        ours, peer = _Side(clients, two.brokers, two.supervisor), _Side(clients, one.brokers, None)
        for side in (ours, peer):
            side.under(Load("send", sizes.messages // 4))
        for brokers in (one.brokers, two.brokers):
            _make_grouped_topic(brokers)
        for each in two.brokers:
            for topic in (TOPIC, GROUPED_TOPIC):
                _await_route(each, topic, len(two.brokers))
        for side in (ours, peer):
            side.under(Load("send grouped", sizes.messages // 40))
        idle = {
            "idle_cores": round(ours.idle_cores(sizes.idle_s), 4),
            "peer_idle_cores": round(peer.idle_cores(sizes.idle_s), 4),
        }
        facts = {"durability": durability.value, "target": RATIO_TARGET, **idle}
        return [_case(mode, ours, peer, sizes, facts) for mode in MODES]


def _case(mode: str, ours: _Side, peer: _Side, sizes: Sizes, facts: Mapping[str, object]) -> Case:
    load = Load(mode, sizes.messages)
    rounds = [(ours.under(load), peer.under(load)) for _ in range(sizes.rounds)]
    capacity = median(theirs.capacity.per_second for _, theirs in rounds)
    per_call = BATCH if mode == "receive" else 1
    calls_per_second = capacity * PACED_SHARE / per_call
    paced = Load(mode, max(per_call, round(calls_per_second * sizes.paced_s) * per_call), calls_per_second)
    if mode == "receive":  # the rounds have taken what was sent before
        for side in (ours, peer):
            side.under(Load("send", paced.messages))
    ours_paced, peer_paced = ours.under(paced), peer.under(paced)
    return Case(
        name=f"{facts['durability']}: {MODES[mode]}",
        unit="messages per core of each",
        peer="one broker",
        ours=[mine.capacity for mine, _ in rounds],
        theirs=[theirs.capacity for _, theirs in rounds],
        details={
            "mode": mode,
            **facts,
            **_stats("", [mine for mine, _ in rounds], ours_paced),
            **_stats("peer_", [theirs for _, theirs in rounds], peer_paced),
            "loop_ratio": round(median(a.loops_per_second / b.loops_per_second for a, b in rounds), 3),
        },
    )


def _stats(prefix: str, rounds: Sequence[Round], paced: Round) -> dict[str, object]:
    return {
        f"{prefix}loop_per_second": round(median(each.loops_per_second for each in rounds), 1),
        f"{prefix}loop_share": round(median(each.loop_share for each in rounds), 3),
        f"{prefix}wall_per_second": round(median(each.wall_per_second for each in rounds), 1),
        f"{prefix}cores": round(median(each.cores for each in rounds), 3),
        f"{prefix}paced_per_second": round(paced.wall_per_second, 1),
        f"{prefix}paced_cores": round(paced.cores, 3),
    }


class _Running(NamedTuple):
    brokers: Sequence[Shard]
    supervisor: int | None


class _Brokers:
    """Run one broker and two shards beside it."""

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._one = Quarry(directory / "one", durability, SETTINGS)
        self._two = QuarryShards(directory / "two", SHARDS, durability, SETTINGS)

    def start(self) -> tuple[_Running, _Running]:
        self._one.start()
        self._two.start()
        one = Shard(self._one.endpoint, self._one.admin, self._one.pid)
        return _Running([one], None), _Running(self._two.shards(), self._two.pid)

    def close(self) -> None:
        self._one.close()
        self._two.close()


def _load(broker: Shard, load: Load) -> Reading:
    """Load a broker from its own process."""
    with closing(QueueLoad(broker, Random(1))) as connections:
        before = _threads_s(broker.pid)
        if load.mode == "receive":
            calls = repeat(TOPIC, load.messages // BATCH)
            sample = connections.receives(_paced(calls, load.calls_per_second))
        else:
            sample = connections.sends(_paced(_requests(broker, load), load.calls_per_second))
        after = _threads_s(broker.pid)
    return Reading(sample, max(spent_s - before.get(thread, 0.0) for thread, spent_s in after.items()))


def _requests(broker: Shard, load: Load) -> Iterator[bytes]:
    if load.mode == "send":
        return repeat(send_body(TOPIC, BODY), load.messages)
    groups = [f"account-{number}" for number in range(MESSAGE_GROUPS)]
    if load.mode == "send grouped":
        queues = [each for each in _route(broker, GROUPED_TOPIC) if each.permission in WRITABLE]
        port = int(broker.endpoint.rpartition(":")[2])
        ports = [queue.broker.endpoints.addresses[0].port for queue in queues]
        groups = [group for group in groups if ports[siphash(group.encode()) % len(ports)] == port]
    return islice(cycle([grouped_body(GROUPED_TOPIC, BODY, group) for group in groups]), load.messages)


def _paced(items: Iterable[Item], per_second: float | None) -> Iterator[Item]:
    """Yield the items, at most `per_second`."""
    begin_s = time.perf_counter()
    for number, item in enumerate(items):
        if per_second is not None:
            time.sleep(max(0.0, begin_s + number / per_second - time.perf_counter()))
        yield item


def _threads_s(pid: int) -> dict[str, float]:
    """Return the CPU time of each thread so far, by its number."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return found


def _make_grouped_topic(brokers: Sequence[Shard]) -> None:
    """Create the topic on the first broker; return when all know it.

    A route query on a broker that does not know the topic yet would create another one there.
    """
    request = admin.CreateTopicRequest(name=GROUPED_TOPIC, type=admin.TOPIC_TYPE_FIFO)
    for broker in brokers:
        with grpc.insecure_channel(broker.admin, options=[("grpc.enable_http_proxy", 0)]) as channel:
            topics = AdminServiceStub(channel)
            if broker is brokers[0]:
                topics.CreateTopic(request, timeout=ROUTE_TIMEOUT_S)
            while GROUPED_TOPIC not in _names_of_topics(topics):
                time.sleep(0.1)


def _names_of_topics(topics: AdminServiceStub) -> set[str]:
    found = topics.ListTopics(admin.ListTopicsRequest(), timeout=ROUTE_TIMEOUT_S)
    return {topic.name for page in found for topic in page.topics}


def _await_route(broker: Shard, topic: str, members: int) -> None:
    """Wait until the broker's route names all members. Raises RuntimeError on timeout."""
    give_up_s = time.monotonic() + ROUTE_TIMEOUT_S
    while len({queue.broker.name for queue in _route(broker, topic)}) < members:
        if time.monotonic() > give_up_s:
            raise RuntimeError("the shards do not find each other")
        time.sleep(0.1)


def _route(broker: Shard, topic: str) -> Sequence[definition.MessageQueue]:
    """Return the route that a client gets."""
    request = service.QueryRouteRequest()
    request.topic.name = topic
    with grpc.insecure_channel(broker.endpoint, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask: Callable[..., service.QueryRouteResponse] = channel.unary_unary(
            QUERY_ROUTE,
            request_serializer=service.QueryRouteRequest.SerializeToString,
            response_deserializer=service.QueryRouteResponse.FromString,
        )
        return ask(request, metadata=[("x-mq-client-id", CLIENT)], timeout=ROUTE_TIMEOUT_S).message_queues
