"""A stopped store that is read and never changed: its log, its queues, and messages by key.

Readers share the store's lock if there is a lock file, so no broker can start meanwhile and several readers can work at
once. Segments are mapped read-only, RocksDB is opened through a view that leaves no trace.

Messages are found by a key in the store's index files, and by reading the rest of its log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from quarry_mq.kv import KeyValueEngine, KvError
from quarry_mq.protocol.clock import Progress, ReportProgress, SystemClock
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.store.commitlog import CommitLogReader, KeptSize, SegmentList
from quarry_mq.store.consumequeue import FileConsumeQueueReader, RocksConsumeQueues, open_consume_queue_engine
from quarry_mq.store.consumequeue.queue_summary import QueueSummary, SummarySource, summarize_queues
from quarry_mq.store.errors import (
    MessageGivenUp,
    NotAStore,
    OffsetOutOfRange,
    StoreDamaged,
    StoreLocked,
    StoreUnusable,
    TopicNotFound,
)
from quarry_mq.store.fs import Disk, DiskLock
from quarry_mq.store.index.hash.index import HashIndex, index_files
from quarry_mq.store.index.hash.keys import HashKeyFiles
from quarry_mq.store.index.hash.layout import shape_of
from quarry_mq.store.index.indexes import KeyIndexes
from quarry_mq.store.index.key_files import KeyFiles
from quarry_mq.store.index.message_index import IndexState, WantedMessages
from quarry_mq.store.index.opening import TIERED_ROW, shape_in
from quarry_mq.store.index.tiered.chain_file import IndexShape
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStore
from quarry_mq.store.index.tiered.tiered_index import TieredIndex
from quarry_mq.store.index.tiered_keys import PLACE, TieredKeyFiles
from quarry_mq.store.layout.kind import DATABASE_MARKER, FoundStore, StoreKind, inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueuePhase, parse_phase
from quarry_mq.store.message import ConsumeQueueEntry, PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.pending import PendingBefore, PendingMessages, open_pending_engine, progress_now, reading
from quarry_mq.store.record import Blank, Corrupt, Decoded, EndOfData, StoredMessage, Torn
from quarry_mq.store.scan import RecordBatch, scan_log
from quarry_mq.store.settings import HASH_ITEMS, HASH_SLOTS, IndexSettings
from quarry_mq.store.state.deletions import Deletions
from quarry_mq.store.state.identity import META, check_format, open_state_engine

ENTRIES_PER_READ: Final = 1_024
_CHUNK: Final = 1024 * 1024
_ZEROS: Final = bytes(_CHUNK)


class QueueSource(Enum):
    """The source of consume queues: RocketMQ's files, or the column families in RocksDB."""

    FILE = "file"
    ROCKSDB = "rocksdb"


class QueueReader(Protocol):
    """A queue reader is the reading half of a `ConsumeQueueStore`."""

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def queues(self, topic: str | None = None) -> Iterator[QueueId]: ...


class _FileQueues:
    """The file queues read RocketMQ's consume queue files as a `QueueReader`."""

    def __init__(self, disk: Disk, directory: Path, minimum: PhysicalOffset) -> None:
        self._reader = FileConsumeQueueReader(disk, directory)
        self._minimum = minimum

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        return self._reader.entries(queue, start, limit)

    def bounds(self, queue: QueueId) -> QueueBounds:
        return self._reader.bounds(queue, self._minimum)

    def queues(self, topic: str | None = None) -> Iterator[QueueId]:
        return (queue for queue in self._reader.queues() if topic in {None, queue.topic})


