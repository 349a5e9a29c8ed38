"""The module finds messages by a key in a stopped store: by its index files, and by reading the rest of its log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.progress import Progress, ReportProgress
from quarry_mq.store.errors import MessageGivenUp, NotAStore, OffsetOutOfRange, StoreDamaged, StoreLocked, StoreUnusable
from quarry_mq.store.fs import Disk
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
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.offline.store import OfflineStore
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.record import Blank, Corrupt, EndOfData, StoredMessage, Torn
from quarry_mq.store.scan import RecordBatch, scan_log
from quarry_mq.store.settings import HASH_ITEMS, HASH_SLOTS, IndexSettings
from quarry_mq.store.state.deleted_topics import DeletedTopics
from quarry_mq.store.state.families import META

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
        deleted_below = DeletedTopics(self._store.state_engine()).below(topic)
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
