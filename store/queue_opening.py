"""Opening the consume queues of a store where its phase says that they are (`store.queue_phase`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from kv import EngineCorrupt, KeyValueEngine
from store.consumequeue import (
    ConsumeQueueStore,
    DoubleWriteConsumeQueues,
    FileConsumeQueueReader,
    FileConsumeQueues,
    RocksConsumeQueues,
    units_in_files,
)
from store.disk import Disk
from store.dispatch import DenseNumbering, LightQueueNumbering, StoredNumbering
from store.engines import StoreEngines
from store.errors import StoreDamaged
from store.identity import StoreIdentity
from store.kind import FoundStore, StoreKind
from store.offsets import PhysicalOffset
from store.paths import StorePaths
from store.queue_phase import QueuePhase, phase_of
from store.settings import StoreSettings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenQueues:
    """The queues of an open store."""

    phase: QueuePhase
    store: ConsumeQueueStore
    """What is written, read and recovered: one of the two below, or both together."""
    files: FileConsumeQueues | None
    rocks: RocksConsumeQueues | None
    engine: KeyValueEngine | None
    """The database of `rocks`."""
    directory: Path
    """Where most of it lies: its file system is one that can be full."""
    numbering: LightQueueNumbering
    """For records that are read back from the log."""


def open_queues(
    settings: StoreSettings,
    disk: Disk,
    engines: StoreEngines,
    identity: StoreIdentity,
    found: FoundStore,
    *,
    minimum: PhysicalOffset,
    closing: ExitStack,
) -> OpenQueues:
    """Open what there is, make what is missing. `minimum` is where the log begins; `closing` gets what closes it.

    Raises StoreUnusable, kv.KvError, OSError.
    """
    phase = phase_of(identity.queue_phase, found.layout, settings.queue_mode, settings.root)
    if identity.queue_phase != phase.value:
        # before anything is made: what a killed start left would look like another kind of store
        identity.queue_phase = phase.value
    files = rocks = engine = None
    if phase.writes_files:
        files = _open_files(settings, disk, identity, found, minimum)
        closing.callback(files.close)
    if phase.writes_rocksdb:
        with advising(
            found.rocksdb_directory,
            f"all of it can be made again from the log: `quarry recover {settings.root} --rebuild-queues` does so, or "
            "move the directory away and start again",
        ):
            engine = engines.open_queues(found.rocksdb_directory, create=not found.has_rocksdb)
        closing.callback(engine.close)
        rocks = RocksConsumeQueues(
            engine, minimum_physical_offset=minimum, cached_queues_max=settings.cached_queues_max
        )
    store: ConsumeQueueStore
    if files is not None and rocks is not None:
        _begin_double_write(files, rocks, identity, minimum)
        store = DoubleWriteConsumeQueues(files, rocks, read_rocks=phase.reads_rocksdb, assign_rocks=phase.reads_rocksdb)
    else:
        one = files or rocks
        assert one is not None
        store = one
    return OpenQueues(
        phase=phase,
        store=store,
        files=files,
        rocks=rocks,
        engine=engine,
        directory=StorePaths(settings.root).consume_queue if rocks is None else found.rocksdb_directory,
        numbering=_numbering(identity, files, rocks),
    )


def _open_files(
    settings: StoreSettings, disk: Disk, identity: StoreIdentity, found: FoundStore, minimum: PhysicalOffset
) -> FileConsumeQueues:
    directory = StorePaths(settings.root).consume_queue
    units_found = units_in_files(disk, directory)
    if units_found is None and not identity.files_emptied and identity.files_up_to:
        # somebody removed them, or a backup left them out. Before the first is made again: killed in the middle of
        # that, the next start must not take the few that there are for all
        identity.forget_files()
    units_per_file = identity.units_per_file
    if units_per_file is None:
        units_per_file = identity.units_per_file = units_found or settings.units_per_file
    return FileConsumeQueues(
        disk,
        directory,
        minimum_physical_offset=minimum,
        dispatched_up_to=_files_up_to(disk, directory, identity, found),
        save_dispatched=identity.set_files_up_to,
        after_crash=found.has_abort,
        units_per_file=units_per_file,
        cached_queues_max=settings.cached_queues_max,
    )


def _files_up_to(disk: Disk, directory: Path, identity: StoreIdentity, found: FoundStore) -> PhysicalOffset | None:
    """How far the file queues are known to be complete; None: all of the log is to be put again.

    RocketMQ writes a time down, which after a power cut may be ahead of what its files hold. After a clean stop
    they are complete, but for the light queues of a double-write store, which are in RocksDB alone.
    """
    if identity.files_up_to is not None:
        return identity.files_up_to or None
    if found.layout is StoreKind.ROCKETMQ_FILE and found.has_file_queues and not found.has_abort:
        return FileConsumeQueueReader(disk, directory).log_end()
    return None


def _begin_double_write(
    files: FileConsumeQueues, rocks: RocksConsumeQueues, identity: StoreIdentity, minimum: PhysicalOffset
) -> None:
    """From here on both are written. What came before is in the files alone, and left to be brought over in time."""
    since = files.dispatched_up_to()
    if rocks.dispatched_up_to() is not None or since is None:
        return
    identity.backfilled_to = minimum
    identity.backfill_end = since
    rocks.put([], since)
    log.info("double write begins", log_offset=since)


def _numbering(
    identity: StoreIdentity, files: FileConsumeQueues | None, rocks: RocksConsumeQueues | None
) -> LightQueueNumbering:
    """Light queues of file stores are numbered as their readers know them, others as their records say."""
    if files is not None:
        # after a power cut an entry may be there, and one before it not: each has to find its own place
        return DenseNumbering(files, ends_where_stored=False)
    assert rocks is not None
    if identity.origin == StoreKind.ROCKETMQ_FILE.value:
        return DenseNumbering(rocks)
    return StoredNumbering()


@contextmanager
def advising(directory: Path, advice: str) -> Iterator[None]:
    """A damaged database is named together with what can be done about it."""
    try:
        yield
    except EngineCorrupt as error:
        raise StoreDamaged(directory, f"the database is damaged ({error}); {advice}") from error