class OfflineStore:
    """A read-only view of a store directory, as a context manager. It is used by one thread."""

    def __init__(self, disk: Disk, found: FoundStore, paths: StorePaths, segments: SegmentList) -> None:
        self._disk = disk
        self._found = found
        self._paths = paths
        self._segments = segments
        self._reader = CommitLogReader(segments)
        self._queues: dict[QueueSource, QueueReader] = {}
        self._queue_engine: KeyValueEngine | None = None
        self._state_engine: KeyValueEngine | None = None
        self._pending_engine: KeyValueEngine | None = None
        self._lock: DiskLock | None = None
        self._state_directory = paths.quarry
        self._has_pending_messages = found.kind is StoreKind.QUARRY
        self.log_limit: PhysicalOffset | None = None
        """The offset where reading the log ends; None: at the end of the log."""

    @classmethod
    def at_point(
        cls, disk: Disk, root: Path, point: Path, rocksdb_folder: str, log_limit: PhysicalOffset
    ) -> OfflineStore:
        """Open a store that a broker runs on, as it was at a backup point: its databases lie in the folder `point`.

        Queue files are those of the broker, and grow. Takes no lock: the point keeps its segments. Raises as `open`.
        """
        live = inspect_store(disk, root)
        directory = point / rocksdb_folder
        found = replace(
            live,
            rocksdb_directory=directory,
            has_rocksdb=disk.exists(directory / DATABASE_MARKER),
            has_abort=False,
        )
        paths = StorePaths(root)
        store = cls(disk, found, paths, open_log(disk, paths))
        store._state_directory = point / paths.quarry.name
        store._has_pending_messages = False
        store.log_limit = log_limit
        return store

    @classmethod
    def open(cls, disk: Disk, root: Path) -> OfflineStore:
        """Open the store at `root`, as RocketMQ or Quarry left it.

        Raises NotAStore, StoreLocked while a broker runs on it, StoreDamaged when segments are missing or have the
        wrong length, OSError when it may not be read.
        """
        found = inspect_store(disk, root)
        paths = StorePaths(root)
        if found.kind is StoreKind.NEW:
            raise NotAStore(root, "there is no store in this directory" if disk.exists(root) else "no such directory")
        lock = _share_lock(disk, paths.lock)
        try:
            store = cls(disk, found, paths, open_log(disk, paths))
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        store._lock = lock
        try:
            store._refuse_newer()
        except BaseException:
            store.close()
            raise
        return store

    def _refuse_newer(self) -> None:
        if self._found.kind is not StoreKind.QUARRY:
            return
        try:
            check_format(self.state_engine(), self._paths.quarry)
        except KvError:
            return  # the caller that needs an unreadable database gets the error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release everything. Repeatable."""
        self._queues.clear()
        for engine in (self._queue_engine, self._state_engine, self._pending_engine):
            if engine is not None:
                engine.close()
        self._segments.close()
        if self._lock is not None:
            self._lock.release()

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def paths(self) -> StorePaths:
        return self._paths

    @property
    def found(self) -> FoundStore:
        """Return what kind of store the directory is."""
        return self._found

    # -- the commit log

    @property
    def log(self) -> CommitLogReader:
        """Return a reader of single records."""
        return self._reader

    @property
    def segments(self) -> SegmentList:
        """Return the list of the log's files, with names and sizes."""
        return self._segments

    @property
    def minimum(self) -> PhysicalOffset:
        """Return the first byte of the first segment."""
        return self._segments.minimum

    def file_of(self, offset: PhysicalOffset) -> Path:
        """Return the segment file that holds the byte; the directory of the log when it has no such byte."""
        try:
            return self._segments.path_of(offset)
        except OffsetOutOfRange:
            return self._paths.commit_log

    def records(self, start: PhysicalOffset | None = None) -> Iterator[Decoded]:
        """Yield everything from `start` (default: the minimum) in log order, CRCs checked.

        Yields StoredMessage and Blank, and ends with one EndOfData, Torn or Corrupt, or at the end of the last segment.
        Zeros that are followed by other bytes are no EndOfData: they are yielded as Torn, because records after them
        would otherwise be skipped silently. Raises OffsetOutOfRange.
        """
        for decoded in self._reader.scan(self.minimum if start is None else start):
            if isinstance(decoded, EndOfData):
                after = self.first_byte_from(decoded.physical_offset)
                if after is not None:
                    yield Torn(decoded.physical_offset, f"nothing was written here, but bytes follow at offset {after}")
                    return
            yield decoded

    def decode(self, at: PhysicalOffset) -> Decoded:
        """Return what lies at the offset, CRCs checked. Raises OffsetOutOfRange."""
        return self._reader.decode(at, check_crc=True)

    def is_replaced(self, at: PhysicalOffset) -> bool:
        """Return whether the record that once began there was damaged, and an operator gave it up."""
        return self.minimum <= at < self._segments.end_of_files and self._reader.is_replaced(at)

    def record_of(self, entry: ConsumeQueueEntry, queue: QueueId) -> StoredMessage | Torn | Corrupt:
        """Return the record that an entry of `queue` points to, CRCs checked.

        It is Corrupt also when the log holds something else there than the entry says: another size, another queue.
        """
        found = self._record_of(entry, queue)
        at = entry.physical_offset
        if not isinstance(found, StoredMessage) and self.is_replaced(at):
            return Corrupt(
                at, "the record was damaged and has been given up; what was there is kept in commitlog/broken/"
            )
        return found

    def _record_of(self, entry: ConsumeQueueEntry, queue: QueueId) -> StoredMessage | Torn | Corrupt:
        at = entry.physical_offset
        try:
            decoded = self._reader.decode(at, check_crc=True)
        except OffsetOutOfRange as outside:
            return Corrupt(at, str(outside))
        if isinstance(decoded, Torn | Corrupt):
            return decoded
        if not isinstance(decoded, StoredMessage):
            return Corrupt(
                at, f"entry {entry.queue_offset} of {queue.topic}/{queue.number} points here, but no record begins here"
            )
        if decoded.size != entry.size:
            return Corrupt(at, f"entry {entry.queue_offset} says {entry.size} bytes, the record {decoded.size}")
        if queue.topic in decoded.properties.get(LIGHT_QUEUES, "").split(","):
            return decoded
        if (decoded.topic, decoded.queue_number, decoded.queue_offset) != (*queue, entry.queue_offset):
            is_of = f"entry {decoded.queue_offset} of {decoded.topic}/{decoded.queue_number}"
            return Corrupt(
                at, f"entry {entry.queue_offset} of {queue.topic}/{queue.number} points here, but this is {is_of}"
            )
        return decoded

    def first_byte_from(self, start: PhysicalOffset) -> PhysicalOffset | None:
        """Return the offset of the first non-zero byte from `start` on. Holes of the files are not read.

        Raises OSError for bytes that cannot be read.
        """
        for base in self._segments.bases:
            end = base + self._segments.segment_size
            if end <= start:
                continue
            data_end = base + self._disk.data_end(self._segments.path_of(base))
            segment = self._segments.segment_at(base)
            view = segment.view()
            for at in range(max(start, base), data_end, _CHUNK):
                chunk_end = min(at + _CHUNK, data_end)
                segment.fetch(at - base, chunk_end - at)
                chunk = bytes(view[at - base : chunk_end - base])
                if chunk != _ZEROS[: len(chunk)]:
                    return PhysicalOffset(at + len(chunk) - len(chunk.lstrip(b"\0")))
        return None

    # -- consume queues

    @property
    def default_source(self) -> QueueSource:
        """Return what a broker would read: files if RocketMQ kept them, or if Quarry reads them; RocksDB otherwise."""
        if self._found.kind is StoreKind.QUARRY:
            return QueueSource.ROCKSDB if self.queue_phase.reads_rocksdb else QueueSource.FILE
        return QueueSource.FILE if self._found.has_file_queues else QueueSource.ROCKSDB

    @property
    def queue_phase(self) -> QueuePhase:
        """Return where Quarry keeps the queues. Raises StoreUnusable when it never ran here, or a newer one did."""
        stored = self.state_engine().family(META).get(b"queue_phase")
        return parse_phase(None if stored is None else stored.decode(errors="replace"), self._paths.root)

    def queues(self, source: QueueSource | None = None) -> Iterator[tuple[QueueId, QueueBounds]]:
        """Yield every queue with its bounds, in the source's order. Raises NotAStore when there is no such source."""
        reader = self.queue_reader(source)
        return ((queue, reader.bounds(queue)) for queue in reader.queues())

    def entries(
        self, queue: QueueId, start: QueueOffset | None = None, source: QueueSource | None = None
    ) -> Iterator[ConsumeQueueEntry]:
        """Yield the entries of a queue from `start` (default: its minimum).

        Raises TopicNotFound when the source has no such queue, OffsetOutOfRange when `start` is outside its bounds.
        """
        reader = self.queue_reader(source)
        if queue not in reader.queues(queue.topic):
            raise TopicNotFound(f"{self._paths.root}: there is no queue {queue.number} of topic {queue.topic}")
        bounds = reader.bounds(queue)
        if start is not None and not bounds.minimum <= start < bounds.maximum:
            raise OffsetOutOfRange(
                f"{self._paths.root}: {queue.topic}/{queue.number} holds the offsets "
                f"[{bounds.minimum}, {bounds.maximum}), not {start}"
            )
        return self._entries_from(reader, queue, bounds.minimum if start is None else start)

    def _entries_from(self, reader: QueueReader, queue: QueueId, start: QueueOffset) -> Iterator[ConsumeQueueEntry]:
        while found := reader.entries(queue, start, ENTRIES_PER_READ):
            yield from found
            start = QueueOffset(found[-1].queue_offset + 1)

    def summary(self, source: QueueSource | None = None, *, largest_max: int = 10) -> QueueSummary:
        """Return counts of all queues of the source (default: `default_source`). Raises NotAStore when
        there is none.
        """
        source = self.default_source if source is None else source
        self.queue_reader(source)
        return summarize_queues(
            SummarySource(
                self._disk,
                self._paths.consume_queue,
                self._found.rocksdb_directory,
                self.queue_engine() if self._found.has_rocksdb else None,
                reads_rocksdb=source is QueueSource.ROCKSDB,
                minimum=self.minimum,
            ),
            largest_max=largest_max,
        )

    def queue_reader(self, source: QueueSource | None = None) -> QueueReader:
        """Return the queues of the source (default: `default_source`). Raises NotAStore when there is
        no such source.
        """
        source = self.default_source if source is None else source
        if source not in self._queues:
            self._queues[source] = self._open_queues(source)
        return self._queues[source]

    def _open_queues(self, source: QueueSource) -> QueueReader:
        if source is QueueSource.FILE:
            is_new = self._found.kind is StoreKind.QUARRY and self.queue_phase.writes_files
            if not self._found.has_file_queues and not is_new:
                raise NotAStore(self._paths.consume_queue, "there are no file queues")
            return _FileQueues(self._disk, self._paths.consume_queue, self.minimum)
        return RocksConsumeQueues(self.queue_engine(), minimum_physical_offset=self.minimum)

    def queue_engine(self) -> KeyValueEngine:
        """Return the database of consume queues, read-only. Raises NotAStore when there is none."""
        if not self._found.has_rocksdb:
            raise NotAStore(self._found.rocksdb_directory, "there are no queues in RocksDB")
        if self._queue_engine is None:
            self._queue_engine = open_consume_queue_engine(self._found.rocksdb_directory, create=False, read_only=True)
        return self._queue_engine

    def state_engine(self) -> KeyValueEngine:
        """Return the database of metadata and delivery state, read-only. Raises NotAStore when Quarry
        never ran here.
        """
        if self._found.kind is not StoreKind.QUARRY:
            raise NotAStore(self._paths.quarry, "there is no state database: Quarry never ran on this store")
        if self._state_engine is None:
            self._state_engine = open_state_engine(self._state_directory, create=False, read_only=True)
        return self._state_engine

    def pending_messages(self) -> PendingMessages | None:
        """Return the pending messages, read-only; None where no database has them, as in a backup point."""
        if not self._has_pending_messages or not self._disk.exists(self._paths.pending_messages):
            return None
        if self._pending_engine is None:
            self._pending_engine = open_pending_engine(self._paths.pending_messages, create=False, read_only=True)
        return PendingMessages(self._pending_engine, reading(self._reader))

    def pending_progress(self, now_ms: int) -> PendingBefore | None:
        """Return the progress of pending messages in RocketMQ's terms; None where the log may continue after the
        watermark.
        """
        pending = self.pending_messages()
        if pending is None or pending.up_to is None or not self._is_end(pending.up_to):
            return None
        queues = self.queue_reader()
        return progress_now(pending, reading(self._reader), lambda queue: queues.bounds(queue).maximum, now_ms)

    def _is_end(self, at: PhysicalOffset) -> bool:
        return at == self._segments.end_of_files or isinstance(self._reader.decode(at), EndOfData)


