"""The stored state of a migration, and the removal of queues that a store does not need any more.

The state is rows of the family `meta` of `quarry/` (docs/formats/delivery-state.md):

| key                            | value | meaning |
|--------------------------------|-------|---------|
| `migration/step/` and a u32    | JSON  | one step: `at_ms`, `from`, `to`, `by`; numbered from 0 |
| `migration/report`             | JSON  | the last comparison of the queues (`AgreementReport`) |
| `migration/removing`           | ASCII | `files` or `rocksdb`: what a step left is being removed |
| `migration/doubled_topics`     | JSON  | the patterns of the topics that are double-written; no row: all are |

A step is written in one batch with the phase that it leads to.

Queues that were removed can be made again from the log.

A deleted queue is removed from the files at once, from RocksDB only with its next flush. After a crash in between the
two disagree about messages that must not be visible any more. The files are right, so the deletion is repeated in
RocksDB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from struct import Struct
from typing import Final

import structlog

from quarry_mq.kv import KeyValueEngine, WriteBatch
from quarry_mq.kv.keys import prefix_range, u32
from quarry_mq.store.consumequeue import FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.files.layout import is_file_name
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import DATABASE_MARKER
from quarry_mq.store.layout.paths import parse_segment_name
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.message import ConsumeQueueEntry, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.migration.comparison import AgreementReport
from quarry_mq.store.state.identity import META

log = structlog.get_logger(__name__)

_OFFSET: Final = Struct(">q")
_STEP: Final = b"migration/step/"
_REPORT: Final = b"migration/report"
_REMOVING: Final = b"migration/removing"
_DOUBLED: Final = b"migration/doubled_topics"
_PHASE: Final = b"queue_phase"
_BACKFILLED_TO: Final = b"backfilled_to"
_BACKFILL_END: Final = b"backfill_end"
_ABOUT_ROCKSDB: Final = (_BACKFILLED_TO, _BACKFILL_END, _REPORT, _DOUBLED)


class Removing(Enum):
    """The queues that are no longer needed after a step."""

    FILES = "files"
    ROCKSDB = "rocksdb"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStep:
    """Record one change of the phase."""

    at_ms: int
    origin: QueuePhase
    target: QueuePhase
    asked_by: str


class MigrationRows:
    """Reads and writes the rows of a migration. Each change is durable when its call returns. Raises kv.KvError."""

    def __init__(self, engine: KeyValueEngine) -> None:
        self._engine = engine
        self._family = engine.family(META)

    # -- steps

    def take(
        self,
        step: MigrationStep,
        *,
        removing: Removing | None = None,
        backfill: tuple[PhysicalOffset, PhysicalOffset] | None = None,
    ) -> None:
        """Write the new phase, the step, and what is to be removed or backfilled after it, all or nothing."""
        batch = self._engine.batch()
        fields = {
            "at_ms": step.at_ms,
            "from": step.origin.value,
            "to": step.target.value,
            "by": step.asked_by,
        }
        batch.put(self._family, _STEP + u32(self._next_number()), json.dumps(fields, sort_keys=True).encode())
        batch.put(self._family, _PHASE, step.target.value.encode())
        if removing is None:
            batch.delete(self._family, _REMOVING)
        else:
            batch.put(self._family, _REMOVING, removing.value.encode())
        if step.target is QueuePhase.FILE:
            for key in _ABOUT_ROCKSDB:
                batch.delete(self._family, key)
        if backfill is not None:
            self._put_backfill(batch, *backfill)
        self._engine.write(batch, sync=True)

    def steps(self) -> Iterator[MigrationStep]:
        """Yield the steps, the oldest first."""
        for _, value in self._family.iterate(prefix_range(_STEP)):
            fields = json.loads(value)
            yield MigrationStep(
                at_ms=fields["at_ms"],
                origin=QueuePhase(fields["from"]),
                target=QueuePhase(fields["to"]),
                asked_by=fields["by"],
            )

    def _next_number(self) -> int:
        last = self._family.scan(prefix_range(_STEP), limit=1, reverse=True)
        return int.from_bytes(last[0][0][len(_STEP) :], "big") + 1 if last else 0

    # -- the backfill

    def begin_backfill(self, start: PhysicalOffset, end: PhysicalOffset) -> None:
        """Store the log's range [start, end) from which RocksDB is to be filled."""
        batch = self._engine.batch()
        self._put_backfill(batch, start, end)
        self._engine.write(batch, sync=True)

    def _put_backfill(self, batch: WriteBatch, start: PhysicalOffset, end: PhysicalOffset) -> None:
        batch.put(self._family, _BACKFILLED_TO, _OFFSET.pack(start))
        batch.put(self._family, _BACKFILL_END, _OFFSET.pack(end))

    # -- the report

    def report(self) -> AgreementReport | None:
        """Return the report of the last comparison."""
        value = self._family.get(_REPORT)
        return None if value is None else AgreementReport.decode(value)

    def save_report(self, report: AgreementReport) -> None:
        self._put(_REPORT, report.encode())

    def doubt(self, reason: str) -> None:
        """Store the reason why the last report is not valid any more."""
        report = self.report()
        if report is not None and report.doubt is None:
            self.save_report(report.doubted(reason))

    # -- what is left to be removed

    def removing(self) -> Removing | None:
        value = self._family.get(_REMOVING)
        return None if value is None else Removing(value.decode())

    def begin_removing(self, what: Removing) -> None:
        """Mark queues for removal: until `removed`, a start removes what is there."""
        self._put(_REMOVING, what.value.encode())

    def removed(self) -> None:
        """Delete the mark, as all marked queues are removed."""
        batch = self._engine.batch()
        batch.delete(self._family, _REMOVING)
        self._engine.write(batch, sync=True)

    # -- double write of some topics

    def doubled_topics(self) -> tuple[str, ...] | None:
        value = self._family.get(_DOUBLED)
        return None if value is None else tuple(json.loads(value))

    def set_doubled_topics(self, patterns: Sequence[str] | None) -> None:
        if patterns is not None:
            self._put(_DOUBLED, json.dumps(list(patterns)).encode())
            return
        batch = self._engine.batch()
        batch.delete(self._family, _DOUBLED)
        self._engine.write(batch, sync=True)

    def _put(self, key: bytes, value: bytes) -> None:
        batch = self._engine.batch()
        batch.put(self._family, key, value)
        self._engine.write(batch, sync=True)


