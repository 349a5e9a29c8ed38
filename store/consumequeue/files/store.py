"""Consume queues in files, as RocketMQ's `storeType=default` keeps them.

    consumequeue/<topic>/<queue number>/<20 digits>      units of 20 bytes (layout.py)

The files do not record up to which log offset they are complete, so the caller keeps this watermark. The store receives
it when it opens and hands it back with each `flush`, after the files are durable.

Queues whose names are not valid file names do not exist here; RocketMQ leaves them out, too. They can only be light
queues, since topics have no `/` in their names.

The queue files of a topic are removed in one step that is atomic in a crash: afterwards all of them exist, or none.

    consumequeue/<topic>/           one rename        →  consumequeue/.deleted/topic/
    consumequeue/.deleted/topic/    file after file   →  nothing

If files were removed one by one under their own names, a crash in the middle would leave queues, or files of a queue,
that look like queues with lost data. The folder lies below `consumequeue/`, because that may be a file system of its
own. RocketMQ skips the folder, since `topic` is not a queue number. No topic can have the folder's name, because topic
names contain no dot.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from quarry_mq.kv import EngineFull, EngineStarved, KvError, descriptor_share
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX, is_light_queue
from quarry_mq.store.consumequeue.again import ascends, end_of_stored, put_again
from quarry_mq.store.consumequeue.files.layout import ENTRY, ENTRY_SIZE, entries_in, is_file_name, pack_entries, real
from quarry_mq.store.consumequeue.files.open_files import OpenFiles
from quarry_mq.store.consumequeue.files.queue import FileQueue, FileShape
from quarry_mq.store.consumequeue.files.reader import FileEntryReader, queues_of_topic
from quarry_mq.store.consumequeue.light_queues import LiteParentsStep
from quarry_mq.store.consumequeue.names import LastEntry, LightQueueStep, QueueEnd
from quarry_mq.store.consumequeue.protocol import OneByOne
from quarry_mq.store.consumequeue.rocks_layout import require_no_checkpoint
from quarry_mq.store.consumequeue.search import ColumnRequests, EntryColumns, EntryWindow, count_between, first_at_least
from quarry_mq.store.fs.posix import STARVED
from quarry_mq.store.fs.protocol import Disk
from quarry_mq.store.layout.paths import parse_segment_name
from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.message import (
    ConsumeQueueEntry,
    DispatchRequest,
    PhysicalOffset,
    QueueBounds,
    QueueId,
    QueueOffset,
)

DELETED_NAME: Final = ".deleted"


class TopicRemoval:
    """Removes topics below one `consumequeue/` directory. Methods raise OSError."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._deleted = directory / DELETED_NAME

    def remove(self, topic: str) -> list[Path]:
        """Remove the topic durably and return its removed queue files.

        A folder that contains anything but queue files is refused as a whole (ENOTEMPTY).
        """
        folder = self._directory / topic
        if not self._disk.exists(folder):
            return []
        files = list(self._queue_files(folder))
        self.finish()
        self._disk.make_directories(self._deleted)
        self._disk.move(folder, self._deleted / "topic")
        self.finish()
        return files

    def finish(self) -> None:
        """Remove what has been moved away. Call it at each start: the last run may have stopped before doing so."""
        self._remove_tree(self._deleted)

    def _remove_tree(self, path: Path) -> None:
        for entry in self._disk.list_directory(path):
            if entry.is_directory:
                self._remove_tree(path / entry.name)
            else:
                self._disk.remove(path / entry.name)
        self._disk.remove_directory(path)

    def _queue_files(self, folder: Path) -> Iterator[Path]:
        for queue in self._disk.list_directory(folder):
            if not queue.is_directory or not queue.name.isdecimal():
                raise _not_ours(folder / queue.name)
            for file in self._disk.list_directory(folder / queue.name):
                if file.is_directory or parse_segment_name(file.name) is None:
                    raise _not_ours(folder / queue.name / file.name)
                yield folder / queue.name / file.name


def _not_ours(path: Path) -> OSError:
    return OSError(errno.ENOTEMPTY, "is not a queue file: the topic is not deleted while this file is there", str(path))


FILES_LOOKED_AT: Final = 100
OPEN_FILES_MAX: Final = 512
"""Files kept open; fewer when the process may open few."""

_FULL: Final = {errno.ENOSPC, errno.EDQUOT}

_pack_entry: Final = ENTRY.pack