def open_log(disk: Disk, paths: StorePaths) -> SegmentList:
    """Open the log of a store for reading. Raises NotAStore, StoreDamaged."""
    return SegmentList(disk, paths.commit_log, None, writable=False, kept_size=KeptSize(disk, paths.quarry))


def _share_lock(disk: Disk, path: Path) -> DiskLock | None:
    """Share the lock; None when there is no lock file, as no broker that locks ever ran here."""
    try:
        return disk.lock_shared(path)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        raise StoreLocked(path, "a broker is running on this store; stop it first") from None


_READING: Final = "reading the log behind its index"


@contextmanager
def indexes_of(store: OfflineStore, objects: ObjectStore | None = None) -> Iterator[KeyIndexes]:
    """Open the index files of a store while the block runs. `objects` is where files were uploaded to.

    Raises StoreUnusable, StoreDamaged, OSError.
    """
    disk, paths = store.disk, store.paths
    hash_files = None
    if any(each.size for each in index_files(disk, paths.index)):
        shape = shape_in(disk, paths.index, shape_of(HASH_SLOTS, HASH_ITEMS))
        hash_files = HashIndex(disk, paths.index, shape, SystemClock(), writable=False)
    tiered = None
    if disk.exists(paths.key_index):
        tiered = TieredIndex(disk, paths.key_index, _shape(), objects=objects, writable=False)
    try:
        yield KeyIndexes((), hash_files, tiered)
    finally:
        if tiered is not None:
            tiered.close()


