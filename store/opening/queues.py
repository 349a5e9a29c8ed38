"""The module opens the consume queues of a store in the place that its phase gives (`store.layout.queue_phase`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog

from quarry_mq.kv import EngineCorrupt, KeyValueEngine
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.store.consumequeue import (
    ConsumeQueueStore,
    FileConsumeQueueReader,
    FileConsumeQueues,
    RocksConsumeQueues,
    entries_in_files,
)
from quarry_mq.store.consumequeue.dispatch import DenseAssignment, OffsetAssignment, StoredAssignment
from quarry_mq.store.engines import StoreEngines
from quarry_mq.store.errors import Invalid, StoreDamaged, StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import FoundStore, StoreKind, inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueuePhase, doubled_topics, parse_phase, phase_of
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.metadata import QUEUES_MAX, READ_WRITE, Topic, TopicTable, TopicType
from quarry_mq.store.migration import MigrationRows, MigrationStep, Removing, delete_gone_queues, remove_database
from quarry_mq.store.migration.open_queues import OpenQueues
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.identity import StoreIdentity

log = structlog.get_logger(__name__)


def open_queues(
    settings: StoreSettings,
    disk: Disk,
    engines: StoreEngines,
    identity: StoreIdentity,
    found: FoundStore,
    *,
    minimum: PhysicalOffset,
    state_engine: KeyValueEngine,
    clock: Clock,
) -> OpenQueues:
    """Open the queues that exist and make those that are missing. `minimum` is where the log begins.

    Raises StoreUnusable, kv.KvError, OSError.
    """
    rows = MigrationRows(state_engine)
    opening = _QueueOpening(settings, disk, engines, identity, rows, minimum=minimum, now_ms=clock.wall_ms())
    return opening.run(found)


class _QueueOpening:
    """The object runs the steps of opening the queues once."""

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        engines: StoreEngines,
        identity: StoreIdentity,
        rows: MigrationRows,
        *,
        minimum: PhysicalOffset,
        now_ms: int,
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._engines = engines
        self._identity = identity
        self._rows = rows
        self._minimum = minimum
        self._now_ms = now_ms
        self._directory = StorePaths(settings.root).consume_queue

    def run(self, found: FoundStore) -> OpenQueues:
        settings = self._settings
        phase = self._phase(found)
        if self._rows.removing() is Removing.ROCKSDB:
            remove_database(self._disk, found.rocksdb_directory)
            self._rows.removed()
            found = inspect_store(self._disk, settings.root)
        files = rocks = engine = None
        with ExitStack() as on_failure:
            if phase.writes_files:
                files = self._open_files(found)
                on_failure.callback(files.close)
            if phase.writes_rocksdb:
                engine = self._open_engine(found)
                on_failure.callback(engine.close)
                rocks = RocksConsumeQueues(
                    engine, minimum_physical_offset=self._minimum, cached_queues_max=settings.cached_queues_max
                )
                self._heed_another_broker(rocks)
            if files is not None and rocks is not None:
                if found.has_abort and (complete_up_to := files.dispatched_up_to()) is not None:
                    delete_gone_queues(files, rocks, complete_up_to)
                phase = self._begin_double_write(files, rocks, phase)
                self._heed_doubled_topics(rocks, phase)
                if objection := settings.queue_places.objection(phase):
                    raise StoreUnusable(settings.root, objection)
            on_failure.pop_all()
        return OpenQueues(
            settings,
            phase,
            files=files,
            rocks=rocks,
            engine=engine,
            rocks_directory=found.rocksdb_directory,
            assignment=_assignment(self._identity, files, rocks),
            doubled=doubled_topics(settings.doubled_topics),
        )

    def _phase(self, found: FoundStore) -> QueuePhase:
        """Return the phase, written down before any queue is made: what a killed start left would look like another
        store.
        """
        stored = self._identity.queue_phase
        phase = phase_of(stored, found.layout, self._settings.queue_mode, self._settings.root)
        if stored is None:
            self._identity.queue_phase = phase.value
        elif stored != phase.value:
            self._step(parse_phase(stored, self._settings.root), phase, "consume_queue.mode")
        return phase

    def _step(self, origin: QueuePhase, target: QueuePhase, asked_by: str) -> None:
        self._rows.take(MigrationStep(at_ms=self._now_ms, origin=origin, target=target, asked_by=asked_by))

    def _open_engine(self, found: FoundStore) -> KeyValueEngine:
        directory, root = found.rocksdb_directory, self._settings.root
        with advising(
            directory,
            f"it can be rebuilt from the log: `quarry recover {root} --rebuild-queues` does that, or move the "
            "directory away and restart",
        ):
            return self._engines.open_queues(directory, create=not found.has_rocksdb)

    def _open_files(self, found: FoundStore) -> FileConsumeQueues:
        identity = self._identity
        entries_found = entries_in_files(self._disk, self._directory)
        if entries_found is None and not identity.files_emptied and identity.files_up_to:
            # The files were removed by somebody, or a backup left them out. Forget them before the first is made again:
            # if that is killed halfway, the next start must not take the few files that exist for all of them.
            identity.clear_file_progress()
        units_per_file = identity.units_per_file
        if units_per_file is None:
            units_per_file = identity.units_per_file = entries_found or self._settings.units_per_file
        files = FileConsumeQueues(
            self._disk,
            self._directory,
            minimum_physical_offset=self._minimum,
            dispatched_up_to=self._files_up_to(found),
            save_dispatched=identity.set_files_up_to,
            after_crash=found.has_abort,
            units_per_file=units_per_file,
            cached_queues_max=self._settings.cached_queues_max,
        )
        if found.has_abort:
            files.remove_unflushed()
        return files

    def _files_up_to(self, found: FoundStore) -> PhysicalOffset | None:
        """Return the offset up to which the file queues are known to be complete; None: the whole log is to be put
        again.

        RocketMQ writes down a time, which after a power cut may be ahead of what its files hold. After a clean stop
        they are complete, but for the light queues of a double-write store, which are in RocksDB alone.
        """
        if self._identity.files_up_to is not None:
            return self._identity.files_up_to or None
        if found.layout is StoreKind.ROCKETMQ_FILE and found.has_file_queues and not found.has_abort:
            return FileConsumeQueueReader(self._disk, self._directory).log_end()
        return None

    def _heed_another_broker(self, rocks: RocksConsumeQueues) -> None:
        """Repair what RocketMQ may have left, if it dispatched more than Quarry wrote down: all, or since Quarry last
        ran.

        This happens before recovery: the entries that recovery puts into the queues must not be hidden either.
        """
        written_down = self._identity.flushed_up_to
        if written_down is not None and (rocks.dispatched_up_to() or 0) <= written_down:
            return
        if count := rocks.delete_inverted_min_offsets():
            log.warning("queues had a minimum above their maximum: it is found anew", queues=count)

    def _begin_double_write(self, files: FileConsumeQueues, rocks: RocksConsumeQueues, phase: QueuePhase) -> QueuePhase:
        """Write to both kinds of queues from here on. Older entries are in the files alone and are brought over later.

        Returns the phase, an earlier one if RocksDB was complete and is gone.
        """
        since = files.dispatched_up_to()
        if rocks.dispatched_up_to() is not None or since is None:
            return phase
        if phase.rocksdb_is_complete:
            self._step(phase, QueuePhase.BACKFILLING, "start")
            self._rows.doubt("the queues in RocksDB were gone at a start")
            phase = QueuePhase.BACKFILLING
            log.warning("the queues in RocksDB are gone: they are made again from the log", phase=phase.value)
        self._rows.begin_backfill(self._minimum, since)
        rocks.put([], since)
        log.info("double write begins", log_offset=since)
        return phase

    def _heed_doubled_topics(self, rocks: RocksConsumeQueues, phase: QueuePhase) -> None:
        """Mark older entries to be brought over, too, if the topics that are written twice have changed."""
        settings = self._settings
        if settings.doubled_topics == self._rows.doubled_topics():
            return
        if phase.rocksdb_is_complete:
            raise StoreUnusable(
                settings.root,
                f"all topics are in RocksDB (phase {phase.value}), consume_queue.double_write_topics would leave some "
                "out: remove the setting",
            )
        end = rocks.dispatched_up_to()
        if end is not None:
            self._rows.begin_backfill(self._minimum, end)
        self._rows.set_doubled_topics(settings.doubled_topics)


def _assignment(
    identity: StoreIdentity, files: FileConsumeQueues | None, rocks: RocksConsumeQueues | None
) -> OffsetAssignment:
    """Return how light queues get their offsets: in file stores as their readers know them, in others
    as records say.
    """
    if files is not None:
        # after a power cut an entry may be there and one before it not: each has to find its own position
        return DenseAssignment(files, ends_where_stored=False)
    assert rocks is not None
    if identity.origin == StoreKind.ROCKETMQ_FILE.value:
        return DenseAssignment(rocks)
    return StoredAssignment()


@contextmanager
def advising(directory: Path, advice: str) -> Iterator[None]:
    """Turn the error of a damaged database into one that also says what can be done about it."""
    try:
        yield
    except EngineCorrupt as error:
        raise StoreDamaged(directory, f"the database is damaged ({error}); {advice}") from error


def adopt_topics(queues: ConsumeQueueStore, topics: TopicTable) -> None:
    """Make topics that have queues but no metadata: the metadata was lost, the messages were not."""
    queue_counts: dict[str, int] = {}
    for queue in queues.queues():
        if not is_light_queue(queue.topic) and topics.get(queue.topic) is None:
            queue_counts[queue.topic] = max(queue.number + 1, queue_counts.get(queue.topic, 1))
    for name, found in queue_counts.items():
        count = min(found, QUEUES_MAX)
        try:
            topics.create(Topic(name, TopicType.MIXED, count, count, READ_WRITE, {}), internal=True)
        except Invalid as error:  # a name that no broker gave: a byte of the log may be wrong
            log.warning("topic without metadata cannot be adopted: its messages stay in the log", problem=str(error))
            continue
        log.warning("topic without metadata adopted", topic=name, queues=count, queues_found=found)
