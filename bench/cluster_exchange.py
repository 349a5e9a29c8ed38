"""Measures what members of a cluster cost each other while idle, and how soon all of them know a change.

Each member asks each other member for changes, so calls grow with the square of their number, and so do the paths on
which a change comes. The brokers run in processes of their own on one machine, as many as the case says. Measured are
their CPU time while idle, single changes on one member until the last one has them, many changes at once, routes, and a
new member with an empty store. The peer is a broker without a cluster that gets the same changes.

On one machine the members share its cores: the cost of a call is right, but the time of a change grows with the cores
that the machine lacks. With a machine for each member it does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, repeat
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import grpc

from bench.harness import Case, Options, Sample, Scale, alternate, cpu_s_of, private_bytes_of
from bench.peers.quarry import Quarry
from bench.queue_load import QueueLoad
from bench.send_load import admin_channel
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as admin
from quarry_mq.protocol.proto.quarry.admin.v1 import members_pb2 as members
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.members_pb2_grpc import MembersServiceStub
from quarry_mq.store.security.sealer import new_key
from quarry_mq.store.settings import Durability

QUESTION: Final = "What do members of a cluster cost each other, and how soon do all know what one was told?"
LOOK_INTERVAL_S: Final = 0.002
PATIENCE_S: Final = 300.0
QUEUES_PER_TOPIC: Final = 8
"""Queues of a topic: Quarry's default."""

