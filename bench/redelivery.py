"""Measures whether other groups wait when very many messages of one group come back at once.

A group has very many messages in flight that become visible at the same moment, as when all of its consumers were gone.
Consumers then receive them once more and acknowledge them, as fast as they can. Meanwhile a producer sends 1 KiB
messages to another topic at a steady rate, and a consumer of another group waits for these. Measured are the duration
of a send, and the time from there to the delivery, compared with the time before. The rate is compared with that of a
group that the same consumers give the same messages for the first time, in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final, NamedTuple

import grpc

from bench.delivering import HandLoopedDelivery, fill, request_of
from bench.harness import Case, Options, Sample, Scale, cpu_s_of
from bench.peers.quarry import Quarry
from bench.scratch_store import QUEUES, SEGMENT_SIZE, TOPIC
from bench.send_load import send_body
from bench.waiting_sends import after
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import Durability, StoreSettings

QUESTION: Final = "How long do others wait while a hundred thousand messages of one group come back at once?"
DRAINERS: Final = 2
SEND_INTERVAL_S: Final = 0.01
POLLING_MS: Final = 500
BATCH: Final = 32
GROUP: Final = "storm"
FRESH: Final = "fresh"
OTHER: Final = "calm"
LOAD_TOPIC: Final = "bench-load"
BODY_SIZE: Final = 128
METADATA: Final = (
    ("x-mq-client-id", "bench@1@1"),
    ("x-mq-language", "PYTHON"),
    ("x-mq-client-version", "5.1.2"),
)
SETTINGS: Final = {"QUARRY_DELIVERY_NEW_GROUP_START": "earliest", "QUARRY_DELIVERY_POLLING_MIN_MS": str(POLLING_MS)}
CALL_TIMEOUT_S: Final = 30.0
GIVE_UP_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale. `ahead_s`: seconds after the broker's start before which the messages do not come back."""

    messages: int
    quiet_s: float
    ahead_s: float


