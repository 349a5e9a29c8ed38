"""A store of small segments on the disk that crashes, with what expiry needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Final

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.commitlog import CommitLogReader
from quarry_mq.store.commitlog.segments import SegmentPins
from quarry_mq.store.fs import Disk
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata import ConsumerOffsetTable
from quarry_mq.store.retention import LogExpiry
from quarry_mq.store.state.identity import FAMILIES, StoreIdentity
from tests.faults.disk import FaultyDisk
from tests.store.assembly import LOG, SEGMENT_SIZE, Assembly, assemble, message, queue_engine

QUEUE: Final = QueueId("orders", 0)
BODY: Final = bytes(SEGMENT_SIZE // 2)
"""Two of these do not fit into one segment: each message fills one."""


@dataclass
class Life:
    """One life of the store, between two crashes."""

    opened: Assembly
    expiry: LogExpiry
    identity: StoreIdentity
    positions: ConsumerOffsetTable
    pins: SegmentPins
    state: MemoryEngine

    @property
    def bases(self) -> list[int]:
        return [int(base) for base in self.opened.segments.bases]

    def make_durable(self) -> None:
        store = self.opened.store
        store.dispatch(store.flush())
        store.flush_queues()
        self.identity.flushed_up_to = store.flushed_up_to

    def expire_to(self, minimum: int) -> None:
        """All steps in order, as the broker takes them."""
        at = PhysicalOffset(minimum)
        self.expiry.announce(at)
        self.expiry.retire(at)
        self.remove_all()

    def remove_all(self) -> None:
        """Until nothing is left: readers in other threads may hold a view at the moment."""
        give_up_s = monotonic() + 20
        while self.expiry.remover.pending:
            assert monotonic() < give_up_s, "files stay, somebody has them mapped"
            self.expiry.remover.run()
            sleep(0.001)

    def bodies(self) -> list[bytes]:
        store = self.opened.store
        return [bytes(store.read(entry).body[:2]) for entry in store.entries(QUEUE, QueueOffset(0), 1_000)]


@dataclass
class Machine:
    """Disk, databases and clock, over all lives."""

    disk: FaultyDisk
    queues: MemoryEngine
    state: MemoryEngine
    clock: ManualClock

    def start(self) -> Life:
        identity = StoreIdentity(self.state, Path("/store/quarry"))
        opened = assemble(self.disk, self.queues, flushed_up_to=identity.flushed_up_to, clock=self.clock)
        identity.log_begin = opened.segments.minimum
        positions = ConsumerOffsetTable(self.state)
        pins = SegmentPins(self.clock)
        expiry = expiry_of(self.disk, opened, positions, identity, pins, self.clock)
        return Life(opened, expiry, identity, positions, pins, self.state)

    def crash(self, seed: int, *, power_loss: bool) -> None:
        chance = Random(seed)
        self.queues.crash(chance.randrange(3))
        self.disk = self.disk.power_loss(seed) if power_loss else self.disk.process_death()


def machine() -> Machine:
    return Machine(FaultyDisk(), queue_engine(), MemoryEngine(FAMILIES, write_ahead_log=True), ManualClock())


def expiry_of(
    disk: Disk,
    opened: Assembly,
    positions: ConsumerOffsetTable,
    identity: StoreIdentity,
    pins: SegmentPins,
    clock: ManualClock,
) -> LogExpiry:
    expiry = LogExpiry(
        segments=opened.segments,
        messages=opened.store,
        queues=opened.queues,
        queue_directory=lambda: LOG,
        positions=positions,
        identity=identity,
        pins=pins,
        clock=clock,
    )
    expiry.remover.configure(patience_s=60, pause_s=0)
    return expiry


def fill(life: Life, count: int, *, topic: str = QUEUE.topic) -> None:
    """Messages that take a segment each, durable and visible."""
    for number in range(count):
        life.opened.store.append([message(topic, body=b"%02d" % number + BODY)])
    life.make_durable()


def view_of(life: Life, base: int) -> memoryview:
    """What a slow reader of the segment holds."""
    return CommitLogReader(life.opened.segments).read(PhysicalOffset(base), 100)