CALL_TIMEOUT_S: Final = 30.0
MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts of each case: `changes` are made one after the other in each round, `topics` at once.

    `settled_s`: seconds after which the work that follows a change is done, because each member has asked each other.
    """

    members: Sequence[int]
    idle_s: float
    changes: int
    rounds: int
    topics: int
    routes: int
    settled_s: float = 4.0


SIZES: Final = {
    Scale.FULL: Sizes((2, 4, 8, 16), idle_s=10, changes=20, rounds=3, topics=2_000, routes=20_000),
    Scale.QUICK: Sizes((2, 6), idle_s=4, changes=5, rounds=2, topics=500, routes=2_000),
    Scale.TINY: Sizes((2,), idle_s=0.2, changes=2, rounds=1, topics=20, routes=50, settled_s=0.2),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    with _brokers() as start:
        alone = start(options.scratch / "alone", {})
        return [_case(options, sizes, number, alone) for number in sizes.members]


def _case(options: Options, sizes: Sizes, number: int, alone: _Member) -> Case:
    with _brokers() as start:
        cluster = _Cluster(options.scratch / f"of-{number}", sizes, number, start)
        idle_cores, alone_idle_cores = (
            cluster.idle_cores(sizes.idle_s),
            _Told([alone], sizes.settled_s).idle_cores(sizes.idle_s),
        )
        ours, theirs = alternate(
            sizes.rounds,
            lambda: cluster.told.changes(sizes.changes, idle_cores),
            lambda: _Told([alone], sizes.settled_s).changes(sizes.changes, alone_idle_cores),
        )
        many = cluster.told.at_once(sizes.topics, idle_cores)
        joined = cluster.join(start)
        return Case(
            name=f"a change reaches {number} members",
            unit="changes",
            peer="a broker without a cluster",
            ours=ours,
            theirs=theirs,
            details={
                "members": number,
                "idle_cores_each": round(idle_cores / number, 5),
                "peer_idle_cores": round(alone_idle_cores, 5),
                "idle_pair_ms_per_s": round((idle_cores / number - alone_idle_cores) * 1000 / (number - 1), 4),
                **_routes(cluster.first, number, sizes.routes),
                "topics": sizes.topics,
                "topics_reach_all_s": round(many.wall_s, 3),
                "topics_cpu_s_each": round(many.cpu_s / number, 3),
                **joined,
            },
        )


def _routes(member: _Member, members: int, number: int) -> dict[str, object]:
    """Measure the cost of a route query, for a topic with eight queues on each member."""
    topic = "bench-route"
    member.tell(topic)
    with closing(QueueLoad(member.broker, Random(1))) as load:
        load.routes(repeat(topic, number // 10))
        before = load.read_bytes
        sample = load.routes(repeat(topic, number))
        size = (load.read_bytes - before) / number
    return {
        "route_queues": members * QUEUES_PER_TOPIC,
        "route_bytes": round(size),
        "route_cpu_us": round(sample.cpu_us, 1),
    }


class _Member(NamedTuple):
    """A running broker with its admin services."""

    broker: Quarry
    topics: AdminServiceStub
    members: MembersServiceStub

    def tell(self, topic: str) -> None:
        self.topics.CreateTopic(admin.CreateTopicRequest(name=topic), timeout=CALL_TIMEOUT_S)

    def has(self, topic: str) -> bool:
        try:
            self.topics.GetTopic(admin.GetTopicRequest(name=topic), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return False
            raise
        return True

    def count(self, prefix: str) -> int:
        answers = self.topics.ListTopics(admin.ListTopicsRequest(prefix=prefix), timeout=CALL_TIMEOUT_S)
        return sum(len(answer.topics) for answer in answers)

    def has_so_many(self, prefix: str, topics: int) -> bool:
        return self.count(prefix) == topics

    def reaches(self, number: int) -> bool:
        answer: members.ListMembersResponse = self.members.ListMembers(
            members.ListMembersRequest(), timeout=CALL_TIMEOUT_S
        )
        return sum(each.is_reachable for each in answer.members) == number


class _Told:
    """A set of brokers; new topics are created on the first."""

    _numbers = count()

    def __init__(self, all_of: Sequence[_Member], settled_s: float) -> None:
        self._members = all_of
        self._settled_s = settled_s

    def settle(self) -> None:
        time.sleep(self._settled_s)

    def idle_cores(self, seconds: float) -> float:
        """Return the cores that all brokers use while idle."""
        cpu_s, begin_s = self.cpu_s(), time.perf_counter()
        time.sleep(seconds)
        return (self.cpu_s() - cpu_s) / (time.perf_counter() - begin_s)

    def changes(self, number: int, idle_cores: float) -> Sample:
        """Make changes one after the other, each until all members have it.

        CPU time counts until the work after it is done.
        """
        with self._spent(idle_cores) as spent:
            wall_s = 0.0
            for name in (f"bench-change-{next(self._numbers)}" for _ in range(number)):
                begin_s = time.perf_counter()
                self._members[0].tell(name)
                for each in self._members:
                    _await(partial(each.has, name), f"{name} everywhere")
                wall_s += time.perf_counter() - begin_s
        return Sample(number, wall_s, spent[0])

    def at_once(self, number: int, idle_cores: float) -> Sample:
        """Create all topics as fast as the first member takes them."""
        prefix = f"bench-many-{next(self._numbers)}-"
        with self._spent(idle_cores) as spent:
            begin_s = time.perf_counter()
            for name in range(number):
                self._members[0].tell(f"{prefix}{name:06d}")
            for each in self._members:
                _await(partial(each.has_so_many, prefix, number), f"{number} topics everywhere")
            wall_s = time.perf_counter() - begin_s
        return Sample(number, wall_s, spent[0])

    def cpu_s(self) -> float:
        return sum(cpu_s_of(each.broker.pid) for each in self._members)

    @contextmanager
    def _spent(self, idle_cores: float) -> Iterator[list[float]]:
        """Measure the CPU seconds of the block and of the work that follows from it, without the idle consumption."""
        spent: list[float] = []
        cpu_s, begin_s = self.cpu_s(), time.perf_counter()
        yield spent
        self.settle()
        spent.append(max(1e-6, self.cpu_s() - cpu_s - idle_cores * (time.perf_counter() - begin_s)))


class _Starting:
    """Starts brokers that end with the block. Each is running before the next one looks for free ports."""

    def __init__(self, running: ExitStack) -> None:
        self._running = running

    def __call__(self, directory: Path, settings: dict[str, str], seed: str | None = None) -> _Member:
        broker = Quarry(directory, Durability.ASYNC, settings)
        if settings:
            broker.also(QUARRY_CLUSTER_MEMBERS=f'["{seed or broker.admin}"]', QUARRY_BROKER_NAME=directory.name)
        self._running.enter_context(closing(broker))
        broker.start()
        channel = self._running.enter_context(admin_channel(broker))
        return _Member(broker, AdminServiceStub(channel), MembersServiceStub(channel))


@contextmanager
def _brokers() -> Iterator[_Starting]:
    with ExitStack() as running:
        yield _Starting(running)


class _Cluster:
    """A cluster with this number of members, all of which reach all others."""

    def __init__(self, directory: Path, sizes: Sizes, number: int, start: _Starting) -> None:
        directory.mkdir()
        self._directory = directory
        key = directory / "cluster.key"
        key.write_bytes(new_key())
        key.chmod(0o600)
        self._settings = {"QUARRY_CLUSTER_KEY_FILE": str(key)}
        self._members: list[_Member] = []
        for each in range(number):
            self._members.append(self._start(f"quarry-{each}", start))
        self.told = _Told(self._members, sizes.settled_s)
        self.first = self._members[0]
        self._await_all()

    def idle_cores(self, seconds: float) -> float:
        self.told.settle()
        return self.told.idle_cores(seconds)

    def join(self, start: _Starting) -> dict[str, object]:
        """Add a new member with an empty store; wait until it has what the others have, and all know it."""
        topics = self._members[0].count("bench-")
        begin_s = time.perf_counter()
        new = self._start("quarry-new", start)
        ready_s = time.perf_counter() - begin_s
        cpu_s = cpu_s_of(new.broker.pid)
        _await(partial(new.has_so_many, "bench-", topics), "the new member has all topics")
        known_s = time.perf_counter() - begin_s
        self._members.append(new)
        self._await_all()
        self.told.settle()
        return {
            "join_topics": topics,
            "join_ready_s": round(ready_s, 3),
            "join_knows_all_s": round(known_s, 3),
            "join_cpu_s": round(cpu_s_of(new.broker.pid) - cpu_s, 3),
            "join_private_mb": round(private_bytes_of(new.broker.pid) / MB, 1),
        }

    def _start(self, name: str, start: _Starting) -> _Member:
        seed = self._members[0].broker.admin if self._members else None
        return start(self._directory / name, self._settings, seed)

    def _await_all(self) -> None:
        for each in self._members:
            _await(partial(each.reaches, len(self._members)), "all members reach all")


def _await(condition: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(LOOK_INTERVAL_S)
