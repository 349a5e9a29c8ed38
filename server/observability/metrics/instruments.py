"""Define the broker's instruments, over an injected registry, background work included.

No label names a queue or a client, and topics and groups have labels in bounded numbers (`server.counters`): the number
of series must not grow with the number of queues. `docs/metrics.md` lists them all and is tested against this module.

Background work is jobs, the key index, the migration and the clean-up of consume queues.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from threading import Lock
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from quarry_mq.protocol.clock import Progress
from quarry_mq.server.counters import BucketHistogram, ReceiveStages, SendStages, Traffic
from quarry_mq.server.front import FrontStats
from quarry_mq.server.jobs import JobKind
from quarry_mq.server.lite.expiry import RemovalCause
from quarry_mq.server.observability.samples import Sampling, WaitingStats
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.replicas.status import ReplicaStatus
from quarry_mq.server.settings.sections import MetricsSection
from quarry_mq.store.index import KeyIndexes
from quarry_mq.store.index.tiered.folders import Stage
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.migration import AgreementReport, MigrationStats
from quarry_mq.store.pending import Resolution
from quarry_mq.store.retention import Cause
from quarry_mq.store.state.jobs import JobState
from quarry_mq.store.verify.report import Verdict

CLEANING_BUCKETS_S: Final = [0.01 * 4**step for step in range(10)]
"""Bounds from 10 ms, an idle store, to 44 min, a billion entries."""


class CleaningStats(Protocol):
    """The state and numbers that the clean-up keeps."""

    @property
    def phase(self) -> str: ...

    @property
    def lag_bytes(self) -> int: ...


class QueueCleaningMetrics:
    """Implement `server.maintenance.queue_cleanup.CleaningMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sweeps = Histogram(
            "quarry_queue_cleaning_seconds",
            "Duration of a clean-up run that removes entries of expired messages from the consume queues, pauses "
            "included",
            buckets=CLEANING_BUCKETS_S,
            registry=registry,
        )
        self._entries = Counter(
            "quarry_queue_entries_removed",
            "Entries of expired messages that were removed from the consume queues",
            registry=registry,
        )
        self._files = Counter("quarry_queue_files_removed", "Files of consume queues that expired", registry=registry)
        self._failures = Counter(
            "quarry_queue_cleaning_failures", "Clean-up runs that failed and were restarted", registry=registry
        )
        self._rewrites = Histogram(
            "quarry_queue_table_rewrite_seconds",
            "Rewrites of RocksDB's tables of entries, which free the space of removed entries",
            buckets=CLEANING_BUCKETS_S,
            registry=registry,
        )
        self._bytes = Gauge(
            "quarry_queue_table_rewrite_bytes",
            "Size of RocksDB's tables of entries before and after their last rewrite",
            ["when"],
            registry=registry,
        )

    def cleaned_queues(self, entries: int, files: int, seconds: float) -> None:
        self._sweeps.observe(seconds)
        self._entries.inc(entries)
        self._files.inc(files)

    def cleaning_failed(self) -> None:
        self._failures.inc()

    def rewrote_tables(self, before_bytes: int, after_bytes: int, seconds: float) -> None:
        self._rewrites.observe(seconds)
        self._bytes.labels(when="before").set(before_bytes)
        self._bytes.labels(when="after").set(after_bytes)


def cleaning_metrics(cleaning: CleaningStats) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "quarry_queue_cleaning_under_way", "1 while consume queues are cleaned up", value=int(bool(cleaning.phase))
    )
    yield GaugeMetricFamily(
        "quarry_queue_cleaning_behind_bytes",
        "Bytes by which the clean-up of the consume queues lags behind the start of the log",
        value=cleaning.lag_bytes,
    )


class JobCounters:
    """Implement `server.jobs.JobMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open = Gauge("quarry_jobs_open", "Jobs that are queued or running", registry=registry)
        ended = Counter("quarry_jobs_ended", "Finished jobs by outcome", ["kind", "outcome"], registry=registry)
        done = Counter("quarry_job_items", "Queues and messages that jobs have processed", ["kind"], registry=registry)
        self._ended: Final = {
            (kind.value, state): ended.labels(kind=kind.value, outcome=state.value)
            for kind in JobKind
            for state in JobState
            if state.is_end
        }
        self._done: Final = {kind.value: done.labels(kind=kind.value) for kind in JobKind}

    def jobs_open(self, count: int) -> None:
        self._open.set(count)

    def job_did(self, kind: str, count: int) -> None:
        if kind in self._done and count > 0:
            self._done[kind].inc(count)

    def job_ended(self, kind: str, state: JobState) -> None:
        if (kind, state) in self._ended:
            self._ended[kind, state].inc()


