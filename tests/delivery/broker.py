"""A delivery on real tables over the in-memory engine, with a hand-moved clock and loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.delivery import (
    Delivered,
    Delivery,
    Forwarded,
    GroupState,
    ReceiveRequest,
    StateWriter,
)
from quarry_mq.server.delivery.handles import ReceiptHandle
from quarry_mq.server.filters import MessageFilter, TagFilter
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.consumequeue import LightQueueStep
from quarry_mq.store.errors import MessageGivenUp
from quarry_mq.store.message import (
    ConsumeQueueEntry,
    DispatchRequest,
    Host,
    PhysicalOffset,
    QueueBounds,
    QueueExtent,
    QueueId,
    QueueOffset,
)
from quarry_mq.store.metadata.offsets import ConsumerOffsetTable
from quarry_mq.store.record import StoredMessage, encode_properties, java_hash
from quarry_mq.store.state.identity import FAMILIES
from tests.handles import HANDLE_KEY

GROUP = "billing"
TOPIC = "orders"
HOST = Host(b"\x7f\0\0\1", 1)


class ManualTimers:
    """`call_later` of a loop that runs when the test says so."""

    class Timer:
        def __init__(self, callback: Callable[[], None]) -> None:
            self.callback: Callable[[], None] | None = callback

        def cancel(self) -> None:
            self.callback = None

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, ManualTimers.Timer]] = []
        self._sequence = count()

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        timer = self.Timer(callback)
        heappush(self._heap, (self._clock.monotonic_s() + delay, next(self._sequence), timer))
        return timer

    def run_due(self) -> None:
        while self.run_next():
            pass

    def run_next(self) -> bool:
        """Run the one that is due first; False when none is."""
        while self._heap and self._heap[0][0] <= self._clock.monotonic_s():
            _, _, timer = heappop(self._heap)
            if timer.callback is not None:
                timer.callback()
                return True
        return False


class ListedMessages:
    """A store of messages in lists."""

    def __init__(self) -> None:
        self.queues: dict[QueueId, list[tuple[ConsumeQueueEntry, StoredMessage]]] = defaultdict(list)
        self.minimum: dict[QueueId, int] = {}
        self.appended_up_to = PhysicalOffset(0)
        self.entries_read = 0
        self.unreadable: set[int] = set()
        self.given_up: set[int] = set()

    def add(
        self, queue: QueueId, body: bytes, tag: str | None, more: Mapping[str, str] | None = None
    ) -> DispatchRequest:
        at = self.appended_up_to
        offset = QueueOffset(len(self.queues[queue]))
        properties = {**({} if tag is None else {"TAGS": tag}), **(more or {})}
        code = 0 if tag is None else java_hash(tag)
        record = StoredMessage(
            100, 0, 0, queue.number, 0, offset, at, 0, 0, HOST, 0, HOST, 0, 0,
            memoryview(body), queue.topic, encode_properties(properties),
        )  # fmt: skip
        self.queues[queue].append((ConsumeQueueEntry(offset, at, 100, code, 0), record))
        self.appended_up_to = PhysicalOffset(at + 100)
        return DispatchRequest(queue.topic, queue.number, offset, at, 100, code, 0, 0, properties, ())

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = "") -> LightQueueStep:
        return LightQueueStep([], 0, None)

    def bounds(self, queue: QueueId) -> QueueBounds:
        return QueueBounds(QueueOffset(self.minimum.get(queue, 0)), QueueOffset(len(self.queues[queue])))

    def extents_of_all(self, queues: Sequence[QueueId]) -> list[QueueExtent]:
        extents = []
        for queue in queues:
            minimum, maximum = self.bounds(queue)
            begins_at = self.queues[queue][minimum][0].physical_offset if minimum < maximum else None
            extents.append(QueueExtent(minimum, maximum, begins_at))
        return extents

    def maximum(self, queue: QueueId) -> QueueOffset:
        return self.bounds(queue).maximum

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        start = QueueOffset(max(start, self.minimum.get(queue, 0)))
        found = [entry for entry, _ in self.queues[queue][start : start + limit]]
        self.entries_read += len(found)
        return found

    def queues_of(self, topic: str) -> list[QueueId]:
        return self.iterate_queues(topic)

    def iterate_queues(self, topic: str) -> list[QueueId]:
        return [queue for queue, messages in self.queues.items() if queue.topic == topic and messages]

    def read(self, entry: ConsumeQueueEntry) -> StoredMessage:
        if entry.physical_offset in self.unreadable:
            raise OSError(f"cannot read at {entry.physical_offset}")
        if entry.physical_offset in self.given_up:
            raise MessageGivenUp(f"the record at offset {entry.physical_offset} was damaged and has been given up")
        for queue in self.queues.values():
            for known, record in queue:
                if known.physical_offset == entry.physical_offset:
                    return record
        raise AssertionError(f"no record at {entry.physical_offset}")

    def read_all(self, entries: Sequence[ConsumeQueueEntry]) -> list[StoredMessage] | None:
        try:
            return [self.read(entry) for entry in entries]
        except (OSError, MessageGivenUp):
            return None


class ListedDeadLetters:
    """Keeps what is forwarded in a list, at once, unless it is told to refuse, or to leave appends pending."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.error: Exception | None = None
        self.is_slow = False
        self._pending: list[Callable[[], None]] = []

    def forward(self, group: str, topic: str, record: StoredMessage, attempts: int, forwarded: Forwarded) -> None:
        def append() -> None:
            if self.error is None:
                self.bodies.append(bytes(record.body))
            forwarded(self.error)

        if self.is_slow:
            self._pending.append(append)
        else:
            append()

    def append_pending(self) -> None:
        """Let the outcome of all pending appends be known."""
        pending, self._pending = self._pending, []
        for append in pending:
            append()


