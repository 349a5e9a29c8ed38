"""What of a store lies on disk, open: the log's segments and the two databases."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kv import KeyValueEngine
from store.clock import Clock
from store.commitlog import SegmentList
from store.disk import Disk
from store.durable_state import DurableState
from store.engines import StoreEngines
from store.errors import NotAStore, StoreUnusable
from store.identity import StoreIdentity, check_format
from store.kind import FoundStore, StoreKind
from store.open_queues import OpenQueues
from store.paths import StorePaths
from store.queue_opening import advising, open_queues
from store.settings import StoreSettings
from store.verdict import Stop

STATE_ADVICE: Final = (
    "it holds topics, groups and their positions, but no message: restore it, or move the directory away and start "
    "without them"
)


@dataclass(frozen=True, slots=True)
class StoreParts:
    """Opened together, recovered together."""

    segments: SegmentList
    state_engine: KeyValueEngine
    identity: StoreIdentity
    queues: OpenQueues


def open_parts(
    settings: StoreSettings,
    disk: Disk,
    engines: StoreEngines,
    found: FoundStore,
    *,
    clock: Clock,
    closing: ExitStack,
) -> StoreParts:
    """Open what was found, make what is missing; `closing` gets what closes it. The lock is ours.

    Raises StoreUnusable, kv.KvError, OSError.
    """
    directory = StorePaths(settings.root).quarry
    look_at_state(engines, directory, disk, found)  # before anything is made that a newer version knows nothing of
    segments = _open_segments(settings, disk)
    closing.callback(segments.close)
    state_engine, identity = _open_identity(engines, directory, disk, found)
    closing.callback(state_engine.close)
    queues = open_queues(
        settings, disk, engines, identity, found, minimum=segments.minimum, state_engine=state_engine, clock=clock
    )
    closing.callback(queues.close)
    return StoreParts(segments, state_engine, identity, queues)


def open_identity(
    engines: StoreEngines, directory: Path, disk: Disk, found: FoundStore
) -> tuple[KeyValueEngine, StoreIdentity]:
    """The database in `quarry/`, and the rows in which it says what the store was when Quarry met it.

    Raises NotAStore for one that a newer Quarry wrote, StoreUnusable, kv.KvError.
    """
    look_at_state(engines, directory, disk, found)
    return _open_identity(engines, directory, disk, found)


def look_at_state(engines: StoreEngines, directory: Path, disk: Disk, found: FoundStore) -> None:
    """Refuse what must not be opened for writing, without a change to it: RocksDB removes what it cannot read.

    Raises as `open_identity`.
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
    engines: StoreEngines, directory: Path, disk: Disk, found: FoundStore
) -> tuple[KeyValueEngine, StoreIdentity]:
    with advising(directory, STATE_ADVICE):
        engine = engines.open_state(directory, create=found.kind is not StoreKind.QUARRY)
    try:
        DurableState(disk, directory, engine).check()
        identity = StoreIdentity(engine, directory)
        if identity.origin is None:
            # before the queues' database is made: it would make a file store look like double write
            identity.origin = found.layout.value
    except BaseException:
        engine.close()
        raise
    return engine, identity


def stop_of(found: FoundStore) -> Stop:
    return Stop.UNCLEAN if found.has_abort else Stop.CLEAN


def _open_segments(settings: StoreSettings, disk: Disk) -> SegmentList:
    """The log of the store. A store keeps the segment size it was made with."""
    directory, mapped_max = StorePaths(settings.root).commit_log, settings.mapped_segments_max
    disk.make_directories(directory)
    try:
        return SegmentList(disk, directory, None, mapped_max=mapped_max)
    except NotAStore:
        segment_size = settings.segment_size
    free_bytes = disk.free_bytes(directory)
    if free_bytes is not None and free_bytes < segment_size:
        # there is nothing to receive either
        raise StoreUnusable(
            directory,
            f"the first segment needs {segment_size} bytes, the file system has {free_bytes} left: make room, or "
            "choose a smaller store.segment_size",
        )
    return SegmentList(disk, directory, segment_size, mapped_max=mapped_max)
