"""Maintain a store while the broker serves it: expiry and clean-up, migration, index, backups, comparisons.

Once a second the offset below which the log is durable is saved.

At a start, topics and the min and max offsets of queues are read into memory before they are first used. The first send
to a topic after a start would have to read the topic and its queue from the database. A broker that has run for a while
has those in use in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog

from quarry_mq.kv import EngineFull, KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.append.group_commit import GroupCommit
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.lite.expiry import RemovalParts, TopicsOfRocketmq
from quarry_mq.server.lite.lite_topics import LiteTopics
from quarry_mq.server.maintenance.backup_points import BackupPoints, Engines
from quarry_mq.server.maintenance.key_index import KeyIndex
from quarry_mq.server.maintenance.queue_cleanup import CleaningSettings, QueueCleaning, QueueRemoval, QueueSummaries
from quarry_mq.server.maintenance.queue_migration import OnlineMigration
from quarry_mq.server.maintenance.retention import ExpiryReport, Retention, RetentionTimes
from quarry_mq.server.maintenance.verification import OnlineVerification
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.observability.metrics.instruments import ServerMetrics
from quarry_mq.server.process.descriptors import DescriptorWatch, plan_here
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import LastErrors, Supervisor
from quarry_mq.store.commitlog.segments import LogBegins
from quarry_mq.store.consumequeue.queue_summary import SummarySource
from quarry_mq.store.fs import PosixCopyingDisk, PosixDisk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.metadata import TopicTable
from quarry_mq.store.migration.open_queues import OpenQueues
from quarry_mq.store.opening.open_store import OpenStore

CHECKPOINT_INTERVAL_S: Final = 1.0
"""RocketMQ's interval.

The next start cuts off damage in what became durable since the last checkpoint, instead of refusing to start.
"""

log = structlog.get_logger(__name__)


class CheckpointKeeper:
    """Saves the checkpoint of an open store, on threads of its own: the log's flushes must not wait for it."""

    def __init__(
        self,
        save: Callable[[], None],
        *,
        poisoned: Callable[[Exception], None],
        interval_s: float = CHECKPOINT_INTERVAL_S,
    ) -> None:
        """`save` writes the checkpoint if something changed (`store.recovery.checkpoint`).

        `poisoned` is called with an error that only a restart can clear.
        """
        self._save = save
        self._poisoned = poisoned
        self._interval_s = interval_s
        self._errors = LastErrors()

    async def run(self) -> None:
        """Save checkpoints until cancelled; an error of the database ends the broker.

        A checkpoint file that cannot be written does no harm while
        the old one is there: the old one only states a lower offset.
        """
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await asyncio.to_thread(self._save)
                self._errors.clear()
            except (OSError, EngineFull) as error:
                if self._errors.is_new(error):
                    log.warning("the checkpoint could not be written, it stays where it was", error=str(error))
            except KvError as error:
                self._poisoned(error)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaintenanceDependencies:
    """The parts of a broker that maintenance needs. `poisoned` is called with an error that poisons the store."""

    commit: GroupCommit
    progress: Delivery
    carry_over: Callable[[PhysicalOffset], Awaitable[int]]
    write_state: Callable[[], None]
    poisoned: Callable[[Exception], None]
    clock: Clock
    metrics: ServerMetrics
    error_reporter: ErrorReporter


