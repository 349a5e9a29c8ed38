"""The module stores the verdicts of verifications in the store: rows of the family `meta` of `quarry/`.

    key    ASCII `verification/`, then i64 begin, wall clock ms, which is also the id
    value  JSON: the fields of `Verdict`

The newest `VERDICTS_KEPT` are kept.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from struct import Struct
from typing import Any, Final

from quarry_mq.kv import KeyValueEngine
from quarry_mq.kv.keys import prefix_range
from quarry_mq.store.state.families import META
from quarry_mq.store.verify.report import VerifyReport

VERDICTS_KEPT: Final = 20
_PREFIX: Final = b"verification/"
_ID: Final = Struct(">q")


class VerdictState(Enum):
    """The state says how far a verification is; the value is its name."""

    RUNNING = "running"
    AGREE = "agree"
    DIFFER = "differ"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A verdict is the result of a verification. `checks`: by name, how many things were checked and
    how many differ.
    """

    id: int
    asked_by: str
    state: VerdictState
    ended_at_ms: int | None = None
    log_begin: int = 0
    log_end: int = 0
    checks: dict[str, list[int]] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    first: list[list[str]] = field(default_factory=list)
    """Check and text of the first differences."""
    remark: str | None = None
    """The reason why the differences may be none, or why the verification failed."""

    def ended(self, report: VerifyReport, ended_at_ms: int, remark: str | None) -> Verdict:
        """Return the verdict with what was found."""
        return Verdict(
            id=self.id,
            asked_by=self.asked_by,
            state=VerdictState.AGREE if report.agrees else VerdictState.DIFFER,
            ended_at_ms=ended_at_ms,
            log_begin=report.log_begin,
            log_end=report.log_end,
            checks={check.value: list(count) for check, count in report.counts.items()},
            notes={note.value: count for note, count in report.notes.items()},
            first=[[each.check.value, str(each)] for each in report.differences],
            remark=None if report.agrees else remark,
        )

    def given_up(self, state: VerdictState, ended_at_ms: int | None, remark: str | None = None) -> Verdict:
        """Return the verdict of a verification that ended without a result."""
        return Verdict(id=self.id, asked_by=self.asked_by, state=state, ended_at_ms=ended_at_ms, remark=remark)


class Verdicts:
    """The table holds the verdicts of a store."""

    def __init__(self, engine: KeyValueEngine) -> None:
        self._engine = engine
        self._family = engine.family(META)

    def save(self, verdict: Verdict) -> None:
        """Save a verdict durably; the oldest ones beyond `VERDICTS_KEPT` are deleted."""
        batch = self._engine.batch()
        fields = {**asdict(verdict), "state": verdict.state.value}
        batch.put(self._family, _PREFIX + _ID.pack(verdict.id), json.dumps(fields, sort_keys=True).encode())
        kept = [key for key, _ in self._family.scan(prefix_range(_PREFIX), reverse=True)]
        for key in kept[VERDICTS_KEPT - 1 :]:
            if key != _PREFIX + _ID.pack(verdict.id):
                batch.delete(self._family, key)
        self._engine.write(batch, sync=True)

    def all(self) -> list[Verdict]:
        """Return all verdicts, the newest first."""
        return [_decoded(json.loads(value)) for _, value in self._family.scan(prefix_range(_PREFIX), reverse=True)]


def _decoded(fields: dict[str, Any]) -> Verdict:
    return Verdict(**{**fields, "state": VerdictState(fields["state"])})