class KeyIndexMetrics:
    """Implement `server.maintenance.key_index.IndexMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures = Counter(
            "quarry_index_failures",
            "Failed steps of a key index, which were retried",
            ["step"],
            registry=registry,
        )

    def index_failed(self, step: str) -> None:
        self._failures.labels(step).inc()


def index_metrics(indexes: KeyIndexes) -> Iterator[Metric]:
    lag = max((index.handed_over - index.written_up_to for index in indexes.followers), default=0)
    yield GaugeMetricFamily(
        "quarry_index_behind_bytes",
        "Bytes of commit log that are dispatched and not in the key index yet",
        value=max(0, lag),
    )
    files = GaugeMetricFamily("quarry_index_files", "Key index files by stage", labels=["stage"])
    stages = Counts(each.stage for each in indexes.tiered.files) if indexes.tiered is not None else Counts()
    for stage in Stage:
        files.add_metric([stage.value], stages[stage])
    files.add_metric(["hash"], 0 if indexes.hash_files is None else len(indexes.hash_files.files))
    yield files
    yield GaugeMetricFamily(
        "quarry_index_damaged_files",
        "Key index files that cannot be read completely",
        value=0 if indexes.tiered is None else len(indexes.tiered.damaged),
    )
    yield CounterMetricFamily(
        "quarry_index_rebuilt_files",
        "Damaged key index files that were rebuilt from the log",
        value=0 if indexes.tiered is None else indexes.tiered.rebuilt,
    )


class MigrationSource(Protocol):
    """The state and numbers that the migration keeps, readable on any thread."""

    @property
    def phase(self) -> QueuePhase: ...

    def stats(self) -> MigrationStats: ...

    def mismatches(self) -> int: ...

    @property
    def at_start(self) -> AgreementReport | None: ...


class SweepStats(Protocol):
    """The numbers that the sweeps over the log keep."""

    @property
    def read_bytes(self) -> int: ...

    @property
    def progress(self) -> Progress | None: ...

    @property
    def finished(self) -> Verdict | None: ...


def sweep_metrics(sweeps: SweepStats) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "quarry_log_check_read_bytes", "Bytes of the log that the broker read to check them", value=sweeps.read_bytes
    )
    progress, finished = sweeps.progress, sweeps.finished
    meaning = "Share of the log that the current sweep of its check has read, from 0 to 1; 0 between sweeps"
    yield _gauge("quarry_log_check_ratio", meaning, 0.0 if progress is None else progress.ratio)
    meaning = "When the last sweep that checked the log ended, in seconds since the Unix epoch; 0 before the first"
    ended_at_ms = 0 if finished is None else finished.ended_at_ms or 0
    yield _gauge("quarry_log_check_finished_timestamp_seconds", meaning, ended_at_ms / 1000)
    damaged = 0 if finished is None else sum(differences for _, differences in finished.checks.values())
    yield _gauge("quarry_log_check_damaged_records", "Damaged places that the last sweep found", damaged)


def slave_metrics(lags: Sequence[int]) -> Iterator[Metric]:
    yield _gauge("quarry_slaves", "Attached slaves of RocketMQ that copy the log", len(lags))
    meaning = "Durable bytes of the log that the slave of RocketMQ that is furthest behind has not reported yet"
    yield _gauge("quarry_slave_lag_bytes", meaning, max(lags, default=0))


def migration_metrics(migration: MigrationSource) -> Iterator[Metric]:
    phases = GaugeMetricFamily(
        "quarry_queue_migration_phase", "1 for the current phase of the consume queues", labels=["phase"]
    )
    for phase in QueuePhase:
        phases.add_metric([phase.value], int(phase is migration.phase))
    yield phases
    stats = migration.stats()
    for name, meaning, value in (
        (
            "backfill_ratio",
            "Progress of the backfill: the share of the older file entries that is in RocksDB, from 0 to 1",
            stats.backfill_ratio,
        ),
        (
            "double_write_lag_bytes",
            "Bytes of commit log that are dispatched to only one of files and RocksDB",
            stats.lag_bytes,
        ),
        (
            "start_disagreements",
            "Queue bounds on which files and RocksDB disagreed at the start",
            0 if migration.at_start is None else sum(migration.at_start.differences.values()),
        ),
        ("mismatches", "Differences between files and RocksDB in the last comparison", migration.mismatches()),
    ):
        yield GaugeMetricFamily(f"quarry_queue_{name}", meaning, value=value)


def stage_metrics(sends: SendStages, receives: ReceiveStages) -> Iterator[Metric]:
    for name, meaning, stages in (
        ("send", "Time of sends, by stage", sends),
        ("receive", "Time of receives that return messages, by stage", receives),
    ):
        family = HistogramMetricFamily(f"quarry_{name}_stage_seconds", meaning, labels=["stage"])
        for stage, histogram in stages:
            family.add_metric([stage], buckets=list(histogram.buckets()), sum_value=histogram.total)
        yield family


class UnsentDeadLetters(Protocol):
    """The dead letters of a group that were never sent again."""

    @property
    def group(self) -> str: ...

    @property
    def letters(self) -> int: ...


def concern_metrics(counts: Mapping[tuple[str, str], int], unsent: Sequence[UnsentDeadLetters]) -> Iterator[Metric]:
    concerns = GaugeMetricFamily("quarry_concerns", "Concerns of docs/concerns.md", labels=["kind", "severity"])
    for (kind, severity), count in counts.items():
        concerns.add_metric([kind, severity], count)
    yield concerns
    letters = GaugeMetricFamily(
        "quarry_dead_letters_waiting",
        "Dead letters of a group that nobody sent again; of the groups with most of them",
        labels=["consumer_group"],
    )
    for each in unsent:
        letters.add_metric([each.group], each.letters)
    yield letters


def replica_metrics(copies: Iterable[ReplicaStatus], *, term: int, is_primary: bool) -> Iterator[Metric]:
    """Yield how far each copy of the store is: on the primary all others, on another copy itself."""
    lag_bytes = GaugeMetricFamily(
        "quarry_replica_lag_bytes",
        "Bytes of the primary's durable log that a copy does not have in its queues",
        labels=["replica"],
    )
    lag_changes = GaugeMetricFamily(
        "quarry_replica_lag_changes", "Changes of the primary's rows that a copy does not have", labels=["replica"]
    )
    lag = GaugeMetricFamily(
        "quarry_replica_lag_seconds", "Age of the oldest bytes or change that a copy does not have", labels=["replica"]
    )
    connected = GaugeMetricFamily("quarry_replica_connected", "1 while a copy is connected", labels=["replica"])
    for each in copies:
        lag_bytes.add_metric([each.name], each.lag_bytes)
        lag_changes.add_metric([each.name], each.lag_changes)
        lag.add_metric([each.name], each.lag_s)
        connected.add_metric([each.name], each.is_connected)
    yield from (lag_bytes, lag_changes, lag, connected)
    yield GaugeMetricFamily("quarry_replication_term", "Number of the promotion that made the primary", value=term)
    yield GaugeMetricFamily("quarry_replica_primary", "1 if this copy of the store is the primary", value=is_primary)


def waiting_metrics(waiting: WaitingStats, sampling: Sampling) -> Iterator[Metric]:
    for name, meaning, value in (
        ("delayed_messages_waiting", "Delayed messages that are not due yet", waiting.timers),
        ("transactions_waiting", "Half messages that are neither committed nor rolled back", waiting.halves),
        (
            "delayed_next_due_seconds",
            "Time until the next delayed message is due; negative if it is overdue",
            waiting.next_due_s,
        ),
        ("sampled_age_seconds", "Age of the numbers that are collected in the background", sampling.age_s),
    ):
        family = GaugeMetricFamily(f"quarry_{name}", meaning, labels=[])
        if value is not None:
            family.add_metric([], value)
        yield family


OF_DATABASE: Final[Mapping[str, str]] = {
    "running_compactions": "Running compactions",
    "running_flushes": "Running flushes of memtables",
    "delayed_write_rate": "Bytes per second to which RocksDB limits writes; 0 if it does not",
}
OF_FAMILY: Final[Mapping[str, str]] = {
    "memtable_bytes": "Size of the memtables: written and not yet in tables",
    "immutable_memtables": "Full memtables that wait to be flushed",
    "table_bytes": "Live table files on disk",
    "live_data_bytes": "Size of the live data, as RocksDB estimates it",
    "table_reader_bytes": "Memory for the indexes and filters of open tables",
    "block_cache_bytes": "Memory for cached blocks",
    "block_cache_pinned_bytes": "Memory for cached blocks that are in use",
    "block_cache_max_bytes": "Capacity of the block cache",
    "keys_estimate": "Number of keys, as RocksDB estimates it",
    "compaction_pending": "1 while a compaction is pending",
    "pending_compaction_bytes": "Bytes that compaction still has to rewrite",
    "level_zero_tables": "Tables of level 0, which overlap each other; many of them slow down reads",
    "write_stopped": "1 while RocksDB blocks writes because compaction lags",
    "background_errors": "Errors in flushes and compactions",
}
OF_LEVEL: Final[Mapping[str, str]] = {
    "level_tables": "Number of table files by level",
    "level_bytes": "Size of table files by level",
}
OF_CAUSE: Final[Mapping[str, str]] = {
    "write_delays": "How often writes were slowed down, by cause",
    "write_stops": "How often writes were stopped, by cause",
}


class EngineStats(Protocol):
    """An engine reports figures about itself, see `kv.KeyValueEngine.statistics`."""

    def statistics(self) -> dict[str, int]: ...


def engine_metrics(engines: Mapping[str, EngineStats]) -> Iterator[Metric]:
    """Yield the metrics of `engines`, which are given by the name of their database."""
    metrics = dict(_metrics())
    for database, engine in engines.items():
        for name, value in engine.statistics().items():
            match name.split("."):
                case [stat]:
                    labels = [database]
                case [family, stat, *which]:
                    labels = [database, family, *which]
            if stat in metrics:
                metrics[stat].add_metric(labels, value)
    yield from metrics.values()


def _metrics() -> Iterator[tuple[str, GaugeMetricFamily | CounterMetricFamily]]:
    for stats, labels in ((OF_DATABASE, []), (OF_FAMILY, ["family"]), (OF_LEVEL, ["family", "level"])):
        for stat, meaning in stats.items():
            yield stat, GaugeMetricFamily(_name(stat), meaning, labels=["database", *labels])
    for stat, meaning in OF_CAUSE.items():
        yield stat, CounterMetricFamily(_name(stat), meaning, labels=["database", "family", "cause"])


def _name(stat: str) -> str:
    return f"quarry_rocksdb_{stat}"


LATE_BUCKETS_S: Final = [0.001 * 4**step for step in range(12)]
"""Bounds from 1 ms, an idle broker, to 70 min, a broker that was off while a night's messages became due."""


