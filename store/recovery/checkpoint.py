"""The module writes down how far the log is durable: for the next start of Quarry, and for RocketMQ's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol

from quarry_mq.kv import KvError
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.consumequeue import FileConsumeQueueReader
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import FoundStore
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.rocketmq import TIME_MARGIN_MS, UNKNOWN, Checkpoint, decode_checkpoint, encode_checkpoint
from quarry_mq.store.state.identity import DurableState, StoreIdentity


class DurableLog(Protocol):
    """The protocol is the part of a message store that the checkpoint needs."""

    @property
    def flushed_up_to(self) -> PhysicalOffset: ...

    @property
    def flushed_stored_ms(self) -> int:
        """Return the store time of the newest record below `flushed_up_to`, or of an older one."""


def read_checkpoint(disk: Disk, path: Path) -> Checkpoint:
    """Return the contents of the checkpoint file; without a file, all fields are unknown."""
    try:
        return decode_checkpoint(disk.read(path))
    except FileNotFoundError:
        return Checkpoint()


def taken_over(found: Checkpoint, *, clean_shutdown: bool) -> Checkpoint:
    """Return the fields of a checkpoint that stay true while Quarry runs on the store.

    Quarry leaves file queues and index files as they are, so RocketMQ has to continue where these end. After an unclean
    stop the fields of the file queues are useless: RocketMQ before 5.5 advances them when an entry is written, not when
    it is flushed, so a power cut leaves them ahead of the files and the entries between are never made again.
    """
    return found if clean_shutdown else replace(found, file_queues_ms=0, file_queues_up_to=UNKNOWN)


class Known(NamedTuple):
    """The object holds what Quarry's own rows say about the log, if there are any."""

    flushed_up_to: PhysicalOffset | None
    was_recovered: bool
    """True if Quarry has opened the store before."""


def known_of(identity: StoreIdentity) -> Known:
    return Known(identity.flushed_up_to, identity.log_begin is not None)


def durable_offset(
    disk: Disk, paths: StorePaths, segments: SegmentList, found: FoundStore, known: Known
) -> PhysicalOffset:
    """Return an offset below which the log must be whole.

    It is the highest offset known from Quarry's own row and from what RocketMQ left, which may have run on the store
    since. RocketMQ writes down a time, not an offset. As long as Quarry has not recovered the store once, two more
    facts are known: a clean stop leaves RocketMQ's queue files complete; and RocketMQ flushes every half second, so a
    power cut takes nothing from the last segment but one.
    """
    flushed_ms = read_checkpoint(disk, paths.checkpoint).log_flushed_ms
    durable = max(
        known.flushed_up_to or segments.minimum,
        durable_segments(segments, flushed_ms=flushed_ms, last_but_one=not known.was_recovered),
    )
    if not known.was_recovered and found.has_file_queues and not found.has_abort:
        durable = max(durable, FileConsumeQueueReader(disk, paths.consume_queue).log_end())
    return durable


def durable_segments(segments: SegmentList, *, flushed_ms: int, last_but_one: bool) -> PhysicalOffset:
    """Return the beginning of a segment below which everything was flushed, whatever a power cut took.

    `flushed_ms` is the store time in the checkpoint: a segment whose first record is older by some margin was begun
    when everything before it was flushed. With `last_but_one` the result is at least the beginning of the last segment
    but one that begins with a record.
    """
    if not flushed_ms and not last_but_one:
        return segments.minimum
    # a separate list: what recovery is to read again must not stay mapped
    probed = SegmentList(segments.disk, segments.directory, segments.segment_size, writable=False)
    try:
        reader = CommitLogReader(probed)
        for base in reversed(probed.bases):
            first = reader.decode(base, check_crc=True)
            if not isinstance(first, StoredMessage):
                continue
            if first.store_timestamp_ms <= flushed_ms - TIME_MARGIN_MS:
                return base
            if last_but_one:
                return PhysicalOffset(max(base - segments.segment_size, segments.minimum))
    finally:
        probed.close()
    return segments.minimum


class StoreCheckpoint:
    """The checkpoint keeps two places up to date, never ahead of the flushed offset: the row in `store.state.identity`
    and the file `checkpoint`.

    It also keeps how many changes of `quarry/` are durable (`store.state.identity`).

    Damage below the row refuses the next start, so the more recent the row, the less can be lost unnoticed. Any thread
    may call `save`.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        identity: StoreIdentity,
        state: DurableState,
        log: DurableLog,
        *,
        before: Checkpoint,
        index_full_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """Make a checkpoint; `before` holds the fields that are not about the log and do not change.

        `index_full_ms` returns the last store time in RocketMQ's index files that are full and durable, 0 where these
        are not maintained.
        """
        self._index_full_ms = index_full_ms
        self._disk = disk
        self._path = path
        self._identity = identity
        self._state = state
        self._log = log
        self._before = before
        self._saved: Checkpoint | None = None  # guarded by _lock
        self._saved_changes = -1  # guarded by _lock
        self._closed = False  # guarded by _lock
        self._lock = Lock()

    def save(self) -> None:
        """Write down what is durable now, unless nothing has changed since the last time. Raises
        OSError, kv.KvError.
        """
        with self._lock:
            if not self._closed:
                self._save()

    def save_if_possible(self) -> None:
        """Save, and ignore errors: `save` is tried again each second, and that call reports its error."""
        with suppress(OSError, KvError):
            self.save()

    def close(self) -> None:
        """Save a last time. Later calls of `save` do nothing: the database is about to be closed."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._save()

    def _save(self) -> None:
        # the time first: a flush in between makes the offset later, never the time later than the offset
        flushed_ms = self._log.flushed_stored_ms
        flushed_up_to = self._log.flushed_up_to
        now = replace(
            self._before,
            log_flushed_ms=flushed_ms,
            index_ms=max(self._before.index_ms, self._index_full_ms()),
            master_flushed_up_to=min(self._before.master_flushed_up_to, flushed_up_to),
            confirmed_up_to=flushed_up_to,
        )
        changes = self._state.changes
        if now == self._saved and changes == self._saved_changes:
            return
        self._identity.flushed_up_to = flushed_up_to  # synchronous: makes all changes before it durable, too
        self._state.save(changes)
        self._saved_changes = changes + 1
        if now == self._saved:
            return
        self._disk.replace_atomically(self._path, encode_checkpoint(now))
        self._saved = now