@contextmanager
def moving_files(disk: Disk, root: Path, objects: ObjectStore | None, *, keep_uploaded: bool) -> Iterator[TieredIndex]:
    """Open the tiered index of a stopped store for writing; no broker can start while the block runs.

    Raises StoreLocked, StoreUnusable when there is no tiered index or no broker closed it cleanly; StoreDamaged,
    OSError.
    """
    with OfflineStore.open(disk, root) as store:
        state, has_abort, directory = _saved_state(store), store.found.has_abort, store.paths.key_index
        path = store.paths.lock
    if state is None or not disk.exists(directory):
        raise NotAStore(directory, "there is no tiered index")
    try:
        lock = disk.lock(path)
    except BlockingIOError:
        raise StoreLocked(path, "a broker is running on this store; ask it with --admin") from None
    try:
        index = TieredIndex(disk, directory, _shape(), objects=objects, keep_uploaded=keep_uploaded)
        try:
            if has_abort or TieredKeyFiles(index).state != state.files:
                raise StoreUnusable(directory, "the broker was not stopped cleanly; start and stop one first")
            index.settle(index.state)
            yield index
        finally:
            index.close()
    finally:
        lock.release()


def _shape() -> IndexShape:
    """Return some shape: for existing files any will do, as they hold their own."""
    settings = IndexSettings()
    return IndexShape(settings.tiered_slots, settings.tiered_items, PLACE)