class PendingMetrics:
    """Implement `server.pending.delays.DelayMetrics` and `server.pending.transactions.TransactionMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._late = Histogram(
            "quarry_delayed_message_late_seconds",
            "How long after its delivery time a delayed message became visible to consumers",
            buckets=LATE_BUCKETS_S,
            registry=registry,
        )
        self._lost = Counter(
            "quarry_delayed_messages_lost",
            "Delayed messages that were lost because their record had left the log before they were due, or could "
            "not be copied",
            registry=registry,
        )

        ended = Counter("quarry_transactions_ended", "Transactions by how they ended", ["how"], registry=registry)
        self._ended = {each: ended.labels(how=each.name.lower()) for each in Resolution}
        self._checked = Counter(
            "quarry_transaction_checks", "Checks of half messages that were sent to producers", registry=registry
        )
        self._given_up = Counter(
            "quarry_transactions_given_up",
            "Half messages that were rolled back after too many checks, or because their record was gone",
            registry=registry,
        )

        self._dead_lettered = Counter(
            "quarry_dead_letters", "Messages that went to the dead letters of their group", registry=registry
        )
        self._dead_letters_refused = Counter(
            "quarry_dead_letters_refused",
            "Messages that are not delivered any more and could not be stored as dead letters",
            registry=registry,
        )
        self._left_out = Counter(
            "quarry_properties_left_out",
            "Properties that were dropped from copies of messages because the record has no space for them",
            registry=registry,
        )

    def dead_lettered(self) -> None:
        self._dead_lettered.inc()

    def dead_letter_refused(self) -> None:
        self._dead_letters_refused.inc()

    def left_out(self, properties: int) -> None:
        self._left_out.inc(properties)

    def transaction_ended(self, resolution: Resolution) -> None:
        self._ended[resolution].inc()

    def transaction_checked(self) -> None:
        self._checked.inc()

    def transaction_given_up(self) -> None:
        self._given_up.inc()

    def delayed_delivered(self, late_s: float) -> None:
        self._late.observe(late_s)

    def delayed_lost(self) -> None:
        self._lost.inc()


class CertificateStats(Protocol):
    """The numbers that a broker's certificates keep."""

    @property
    def expires_s(self) -> float | None: ...

    @property
    def failed_reloads(self) -> int: ...


