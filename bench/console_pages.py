"""Measures the calls of a console page with a million queues, and whether sends are delayed by them.

Two shapes of stores: topics of eight queues, and as many topics as queues. A broker opens each, and all calls of
`quarry.admin.v1.OverviewService` are made again and again, every search for a part of a name with another part, while
one connection sends, one call at a time. The peer has a thousand queues. The goal: 99 of 100 calls of each kind take a
second at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from statistics import median
from threading import Event, Thread
from typing import Any, Final

import grpc

from bench.console_stores import BODY, ConsoleBroker, group_name, topic_name
from bench.harness import Case, Options, Sample, Scale, alternate, cpu_s_of, require_room
from bench.queue_load import QueueLoad, send_body
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub

QUESTION: Final = "How long do the calls of a console page take with a million queues, and does anybody wait for them?"
TARGET_MS: Final = 1_000
UNDISTURBED_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts by scale: `rounds` of `calls` calls of each kind."""

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
"""Numbers of queues of each topic."""


@dataclass(slots=True)
class Seen:
    """Measured times in milliseconds."""

    calls_ms: dict[str, list[float]] = field(default_factory=dict)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    """CPU time of the broker for a call while no sends are made: other work on the machine does not show in it."""
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
    many, few = (
        ConsoleBroker(
            options.scratch / f"{name}-{queues_per_topic}", queues // queues_per_topic, queues_per_topic, sizes.groups
        )
        for name, queues in (("many", sizes.many), ("few", sizes.few))
    )
    ours, theirs = _Calls(many, random), _Calls(few, random)
    with many.serving(), few.serving():
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


class _Calls:
    """Makes the calls on one broker, and sends meanwhile."""

    def __init__(self, broker: ConsoleBroker, random: Random) -> None:
        self._broker = broker
        self._random = random
        self.seen = Seen()

    def sample(self, calls: int) -> Sample:
        """Make `calls` calls of each kind while sends are made, after a stretch of undisturbed sends."""
        self._send_until(Event(), self.seen.undisturbed_ms, seconds=UNDISTURBED_S)
        self._count_cpu()
        over = Event()
        sender = Thread(target=self._send_until, args=(over, self.seen.sends_ms), name="sender")
        sender.start()
        try:
            with grpc.insecure_channel(self._broker.admin) as channel:
                service = OverviewServiceStub(channel)
                cpu_s, begin_s = cpu_s_of(self._broker.pid), time.perf_counter()
                done = sum(self._call(service, name, request) for _ in range(calls) for name, request in self._page())
                wall_s = time.perf_counter() - begin_s
                return Sample(done, wall_s, cpu_s_of(self._broker.pid) - cpu_s)
        finally:
            over.set()
            sender.join()

    def _count_cpu(self) -> None:
        """Measure the CPU time of a call of each kind, one after the other and with no other load."""
        with grpc.insecure_channel(self._broker.admin) as channel:
            service = OverviewServiceStub(channel)
            for name, call in self._page():
                before_s = cpu_s_of(self._broker.pid)
                call(service)
                taken_ms = (cpu_s_of(self._broker.pid) - before_s) * 1000
                self.seen.cpu_ms.setdefault(name, []).append(taken_ms)

    def _page(self) -> Iterator[tuple[str, Callable[[Any], Any]]]:
        """Yield each kind of call, with the function that makes it."""
        number = self._random.randrange(self._broker.topics)
        topics, groups = pb.ListTopicFiguresRequest, pb.ListGroupFiguresRequest
        yield "overview", _calling("GetOverview", pb.GetOverviewRequest())
        yield "history", _calling("GetHistory", pb.GetHistoryRequest())
        of_topics: Mapping[str, pb.ListTopicFiguresRequest] = {
            "topics, first page": topics(),
            "topics, a page amid them": topics(after=topic_name(number)),
            "topics, 500 of them": topics(after=topic_name(number // 2), limit=500),
            "topics, one by a part of its name": topics(contains=f"{number:07d}"),
            "topics, very many by a part of their names": topics(contains=f"{number % 10}{number % 7}"),
            "topics, the busiest": topics(order=pb.FIGURE_ORDER_BUSIEST),
            "topics, those furthest behind": topics(order=pb.FIGURE_ORDER_LAG),
        }
        for name, of_topic in of_topics.items():
            yield name, _calling("ListTopicFigures", of_topic)
        for name, of_group in {
            "groups, first page": groups(),
            "groups, 500 of them": groups(limit=500),
            "groups, one by a part of its name": groups(contains=group_name(number % 1_000)),
        }.items():
            yield name, _calling("ListGroupFigures", of_group)

    def _call(self, service: Any, name: str, call: Callable[[Any], Any]) -> int:
        began_s = time.perf_counter()
        call(service)
        self.seen.calls_ms.setdefault(name, []).append((time.perf_counter() - began_s) * 1000)
        return 1

    def _send_until(self, over: Event, times_ms: list[float], seconds: float = 3_600.0) -> None:
        """Send on one connection: each send is made when the last one is answered."""

        def bodies() -> Iterator[bytes]:
            end_s = time.perf_counter() + seconds
            while not over.is_set() and time.perf_counter() < end_s:
                body = send_body(topic_name(self._random.randrange(self._broker.topics)), BODY)
                began_s = time.perf_counter()
                yield body
                times_ms.append((time.perf_counter() - began_s) * 1000)

        with closing(QueueLoad(self._broker, self._random, connections=1)) as load:
            load.sends(bodies())


def _calling(method: str, request: Any) -> Callable[[Any], Any]:
    return lambda service: getattr(service, method)(request)


def _percentile(values: list[float], part: float) -> float:
    return round(sorted(values)[int(part * (len(values) - 1))], 1)