def _saved_state(store: OfflineStore) -> IndexState | None:
    """Return up to where the tiered index was maintained; None if there is none."""
    if store.found.kind is not StoreKind.QUARRY:
        return None
    row = store.state_engine().family(META).get(TIERED_ROW.encode())
    return None if row is None else IndexState.unpack(row)


class _Trusted(NamedTuple):
    """Index files that have all messages below an offset."""

    files: KeyFiles
    up_to: PhysicalOffset


class OfflineIndex:
    """The offline index searches a store's index files, and reads the rest from the log."""

    def __init__(self, store: OfflineStore, indexes: KeyIndexes) -> None:
        self._store = store
        trusted = [each for each in (self._by_hash_files(indexes), self._by_tiered(indexes)) if each is not None]
        self._trusted = max(trusted, key=lambda each: each.up_to, default=None)

    def _by_hash_files(self, indexes: KeyIndexes) -> _Trusted | None:
        if indexes.hash_files is None:
            return None
        newest = indexes.hash_files.files[-1].header
        # after a crash the newest file may be inconsistent
        up_to = newest.begin_offset if self._store.found.has_abort else newest.end_offset
        return _Trusted(HashKeyFiles(indexes.hash_files), PhysicalOffset(up_to))

    def _by_tiered(self, indexes: KeyIndexes) -> _Trusted | None:
        tiered, state = indexes.tiered, _saved_state(self._store)
        if tiered is None or state is None or tiered.damaged or not all(each.is_local for each in tiered.files):
            return None
        files = TieredKeyFiles(tiered)
        if files.state == state.files and not self._store.found.has_abort:
            return _Trusted(files, state.up_to)
        # a start would go back to that state: all earlier files are whole, except for the last record's items
        whole = [each for each in tiered.files if each.name < files.newest_of(state.files)]
        return _Trusted(files, PhysicalOffset(whole[-1].header.end_place)) if whole else None

    def find(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int, report: ReportProgress
    ) -> list[StoredMessage]:
        """Return the newest messages of a topic with a key, stored in [begin_ms, end_ms]; the newest first.

        Raises StoreDamaged, OSError.
        """
        minimum, trusted = self._begin_of(topic), self._trusted
        wanted = WantedMessages(topic, key, begin_ms, end_ms)
        if trusted is None or trusted.up_to <= minimum:
            return self._read_log(wanted, minimum, limit, report)
        found = self._read_log(wanted, trusted.up_to, limit, report)
        if len(found) >= limit:
            return found

        def read(at: PhysicalOffset) -> StoredMessage | None:
            return self._trusted_record(at, trusted.up_to) if at >= minimum else None

        answer = trusted.files.find(
            wanted.text,
            begin_ms=begin_ms,
            end_ms=end_ms,
            limit=limit - len(found),
            accept=lambda at: wanted.accept(at, read),
        )
        if answer.unread:
            return self._read_log(wanted, minimum, limit, report)
        return found + answer.found

    def _begin_of(self, topic: str) -> PhysicalOffset:
        """Return the offset below which all records of the topic that the log still has were deleted with it."""
        segments = self._store.segments
        if self._store.found.kind is not StoreKind.QUARRY:
            return segments.minimum
        deleted_below = Deletions(self._store.state_engine()).topic_deleted_at(topic)
        return PhysicalOffset(min(max(deleted_below, segments.minimum), segments.end_of_files))

    def _read_log(
        self, wanted: WantedMessages, start: PhysicalOffset, limit: int, report: ReportProgress
    ) -> list[StoredMessage]:
        """Return the newest wanted messages from an offset on, newest first."""
        segments = self._store.segments
        found: deque[StoredMessage] = deque(maxlen=limit)
        if not len(segments):
            return []
        for batch in scan_log(segments, start, check_crc=True):
            found.extend(filter(wanted.matches, _having(batch, wanted.topic, wanted.key.encode())))
            report(Progress(_READING, batch.end - start, segments.end_of_files - start))
            if isinstance(batch.ended_by, Torn | Corrupt) and not self._store.found.has_abort:
                raise StoreDamaged(segments.path_of(batch.end), f"offset {batch.end}: {batch.ended_by.reason}")
        return list(reversed(found))

    def _trusted_record(self, at: PhysicalOffset, up_to: PhysicalOffset) -> StoredMessage | None:
        """Return the record that a file names, unless the log has it no more, or that part of the log
        was read itself.
        """
        if not self._store.minimum <= at < up_to:
            return None
        try:
            record = self._store.decode(at)
        except (OffsetOutOfRange, MessageGivenUp):
            return None
        match record:
            case StoredMessage():
                return record
            case Torn(reason=reason) | Corrupt(reason=reason):
                if self._store.is_replaced(at):
                    return None
                raise StoreDamaged(self._store.file_of(at), f"offset {at}: {reason}")
            case Blank() | EndOfData():
                return None


def _having(batch: RecordBatch, topic: str, text: bytes) -> list[StoredMessage]:
    """Return the records of a topic whose properties contain the text."""
    if topic not in batch.topics:
        return []
    rows = (batch.columns.topic_index == batch.topics.index(topic)).nonzero()[0].tolist()
    return [batch.record(row) for row in rows if text in batch.properties(row)]