def certificate_metrics(certificates: CertificateStats) -> Iterator[Metric]:
    """Yield the metrics; the end of the certificate only if a port speaks TLS."""
    if certificates.expires_s is not None:
        yield GaugeMetricFamily(
            "quarry_tls_certificate_expires_seconds",
            "When the certificate in use expires, in seconds since 1970",
            value=certificates.expires_s,
        )
    yield CounterMetricFamily(
        "quarry_tls_failed_reloads",
        "Changes of the TLS files that could not be used, so that the old files stayed in use",
        value=certificates.failed_reloads,
    )


SEND_BUCKETS_S: Final = [0.000_25 * 2**step for step in range(15)]
"""Bounds from 250 µs, an asynchronous send on an idle broker, to 4 s, beyond every client's timeout of 3 s."""

FLUSH_BUCKETS_S: Final = [0.000_1 * 2**step for step in range(17)]
"""Bounds from 100 µs, a disk with a protected cache, to 6.5 s, a dying disk."""

REMOVAL_BUCKETS_S: Final = [0.01 * 2**step for step in range(14)]
"""Bounds from 10 ms to 82 s: a file of 1 GiB takes about a second."""

BATCH_BUCKETS: Final = [2**step for step in range(13)]
"""Bounds from 1 message, one lone client, to 4096, more than one loop iteration was ever seen to take in."""


