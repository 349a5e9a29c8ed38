"""Finding messages by a key in a store that nobody runs: by its index files, and by reading the rest of its log."""

from __future__ import annotations

from collections import deque
from typing import Final

from store.clock import SystemClock
from store.errors import MessageGivenUp, OffsetOutOfRange, StoreDamaged
from store.index.hash_index import HashIndex, index_files
from store.index.hash_keys import HashKeyFiles
from store.index.hash_layout import shape_of
from store.index.opening import shape_in
from store.index.wanted import WantedMessages
from store.offline import OfflineStore
from store.offsets import PhysicalOffset
from store.record import Blank, Corrupt, EndOfData, StoredMessage, Torn
from store.recovery import Progress, ReportProgress
from store.scan import RecordBatch, scan_log
from store.settings import HASH_ITEMS, HASH_SLOTS

_READING: Final = "reading the log behind its index"


class OfflineIndex:
    """What a store's index files tell, and how much of the log they tell of."""

    def __init__(self, store: OfflineStore) -> None:
        """Raises StoreUnusable, OSError."""
        self._store = store
        directory = store.paths.index
        self._files: HashIndex | None = None
        self._trusted_to = store.minimum
        """The files tell of all messages below; those from here on are found by reading the log."""
        if any(each.size for each in index_files(store.disk, directory)):
            shape = shape_in(store.disk, directory, shape_of(HASH_SLOTS, HASH_ITEMS))
            self._files = HashIndex(store.disk, directory, shape, SystemClock(), writable=False)
            newest = self._files.files[-1].header
            # after a crash the newest file may be in disorder
            offset = newest.begin_offset if store.found.has_abort else newest.end_offset
            self._trusted_to = PhysicalOffset(max(offset, store.minimum))

    def find(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int, report: ReportProgress
    ) -> list[StoredMessage]:
        """The newest messages of a topic with a key, stored in [begin_ms, end_ms]; the newest first.

        Raises StoreDamaged, OSError.
        """
        wanted = WantedMessages(topic, key, begin_ms, end_ms)
        found = self._read_log(wanted, limit, report)
        if self._files is not None and len(found) < limit:
            answer = HashKeyFiles(self._files).find(
                wanted.text,
                begin_ms=begin_ms,
                end_ms=end_ms,
                limit=limit - len(found),
                accept=lambda at: wanted.accept(at, self._trusted_record),
            )
            found += answer.found
        return found

    def _read_log(self, wanted: WantedMessages, limit: int, report: ReportProgress) -> list[StoredMessage]:
        """The newest wanted ones that no trusted file tells of, newest first."""
        start, segments = self._trusted_to, self._store.segments
        found: deque[StoredMessage] = deque(maxlen=limit)
        if not len(segments):
            return []
        for batch in scan_log(segments, start, check_crc=True):
            found.extend(filter(wanted.matches, _having(batch, wanted.topic, wanted.key.encode())))
            report(Progress(_READING, batch.end - start, segments.end_of_files - start))
            if isinstance(batch.ended_by, Torn | Corrupt) and not self._store.found.has_abort:
                raise StoreDamaged(segments.path_of(batch.end), f"offset {batch.end}: {batch.ended_by.reason}")
        return list(reversed(found))

    def _trusted_record(self, at: PhysicalOffset) -> StoredMessage | None:
        """The record that a file names, unless the log has it no more, or tells of it itself."""
        if not self._store.minimum <= at < self._trusted_to:
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
    """The records of a topic whose properties have the text somewhere."""
    if topic not in batch.topics:
        return []
    rows = (batch.columns.topic_index == batch.topics.index(topic)).nonzero()[0].tolist()
    return [batch.record(row) for row in rows if text in batch.properties(row)]