class Receive:
    """One receive and how it ended."""

    def __init__(self) -> None:
        self.ended = False
        self.messages: Sequence[Delivered] = ()
        self.error: Exception | None = None

    def __call__(self, messages: Sequence[Delivered], error: Exception | None) -> None:
        assert not self.ended, "a receive ends once"
        self.ended = True
        self.messages, self.error = messages, error

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(each.record.body) for each in self.messages]


class DeliveryBench:
    """Everything a delivery needs, and the moves of a test."""

    def __init__(self, *, queues: int = 4, settings: BrokerSettings | None = None) -> None:
        self.clock = ManualClock()
        self.source = ListedMessages()
        self.engine = MemoryEngine(FAMILIES, write_ahead_log=True)
        self.timers = ManualTimers(self.clock)
        self.alive: set[str] = set()
        self.queues = queues
        self.settings = settings or BrokerSettings()
        self.failures: list[Exception] = []
        self.dead_letters = ListedDeadLetters()
        self.reported: list[tuple[Exception, dict[str, object]]] = []
        self._pass: list[Callable[[], None]] = []
        self.delivery = self._make()

    def _make(self, *, after_crash: bool = False) -> Delivery:
        self.writer = StateWriter(self.engine, self._pass.append, self.failures.append)
        lease_ms = self.settings.delivery.lease_ms
        state = GroupState.of(
            self.engine,
            ConsumerOffsetTable(self.engine),
            HANDLE_KEY,
            self.writer,
            leases_until_ms=self.clock.wall_ms() + lease_ms if after_crash else None,
        )
        return Delivery(
            self.settings,
            self.source,
            state,
            clock=self.clock,
            timers=self.timers,
            is_client_alive=self.alive.__contains__,
            error_reporter=self,
            dead_letters=self.dead_letters,
        )

    def report(self, error: Exception, **where: object) -> None:
        self.reported.append((error, where))

    def restart(self, *, after_crash: bool = False) -> None:
        """A new process over the same rows."""
        self._pass.clear()
        self.timers = ManualTimers(self.clock)
        self.delivery = self._make(after_crash=after_crash)

    def end_pass(self) -> None:
        while self._pass:
            callbacks, self._pass[:] = list(self._pass), []
            for callback in callbacks:
                callback()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timers.run_due()
        self.end_pass()

    def send(
        self,
        body: bytes,
        *,
        queue: int = 0,
        tag: str | None = None,
        topic: str = TOPIC,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.delivery.messages_arrived([self.source.add(QueueId(topic, queue), body, tag, properties)])
        self.end_pass()

    def receive(
        self,
        *,
        batch: int = 32,
        invisible_s: float | None = 30,
        polling_s: float = 0,
        tags: str = "*",
        client: str = "client",
        group: str = GROUP,
        topic: str = TOPIC,
        ordered: bool = False,
        attempt_id: str = "",
        attempts_max: int | None = None,
        highest_first: bool = False,
        wanted: MessageFilter | None = None,
    ) -> Receive:
        receive = Receive()
        request = ReceiveRequest(
            group,
            topic,
            range(self.queues),
            wanted or TagFilter.parse(tags),
            batch,
            None if invisible_s is None else int(invisible_s * 1000),
            client,
            ordered,
            attempt_id,
            attempts_max,
            highest_first,
        )
        self.delivery.receive(request, polling_s, receive)
        self.end_pass()
        return receive

    def acknowledge_all(self, handles: Sequence[str], group: str = GROUP) -> list[bool]:
        """Those that it knows by the topic itself, before the pass has ended."""
        decoded = [ReceiptHandle.decode(each, group, TOPIC, HANDLE_KEY) for each in handles]
        return self.delivery.acknowledge_all(group, TOPIC, decoded)

    def acknowledge(self, delivered: Delivered) -> None:
        try:
            self.delivery.acknowledge(GROUP, TOPIC, delivered.receipt_handle)
        finally:
            self.end_pass()