class DeliveryStats(Protocol):
    """The numbers that delivery keeps."""

    @property
    def waiting_polls(self) -> int: ...

    @property
    def inflight_count(self) -> int: ...

    @property
    def subscription_count(self) -> int: ...

    @property
    def redeliveries(self) -> int: ...


class ExpiryStats(Protocol):
    """The numbers that the log's expiry keeps."""

    @property
    def segment_count(self) -> int: ...

    @property
    def segment_size(self) -> int: ...

    @property
    def going_bytes(self) -> int: ...


class LiteTopicStats(Protocol):
    """The count of lite topics."""

    @property
    def total(self) -> int: ...


class ServerMetrics:
    """Hold all instruments of a serving broker."""

    def __init__(self, registry: CollectorRegistry, settings: MetricsSection) -> None:
        self._registry = registry
        self.traffic: Final = Traffic(topics_max=settings.top_topics, groups_max=settings.top_groups)
        self._watched: list[_Watched] = []
        self._sends = Counter("quarry_sends", "Send requests by outcome", ["outcome"], registry=registry)
        self._stored = self._sends.labels(outcome="stored")
        self._failed = self._sends.labels(outcome="failed")
        self._messages_stored = Counter("quarry_messages_stored", "Messages stored and acknowledged", registry=registry)
        self.send_duration: Final = BucketHistogram(SEND_BUCKETS_S)
        """Seconds from a valid send request to its answer."""
        registry.register(_Watched(lambda: _send_metrics(self.send_duration)))
        receives = Counter("quarry_receives", "Receive requests by outcome", ["outcome"], registry=registry)
        self._receives_with_messages = receives.labels(outcome="messages")
        self._receives_empty = receives.labels(outcome="empty")
        self._messages_delivered = Counter(
            "quarry_messages_delivered", "Messages delivered to consumers, redeliveries included", registry=registry
        )
        self._messages_acknowledged = Counter(
            "quarry_messages_acknowledged", "Messages acknowledged by consumers", registry=registry
        )
        self._flush_duration = Histogram(
            "quarry_flush_duration_seconds",
            "Duration of an fdatasync of the commit log; with durability sync every send waits for one",
            buckets=FLUSH_BUCKETS_S,
            registry=registry,
        )
        self._flush_sends = Histogram(
            "quarry_flush_sends",
            "Sends made durable by one fdatasync of the commit log",
            buckets=BATCH_BUCKETS,
            registry=registry,
        )
        self._expired_by_cause = _expired_counters(registry)
        self._expired_unread = Counter(
            "quarry_expired_unread_messages",
            "Messages that expired before a group had read them, counted for each group",
            registry=registry,
        )
        self._removal_duration = Histogram(
            "quarry_segment_removal_seconds",
            "Time to remove one expired commit log file, pauses included",
            buckets=REMOVAL_BUCKETS_S,
            registry=registry,
        )
        self._removed_by_cause = _removal_counters(registry)
        self.cleaning: Final = QueueCleaningMetrics(registry)
        self.pending: Final = PendingMetrics(registry)
        self.index: Final = KeyIndexMetrics(registry)
        self.jobs: Final = JobCounters(registry)
        self._damage_met, self._passed_over = _damage_counters(registry)
        self._batch_messages = Histogram(
            "quarry_round_messages",
            "Messages appended together in one iteration of the event loop",
            buckets=BATCH_BUCKETS,
            registry=registry,
        )

    def sent(self, messages: int, seconds: float) -> None:
        """Count an answered send request; 0 messages when it failed."""
        (self._stored if messages else self._failed).inc()
        self._messages_stored.inc(messages)
        self.send_duration.add(seconds)

    def sent_together(self, sends: int, messages: int, seconds: float) -> None:
        """Count send requests, with `messages` in all, that were answered together."""
        self._stored.inc(sends)
        self._messages_stored.inc(messages)
        self.send_duration.add(seconds, sends)

    def received(self, messages: int) -> None:
        """Count an answered receive request."""
        (self._receives_with_messages if messages else self._receives_empty).inc()
        self._messages_delivered.inc(messages)

    def acknowledged(self, messages: int) -> None:
        self._messages_acknowledged.inc(messages)

    def observe_flush(self, seconds: float, sends: int) -> None:
        """Observe a flush of the log that has ended; `sends` came in since the flush before had begun."""
        self._flush_duration.observe(seconds)
        self._flush_sends.observe(sends)

    def observe_batch(self, messages: int) -> None:
        self._batch_messages.observe(messages)

    def expired(self, cause: Cause, segments: int) -> None:
        self._expired_by_cause[cause].inc(segments)

    def expired_unread(self, messages: int) -> None:
        self._expired_unread.inc(messages)

    def removed_segment(self, seconds: float) -> None:
        self._removal_duration.observe(seconds)

    def removed_queues(self, cause: RemovalCause, queues: int) -> None:
        self._removed_by_cause[cause].inc(queues)

    def damage_met(self) -> None:
        self._damage_met.inc()

    def passed_over(self) -> None:
        self._passed_over.inc()

    def watch_delivery(self, delivery: DeliveryStats) -> None:
        self._watch(lambda: _delivery_metrics(delivery))

    def watch_clients(self, clients: Sized) -> None:
        self._watch(lambda: iter([_gauge("quarry_clients", "Clients that sent their settings", len(clients))]))

    def watch_lite_topics(self, counts: LiteTopicStats) -> None:
        meaning = "Lite topics of all topics that have been counted so far"
        self._watch(lambda: iter([_gauge("quarry_lite_topics", meaning, counts.total)]))

    def watch_engines(self, queues: EngineStats, state: EngineStats, pending: EngineStats | None = None) -> None:
        """Export the databases' figures; `queues` have none while a store keeps its consume queues in files alone."""
        engines = {"queues": queues, "state": state, **({} if pending is None else {"held": pending})}
        self._watch(lambda: engine_metrics(engines))

    def watch_migration(self, migration: MigrationSource) -> None:
        self._watch(lambda: migration_metrics(migration))

    def watch_expiry(self, expiry: ExpiryStats, used_ratios: Callable[[], Mapping[str, float]]) -> None:
        """Export expiry; `used_ratios` returns the last known ones of the file systems of `log` and `queues`."""
        self._watch(lambda: _expiry_metrics(expiry, used_ratios()))

    def watch_cleaning(self, cleaning: CleaningStats) -> None:
        self._watch(lambda: cleaning_metrics(cleaning))

    def watch_indexes(self, indexes: KeyIndexes) -> None:
        self._watch(lambda: index_metrics(indexes))

    def watch(self, read: Callable[[], Iterator[Metric]]) -> None:
        """Export figures that another part keeps; `read` is called on any thread until `stop_watching`."""
        self._watch(read)

    def watch_front(self, stats: FrontStats) -> None:
        self._watch(lambda: _front_metrics(stats))

    def watch_limits(self, limits_met: Mapping[str, int], front: FrontStats | None) -> None:
        """Export how often limits were met, as counted by the calls, and by the front if it counts."""
        sources = [limits_met] if front is None else [limits_met, front.limits_met]
        self._watch(lambda: _limit_metrics(sources))

    def stop_watching(self) -> None:
        """Release the watched parts before they are closed; when this returns, none is being read."""
        for watched in self._watched:
            watched.close()

    def _watch(self, read: Callable[[], Iterator[Metric]]) -> None:
        watched = _Watched(read)
        self._watched.append(watched)
        self._registry.register(watched)


