"""A machine that a store runs on and that crashes, and a broker that does what it does in the order of the real one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import NamedTuple

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.server.delivery.state.inflight import InFlight, InFlightTable
from quarry_mq.store.commitlog import BegunFlush, SegmentList
from quarry_mq.store.consumequeue import ConsumeQueueEntry, RocksConsumeQueues
from quarry_mq.store.engines import StoreEngines
from quarry_mq.store.errors import MessageTooLarge, StoreDamaged
from quarry_mq.store.index import MessageIndex
from quarry_mq.store.index.tiered.folders import Stage
from quarry_mq.store.index.tiered.tiered_index import TieredIndex
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import Appended, Host, Message, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.native import NATIVE
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.opening.repair import Orders
from quarry_mq.store.settings import Durability, IndexSettings, StoreSettings
from quarry_mq.store.state.in_flight_key import subscription_prefix
from tests.faults.code_paths import BEGUN, CACHED_QUEUES_MAX, COMPARED, ENCODED, CodePath, encoded_message
from tests.faults.engines import MachineEngines, MachineRocksEngines
from tests.faults.kernel import Kernel
from tests.faults.ledger import Ledger

SEGMENT_SIZE = 64 * 1024
ROTTING = 0.6
"""The share of cases in which an index file is damaged when it could be."""
HOST = Host(bytes([127, 0, 0, 1]), 8081)


class Sending(NamedTuple):
    """Describe a message to be sent; `size` is that of its body, which is unique and made up by the broker.

    `encoded`: whether it is given to the store encoded; None: as the machine draws. One for light queues never is.
    """

    queue: QueueId
    size: int
    light_queues: tuple[str, ...] = ()
    encoded: bool | None = None


def key_of(body: bytes) -> str:
    """A key of the message with a body."""
    return blake2b(body, digest_size=6).hexdigest()


def crash(kernel: Kernel, engines: MachineEngines, segments: SegmentList | None, *, power_loss: bool) -> None:
    """End the process or cut the power. `segments` is the log that the process has open, None without one."""
    kernel.cut()
    # a segment is made ahead on a thread, which must not go on in the next life
    pending = None if segments is None else segments._next._pending
    if pending is not None:
        wait([pending])
    engines.crash(power_loss=power_loss)
    if power_loss:
        kernel.power_loss()
    else:
        kernel.process_death()


class Machine:
    """Keeps kernel, disk and databases over all crashes. With `directory` these are RocksDB's, else in memory."""

    def __init__(
        self,
        seed: int,
        durability: Durability,
        directory: Path | None = None,
        queue_mode: QueueMode | None = QueueMode.ROCKSDB,
        *,
        indexed: bool = False,
        code_path: CodePath = CodePath.PYTHON,
    ) -> None:
        """`code_path` may be another one for each life."""
        self.kernel = Kernel(Random(seed))
        self.code_path = code_path
        self._draws = Random(seed)
        self.disk = self.kernel.disk()
        self.engines: MachineEngines = (
            MachineEngines(self.kernel, self.disk)
            if directory is None
            else MachineRocksEngines(self.kernel, self.disk, directory)
        )
        self.ledger = Ledger(durability)
        self.durability = durability
        self.queue_mode = queue_mode
        self.index = IndexSettings(
            hash_files=indexed,
            hash_slots=7,
            hash_items=24,
            tiered=indexed,
            tiered_slots=5,
            tiered_items=12,
        )
        self.clock = ManualClock()
        self._living: OpenStore | None = None

    def start(self, *, rebuild_queues: bool = False) -> Broker:
        engines: StoreEngines = self.engines
        settings = StoreSettings(
            root=self.kernel.path("/store"),
            segment_size=SEGMENT_SIZE,
            durability=self.durability,
            queue_mode=self.queue_mode,
            units_per_file=16,
            mapped_segments_max=4,
            cached_queues_max=16,
            index=self.index,
        )
        if self.code_path is not CodePath.APPEND:
            # below what settings allow
            object.__setattr__(settings, "cached_queues_max", CACHED_QUEUES_MAX)
        store = open_store(
            settings,
            disk=self.disk,
            clock=self.clock,
            report=lambda _: None,
            engines=engines,
            orders=Orders(rebuild_queues=rebuild_queues),
        )
        self._living = store
        return Broker(self, store)

    def draw(self, probability: float) -> bool:
        """Return whether the other way is taken. The draw is independent of others, so a history stays the same."""
        return self.code_path is not CodePath.APPEND and self._draws.random() < probability

    def fdatasync(self, begun: BegunFlush) -> None:
        """Do what the native part's thread does for a begun flush."""
        self.kernel.sync(self.kernel.inode(begun.file))

    def crash(self, *, power_loss: bool) -> None:
        """End the process or cut the power, after PowerCut or at any other moment."""
        living, self._living = self._living, None
        crash(self.kernel, self.engines, None if living is None else living.segments, power_loss=power_loss)
        self.ledger.crashed(power_loss=power_loss)

    def close(self) -> None:
        self.engines.release()


