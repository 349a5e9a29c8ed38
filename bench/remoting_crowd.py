"""Measures what very many remoting clients cost that have nothing to do, and how soon a large group shares out queues.

Each client has a connection of its own, sends heartbeats, and waits in a pull, as RocketMQ's clients do. When its group
changes, it asks for the list of the group's consumers and for the offset of the queue that is its own from now on.
All clients live in this process, on one loop, so measured times include its own.

The goal: a group of 1,000 has shared out its queues at most 5 s after it changed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Final, NamedTuple

from bench.harness import CannotRun, Case, Options, Sample, Scale, cpu_s_of, private_bytes_of
from bench.peers.quarry import Quarry
from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.protocol.remoting.frames import Command, FrameReader, read_command, write_command
from quarry_mq.store.settings import Durability

QUESTION: Final = (
    "What do ten thousand idle remoting clients cost, and how soon does a group of 1,000 share out queues?"
)
TOPIC: Final = "bench-orders"
SUSPEND_MS: Final = 15_000
PATIENCE_S: Final = 120.0
SHARING_TARGET_S: Final = 5.0
SPARE_DESCRIPTORS: Final = 200
IDLE_GROUP: Final = 100
"""Clients of each group that only waits, and queues of their topic."""

Answered = Callable[[Command], None]


class Sizes(NamedTuple):
    """Sizes by scale. `idle_s` is the time for which all clients only wait."""

    clients: int
    group: int
    """Clients of one group."""
    heartbeat_s: float
    idle_s: float

    @property
    def smaller(self) -> Sizes:
        """A tenth of the clients, for comparison."""
        return self._replace(clients=self.clients // 10, group=self.group // 10)


SIZES: Final = {
    Scale.FULL: Sizes(10_000, 1_000, heartbeat_s=30, idle_s=60),
    Scale.QUICK: Sizes(1_000, 200, heartbeat_s=30, idle_s=15),
    Scale.TINY: Sizes(40, 20, heartbeat_s=1, idle_s=1),
}
SETTINGS: Final = {
    "QUARRY_LIMITS_CONNECTIONS": "20000",
    "QUARRY_LIMITS_CONNECTIONS_PER_ADDRESS": "20000",
}


class _Client(asyncio.Protocol):
    """Act as one consumer of a group, on its own connection."""

    def __init__(self, group: _Group, number: int) -> None:
        self.client_id = f"127.0.0.1@{number:05}"
        self.own = -1
        """The number of the queue that belongs to this client; -1 before it is known."""
        self.known = 0
        """The number of consumers that the group has, as this client knows it."""
        self._group = group
        self._frames = FrameReader()
        self._waiting: dict[int, Answered] = {}
        self._opaque = 0
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            command = read_command(frame)
            if command.is_response:
                self._waiting.pop(command.opaque)(command)
            elif command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self.share()

    def call(self, code: int, answered: Answered, fields: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Send a request; a client that is gone sends nothing."""
        if self._transport is None or self._transport.is_closing():
            return
        self._opaque += 1
        self._waiting[self._opaque] = answered
        self._transport.write(write_command(Command(code, self._opaque, fields or {}, body)))

    def beat(self, answered: Answered) -> None:
        """Send a heartbeat."""

        def done(command: Command) -> None:
            self._group.answers += 1
            answered(command)

        self.call(RequestCode.HEART_BEAT, done, body=self._group.heartbeat(self.client_id))

    def beat_on(self, interval_s: float, share: float) -> None:
        """Send heartbeats from now on; `share` spreads the clients over the interval."""
        loop = asyncio.get_running_loop()

        def again() -> None:
            self.beat(lambda _: None)
            loop.call_later(interval_s, again)

        loop.call_later(share * interval_s, again)

    def share(self) -> None:
        """Find out which queue is this client's."""

        def listed(command: Command) -> None:
            ids = json.loads(command.body)["consumerIdList"]
            number, self.known = ids.index(self.client_id), len(ids)
            if number == self.own:
                self._group.look()
                return
            self.own = number
            self.call(RequestCode.QUERY_CONSUMER_OFFSET, lambda _: self._group.look(), self._group.place(number))

        self.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, listed, {"consumerGroup": self._group.name})

    def pull(self) -> None:
        """Wait for messages from now on, in one pull after another."""

        def pulled(command: Command) -> None:
            if command.code != ResponseCode.PULL_NOT_FOUND:
                raise RuntimeError(f"a pull of an empty queue ended with {command.code}: {command.remark}")
            self._group.answers += 1
            self.pull()

        fields = {
            **self._group.place(max(self.own, 0)), "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
            "commitOffset": "0", "suspendTimeoutMillis": str(SUSPEND_MS), "subVersion": "0", "subscription": "*",
        }  # fmt: skip
        self.call(RequestCode.PULL_MESSAGE, pulled, fields)

    def close(self) -> None:
        """Be gone without a word."""
        if self._transport is not None:
            self._transport.abort()