def watch_health(registry: CollectorRegistry, health: HealthState) -> None:
    """Export the health, which exists before anything else of the broker does."""
    watch(registry, lambda: _health_metrics(health))


def watch(registry: CollectorRegistry, read: Callable[[], Iterator[Metric]]) -> None:
    """Export figures for as long as the process lives."""
    registry.register(_Watched(read))


def watch_certificates(registry: CollectorRegistry, certificates: CertificateStats) -> None:
    """Export the certificates, as the HTTP port shows one before there is a broker."""
    registry.register(_Watched(lambda: certificate_metrics(certificates)))


class _Watched(Collector):
    """Read figures that another part keeps at each scrape, on a thread of the HTTP port."""

    def __init__(self, read: Callable[[], Iterator[Metric]]) -> None:
        self._read: Callable[[], Iterator[Metric]] | None = read  # guarded by _lock
        self._lock = Lock()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            return iter([] if self._read is None else list(self._read()))

    def close(self) -> None:
        with self._lock:
            self._read = None

    def describe(self) -> list[Metric]:
        """Return nothing: otherwise registration would collect, from parts that are not complete yet."""
        return []


def _expired_counters(registry: CollectorRegistry) -> dict[Cause, Counter]:
    expired = Counter(
        "quarry_expired_segments", "Commit log files that expired, by cause", ["cause"], registry=registry
    )
    return {cause: expired.labels(cause=cause.value) for cause in Cause}


