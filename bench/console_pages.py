"""How long do the calls take that a page of the console makes, with a million queues, and does anybody wait for them?

Stores are made in this process: topics with a message in each queue, and groups that have read ten topics each and one
topic together, all of them long away, so that nothing of them is in memory. Two shapes: topics of eight queues, and as
many topics as queues. A broker opens each, and all calls of `quarry.admin.v1.OverviewService` are made again and again,
every search for a part of a name with another part, while one connection sends, one call at a time. The same with a
thousand queues. The goal: 99 of 100 calls of each kind take a second at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from threading import Event, Thread
from typing import Any, Final

import grpc

from bench.harness import Case, Options, Sample, Scale, alternate, cpu_s_of, require_room
from bench.peers.quarry import Quarry
from bench.queue_load import QueueLoad, send_body
from bench.scratch_store import SEGMENT_SIZE, scratch_store
from server._generated.quarry.admin.v1 import overview_pb2 as pb
from server._generated.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub
from store.message import Host, Message
from store.metadata import Group, Topic, TopicType
from store.offsets import QueueId, QueueOffset
from store.opening import OpenStore
from store.settings import MIB, Durability

QUESTION: Final = "How long do the calls of a console page take with a million queues, and does anybody wait for them?"
TARGET_MS: Final = 1_000
TOPICS_PER_GROUP: Final = 10
BODY: Final = bytes(range(200))
HOST: Final = Host(b"\x7f\0\0\1", 8081)
BATCH: Final = 2_000
SETTINGS: Final = {"QUARRY_STORE_SEGMENT_SIZE": str(SEGMENT_SIZE)}
COUNTED_TIMEOUT_S: Final = 120.0
UNDISTURBED_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """`rounds` of `calls` calls of each kind."""

    many: int
    few: int
    groups: int
    calls: int
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes(1_000_000, 1_000, groups=1_000, calls=20, rounds=3),
    Scale.QUICK: Sizes(50_000, 1_000, groups=200, calls=10, rounds=2),
    Scale.TINY: Sizes(400, 80, groups=5, calls=2, rounds=1),
}
SHAPES: Final = (8, 1)
"""Queues of each topic."""


@dataclass(slots=True)
class Seen:
    """Times in milliseconds."""

    calls_ms: dict[str, list[float]] = field(default_factory=dict)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    """Of the broker, while nobody sends: other work on the machine does not show in it."""
    sends_ms: list[float] = field(default_factory=list)
    undisturbed_ms: list[float] = field(default_factory=list)

    def facts(self, prefix: str) -> dict[str, object]:
        calls = {
            name: {"p50": round(median(times), 1), "p99": _percentile(times, 0.99), "max": round(max(times), 1)}
            for name, times in self.calls_ms.items()
        }
        return {
            f"{prefix}calls_ms": calls,
            f"{prefix}cpu_ms": {name: round(median(times), 1) for name, times in self.cpu_ms.items()},
            f"{prefix}worst_p99_ms": max(_percentile(times, 0.99) for times in self.calls_ms.values()),
            f"{prefix}send_p99_ms": _percentile(self.sends_ms, 0.99),
            f"{prefix}send_max_ms": round(max(self.sends_ms), 1),
            f"{prefix}undisturbed_send_p99_ms": _percentile(self.undisturbed_ms, 0.99),
        }


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    require_room(options.scratch, 2 * sizes.many * 2_000 + 4 * 1024 * MIB)
    return [_case(options, sizes, each) for each in SHAPES]


def _case(options: Options, sizes: Sizes, queues_per_topic: int) -> Case:
    random = Random(options.seed)
    ours, theirs = (
        _Broker(options.scratch / f"{name}-{queues_per_topic}", queues // queues_per_topic, queues_per_topic, random)
        for name, queues in (("many", sizes.many), ("few", sizes.few))
    )
    with ours.serving(sizes), theirs.serving(sizes):
        samples = alternate(sizes.rounds, lambda: ours.sample(sizes.calls), lambda: theirs.sample(sizes.calls))
    return Case(
        name=f"{sizes.many:,} queues, {queues_per_topic} of each topic: calls of pages while one connection sends",
        unit="calls",
        peer=f"the same with {sizes.few:,}",
        ours=samples[0],
        theirs=samples[1],
        details={
            "queues": sizes.many,
            "peer_queues": sizes.few,
            "topics": sizes.many // queues_per_topic,
            "groups": sizes.groups,
            "target_ms": TARGET_MS,
            **ours.seen.facts(""),
            **theirs.seen.facts("peer_"),
        },
    )


class _Broker:
    """One broker, and the calls that are made on it."""

    def __init__(self, directory: Path, topics: int, queues_per_topic: int, random: Random) -> None:
        self._broker = Quarry(directory, Durability.ASYNC, SETTINGS)
        self._topics = topics
        self._queues_per_topic = queues_per_topic
        self._random = random
        self.seen = Seen()

    @contextmanager
    def serving(self, sizes: Sizes) -> Iterator[None]:
        with scratch_store(self._broker.store, Durability.ASYNC) as store:
            self._fill(store, sizes.groups)
        self._broker.start()
        try:
            self._wait_until_counted()
            yield
        finally:
            self._broker.close()

    def sample(self, calls: int) -> Sample:
        """So many calls of each kind, after as many sends that are not disturbed."""
        self._send_until(Event(), self.seen.undisturbed_ms, seconds=UNDISTURBED_S)
        self._count_cpu()
        over = Event()
        sender = Thread(target=self._send_until, args=(over, self.seen.sends_ms), name="sender")
        sender.start()
        try:
            with grpc.insecure_channel(self._broker.admin) as channel:
                service = OverviewServiceStub(channel)  # type: ignore[no-untyped-call]
                cpu_s, begin_s = cpu_s_of(self._broker.pid), time.perf_counter()
                done = sum(self._call(service, name, request) for _ in range(calls) for name, request in self._page())
                wall_s = time.perf_counter() - begin_s
                return Sample(done, wall_s, cpu_s_of(self._broker.pid) - cpu_s)
        finally:
            over.set()
            sender.join()

    def _count_cpu(self) -> None:
        """A call of each kind, one after the other and nothing beside them."""
        with grpc.insecure_channel(self._broker.admin) as channel:
            service = OverviewServiceStub(channel)  # type: ignore[no-untyped-call]
            for name, call in self._page():
                before_s = cpu_s_of(self._broker.pid)
                call(service)
                taken_ms = (cpu_s_of(self._broker.pid) - before_s) * 1000
                self.seen.cpu_ms.setdefault(name, []).append(taken_ms)

    def _page(self) -> Iterator[tuple[str, Callable[[Any], Any]]]:
        """Each kind of call, with what makes it."""
        number = self._random.randrange(self._topics)
        rare, common = f"{number:07d}", f"{number % 10}"
        topics, groups = pb.ListTopicFiguresRequest, pb.ListGroupFiguresRequest
        yield "overview", lambda service: service.GetOverview(pb.GetOverviewRequest())
        yield "history", lambda service: service.GetHistory(pb.GetHistoryRequest())
        requests: Mapping[str, pb.ListTopicFiguresRequest] = {
            "topics, first page": topics(),
            "topics, a page amid them": topics(after=_topic(number)),
            "topics, 500 of them": topics(after=_topic(number // 2), limit=500),
            "topics, one by a part of its name": topics(contains=rare),
            "topics, very many by a part of their names": topics(contains=f"{common}{number % 7}"),
            "topics, the busiest": topics(order=pb.FIGURE_ORDER_BUSIEST),
            "topics, those furthest behind": topics(order=pb.FIGURE_ORDER_LAG),
        }
        for name, request in requests.items():
            yield name, lambda service, request=request: service.ListTopicFigures(request)
        for name, page in {
            "groups, first page": groups(),
            "groups, 500 of them": groups(limit=500),
            "groups, one by a part of its name": groups(contains=f"readers-{number % 1_000:04d}"),
        }.items():
            yield name, lambda service, page=page: service.ListGroupFigures(page)

    def _call(self, service: Any, name: str, call: Callable[[Any], Any]) -> int:
        began_s = time.perf_counter()
        call(service)
        self.seen.calls_ms.setdefault(name, []).append((time.perf_counter() - began_s) * 1000)
        return 1

    def _send_until(self, over: Event, times_ms: list[float], seconds: float = 3_600.0) -> None:
        """One connection: the next send is made when the last one is answered."""

        def bodies() -> Iterator[bytes]:
            end_s = time.perf_counter() + seconds
            while not over.is_set() and time.perf_counter() < end_s:
                body = send_body(_topic(self._random.randrange(self._topics)), BODY)
                began_s = time.perf_counter()
                yield body
                times_ms.append((time.perf_counter() - began_s) * 1000)

        with closing(QueueLoad(self._broker, self._random, connections=1)) as load:
            load.sends(bodies())

    def _wait_until_counted(self) -> None:
        """Until the broker knows how many topics there are: the first round in the background."""
        deadline_s = time.perf_counter() + COUNTED_TIMEOUT_S
        with grpc.insecure_channel(self._broker.admin) as channel:
            service = OverviewServiceStub(channel)  # type: ignore[no-untyped-call]
            while not service.GetOverview(pb.GetOverviewRequest()).HasField("topics"):
                if time.perf_counter() > deadline_s:
                    raise RuntimeError("the broker has not counted its topics")
                time.sleep(0.1)

    # -- what is in the stores

    def _fill(self, store: OpenStore, groups: int) -> None:
        """A message in each queue; groups that stand at the beginning of ten topics, and of the first one."""
        queues = self._queues_per_topic
        store.topics.add_missing(
            Topic(_topic(number), TopicType.NORMAL, queues, queues) for number in range(self._topics)
        )
        messages: list[Message] = []
        for number in range(self._topics):
            messages += [Message(_topic(number), queue, BODY, {}, 0, HOST, HOST) for queue in range(queues)]
            if len(messages) >= BATCH:
                self._store(store, messages)
                messages = []
        self._store(store, messages)
        store.messages.flush()
        store.groups.add_missing(Group(f"readers-{number:04d}") for number in range(groups))
        for number in range(groups):
            batch = store.state_engine.batch()
            for place in range(TOPICS_PER_GROUP):
                topic = _topic((number * place * 7) % self._topics)
                for queue in range(queues):
                    store.offsets.stage(batch, f"readers-{number:04d}", QueueId(topic, queue), QueueOffset(0))
            store.state_engine.write(batch)

    @staticmethod
    def _store(store: OpenStore, messages: list[Message]) -> None:
        if messages:
            store.messages.append(messages)
            store.messages.dispatch(store.messages.appended_up_to)


def _topic(number: int) -> str:
    return f"bench-{number:07d}"


def _percentile(values: list[float], part: float) -> float:
    return round(sorted(values)[int(part * (len(values) - 1))], 1)
