"""The module opens the parts of a store that lie on disk: the log's segments and the two databases."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from quarry_mq.kv import KeyValueEngine
from quarry_mq.kv.recording import RecordingEngine
from quarry_mq.protocol.clock import Clock
from quarry_mq.store.commitlog import CommitLogReader, KeptSize, SegmentList
from quarry_mq.store.engines import StoreEngines
from quarry_mq.store.errors import NotAStore, StoreDamaged, StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import FoundStore, StoreKind
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.migration.open_queues import OpenQueues
from quarry_mq.store.opening.queues import advising, open_queues
from quarry_mq.store.record import Blank, Decoded, StoredMessage, reaches_over_end
from quarry_mq.store.recovery.verdict import Stop
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.identity import DurableState, StoreIdentity, check_format
from quarry_mq.store.state.state_log import NO_CURSOR, StateLog, delete_cursor, read_cursor

log = structlog.get_logger(__name__)

STATE_ADVICE: Final = (
    "it contains topics, groups and their positions, but no messages: restore the store, or move the directory away "
    "to start without them"
)


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of a store are opened together and recovered together."""

    disk: Disk
    segments: SegmentList
    state_engine: KeyValueEngine
    identity: StoreIdentity
    queues: OpenQueues
    state_log: StateLog | None
    """The changes of `quarry/` for copies of the store; None if the store has no copies."""


def open_parts(
    settings: StoreSettings,
    disk: Disk,
    engines: StoreEngines,
    found: FoundStore,
    *,
    clock: Clock,
    closing: ExitStack,
    origin: StoreKind | None = None,
) -> StoreParts:
    """Open what was found and make what is missing; `closing` gets the callbacks that close it. The lock must be held.

    `origin` is the kind of the store whose log this one continues; None if it continues its own.

    Raises StoreUnusable, kv.KvError, OSError.
    """
    directory = StorePaths(settings.root).quarry
    look_at_state(engines, directory, disk, found)  # before anything is made that a newer version might not expect
    segments = _open_segments(settings, disk)
    closing.callback(segments.close)
    state_engine, identity = _open_identity(engines, directory, disk, found, origin)
    closing.callback(state_engine.close)
    state_log = None
    if settings.has_copies:
        state_log = StateLog(state_engine)
        state_engine = RecordingEngine(state_engine, state_log)
        identity = StoreIdentity(state_engine, directory)
    elif origin is None and read_cursor(state_engine) != NO_CURSOR:
        delete_cursor(state_engine)  # what is written now is in no batch: copies take all rows afterwards
    queues = open_queues(
        settings, disk, engines, identity, found, minimum=segments.minimum, state_engine=state_engine, clock=clock
    )
    closing.callback(queues.close)
    return StoreParts(disk, segments, state_engine, identity, queues, state_log)


def open_identity(
    engines: StoreEngines, directory: Path, disk: Disk, found: FoundStore
) -> tuple[KeyValueEngine, StoreIdentity]:
    """Open the database in `quarry/`, and the rows that say what the store was when Quarry first opened it.

    Raises NotAStore for a database that a newer Quarry wrote, StoreUnusable, kv.KvError.
    """
    look_at_state(engines, directory, disk, found)
    return _open_identity(engines, directory, disk, found)


def look_at_state(engines: StoreEngines, directory: Path, disk: Disk, found: FoundStore) -> None:
    """Refuse a state database that must not be opened for writing, without changing it: RocksDB removes what it cannot
    read.

    Raises what `open_identity` raises.
    """
    if found.kind is not StoreKind.QUARRY:
        return
    with advising(directory, STATE_ADVICE):
        engine = engines.open_state(directory, create=False, read_only=True)
        try:
            check_format(engine, directory)
            if found.has_abort:
                DurableState(disk, directory, engine).check()
        finally:
            engine.close()


def _open_identity(
    engines: StoreEngines, directory: Path, disk: Disk, found: FoundStore, origin: StoreKind | None = None
) -> tuple[KeyValueEngine, StoreIdentity]:
    with advising(directory, STATE_ADVICE):
        engine = engines.open_state(directory, create=found.kind is not StoreKind.QUARRY)
    try:
        DurableState(disk, directory, engine).check()
        identity = StoreIdentity(engine, directory)
        if identity.origin is None:
            # before the queues' database is made: with it, a file store would look like double write
            identity.origin = (origin or found.layout).value
    except BaseException:
        engine.close()
        raise
    return engine, identity


def stop_of(found: FoundStore) -> Stop:
    return Stop.UNCLEAN if found.has_abort else Stop.CLEAN


def _open_segments(settings: StoreSettings, disk: Disk) -> SegmentList:
    """Open the log of the store. A store keeps the segment size it was made with."""
    paths, mapped_max = StorePaths(settings.root), settings.mapped_segments_max
    directory, kept_size = paths.commit_log, KeptSize(disk, paths.quarry)
    disk.make_directories(directory)
    try:
        segments = SegmentList(disk, directory, None, mapped_max=mapped_max, kept_size=kept_size)
        if segments.is_size_guessed and segments.segment_size != settings.segment_size:
            _check_guess(segments, settings.segment_size)
        return segments
    except NotAStore:
        segment_size = settings.segment_size
    free_bytes = disk.free_bytes(directory)
    if free_bytes is not None and free_bytes < segment_size:
        # the store is new, so there is nothing to receive either
        raise StoreUnusable(
            directory,
            f"the first segment needs {segment_size} bytes, but the file system has only {free_bytes} free: make "
            "space, or choose a smaller store.segment_size",
        )
    return SegmentList(disk, directory, segment_size, mapped_max=mapped_max, kept_size=kept_size)


def _check_guess(segments: SegmentList, configured_size: int) -> None:
    """Raise StoreDamaged if the only segment ends in the middle of a record, as a segment does that was cut.

    Later starts need no guess: the size is written down once the store is open.
    """
    path, at = segments.path_of(segments.minimum), segments.minimum
    # a separate list: what recovery is to read again must not stay mapped
    probed = SegmentList(segments.disk, segments.directory, segments.segment_size, writable=False)
    try:
        last: Decoded | None = None
        for last in CommitLogReader(probed).scan(at, check_crc=False):
            at = PhysicalOffset(at + last.size) if isinstance(last, StoredMessage) else at
        rest = probed.segment_at(segments.minimum).view()[at - segments.minimum :]
        if not isinstance(last, Blank) and reaches_over_end(rest):
            raise StoreDamaged(
                path,
                f"the only segment has {segments.segment_size} bytes and ends in the middle of a record, at {at}: the "
                f"file was truncated. store.segment_size says {configured_size}: fill the file up with zeros "
                "(`truncate -s SIZE FILE`) to go on without the lost messages",
            )
    finally:
        probed.close()
    log.warning(
        "the only segment has another size than the settings: the log goes on with it",
        path=str(path),
        size_bytes=segments.segment_size,
        configured_bytes=configured_size,
    )