def _removal_counters(registry: CollectorRegistry) -> dict[RemovalCause, Counter]:
    removed = Counter(
        "quarry_queues_removed",
        "Unused consume queues that were removed",
        ["cause"],
        registry=registry,
    )
    return {cause: removed.labels(cause=cause.value) for cause in RemovalCause}


def _damage_counters(registry: CollectorRegistry) -> tuple[Counter, Counter]:
    """Return counters of reads refused because of damage, and of messages passed over because they were given up."""
    return (
        Counter("quarry_damage_met", "Reads that failed because a record or table is damaged", registry=registry),
        Counter(
            "quarry_messages_passed_over",
            "Damaged messages, already given up and replaced, that were skipped, counted for each group",
            registry=registry,
        ),
    )


def _send_metrics(duration: BucketHistogram) -> Iterator[Metric]:
    yield HistogramMetricFamily(
        "quarry_send_duration_seconds",
        "Time from a valid send request to its answer",
        buckets=list(duration.buckets()),
        sum_value=duration.total,
    )


def _delivery_metrics(delivery: DeliveryStats) -> Iterator[Metric]:
    yield _gauge("quarry_waiting_polls", "Receive requests that wait for messages", delivery.waiting_polls)
    yield _gauge(
        "quarry_inflight_messages", "Messages in flight: delivered and not acknowledged yet", delivery.inflight_count
    )
    yield _gauge("quarry_subscriptions", "Pairs of group and topic in memory", delivery.subscription_count)
    yield CounterMetricFamily("quarry_redeliveries", "Redeliveries of messages", value=delivery.redeliveries)


