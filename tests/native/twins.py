"""Two brokers on the same clock that get the same requests, one with the native part and one without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.broker import Broker
from quarry_mq.server.front import Call
from quarry_mq.server.main import FLUSH_THREADS
from quarry_mq.server.process.certificates import Certificates, TlsPorts
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import LoopThreads, Supervisor
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.state.identity import HANDLE_KEY_SIZE
from tests.conformance.broker import QUICK
from tests.rpc.fake_call import FakeCall

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
TURNS_MAX: Final = 10_000
"""Of the loop, until a call is answered that waits for nothing but the end of its pass."""

WAITING_TURNS: Final = 50
"""After so many a receive waits for messages."""

TOPICS: Final = {
    "orders": TopicType.NORMAL,
    "mixed": TopicType.MIXED,
    "fifo": TopicType.FIFO,
    "later": TopicType.DELAY,
    "halves": TopicType.TRANSACTION,
    "lite": TopicType.LITE,
    "urgent": TopicType.PRIORITY,
}


class Queue(NamedTuple):
    topic: str
    number: int
    entries: Sequence[ConsumeQueueEntry]


class Twin:
    """One of the two."""

    def __init__(self, broker: Broker, store: OpenStore, health: HealthState) -> None:
        self.broker = broker
        self.store = store
        self.health = health
        self._methods = broker._messaging.methods()

    def start(self, method: str, body: bytes) -> FakeCall:
        call = FakeCall(SERVICE + method)
        as_call: Call = call
        self._methods[SERVICE + method].handler(as_call, body)
        return call

    def records(self, start: int) -> list[StoredMessage]:
        found = list(self.store.messages.reader.scan(PhysicalOffset(start)))
        return [each for each in found if isinstance(each, StoredMessage)]

    def queues(self) -> list[Queue]:
        """All of them, with all their entries."""
        messages = self.store.messages
        queues = []
        for queue in sorted(messages.iterate_queues()):
            bounds = messages.bounds(queue)
            entries = messages.entries(queue, bounds.minimum, bounds.maximum - bounds.minimum)
            queues.append(Queue(queue.topic, queue.number, entries))
        return queues


class Difference(AssertionError):
    """The two do not agree."""


class Twins:
    def __init__(self, native: Twin, python: Twin) -> None:
        self.native = native
        self.python = python
        self._compared_up_to = 0

    async def ask(self, method: str, body: bytes) -> list[bytes]:
        """The answer of both, after all that they stored has been compared. Raises Difference."""
        calls = [twin.start(method, body) for twin in (self.native, self.python)]
        for turn in range(TURNS_MAX):
            answered = [call.status is not None for call in calls]
            if all(answered):
                break
            if turn == WAITING_TURNS and method == "ReceiveMessage" and not any(answered):
                for call in calls:
                    call.cancel()  # both wait for messages
            await asyncio.sleep(0)
        self._require(
            _are_equal(method, *(each.sent for each in calls)), "answers", method, body, *(each.sent for each in calls)
        )
        self._require(calls[0].status is not None, "no answer", method, body)
        self._require(calls[0].status == calls[1].status, "statuses", method, body)
        self.compare_records(method, body)
        return calls[0].sent

    def compare_records(self, method: str, body: bytes) -> None:
        """Compare the records stored since the last call, byte for byte but for the order of user properties."""
        start, ends = self._compared_up_to, [each.store.messages.appended_up_to for each in (self.native, self.python)]
        self._require(ends[0] == ends[1], "ends of the log", method, body, *ends)
        for twin in (self.native, self.python):
            self._require(twin.health.look().is_ready, twin.health.look().readiness, method, body)
        if ends[0] == start:
            return
        self._compared_up_to = ends[0]
        stored = [[in_one_order(record) for record in twin.records(start)] for twin in (self.native, self.python)]
        self._require(stored[0] == stored[1], "records", method, body, *stored)

    def compare_stores(self) -> None:
        """Everything that can be listed."""
        for what in ("queues", "topics", "groups"):
            found = [_listed(twin, what) for twin in (self.native, self.python)]
            self._require(found[0] == found[1], what, "", b"", *found)

    def _require(self, holds: bool, what: str, method: str, body: bytes, *found: object) -> None:
        if not holds:
            shown = "\n".join(f"{name}: {str(each)[:2_000]}" for name, each in zip(("native", "python"), found))  # noqa: B905
            raise Difference(f"{what} after {method} of {len(body)} bytes {body[:4_000].hex()}\n{shown}")


def _are_equal(method: str, native: list[bytes], python: list[bytes]) -> bool:
    """Messages that are received may have their user properties in another order."""
    if native == python or method != "ReceiveMessage":
        return native == python
    parse = service.ReceiveMessageResponse.FromString
    return [parse(each) for each in native] == [parse(each) for each in python]


def in_one_order(record: StoredMessage) -> object:
    """The order of user properties is nobody's promise, and the CRC of the record follows it."""
    fields = record._replace(body=memoryview(b""), raw_properties=b"")
    entries = sorted(each for each in record.raw_properties.split(b"\x02") if not each.startswith(b"__CRC32#"))
    return fields, bytes(record.body), entries


def _listed(twin: Twin, what: str) -> object:
    if what == "queues":
        return twin.queues()
    if what == "topics":
        return sorted(each.name for each in twin.store.topics.list())
    return sorted(each.name for each in twin.store.groups.list())


@asynccontextmanager
async def running_twins(directory: Path) -> AsyncIterator[Twins]:
    clock = ManualClock()
    with closing(LoopThreads(FLUSH_THREADS, "flush")) as threads:
        async with (
            _twin(directory / "native", clock, threads, native=True) as native,
            _twin(directory / "python", clock, threads, native=False) as python,
        ):
            yield Twins(native, python)


@asynccontextmanager
async def _twin(directory: Path, clock: ManualClock, threads: LoopThreads, *, native: bool) -> AsyncIterator[Twin]:
    settings = BrokerSettings.model_validate(
        {
            **QUICK,
            "store": {"directory": directory, "segment_size": 64 * 1024 * 1024, "durability": "async"},
            "network": {**QUICK["network"], "advertise": "127.0.0.1:8081"},
            "broker": {"native": native},
            "remoting": {"listen": "127.0.0.1:0"},
            "delivery": {**QUICK["delivery"], "batch_max": 32},
            "limits": {"topics_per_user": 64},
        }
    )
    store = open_store(settings.for_store(), disk=PosixDisk(), clock=clock, report=lambda _: None)
    try:
        # the same in both stores, so that they prove the same handles
        store.identity._put(b"handle_key", bytes(HANDLE_KEY_SIZE) + bytes(8))
        health = HealthState()
        health.ready()
        for name, kind in TOPICS.items():
            store.topics.create(Topic(name, kind, 2, 2))
        broker = Broker(
            settings,
            store,
            CollectorRegistry(),
            health,
            threads,
            certificates=Certificates(TlsPorts.of(settings)),
            clock=clock,
        )
        async with broker.serving(Supervisor(lambda _: None)):
            yield Twin(broker, store, health)
    finally:
        store.close()
