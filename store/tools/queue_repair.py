"""The module is `quarry migrate --repair`: it makes the kind of queues that is not read agree with the one that is.

The store has to write both kinds. Only queues that differ are touched. Each is removed from the kind that is not read,
and put again from the one that is; store times, which files lack, come from the log. If it is killed, it can be run
again: a queue that was about to be repaired still differs.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quarry_mq.protocol.clock import Clock, Progress, ReportProgress
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.consumequeue import DoubleWriteConsumeQueues, EntryColumns, FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.search import EntryWindow
from quarry_mq.store.engines import RocksStoreEngines, StoreEngines
from quarry_mq.store.errors import StoreDamaged, StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.migration.comparison import AgreementReport, begin_comparison
from quarry_mq.store.migration.queue_copy import windows_of
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.settings import StoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The result of a repair has the differences before, the `queues` that were put again, and the
    differences after.
    """

    phase: QueuePhase
    found: AgreementReport
    queues: tuple[QueueId, ...]
    left: AgreementReport


def repair_agreement(
    disk: Disk,
    clock: Clock,
    root: Path,
    *,
    asked_by: str,
    report: ReportProgress,
    engines: StoreEngines | None = None,
) -> Repaired:
    """Compare every entry of both, put the queues that differ again, and compare once more; the last report is kept.

    Raises StoreUnusable for a store that has only one kind of queues, StoreDamaged where a file queue points at no
    record, kv.KvError, OSError.
    """
    settings = StoreSettings(root=root)
    store = open_store(settings, disk=disk, clock=clock, report=report, engines=engines or RocksStoreEngines())
    with ExitStack() as closing:
        closing.callback(store.close)
        return _Repair(store, clock, root, asked_by, report).run()


class _Repair:
    def __init__(self, store: OpenStore, clock: Clock, root: Path, asked_by: str, report: ReportProgress) -> None:
        files, rocks = store.queues.files, store.queues.rocks
        if files is None or rocks is None:
            raise StoreUnusable(root, f"has one kind of queues (phase {store.queues.phase.value}): nothing to compare")
        self._store = store
        self._files: FileConsumeQueues = files
        self._rocks: RocksConsumeQueues = rocks
        self._segments: SegmentList = store.segments
        self._clock = clock
        self._asked_by = asked_by
        self._report = report

    def run(self) -> Repaired:
        phase = self._store.queues.phase
        found, differing = self._compare()
        for number, queue in enumerate(differing):
            self._report(Progress("rewriting queues", number, len(differing)))
            if phase.reads_rocksdb:
                self._put_in_files(queue)
            else:
                self._put_in_rocksdb(queue)
        self._files.flush_entries()
        self._rocks.flush()
        left = self._compare()[0] if differing else found
        self._store.migration.rows.save_report(left)
        return Repaired(phase=phase, found=found, queues=tuple(differing), left=left)

    def _compare(self) -> tuple[AgreementReport, list[QueueId]]:
        queues = self._store.queues.store
        assert isinstance(queues, DoubleWriteConsumeQueues)
        identity, migration = self._store.identity, self._store.migration
        complete_from = None if migration.is_backfilled else identity.backfill_end
        comparison = begin_comparison(queues, self._clock, asked_by=self._asked_by, complete_from=complete_from)
        try:
            while comparison.step():
                entries = comparison.progress().units
                self._report(Progress("comparing both", entries, entries))
            return comparison.report(), comparison.differing
        finally:
            comparison.close()

    def _put_in_files(self, queue: QueueId) -> None:
        self._files.restart_at(queue, QueueOffset(0))
        for window in windows_of(self._rocks.entry_reader(), queue, self._segments.minimum):
            self._files.put_window(queue, window)
        self._files.reserve(queue, self._rocks.next_offset(queue))

    def _put_in_rocksdb(self, queue: QueueId) -> None:
        self._rocks.restart_at(queue, QueueOffset(0))
        reader = self._files.entry_reader()
        try:
            for window in windows_of(reader, queue, self._segments.minimum):
                if len(window):
                    self._rocks.put_missing_entries(self._with_times(queue, window))
        finally:
            reader.close()
        if self._rocks.next_offset(queue) == 0:
            self._rocks.reserve(queue, self._files.next_offset(queue))

    def _with_times(self, queue: QueueId, window: EntryWindow) -> EntryColumns:
        log = CommitLogReader(self._segments)
        times = np.empty(len(window), np.int64)
        for row, at in enumerate(window.physical_offset.tolist()):
            record = log.decode(PhysicalOffset(at), check_crc=False)
            if not isinstance(record, StoredMessage):
                place = f"{queue.topic}/{queue.number}@{window.queue_offset[row]}"
                raise StoreDamaged(
                    self._segments.path_of(PhysicalOffset(at)), f"{place} does not point at a record: {at}"
                )
            times[row] = record.store_timestamp_ms
        return EntryColumns(
            (queue,),
            np.zeros(len(window), np.int64),
            window.queue_offset,
            window.physical_offset,
            window.size,
            window.tags_code,
            times,
        )