class Maintenance:
    """Build the parts that maintain a store, and run them."""

    def __init__(self, store: OpenStore, settings: BrokerSettings, dependencies: MaintenanceDependencies) -> None:
        self._store = store
        self._settings = settings
        self._dependencies = dependencies
        self._configure_remover(settings)
        self.cleaning = self._make_cleaning()
        self.retention = self._make_retention()
        self.lite_topics, self.removal = self._make_removals()
        self.summaries = QueueSummaries(self._summary_source, store.queues.using_rocks)
        self.migration = OnlineMigration(
            store.migration,
            dependencies.commit,
            dependencies.clock,
            backfill_bytes_per_s=settings.consume_queue.backfill_rate,
        )
        self.key_index = KeyIndex(
            store.messages.indexes, store.messages.existing_record_at, dependencies.clock, dependencies.metrics.index
        )
        self.descriptors = DescriptorWatch(
            plan_here(settings.store.mapped_segments_max),
            lambda: self._settings.limits.connections,
            dependencies.commit.refuse_sends,
        )
        self.checkpoint = CheckpointKeeper(store.checkpoint.save, poisoned=dependencies.poisoned)
        self.backups = self._make_backups()
        self.verification = self._make_verification()

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings, as far as they are read more than once."""
        self._settings = settings
        self._configure_remover(settings)
        self.retention.configure(settings.for_expiry())
        self.lite_topics.configure(settings)
        self.migration.configure(backfill_bytes_per_s=settings.consume_queue.backfill_rate)
        self.verification.configure(settings)

    def _configure_remover(self, settings: BrokerSettings) -> None:
        expiry = settings.expiry
        self._store.expiry.remover.configure(
            patience_s=expiry.reader_patience_ms / 1000, pause_s=expiry.pause_ms / 1000
        )

    @contextlib.asynccontextmanager
    async def running(self, supervisor: Supervisor) -> AsyncIterator[None]:
        async with (
            supervisor.running("checkpoint", self.checkpoint.run()),
            supervisor.running("watch of descriptors", self.descriptors.run()),
            supervisor.running("expiry", self.retention.watch()),
            supervisor.running("removal of expired segments", self.retention.remove()),
            supervisor.running("removal of queues", self.removal.run()),
            self.lite_topics.running(supervisor),
            supervisor.running("queue migration", self.migration.run()),
            supervisor.running("clean-up of queues", self.cleaning.run()),
            supervisor.running("verification", self.verification.run()),
            supervisor.running("key index", self.key_index.run()),
        ):
            yield

    async def stop(self) -> None:
        """Wait for work that must not be cut short."""
        await self.retention.stop()
        await self.removal.stop()
        await self.lite_topics.stop()
        await self.summaries.stop()
        await self.key_index.stop()
        await self.verification.stop()
        await self.migration.stop()
        await self.cleaning.stop()

    async def expire_now(self, *, dry_run: bool, rewrite_queues: bool) -> ExpiryReport:
        report = await self.retention.expire_now(dry_run=dry_run)
        if rewrite_queues and not dry_run:
            self.cleaning.rewrite_soon()
        return report

    def _make_cleaning(self) -> QueueCleaning:
        settings, store = self._settings.expiry, self._store
        return QueueCleaning(
            store.queue_expiry,
            store.expiry,
            CleaningSettings(
                pause_s=settings.queue_pause_ms / 1000,
                retry_interval_s=settings.interval_ms / 1000,
                rewrite_ratio=settings.queue_rewrite_percent / 100,
            ),
            clock=self._dependencies.clock,
            metrics=self._dependencies.metrics.cleaning,
        )

    def _make_retention(self) -> Retention:
        """Make the expiry of the log, which the expiry of the queues follows."""
        settings, store = self._settings.expiry, self._store
        return Retention(
            store.expiry,
            self._settings.for_expiry(),
            RetentionTimes(interval_s=settings.interval_ms / 1000, start_delay_s=settings.start_delay_ms / 1000),
            commit=self._dependencies.commit,
            clock=self._dependencies.clock,
            metrics=self._dependencies.metrics,
            carry_over=self._dependencies.carry_over,
            minimum_grew=[self.cleaning.minimum_grew],
        )

    def _make_removals(self) -> tuple[LiteTopics, QueueRemoval]:
        """Make the two parts that remove light queues: they share one removal and one record of where the log began."""
        store, dependencies, settings = self._store, self._dependencies, self._settings
        parts = RemovalParts(
            progress=dependencies.progress,
            commit=dependencies.commit,
            clock=dependencies.clock,
            metrics=dependencies.metrics,
            topics_of_rocketmq=TopicsOfRocketmq(store.topics, settings.store.directory),
            begins=LogBegins(store.identity.log_begins, store.identity.set_log_begins),
        )
        lite_topics = LiteTopics(store, settings, parts)
        removal = QueueRemoval(store, lite_topics.removal, settings.consume_queue, parts)
        return lite_topics, removal

    def _summary_source(self) -> SummarySource:
        queues = self._store.queues
        return SummarySource(
            PosixDisk(),
            queues.file_directory,
            queues.rocks_directory,
            queues.engine,
            reads_rocksdb=queues.phase.reads_rocksdb,
            minimum=self._store.expiry.minimum,
        )

    def _make_backups(self) -> BackupPoints:
        store = self._store
        return BackupPoints(
            self._settings.store.directory,
            store=store.messages,
            segments=store.segments,
            engines=Engines(lambda: store.queues.engine, store.queues.rocks_directory.name, store.state_engine),
            pins=store.pins,
            disk=PosixCopyingDisk(),
            clock=self._dependencies.clock,
            write_state=self._dependencies.write_state,
        )

    def _make_verification(self) -> OnlineVerification:
        return OnlineVerification(
            self._store,
            self._settings,
            points=self.backups,
            report_damage=self._dependencies.error_reporter.report,
            disk=PosixCopyingDisk(),
            clock=self._dependencies.clock,
        )


PAUSE_S: Final = 0.01
"""Seconds between pages, each of which takes the loop about a millisecond.

125,000 topics take six seconds, a million queues twelve more.
"""

Place = TypeVar("Place", str, bytes)


async def warm_up(topics: TopicTable, queues: OpenQueues, error_reporter: ErrorReporter) -> None:
    """Read all topics and queues, then wait until cancelled."""
    await _read(topics.warm, "", error_reporter)
    await _read(queues.warm, b"", error_reporter)
    await asyncio.Event().wait()


async def _read(warm: Callable[[Place], Place | None], begin: Place, error_reporter: ErrorReporter) -> None:
    """Read all pages, up to one that cannot be read; the names from there on are read when they are first used."""
    after: Place | None = begin
    while after is not None:
        try:
            after = warm(after)
        except KvError as error:
            error_reporter.report(error)
            return
        await asyncio.sleep(PAUSE_S)