class Broker:
    """One life on the machine. It does what `server` does, in its order, and enters what was promised."""

    def __init__(self, machine: Machine, store: OpenStore) -> None:
        self.store = store
        self._machine = machine
        self._next_offsets: dict[QueueId, int] = {}
        self._warm_after: bytes | None = None
        if machine.code_path is CodePath.NATIVE:
            assert NATIVE is not None
            store.messages.use(NATIVE)
            store.queues.use(NATIVE)
            self._warm_after = b""
        self.ledger = machine.ledger
        self._durability = machine.durability
        self._clock = machine.clock
        self._inflight = InFlightTable(store.state_engine)
        self._disk = machine.disk
        self._directory = machine.kernel.path("/store")
        self._chance = Random(machine.kernel.steps)

    # -- as server.append.group_commit

    def send(self, sendings: Sequence[Sending]) -> None:
        self._warm_some()
        self._clock.advance(0.01)
        messages: list[Message] = []
        encoded: list[Message] = []
        for sending in sendings:
            body = self.ledger.attempt(sending.queue, sending.light_queues, sending.size)
            is_encoded = self._machine.draw(ENCODED) if sending.encoded is None else sending.encoded
            properties = {"TAGS": "blue", "KEYS": key_of(body)}
            if sending.light_queues:
                properties[LIGHT_QUEUES] = ",".join(sending.light_queues)
                is_encoded = False
            message = Message(
                sending.queue.topic, sending.queue.number, body, properties, 1_700_000_000_000, HOST, HOST
            )
            (encoded if is_encoded else messages).append(message)
        if messages:
            self._stored(messages, self.store.messages.append(messages))
        if encoded:
            self._stored(encoded, self.store.messages.append_encoded([encoded_message(each) for each in encoded]))
        if self._durability is Durability.ASYNC:
            self._make_visible()

    def send_too_large(self, sending: Sending, *, encoded: bool) -> None:
        """A round of two messages, of which one is refused: the other is not stored either."""
        topic, number = sending.queue
        pair = [Message(topic, number, bytes(size), {}, 0, HOST, HOST) for size in (sending.size, SEGMENT_SIZE)]
        before = self.store.messages.appended_up_to
        with suppress(MessageTooLarge):
            if encoded:
                self.store.messages.append_encoded([encoded_message(each) for each in pair])
            else:
                self.store.messages.append(pair)
            raise AssertionError("a message that is larger than a segment was taken")
        assert self.store.messages.appended_up_to == before

    def _stored(self, messages: Sequence[Message], places: Sequence[Appended]) -> None:
        """Check that each message has the offset after that of the last one in its queue."""
        for message, where in zip(messages, places, strict=True):
            queue = QueueId(message.topic, message.queue_number)
            expected = self._next_offsets.get(queue, where.queue_offset)
            assert where.queue_offset == expected, f"{queue}: offset {where.queue_offset}, not {expected}"
            self._next_offsets[queue] = expected + 1
            self.ledger.stored(message.body, where)

    def _warm_some(self) -> None:
        """Read some more stored rows into the native part's table, as `server.maintenance.maintenance` does."""
        if self._warm_after is not None:
            self._warm_after = self.store.queues.warm(self._warm_after)

    def flush(self, between: Sequence[Sending] = (), *, begun: bool | None = None) -> None:
        """`between` are sent after the fdatasync of a begun flush and before its end; without one, after the flush.

        `begun`: whether the flush is begun and ended apart; None: as the machine draws.
        """
        messages = self.store.messages
        apart = self._machine.draw(BEGUN) if begun is None else begun
        running = messages.begin_flush() if apart else None
        if running is None:
            self.ledger.flushed(messages.flush())
        else:
            self._machine.fdatasync(running)
        if between:
            self.send(between)
        if running is not None:
            messages.end_flush(running, None)
            self.ledger.flushed(messages.flushed_up_to)
        self._make_visible()

    def _make_visible(self) -> None:
        messages = self.store.messages
        up_to = messages.flushed_up_to if self._durability is Durability.SYNC else messages.appended_up_to
        messages.dispatch(up_to)
        self.ledger.visible(messages.dispatched_up_to)

    def flush_queues(self, between: Sequence[Sending] = ()) -> None:
        """`between` are sent while the bulk of the entries is written."""
        messages = self.store.messages
        self.ledger.flushed(messages.flush())
        messages.flush_entries()
        if between:
            self.send(between)
            self.flush()
        self.ledger.flushed(messages.flush())
        messages.flush_queues()

    def flush_entries(self) -> None:
        """Let RocksDB flush the entries alone, as it does when they fill its memory."""
        self.store.messages.flush_entries()

    def save_checkpoint(self) -> None:
        self.store.checkpoint.save()

    # -- as server.maintenance.key_index

    def write_index(self) -> None:
        """Write some of the index, as far as there is one."""
        for index in self.store.messages.indexes.followers:
            index.step()

    def save_index(self) -> None:
        indexes = self.store.messages.indexes
        for index in indexes.followers:
            index.save()
            index.expire()
        if indexes.tiered is not None:
            # a file that rotted before it was settled could not be made anew then, and is found again here
            with suppress(StoreDamaged):
                indexes.tiered.compact_one()
            if self._chance.random() < ROTTING:
                self._let_rot(indexes.tiered)
        self.repair_index()

    def repair_index(self) -> None:
        """Make what is damaged anew, when it was found."""
        for index in self.store.messages.indexes.followers:
            while index.repair_one():
                pass

    def _let_rot(self, tiered: TieredIndex) -> None:
        """Change a byte of a full file on the platter."""
        files = [each for each in tiered.files if each.stage is not Stage.FILLING]
        if files:
            file = self._chance.choice(files)
            path = self._directory / "key_index" / file.stage.value / file.name
            with closing(self._disk.open_segment(path, writable=True)) as content:
                position = self._chance.randrange(content.size)
                content.write(position, bytes([content.view()[position] ^ 1 << self._chance.randrange(8)]))
                content.flush()
            with suppress(StoreDamaged):
                tiered.check(file.name)

    # -- as server.maintenance.retention

    def expire(self, segments: int) -> None:
        """Let the oldest segments go, as many of them as may."""
        expiry = self.store.expiry
        expiry.remover.configure(patience_s=0, pause_s=0)
        filling = self.store.messages.appended_up_to // SEGMENT_SIZE * SEGMENT_SIZE
        wanted = PhysicalOffset(min(expiry.minimum + segments * SEGMENT_SIZE, filling))
        if expiry.latest_beginning < wanted:
            self.flush_queues()
        wanted = min(wanted, expiry.latest_beginning)
        self.ledger.expires(wanted)
        expiry.announce(wanted)
        expiry.retire(wanted)
        expiry.remover.run()
        if self._machine.draw(COMPARED):
            self.check_caches()

    # -- as server.lite.expiry

    def remove_light_queues(self, chance: Random) -> None:
        """Remove some light queues that got no message since they were found."""
        messages, engine = self.store.messages, self.store.state_engine
        ended = messages.light_queues_ended(messages.appended_up_to, b"").ended
        ended = messages.still_ended([each for each in ended if chance.random() < 0.6])
        if not ended:
            return
        batch = engine.batch()
        for name in [each.queue.topic for each in ended]:
            self.ledger.removes_light_queue(name)
            self._next_offsets.pop(QueueId(name, 0), None)
            for group in self.ledger.groups:
                self._inflight.delete_counted(batch, subscription_prefix(group, name))
            self.store.offsets.delete_topic(batch, name)
        self._sign(batch)
        engine.write(batch)
        messages.remove_ended(ended)

    # -- as server.delivery

    def receive(self, group: str, queue: QueueId, count: int) -> list[ConsumeQueueEntry]:
        """Hand out the next entries: their rows and the next offset are written together."""
        store = self.store
        start = self.ledger.position(group, queue)
        if start is None:
            start = store.messages.bounds(queue).minimum
        entries = store.messages.entries(queue, QueueOffset(start), count)
        if not entries:
            return []
        for entry in entries:
            self.ledger.check_read(queue, entry.queue_offset, bytes(store.messages.read(entry).body))
        batch = store.state_engine.batch()
        prefix = subscription_prefix(group, queue.topic)
        for entry in entries:
            row = InFlight(self._clock.wall_ms() + 1000, 1, 0, 1, "client")
            self._inflight.put(batch, prefix, queue.number, entry.queue_offset, row)
        following = QueueOffset(entries[-1].queue_offset + 1)
        store.offsets.stage(batch, group, queue, following)
        self._sign(batch)
        self.ledger.hands_out(group, queue, start, following)
        store.state_engine.write(batch)
        self.ledger.handed_out(group, queue, following)
        return entries

    def acknowledge(self, group: str, queue: QueueId, offset: QueueOffset) -> None:
        batch = self.store.state_engine.batch()
        prefix = subscription_prefix(group, queue.topic)
        row = self._inflight.get(prefix, queue.number, offset)
        if row is not None:
            self._inflight.delete(batch, prefix, queue.number, offset, row)
        self._sign(batch)
        self.ledger.acknowledges(group, queue, offset)
        self.store.state_engine.write(batch)

    def _sign(self, batch: object) -> None:
        if self._durability is Durability.ASYNC:
            self.store.identity.stage_seen_up_to(batch, self.store.messages.dispatched_up_to)  # type: ignore[arg-type]

    # -- as server.admin.administration

    def list_queues(self) -> None:
        """Store the maxima, which otherwise wait for a flush, before all queues are read."""
        self.store.messages.iterate_queues()

    def create_topic(self, name: str) -> None:
        if self.store.topics.get(name) is None:
            self.store.topics.create(Topic(name, TopicType.NORMAL, 2, 2))
            self.ledger.topic_created(name)

    def delete_topic(self, name: str) -> None:
        if self.store.topics.get(name) is None:
            return
        self.ledger.deletes_topic(name)
        batch = self.store.state_engine.batch()
        for group in self.ledger.groups:
            self._inflight.delete_all(batch, subscription_prefix(group, name))
        self.store.offsets.delete_topic(batch, name)
        self.store.state_engine.write(batch, sync=True)
        self.store.messages.delete_topic(name)
        self.store.topics.delete(name)
        self.ledger.topic_deleted(name)
        for queue in self.ledger.queues:
            if queue.topic == name:
                self._next_offsets[queue] = 0
        if self._machine.draw(COMPARED):
            self.check_caches()

    # -- the end, and a look from outside

    def stop(self) -> None:
        self.store.close()
        self.ledger.stopped()

    def check(self) -> None:
        """Compare everything there is with what was promised, and go on from what is there."""
        self.ledger.check(self.content(), self.rows(), self.store)
        self.check_caches()
        self.check_index()

    def check_index(self) -> None:
        """Every message in a queue is found by its key, once, and no other."""
        for index in self.store.messages.indexes.followers:
            while index.step():
                pass
            tiered = self.store.messages.indexes.tiered
            if tiered is not None:
                for file in tiered.files:
                    if file.stage is not Stage.FILLING:
                        with suppress(StoreDamaged):
                            tiered.check(file.name)
            self.repair_index()
            self._check_index(index)

    def _check_index(self, index: MessageIndex) -> None:
        messages = self.store.messages
        assert index.written_up_to == messages.dispatched_up_to
        for queue, entries in self.content().items():
            if is_light_queue(queue.topic):
                continue
            for place, body in entries.values():
                found = index.find(
                    queue.topic, key_of(body), begin_ms=0, end_ms=2**62, limit=10, read=messages.record_at
                )
                assert [each.physical_offset for each in found.messages] == [place], f"{queue}: {place}"
                assert found.unread == []

    def check_caches(self) -> None:
        """Check that caches of queues in RocksDB agree with the database, for deleted and future queues as well."""
        rocks, engine = self.store.queues.rocks, self.store.queues.engine
        if rocks is None or engine is None:
            return
        stored = RocksConsumeQueues(engine, minimum_physical_offset=self.store.segments.minimum)
        queues = sorted(self.ledger.queues)
        told = [rocks.bounds(queue) for queue in queues]
        assert told == [stored.bounds(queue) for queue in queues], f"of {queues} it is remembered {told}"
        assert rocks.next_offsets(queues) == [bounds.maximum for bounds in told]

    def check_live(self) -> None:
        """Check that all visible messages are those that were sent."""
        self.check_caches()
        for queue, entries in self.content().items():
            for offset, (_, body) in entries.items():
                self.ledger.check_read(queue, offset, body)

    def content(self) -> dict[QueueId, dict[int, tuple[int, bytes]]]:
        """Return the messages that consumers would read, by queue: by offset the place in the log and the body."""
        messages = self.store.messages
        found: dict[QueueId, dict[int, tuple[int, bytes]]] = {}
        for queue in messages.iterate_queues():
            bounds = messages.bounds(queue)
            entries = messages.entries(queue, QueueOffset(0), 100_000)
            offsets = [int(each.queue_offset) for each in entries]
            between = list(range(bounds.minimum, bounds.maximum))
            assert offsets == between, f"{queue}: {bounds} but {offsets}"
            places = [each.physical_offset for each in entries]
            assert places == sorted(set(places)), f"{queue}: entries not in log order: {places}"
            found[queue] = {}
            for entry in entries:
                record = messages.read(entry)
                if queue.topic == record.topic:
                    assert (record.queue_number, record.queue_offset) == (queue.number, entry.queue_offset)
                found[queue][entry.queue_offset] = entry.physical_offset, bytes(record.body)
        return found

    def rows(self) -> dict[tuple[str, QueueId], set[int]]:
        found: dict[tuple[str, QueueId], set[int]] = {}
        for group, queue, offset, _ in self._inflight.all_rows():
            found.setdefault((group, queue), set()).add(offset)
        return found