def _limit_metrics(sources: Sequence[Mapping[str, int]]) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "quarry_limits_met",
        "Requests and connections that were refused or dropped because of a limit",
        labels=["limit"],
    )
    for source in sources:
        for limit, count in list(source.items()):
            family.add_metric([limit], count)
    yield family


def _expiry_metrics(expiry: ExpiryStats, used_ratios: Mapping[str, float]) -> Iterator[Metric]:
    yield _gauge("quarry_log_segments", "Files of the commit log", expiry.segment_count)
    yield _gauge(
        "quarry_log_bytes", "Disk space that the commit log files take", expiry.segment_count * expiry.segment_size
    )
    yield _gauge(
        "quarry_expired_bytes", "Disk space of expired commit log files that are not removed yet", expiry.going_bytes
    )
    used = GaugeMetricFamily("quarry_disk_used_ratio", "Used share of the file system, from 0 to 1", labels=["holds"])
    for holds, ratio in used_ratios.items():
        used.add_metric([holds], ratio)
    yield used


def _front_metrics(stats: FrontStats) -> Iterator[Metric]:
    for name, meaning, value in (
        ("connections", "Connections accepted from messaging clients since the start", stats.connections),
        ("connections_refused", "Connections refused because of a limit", stats.connections_refused),
        ("calls", "Calls of messaging clients since the start", stats.calls),
        ("received_bytes", "Bytes received from messaging clients", stats.bytes_received),
        ("sent_bytes", "Bytes sent to messaging clients", stats.bytes_sent),
    ):
        yield CounterMetricFamily(f"quarry_front_{name}", meaning, value=value)
    yield _gauge("quarry_front_connections_open", "Open connections", stats.connections_open)
    yield _gauge("quarry_front_calls_open", "Open calls", stats.calls_open)
    for name, meaning, counts in (
        ("connections_ended", "Connections closed by the broker, by HTTP/2 error code", stats.connections_ended),
        ("resets_received", "Calls cancelled by clients, by HTTP/2 error code", stats.resets_received),
        ("resets_sent", "Calls aborted by the broker, by HTTP/2 error code", stats.resets_sent),
    ):
        family = CounterMetricFamily(f"quarry_front_{name}", meaning, labels=["code"])
        for code, count in list(counts.items()):
            family.add_metric([code], count)
        yield family
    failed = CounterMetricFamily(
        "quarry_front_calls_failed", "Calls that ended with a status other than OK, by gRPC status", labels=["status"]
    )
    for status, count in list(stats.calls_failed.items()):
        failed.add_metric([status.name], count)
    yield failed
    for name, meaning, histogram in (
        (
            "pass_seconds",
            "Duration of an event loop iteration, from its first event to its last write",
            stats.pass_seconds,
        ),
        ("pass_calls", "Calls received during one event loop iteration", stats.pass_calls),
    ):
        yield HistogramMetricFamily(
            f"quarry_front_{name}", meaning, buckets=list(histogram.buckets()), sum_value=histogram.total
        )


def _health_metrics(health: HealthState) -> Iterator[Metric]:
    now = health.look()
    yield _gauge("quarry_ready", "1 if the broker serves clients", int(now.is_ready))
    yield _gauge("quarry_recovery_progress_ratio", "Progress of recovery, from 0 to 1", now.percent / 100)
    yield _gauge(
        "quarry_loop_silence_seconds",
        "Time since the event loop last ran its periodic check, which is due twice a second",
        now.loop_silence_s,
    )


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)
