"""The stored state of a migration: rows of the family `meta` of `quarry/` (docs/formats/delivery-state.md).

| key                            | value | meaning |
|--------------------------------|-------|---------|
| `migration/step/` and a u32    | JSON  | one step: `at_ms`, `from`, `to`, `by`; numbered from 0 |
| `migration/report`             | JSON  | the last comparison of the queues (`AgreementReport`) |
| `migration/removing`           | ASCII | `files` or `rocksdb`: what a step left is being removed |
| `migration/doubled_topics`     | JSON  | the patterns of the topics that are double-written; no row: all are |

A step is written in one batch with the phase that it leads to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final

from quarry_mq.kv import KeyValueEngine, WriteBatch
from quarry_mq.kv.keys import prefix_range, u32
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.migration.agreement import AgreementReport
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.state.families import META

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
