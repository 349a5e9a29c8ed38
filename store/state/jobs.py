"""Jobs are long work that operators have asked for, kept in the store as rows of the family `meta` of `quarry/`.

    key    ASCII `job/`, then i64 begin, wall clock ms, which is also the id
    value  JSON: the fields of `Job`

A job that has not ended continues at its cursor after a restart. Of the ended jobs, the newest `ENDED_KEPT` are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from struct import Struct
from typing import Any, Final

from quarry_mq.kv import KeyValueEngine, WriteBatch
from quarry_mq.kv.keys import prefix_range
from quarry_mq.store.state.identity import META

ENDED_KEPT: Final = 100
FIRST_ERRORS_MAX: Final = 20
TEXT_MAX: Final = 500
"""The most characters that are kept of an error, or of the name of the operator."""

_PREFIX: Final = b"job/"
_ID: Final = Struct(">q")


class JobState(Enum):
    """The state says how far a job is; the value is its name."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_end(self) -> bool:
        return self not in {JobState.WAITING, JobState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job is what was asked for, and what has come of it."""

    id: int
    kind: str
    asked_by: str
    asked: Mapping[str, Any]
    """The request in JSON; the job's kind knows the fields."""
    is_dry_run: bool = False
    """True if the job only counts and changes nothing."""
    state: JobState = JobState.WAITING
    done: int = 0
    total: int | None = None
    """The number of things to do; None when it is not known."""
    counts: Mapping[str, int] = field(default_factory=dict)
    first_errors: tuple[str, ...] = ()
    """The first errors of things that could not be done."""
    cursor: Mapping[str, Any] = field(default_factory=dict)
    """The place where to continue, in JSON; the job's kind knows the fields."""
    remark: str | None = None
    """The reason of the failure."""
    ended_at_ms: int | None = None

    def further(
        self, done: int, cursor: Mapping[str, Any], counts: Mapping[str, int], errors: tuple[str, ...] = ()
    ) -> Job:
        """Return the job with this progress added to it."""
        added = {name: self.counts.get(name, 0) + count for name, count in counts.items()}
        room = FIRST_ERRORS_MAX - len(self.first_errors)
        return replace(
            self,
            done=self.done + done,
            cursor=cursor,
            counts={**self.counts, **added},
            first_errors=(*self.first_errors, *(text[:TEXT_MAX] for text in errors[:room])),
        )

    def ended(self, state: JobState, ended_at_ms: int, remark: str | None = None) -> Job:
        text = None if remark is None else remark[:TEXT_MAX]
        return replace(self, state=state, ended_at_ms=ended_at_ms, remark=text)


class JobTable:
    """The table holds the rows of jobs. The caller that stages a change writes the batch. Reads see
    what was written.
    """

    def __init__(self, engine: KeyValueEngine) -> None:
        self._family = engine.family(META)

    def stage(self, batch: WriteBatch, job: Job) -> None:
        """Add the job as it is now; if it has ended, the oldest ended jobs beyond `ENDED_KEPT` are deleted."""
        row = {**{each.name: getattr(job, each.name) for each in fields(job)}, "state": job.state.value}
        batch.put(self._family, _PREFIX + _ID.pack(job.id), json.dumps(row, sort_keys=True).encode())
        if job.state.is_end:
            others = [each for each in self.all() if each.state.is_end and each.id != job.id]
            for each in others[ENDED_KEPT - 1 :]:
                batch.delete(self._family, _PREFIX + _ID.pack(each.id))

    def get(self, job_id: int) -> Job | None:
        value = self._family.get(_PREFIX + _ID.pack(job_id))
        return None if value is None else _decoded(json.loads(value))

    def all(self) -> list[Job]:
        """Return all jobs, the newest first."""
        return [_decoded(json.loads(value)) for _, value in self._family.scan(prefix_range(_PREFIX), reverse=True)]


def _decoded(row: dict[str, Any]) -> Job:
    return Job(**{**row, "state": JobState(row["state"]), "first_errors": tuple(row["first_errors"])})
