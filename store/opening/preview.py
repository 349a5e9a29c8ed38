"""The module finds out what a start would do to a store, without changing anything."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from quarry_mq.kv import EngineCorrupt
from quarry_mq.protocol.clock import ReportProgress
from quarry_mq.store.commitlog import SegmentList, bytes_after
from quarry_mq.store.consumequeue import RocksConsumeQueues, open_consume_queue_engine
from quarry_mq.store.consumequeue.dispatch import StoredAssignment
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import FoundStore, StoreKind
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.offline import OfflineStore, open_log
from quarry_mq.store.opening.parts import stop_of
from quarry_mq.store.opening.repair import Damage, Orders, find_damage
from quarry_mq.store.recovery.checkpoint import Known, durable_offset, known_of
from quarry_mq.store.recovery.recovery import Findings, examine, refusal
from quarry_mq.store.recovery.verdict import Stop, Verdict
from quarry_mq.store.state.identity import StoreIdentity, open_state_engine


@dataclass(frozen=True, slots=True)
class Preview:
    """The preview says what a start would find and do."""

    findings: Findings
    stop: Stop
    refusal: str | None
    """The reason for which a start would refuse, with the command that repairs; None when it would open the store."""
    cut_bytes: int
    """Bytes that a start would cut off after the log's end, and keep."""
    damage: Damage | None
    """The damage that would be replaced; None when that was not asked for."""
    queues_damaged: str | None
    """The reason for which the queues' database does not open, None when it does."""


class _Queues:
    """The queues of a preview only know their watermark; it is None if they are still to be made."""

    def __init__(self, dispatched_up_to: PhysicalOffset | None) -> None:
        self._dispatched_up_to = dispatched_up_to

    def dispatched_up_to(self) -> PhysicalOffset | None:
        return self._dispatched_up_to


def preview(disk: Disk, root: Path, orders: Orders, report: ReportProgress) -> Preview:
    """Do what recovery does, but without any writing. Takes a shared lock.

    Raises StoreUnusable and OSError as opening an offline store does.
    """
    paths = StorePaths(root)
    with OfflineStore.open(disk, root) as store, ExitStack() as closing:
        found, stop = store.found, stop_of(store.found)
        segments = open_log(disk, paths)
        closing.callback(segments.close)
        known = _known(paths.quarry, found)
        durable_up_to = durable_offset(disk, paths, segments, found, known)
        queues_damaged = None
        queues = _Queues(None)
        if not orders.rebuild_queues:
            try:
                queues = _Queues(_dispatched_up_to(store, paths, segments, closing))
            except EngineCorrupt as error:
                queues_damaged = str(error)
        damage = None
        if orders.replace_damaged:
            dispatched = queues.dispatched_up_to() if stop is Stop.CLEAN else None
            damage = find_damage(
                disk,
                paths.commit_log,
                durable_up_to=max(durable_up_to, dispatched or durable_up_to),
                stop=stop,
                report=report,
            )
        findings = examine(
            segments,
            queues,
            StoredAssignment(),
            flushed_up_to=durable_up_to,
            stop=stop,
            report=report,
            store_run=lambda run, watermark: None,  # noqa: ARG005
        )
        refused = findings.verdict is Verdict.REFUSE
        rest = [] if refused else bytes_after(segments, findings.end)
        return Preview(
            findings=findings,
            stop=stop,
            refusal=str(refusal(segments, findings)) if refused else None,
            cut_bytes=sum(end - start for start, end in rest),
            damage=damage,
            queues_damaged=queues_damaged,
        )


def _known(directory: Path, found: FoundStore) -> Known:
    if found.kind is not StoreKind.QUARRY:
        return Known(None, was_recovered=False)
    engine = open_state_engine(directory, create=False, read_only=True)
    try:
        return known_of(StoreIdentity(engine, directory))
    finally:
        engine.close()


def _dispatched_up_to(
    store: OfflineStore, paths: StorePaths, segments: SegmentList, closing: ExitStack
) -> PhysicalOffset | None:
    """Return the watermark of the queues that a start writes; the lower one if there are two kinds."""
    known: list[PhysicalOffset | None] = []
    found = store.found
    phase = store.queue_phase if found.kind is StoreKind.QUARRY else QueuePhase.ROCKSDB
    if phase.writes_files:
        known.append(StoreIdentity(store.state_engine(), paths.quarry).files_up_to or None)
    if phase.writes_rocksdb and found.has_rocksdb:
        engine = open_consume_queue_engine(found.rocksdb_directory, create=False, read_only=True)
        closing.callback(engine.close)
        known.append(RocksConsumeQueues(engine, minimum_physical_offset=segments.minimum).dispatched_up_to())
    whole = [each for each in known if each is not None]
    return min(whole) if whole and len(whole) == len(known) else None