class _Group:
    """Hold the clients of one group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clients: list[_Client] = []
        self.answers = 0
        """Heartbeats and pulls that were answered."""
        self._shared: asyncio.Event | None = None

    async def join(self, address: str, count: int) -> None:
        """Connect clients, a few at a time. They send no heartbeats yet."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        for at in range(0, count, 64):
            numbers = range(len(self.clients), len(self.clients) + min(64, count - at))
            opened = [loop.create_connection(lambda n=number: _Client(self, n), host, int(port)) for number in numbers]  # type: ignore[misc]
            self.clients += [client for _, client in await asyncio.gather(*opened)]

    def heartbeat(self, client_id: str) -> bytes:
        consumer = {
            "groupName": self.name,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{"topic": TOPIC, "subString": "*", "expressionType": "TAG", "subVersion": 1}],
        }
        return json.dumps({"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]}).encode()

    def place(self, number: int) -> dict[str, str]:
        return {"consumerGroup": self.name, "topic": TOPIC, "queueId": str(number)}

    async def shared_after(self, change: Callable[[], object]) -> float:
        """Make a change, and return the seconds until each client knows all others, and its own queue's offset."""
        self._shared = asyncio.Event()
        for client in self.clients:
            client.known = 0
        began_s = time.perf_counter()
        change()
        async with asyncio.timeout(PATIENCE_S):
            await self._shared.wait()
        return time.perf_counter() - began_s

    def look(self) -> None:
        """See whether the queues are shared out."""
        count = len(self.clients)
        if self._shared is not None and all(each.known == count for each in self.clients):
            self._shared.set()

    def start(self) -> None:
        """Let all clients start at once: each sends its heartbeat and looks for its queue."""
        for client in self.clients:
            client.beat(lambda _, each=client: each.share())  # type: ignore[misc]

    def lose_one(self) -> None:
        """Let one client die."""
        self.clients.pop(len(self.clients) // 2).close()

    def close(self) -> None:
        """Let all clients be gone."""
        for client in self.clients:
            client.close()


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < sizes.clients + SPARE_DESCRIPTORS:
        raise CannotRun(f"a process may open {hard} files; {sizes.clients + SPARE_DESCRIPTORS} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    settings = {**SETTINGS, "QUARRY_REMOTING_LISTEN": address}
    with closing(Quarry(options.scratch / "quarry", Durability.ASYNC, settings)) as broker:
        broker.start()

        def measured(work: Callable[[str, int, Sizes], Awaitable[_Measured]]) -> list[_Measured]:
            return [asyncio.run(_run(work(address, broker.pid, each))) for each in (sizes.smaller, sizes)]

        peer = "a tenth of the clients"
        cases = []
        for name, unit, work in (
            ("idle clients", "answers", _idle),
            ("a group shares out its queues", "clients", _sharing),
        ):
            theirs, ours = measured(work)
            cases.append(
                Case(name=name, unit=unit, peer=peer, ours=[ours.sample], theirs=[theirs.sample], details=ours.details)
            )
        return cases


class _Measured(NamedTuple):
    sample: Sample
    details: dict[str, object]


async def _run(work: Awaitable[_Measured]) -> _Measured:
    return await work


async def _make_topic(address: str, queues: int) -> None:
    """Make the topic, which gets no messages."""
    group = _Group("bench-maker")
    await group.join(address, 1)
    made: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
    counts = {"readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
    group.clients[0].call(RequestCode.UPDATE_AND_CREATE_TOPIC, made.set_result, {"topic": TOPIC, **counts})
    assert (await made).code == ResponseCode.SUCCESS, await made
    group.close()


async def _idle(address: str, pid: int, sizes: Sizes) -> _Measured:
    """Let all clients wait, in groups of the same size."""
    await _make_topic(address, IDLE_GROUP)
    before = private_bytes_of(pid)
    groups = [_Group(f"bench-idle-{number}") for number in range(max(1, sizes.clients // IDLE_GROUP))]
    for group in groups:
        await group.join(address, sizes.clients // len(groups))
        await group.shared_after(group.start)
        for number, client in enumerate(group.clients):
            client.beat_on(sizes.heartbeat_s, number / len(group.clients))
            client.pull()
    gc.freeze()
    await asyncio.sleep(min(sizes.heartbeat_s, 10))
    after = private_bytes_of(pid)
    answers, cpu_s, began_s = sum(each.answers for each in groups), cpu_s_of(pid), time.perf_counter()
    await asyncio.sleep(sizes.idle_s)
    wall_s = time.perf_counter() - began_s
    sample = Sample(sum(each.answers for each in groups) - answers, wall_s, cpu_s_of(pid) - cpu_s)
    for group in groups:
        group.close()
    await asyncio.sleep(1)
    clients = sum(len(each.clients) for each in groups)
    details: dict[str, object] = {
        "clients": clients,
        "cores": round(sample.cpu_s / wall_s, 4),
        "bytes_per_client": round((after - before) / clients),
    }
    return _Measured(sample, details)


async def _sharing(address: str, pid: int, sizes: Sizes) -> _Measured:
    """Start all clients of a group at once; then one of them dies."""
    await _make_topic(address, sizes.group)
    group = _Group(f"bench-group-{sizes.group}")
    await group.join(address, sizes.group)
    cpu_s = cpu_s_of(pid)
    start_s = await group.shared_after(group.start)
    leave_s = await group.shared_after(group.lose_one)
    cpu_s = cpu_s_of(pid) - cpu_s
    group.close()
    await asyncio.sleep(1)
    details: dict[str, object] = {
        "group": sizes.group,
        "start_s": round(start_s, 3),
        "leave_s": round(leave_s, 3),
        "target_s": SHARING_TARGET_S,
    }
    return _Measured(Sample(2 * sizes.group, start_s + leave_s, cpu_s), details)