SIZES: Final = {
    Scale.FULL: Sizes(messages=100_000, quiet_s=10, ahead_s=60),
    Scale.QUICK: Sizes(messages=20_000, quiet_s=4, ahead_s=30),
    Scale.TINY: Sizes(messages=640, quiet_s=0.5, ahead_s=12),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    random = Random(options.seed)
    with closing(Quarry(options.scratch / "quarry", Durability.ASYNC, SETTINGS)) as broker:
        back_at_s = _prepare(broker.store, random, sizes)
        broker.start()
        return [_case(broker, random, sizes, back_at_s)]


def _prepare(root: Path, random: Random, sizes: Sizes) -> float:
    """Let the group receive everything; return when the messages become visible again."""
    settings = StoreSettings(root=root, durability=Durability.ASYNC, segment_size=SEGMENT_SIZE)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    for topic in (TOPIC, LOAD_TOPIC):
        store.topics.create(Topic(topic, TopicType.NORMAL, QUEUES, QUEUES))
    fill(store, random, sizes.messages, body_size=BODY_SIZE)
    back_at_s = time.time() + sizes.ahead_s + sizes.messages / 5_000
    with closing(HandLoopedDelivery(store)) as delivery:
        while delivery.inflight_count < sizes.messages:
            invisible_ms = int((back_at_s - time.time()) * 1000)
            delivery.receive(request_of(GROUP, QUEUES, BATCH, invisible_ms))
    store.close()
    return back_at_s


class Waits(NamedTuple):
    """The delays of other clients in a stretch of time, in ms, ascending."""

    sends_ms: list[float]
    deliveries_ms: list[float]
    """Milliseconds from the store time of a message until the consumer has it."""


class _Others:
    """A producer that sends at a steady rate, and a consumer of another group that waits for these messages."""

    def __init__(self, channel: grpc.Channel, random: Random) -> None:
        self._stub: Any = MessagingServiceStub(channel)
        self._send = service.SendMessageRequest.FromString(send_body(random, LOAD_TOPIC))
        self._consumer = Consumer(self._stub, OTHER, LOAD_TOPIC)
        self._ended = Event()

    def until(self, is_over: Callable[[], bool]) -> Waits:
        """Send until it is over; return the delays."""
        self._consumer.waits_ms.clear()
        sends_ms: list[float] = []
        next_s = time.perf_counter()
        while not is_over():
            began_s = time.perf_counter()
            answer = self._stub.SendMessage(self._send, metadata=METADATA, timeout=CALL_TIMEOUT_S)
            if answer.status.code != definition.OK:
                raise RuntimeError(f"a send was refused: {answer.status}")
            sends_ms.append((time.perf_counter() - began_s) * 1000)
            next_s = max(next_s + SEND_INTERVAL_S, time.perf_counter())
            time.sleep(next_s - time.perf_counter() if next_s > time.perf_counter() else 0)
        return Waits(sorted(sends_ms), sorted(self._consumer.waits_ms))

    def consume(self) -> None:
        self._consumer.consume(self._ended.is_set)

    def end(self) -> None:
        self._ended.set()


class Consumer:
    """Receives for one group, and acknowledges each answer in one call."""

    def __init__(self, stub: Any, group: str, topic: str) -> None:
        self._stub = stub
        self._group = definition.Resource(name=group)
        self._topic = definition.Resource(name=topic)
        self.received = 0
        self.waits_ms: list[float] = []

    def consume(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.consume_some()

    def consume_some(self) -> None:
        """Make one receive, and acknowledge its messages."""
        request = service.ReceiveMessageRequest(group=self._group, batch_size=BATCH)
        request.message_queue.topic.CopyFrom(self._topic)
        request.message_queue.id = -1
        request.invisible_duration.seconds = 60
        request.long_polling_timeout.FromMilliseconds(POLLING_MS)
        acknowledgement = service.AckMessageRequest(group=self._group, topic=self._topic)
        for each in self._stub.ReceiveMessage(request, metadata=METADATA, timeout=CALL_TIMEOUT_S):
            if each.HasField("message"):
                system = each.message.system_properties
                self.waits_ms.append(time.time() * 1000 - system.store_timestamp.ToMilliseconds())
                acknowledgement.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
            elif each.HasField("status") and each.status.code not in (definition.OK, definition.MESSAGE_NOT_FOUND):
                raise RuntimeError(f"a receive of group {self._group.name} was refused: {each.status}")
        if acknowledgement.entries:
            answer = self._stub.AckMessage(acknowledgement, metadata=METADATA, timeout=CALL_TIMEOUT_S)
            self.received += sum(entry.status.code == definition.OK for entry in answer.entries)


def _case(broker: Quarry, random: Random, sizes: Sizes, back_at_s: float) -> Case:
    with _channel(broker.endpoint) as channel, ThreadPoolExecutor(1) as threads:
        others = _Others(channel, random)
        consuming = threads.submit(others.consume)
        try:
            others.until(after(sizes.quiet_s / 3))  # code is warm
            quiet = others.until(after(sizes.quiet_s))
            first, _ = _deliver(broker, FRESH, sizes.messages, others)
            others.until(lambda: time.time() >= back_at_s)
            again, storm = _deliver(broker, GROUP, sizes.messages, others)
        finally:
            others.end()
        consuming.result()
    return Case(
        name=f"{sizes.messages} messages come back",
        unit="messages",
        peer="the same messages, delivered for the first time",
        ours=[again],
        theirs=[first],
        details={
            **_shares("send_quiet", quiet.sends_ms),
            **_shares("send_storm", storm.sends_ms),
            **_shares("other_group_quiet", quiet.deliveries_ms),
            **_shares("other_group_storm", storm.deliveries_ms),
        },
    )


def _deliver(broker: Quarry, group: str, messages: int, others: _Others) -> tuple[Sample, Waits]:
    with _drained(broker.endpoint, group, messages) as (begin, is_over):
        cpu_s, began_s = cpu_s_of(broker.pid), time.perf_counter()
        begin()
        waits = others.until(is_over)
        return Sample(messages, time.perf_counter() - began_s, cpu_s_of(broker.pid) - cpu_s), waits


@contextmanager
def _drained(endpoint: str, group: str, messages: int) -> Iterator[tuple[Callable[[], None], Callable[[], bool]]]:
    """Run consumers in their own processes, so that they do not wait for each other.

    Yields, once all of them are up, a function that lets them begin, and one that tells whether they are done. Raises
    RuntimeError when not all messages were delivered.
    """
    context = get_context("spawn")
    signals = Signals(context.Semaphore(0), context.Event(), context.Value("q", 0))
    consumers = [
        context.Process(target=_drain, args=(endpoint, group, messages, signals), daemon=True) for _ in range(DRAINERS)
    ]
    for each in consumers:
        each.start()
    for _ in consumers:
        if not signals.ready.acquire(timeout=CALL_TIMEOUT_S):
            raise RuntimeError("a consumer did not start")
    yield signals.may_begin.set, lambda: not any(each.is_alive() for each in consumers)
    for each in consumers:
        each.join()
    if signals.received.value < messages:
        raise RuntimeError(f"{signals.received.value} of {messages} messages were delivered to {group}")


class Signals(NamedTuple):
    """Signals between the processes."""

    ready: Any
    may_begin: Any
    received: Any


def _drain(endpoint: str, group: str, messages: int, signals: Signals) -> None:
    """Consume until all messages have been received by the consumers together."""
    with _channel(endpoint) as channel:
        consumer = Consumer(MessagingServiceStub(channel), group, TOPIC)
        signals.ready.release()
        signals.may_begin.wait(CALL_TIMEOUT_S)
        give_up_s = time.monotonic() + GIVE_UP_S
        while signals.received.value < messages and time.monotonic() < give_up_s:
            before = consumer.received
            consumer.consume_some()
            with signals.received.get_lock():
                signals.received.value += consumer.received - before


@contextmanager
def _channel(endpoint: str) -> Iterator[grpc.Channel]:
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(endpoint, options=options) as channel:
        yield channel


def _shares(name: str, ascending: list[float]) -> dict[str, float]:
    return {
        f"{name}_{percent}_ms": round(ascending[int(len(ascending) * share)], 2) if ascending else -1.0
        for percent, share in (("p50", 0.5), ("p99", 0.99))
    }