def delete_gone_queues(files: FileConsumeQueues, rocks: RocksConsumeQueues, complete_up_to: PhysicalOffset) -> None:
    """Remove such queues from RocksDB. Below `complete_up_to` the files must hold all entries.

    Call it before recovery with the files' watermark: otherwise entries that recovery puts again would come to stand
    above the deleted ones. Call it again after recovery with the log's end: recovery may have put entries of a deleted
    queue again and then removed them.
    """
    gone = [
        queue
        for queue in list(rocks.queues())
        if is_file_name(queue.topic) and _is_deleted(files, rocks, queue, complete_up_to)
    ]
    if not gone:
        return
    # entries missing in the files must not come back with the next power cut, once RocksDB has removed them for good
    files.flush_entries()
    for queue in gone:
        rocks.restart_at(queue, QueueOffset(0))
        log.info("deleted before a crash, gone from RocksDB, too", topic=queue.topic, queue=queue.number)
    # before the files get entries of the queue again: after another crash they would no longer show the deletion
    rocks.flush()


def _is_deleted(
    files: FileConsumeQueues, rocks: RocksConsumeQueues, queue: QueueId, complete_up_to: PhysicalOffset
) -> bool:
    """Return whether the files lack all entries that RocksDB has.

    A queue that lacks only some of them is damaged, which is not reported here.
    """
    first = rocks.entries(queue, QueueOffset(0), 1)
    if not first:
        # perhaps all entries have expired, and only the next offset is left
        return rocks.next_offset(queue) > files.next_offset(queue)
    if first[0].physical_offset >= complete_up_to or not _is_missing(files, queue, first[0]):
        return False
    last = rocks.last_entry_below(queue, complete_up_to)
    return last is not None and _is_missing(files, queue, last)


def _is_missing(files: FileConsumeQueues, queue: QueueId, entry: ConsumeQueueEntry) -> bool:
    """Return whether the files have no entry at the entry's offset, or one from after the deletion."""
    found = files.entries(queue, entry.queue_offset, 1)
    is_there = bool(found) and found[0].queue_offset == entry.queue_offset
    return not is_there or found[0].physical_offset > entry.physical_offset


def remove_database(disk: Disk, directory: Path) -> None:
    """Remove the files of a database, and its directory unless it holds anything else (file queues lie there, too).

    `CURRENT` goes last, so that an interrupted removal can be recognized. Raises OSError.
    """
    files = [entry.name for entry in disk.list_directory(directory) if not entry.is_directory]
    for name in sorted(files, key=lambda name: (name == DATABASE_MARKER, name)):
        disk.remove(directory / name)
    if not disk.list_directory(directory):
        disk.remove_directory(directory)


class FileQueueRemoval:
    """Removes all file queues below `directory`, a few files at a time. After a kill, a new object continues.

    Files without the name of a queue file stay, and so do the directories that hold them.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._work = self._steps()

    def step(self) -> bool:
        """Remove the files of one queue; return whether any are left. After an OSError, begin with a new object."""
        return next(self._work, None) is not None

    def _steps(self) -> Iterator[Path]:
        for topic in self._directories(self._directory):
            for queue in self._directories(topic):
                for entry in self._disk.list_directory(queue):
                    if not entry.is_directory and parse_segment_name(entry.name) is not None:
                        self._disk.remove(queue / entry.name)
                self._remove_if_empty(queue)
                yield queue
            self._remove_if_empty(topic)
        self._remove_if_empty(self._directory)

    def _directories(self, path: Path) -> list[Path]:
        return [path / entry.name for entry in self._disk.list_directory(path) if entry.is_directory]

    def _remove_if_empty(self, directory: Path) -> None:
        if not self._disk.list_directory(directory):
            self._disk.remove_directory(directory)