class SaveDispatched(Protocol):
    """Records durably that the files hold the entries of all records below an offset."""

    def __call__(self, dispatched_up_to: PhysicalOffset, /, *, emptied: bool) -> None:
        """Save the watermark.

        `emptied`: no file is left, because all topics were deleted. Otherwise missing files were taken away by someone
        else.
        """


class FileConsumeQueues(OneByOne):
    """Implements `store.consumequeue.protocol.ConsumeQueueStore` on files. Disk errors are raised as `kv.KvError`, too.

    `open_files_max` bounds descriptors, `cached_queues_max` memory: neither grows with the number of queues. A store
    keeps the file size that it was made with, which `entries_in_files` returns. `after_crash`: the last stop was
    unclean. Threads: as with `RocksConsumeQueues`.
    """

    may_hold_more = True
    """Files record no max offset: a queue ends after the last entry found in its files."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        minimum_physical_offset: PhysicalOffset,
        dispatched_up_to: PhysicalOffset | None,
        save_dispatched: SaveDispatched,
        after_crash: bool,
        units_per_file: int,
        cached_queues_max: int = 65_536,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._minimum = minimum_physical_offset
        self._dispatched_up_to = dispatched_up_to
        self._save_dispatched = save_dispatched
        self._saved_up_to = dispatched_up_to
        self._may_have_emptied = True  # as those of the last run may have been
        self._files = OpenFiles(disk, open_max=descriptor_share(open_files_max))
        self._cache: LruCache[tuple[str, int], FileQueue] = LruCache(max(1, cached_queues_max // 2))
        # without a watermark everything is put again, so no file has to be complete
        short_from = (dispatched_up_to or PhysicalOffset(0)) if after_crash or dispatched_up_to is None else None
        self._shape = FileShape(units_per_file * ENTRY_SIZE, short_from)
        self._removal = TopicRemoval(disk, directory)
        with _named_errors():
            disk.make_directories(directory)
            if short_from is not None:
                # changes of the last process may be in the page cache alone: an entry that it removed, and that looks
                # removed now, would be back after a power cut, and point at whatever was written there since
                disk.sync_file_system(directory)
            self._removal.finish()

    # -- writing

    def put(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        """Store the entries repeatably, not atomically: until a flush saves the watermark, a start puts all again."""
        self.put_missing(requests)
        self._dispatched_up_to = dispatched_up_to

    def put_missing(self, requests: Sequence[DispatchRequest]) -> None:
        entries = _columns_by_queue(requests.entries) if isinstance(requests, ColumnRequests) else _by_queue(requests)
        with _named_errors():
            for queue, by_offset in entries.items():
                self._write(queue, by_offset)

    def put_window(self, queue: QueueId, entries: EntryWindow) -> None:
        """Do the same as `put_missing` for ascending entries of one queue."""
        with _named_errors():
            known = self._find(queue)
            if known is None or not len(entries):
                return
            packed = pack_entries(entries)
            begins = [0, *(np.flatnonzero(np.diff(entries.queue_offset) != 1) + 1).tolist()]
            for begin, end in zip(begins, [*begins[1:], len(packed)], strict=True):
                known.write(int(entries.queue_offset[begin]), b"".join(packed[begin:end]))

    def reserve(self, queue: QueueId, next_offset: QueueOffset) -> None:
        """Write filler before `next_offset`."""
        with _named_errors():
            known = self._find(queue)
            if known is not None and known.maximum < next_offset:
                known.reserve(next_offset)

    def remove_lost_entries(self, queue: QueueId, end: QueueOffset) -> None:
        """Do nothing: files are truncated after each crash, see `may_hold_more`."""

    def put_again(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        if isinstance(requests, ColumnRequests) and self._ascend(requests.entries):
            self.put(requests, dispatched_up_to)
        else:
            put_again(self, list(requests), dispatched_up_to)

    def _ascend(self, entries: EntryColumns) -> bool:
        return ascends(entries, lambda index, *place: self.end_for(entries.queues[index], *place))

    def end_for(self, queue: QueueId, offset: QueueOffset, at: PhysicalOffset) -> QueueOffset | None:
        """Implement `RestartableQueues.end_for`, see `store.consumequeue.again`."""
        with _named_errors():
            known = self._find(queue)
            if known is None:
                return None
            return end_of_stored(self, queue, offset, at, maximum=known.maximum, last_physical=known.last_physical)

    def restart_at(self, queue: QueueId, offset: QueueOffset) -> None:
        """Implement `RestartableQueues.restart_at`, see `store.consumequeue.again`."""
        with _named_errors():
            known = self._find(queue)
            if known is not None and offset > (known.firsts[0] if known.firsts else 0):
                known.truncate(offset)
            elif known is not None:
                known.remove()
                self._cache.discard(queue)

    def _write(self, queue: QueueId, by_offset: dict[int, bytes]) -> None:
        """Write the entries of a queue, each run of consecutive offsets in one call."""
        known = self._find(queue)
        if known is None:
            return
        start = end = next(iter(by_offset))
        stretch: list[bytes] = []
        for offset, entry in by_offset.items():
            if offset != end:
                known.write(start, b"".join(stretch))
                start = end = offset
                stretch.clear()
            stretch.append(entry)
            end += 1
        known.write(start, b"".join(stretch))

    # -- reading

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def units_per_file(self) -> int:
        return self._shape.size // ENTRY_SIZE

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        with _named_errors():
            known = self._find(queue)
            if known is None:
                return []
            return known.read(max(start, self._first_offset(known)), limit)

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None:
        """Return the entry with the largest physical offset below `at`; None when the queue has none in the log."""
        with _named_errors():
            known = self._find(queue)
            if known is None:
                return None
            first = self._first_offset(known)
            end = first_at_least(known.entry_at_or_after, first, known.maximum, at)
            entry = known.entry_before(known.maximum if end is None else end.queue_offset)
        return None if entry is None or entry.queue_offset < first else entry

    def ends(self, topic: str, after: int, limit: int) -> list[QueueEnd]:
        with _named_errors():
            numbers = sorted(each.number for each in self.queues(topic) if each.number > after)
        return [QueueEnd(each, self.last_physical(QueueId(topic, each))) for each in numbers[:limit]]

    def unread_below(self, queue: QueueId, start: QueueOffset, at: PhysicalOffset) -> int:
        if not is_file_name(queue.topic):
            return 0
        # runs on any thread, so it opens files and reads the queue for itself
        files = OpenFiles(self._disk, open_max=2)
        try:
            with _named_errors():
                known = FileQueue(self._disk, files, self._path(queue), self._shape._replace(is_shared=True))
                begin = max(start, known.firsts[0] if known.firsts else 0)
                return count_between(known.entry_at_or_after, begin, known.maximum, self._minimum, at)
        finally:
            files.close()

    def bounds(self, queue: QueueId) -> QueueBounds:
        with _named_errors():
            known = self._find(queue)
            first, maximum = (0, 0) if known is None else (self._first_offset(known), known.maximum)
            return QueueBounds(QueueOffset(first), QueueOffset(maximum))

    def next_offset(self, queue: QueueId) -> QueueOffset:
        with _named_errors():
            return QueueOffset(0 if (known := self._find(queue)) is None else known.maximum)

    def last_physical(self, queue: QueueId) -> PhysicalOffset:
        """Return where the record of the queue's last entry lies, even if it has expired; 0 when there is no entry."""
        with _named_errors():
            known = self._find(queue)
            return PhysicalOffset(0) if known is None else known.last_physical

    def dispatched_up_to(self) -> PhysicalOffset | None:
        return self._dispatched_up_to

    def may_have(self, topic: str) -> bool:
        return is_file_name(topic)

    def queues(self, topic: str | None = None) -> Iterator[QueueId]:
        names = self._topics() if topic is None else [topic] if is_file_name(topic) else []
        for name in names:
            yield from self._queues_of(name)

    def entry_reader(self) -> FileEntryReader:
        """Return a reader of all queues for use on another thread."""
        return FileEntryReader(self._disk, self._directory, self._shape, self.queues)

    # -- changes of many queues

    def topics_after(self, after: str, limit: int) -> list[str]:
        with _named_errors():
            topics = self._topics()
        return [each for each in topics if topic_order(each) > topic_order(after) and not is_light_queue(each)][:limit]

    def light_queues_ended(
        self,
        below: PhysicalOffset,  # noqa: ARG002
        key: bytes,  # noqa: ARG002
        prefix: str = LIGHT_QUEUE_PREFIX,  # noqa: ARG002
    ) -> LightQueueStep:
        return LightQueueStep([], 0, None)

    def lite_parents(self, key: bytes) -> LiteParentsStep:  # noqa: ARG002
        return LiteParentsStep([], None)

    def last_times_ms(self, found: Sequence[LastEntry]) -> list[int | None]:
        return [None] * len(found)

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]:  # noqa: ARG002
        return []

    def remove_ended(self, found: Sequence[LastEntry]) -> None:
        if found:
            raise ValueError("light queues in files are not removed one by one")

    def delete_topic(self, topic: str) -> None:
        require_no_checkpoint(topic)
        if not is_file_name(topic):
            return
        with _named_errors():
            if self._saved_up_to is not None and entries_in_files(self._disk, self._directory, without=topic) is None:
                # before the files go: a start that finds none must not assume them stolen and put all of the log again
                self._save_dispatched(self._saved_up_to, emptied=True)
            removed = self._removal.remove(topic)
        # only now: a deletion that was refused leaves all files to be flushed
        for file in removed:
            self._files.evict(file.parent, int(file.name) // ENTRY_SIZE)
            self._cache.discard(QueueId(topic, int(file.parent.name)))
        self._may_have_emptied = True

    def truncate(self, end: PhysicalOffset) -> None:
        """Remove all entries at or above `end`, durably when it returns; the watermark falls last.

        Also removes entries that a power cut left after a gap, and files of which a power cut left only the name: after
        a clean stop these would be taken for damaged.
        """
        with _named_errors():
            for queue, known in self._with_files():
                self._truncate_queue(queue, known, end)
        if self._dispatched_up_to is not None:
            self._dispatched_up_to = min(self._dispatched_up_to, end)
        self.flush()

    def _truncate_queue(self, queue: QueueId, known: FileQueue, end: PhysicalOffset) -> None:
        kept = known.end_below(end)
        if kept == known.maximum and (kept > 0 or not known.firsts):
            return
        if kept == 0:
            known.remove()  # the whole queue lies above `end`
            self._cache.discard(queue)
            self._may_have_emptied = True
        else:
            known.truncate(kept)

    def remove_unflushed(self) -> None:
        """Remove the entries above the watermark after a crash; all of them will be put again.

        Some may be torn or missing, and offsets in a light queue continue from its stored entries. The files stay,
        since most of them are needed at once. Not durable: until the next flush another crash leaves no more than this
        one.
        """
        if (end := self._dispatched_up_to) is None:
            return
        with _named_errors():
            for _, known in self._with_files():
                if (kept := known.end_below(end)) < known.maximum:
                    known.truncate(kept)

    def _with_files(self) -> Iterator[tuple[QueueId, FileQueue]]:
        for topic in self._topics():
            for queue, files in queues_of_topic(self._disk, self._directory, topic):
                known = self._find(queue) if files else None
                if known is not None:
                    yield queue, known

    def with_expired_files(self, minimum: PhysicalOffset) -> Iterator[QueueId | None]:
        """Yield queues that seem to have a file to remove, and None for every other one. May run on another thread.

        Only the last entry of the first file is checked here; `remove_expired` checks the rest.
        """
        with _named_errors():
            for topic in self._disk.list_directory(self._directory):
                if not topic.is_directory:
                    continue
                for queue, files in queues_of_topic(self._disk, self._directory, topic.name):
                    seems = len(files) > 1 and self._seems_expired(self._path(queue) / files[0].name, minimum)
                    yield queue if seems else None

    def _seems_expired(self, path: Path, minimum: PhysicalOffset) -> bool:
        try:
            file = self._disk.open_sparse(path)
        except FileNotFoundError:
            return False
        try:
            last = entries_in(memoryview(file.read(self._shape.size - ENTRY_SIZE, ENTRY_SIZE)))
        finally:
            file.close()
        return not bool(np.any(real(last) & (last["physical_offset"] >= minimum)))

    def remove_expired(self, queue: QueueId, minimum: PhysicalOffset, *, files_max: int) -> tuple[int, int]:
        """Remove leading files that hold nothing at or above `minimum`, never the last one.

        Returns how many files were removed, and how many entries with them at most.
        """
        with _named_errors():
            known = self._find(queue)
            if known is None or not known.firsts:
                return 0, 0
            removed = known.remove_before(minimum, files_max)
        return removed, removed * self._shape.size // ENTRY_SIZE

    @property
    def minimum_physical_offset(self) -> PhysicalOffset:
        """The log's min offset, as last set."""
        return self._minimum

    def set_minimum_physical_offset(self, minimum: PhysicalOffset) -> None:
        if minimum < self._minimum:
            self._cache.rotate()
            self._cache.rotate()
        self._minimum = minimum

    # -- life

    def flush_entries(self) -> None:
        """Flush the files: the long part of a flush. May run beside puts."""
        with _named_errors():
            self._files.flush()

    def flush(self) -> None:
        self.flush_entries()
        if self._dispatched_up_to is None:
            return
        if self._may_have_emptied:
            with _named_errors():
                self._may_have_emptied = entries_in_files(self._disk, self._directory) is None
        self._save_dispatched(self._dispatched_up_to, emptied=self._may_have_emptied)
        self._saved_up_to = self._dispatched_up_to

    def close(self) -> None:
        self._files.close()

    # -- inside

    def _find(self, queue: QueueId) -> FileQueue | None:
        """Return the queue, opening it if necessary; None for a name that can have no queue files."""
        known = self._cache.get(queue)
        if known is not None:
            return known
        require_no_checkpoint(queue.topic)
        if not is_file_name(queue.topic):
            return None
        known = FileQueue(self._disk, self._files, self._path(queue), self._shape)
        if self._cache.is_full:
            self._cache.rotate()
        self._cache.put(queue, known)
        return known

    def _path(self, queue: QueueId) -> Path:
        return self._directory / queue.topic / str(queue.number)

    def _first_offset(self, known: FileQueue) -> int:
        """Return the offset of the first entry whose record the log still has, else the max offset (an empty queue)."""
        if known.first is not None and known.first.physical_offset >= self._minimum:
            return known.first.queue_offset
        if not known.firsts or known.last_physical < self._minimum:
            return known.maximum
        begin = known.firsts[0] if known.first is None else known.first.queue_offset
        known.first = first_at_least(known.entry_at_or_after, begin, known.maximum, self._minimum)
        return known.maximum if known.first is None else known.first.queue_offset

    def _topics(self) -> list[str]:
        found = [each.name for each in self._disk.list_directory(self._directory) if each.is_directory]
        return sorted((each for each in found if each != DELETED_NAME), key=topic_order)

    def _queues_of(self, topic: str) -> Iterator[QueueId]:
        """Yield the queues with a file: a crash in the middle of a deletion leaves an empty directory."""
        for queue, files in queues_of_topic(self._disk, self._directory, topic):
            if any(each.size for each in files):
                yield queue


def entries_in_files(disk: Disk, directory: Path, *, without: str = "") -> int | None:
    """Return how many entries the queue files below `directory` hold; None when there are none. Raises OSError.

    It is the largest number found in a few files: after a crash some may be shorter. The topic `without` is skipped.
    """
    sizes = list(islice(_file_sizes(disk, directory, without), FILES_LOOKED_AT))
    return max(sizes) // ENTRY_SIZE if sizes else None


def _file_sizes(disk: Disk, directory: Path, without: str) -> Iterator[int]:
    for topic in disk.list_directory(directory):
        if topic.is_directory and topic.name != without:
            for _, files in queues_of_topic(disk, directory, topic.name):
                yield from (each.size for each in files if each.size >= ENTRY_SIZE)


def topic_order(topic: str) -> tuple[int, bytes]:
    """Return the sort key of topics in RocksDB, and so in every listing: by length, then bytewise."""
    name = topic.encode()
    return len(name), name


@contextmanager
def _named_errors() -> Iterator[None]:
    """Translate disk errors into the errors that callers of any consume queue store expect."""
    try:
        yield
    except OSError as error:
        kind = EngineStarved if error.errno in STARVED else EngineFull if error.errno in _FULL else KvError
        raise kind(f"{error.filename}: {error.strerror or error}") from error


def _by_queue(requests: Sequence[DispatchRequest]) -> dict[QueueId, dict[int, bytes]]:
    """Return the stored entries of each queue by index, in log order."""
    entries: dict[QueueId, dict[int, bytes]] = {}
    for topic, number, queue_offset, physical_offset, size, tags_code, _, _, _, light_queues in requests:
        entry = _pack_entry(physical_offset, size, tags_code)
        entries.setdefault(QueueId(topic, number), {})[queue_offset] = entry
        for name, light_offset in light_queues:
            entries.setdefault(QueueId(name, 0), {})[light_offset] = entry
    return entries


def _columns_by_queue(entries: EntryColumns) -> dict[QueueId, dict[int, bytes]]:
    """Do the same as `_by_queue` for columns."""
    return {
        queue: dict(zip(own.queue_offset.tolist(), pack_entries(own), strict=True)) for queue, own in entries.by_queue()
    }
