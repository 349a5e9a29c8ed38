"""A message store on a disk and an engine that tests can crash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock, Progress
from quarry_mq.store.commitlog import CommitLogFlusher, CommitLogReader, CommitLogWriter, SegmentList
from quarry_mq.store.commitlog.segments import StoreTimes
from quarry_mq.store.consumequeue import RocksConsumeQueues
from quarry_mq.store.consumequeue.dispatch import StoredAssignment
from quarry_mq.store.consumequeue.queue_offsets import QueueOffsets
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.fs import Disk
from quarry_mq.store.message import Host, Message, PhysicalOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.pending import FAMILY, PendingMessages, reading
from quarry_mq.store.recovery.recovery import RecoveryReport, SavePosition, recover
from quarry_mq.store.recovery.verdict import Stop
from quarry_mq.store.scan import LogScan, scan_in_bulk
from quarry_mq.store.settings import StoreSettings
from tests.commitlog.records import SameThread

LOG = Path("/store/commitlog")
SEGMENT_SIZE = 64 * 1024
HOST = Host(bytes([127, 0, 0, 1]), 8081)


def queue_engine() -> MemoryEngine:
    return MemoryEngine((ENTRIES_FAMILY, OFFSET_FAMILY))


def message(topic: str = "orders", number: int = 0, body: bytes = b"body", **properties: str) -> Message:
    return Message(topic, number, body, properties, 1_700_000_000_000, HOST, HOST)


@dataclass
class Assembly:
    """The parts `store.opening.open_store` would put together, with the ones a crash replaces in reach."""

    disk: Disk
    engine: MemoryEngine
    segments: SegmentList
    queues: RocksConsumeQueues
    report: RecoveryReport
    reader: CommitLogReader
    store: MessageStore
    clock: ManualClock
    progress: list[Progress]


def assemble(
    disk: Disk,
    engine: MemoryEngine,
    *,
    flushed_up_to: PhysicalOffset | None = None,
    clean_shutdown: bool = False,
    scan: LogScan = scan_in_bulk,
    save_position: SavePosition = lambda _: None,
    save_every_bytes: int = 1 << 30,
    cached_queues_max: int = 1024,
    clock: ManualClock | None = None,
    directory: Path = LOG,
) -> Assembly:
    """Recover what is there and open it."""
    disk.make_directories(directory)
    segments = SegmentList(disk, directory, SEGMENT_SIZE, executor=SameThread())
    queues = RocksConsumeQueues(engine, minimum_physical_offset=segments.minimum, cached_queues_max=cached_queues_max)
    progress: list[Progress] = []
    report = recover(
        segments,
        queues,
        StoredAssignment(),
        flushed_up_to=flushed_up_to,
        stop=Stop.CLEAN if clean_shutdown else Stop.UNCLEAN,
        scan=scan,
        save_position=save_position,
        save_every_bytes=save_every_bytes,
        report=progress.append,
    )
    writer = CommitLogWriter(segments, report.end)
    flusher = CommitLogFlusher(segments, writer, segments.minimum)
    clock = clock or ManualClock()
    reader = CommitLogReader(segments, end=lambda: writer.end)
    store = MessageStore(
        StoreSettings(root=directory.parent, segment_size=SEGMENT_SIZE, cached_queues_max=cached_queues_max),
        times=StoreTimes(clock, 0),
        flusher=flusher,
        reader=reader,
        offsets=QueueOffsets(queues, cached_max=cached_queues_max),
        pending=PendingMessages(MemoryEngine((FAMILY,)), reading(reader)),
    )
    return Assembly(disk, engine, segments, queues, report, reader, store, clock, progress)
