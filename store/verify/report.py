"""The report of a verification: counts per check, the first differences in words, and notes on what is normal.

Verdicts of verifications are rows of the family `meta` of `quarry/`:

    key    ASCII `verification/`, then i64 begin, wall clock ms, which is also the id
    value  JSON: the fields of `Verdict`

The newest `VERDICTS_KEPT` are kept, and as many sweeps of the check of the log. The row of a sweep that is under way
has what was found so far, and in `log_end` where it goes on after a restart.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from quarry_mq.kv import KeyValueEngine
from quarry_mq.kv.keys import prefix_range
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.state.identity import META


class Check(Enum):
    """A check compares two parts of a store; the value is its name in reports."""

    LOG = "log"
    """Each record of the commit log is whole, and nothing that was durable is missing."""
    RECORDS = "records"
    """Each record has its entry in RocksDB: position, size, tags code, store time."""
    ENTRIES = "units"
    """Each entry in RocksDB points at a whole record of its queue; positions ascend with offsets."""
    OFFSETS = "offsets"
    """Stored min and max offsets agree with the entries and are not inverted."""
    CHECKPOINT = "checkpoint"
    """The dispatch check point is not above the log's end."""
    FILE_RECORDS = "fileRecords"
    """Each record has its entry in RocketMQ's queue files, as for RECORDS."""
    FILE_ENTRIES = "fileUnits"
    """Each entry in RocketMQ's queue files points at a whole record, as for UNITS."""
    TOPICS = "topics"
    """Each topic with queues has metadata."""
    GROUPS = "groups"
    """No group is ahead of its queue."""
    IN_FLIGHT = "inFlight"
    """Each delivery in flight is of an existing message, and will end."""
    PENDING = "heldMessages"
    """Delayed and half messages wait exactly as the log says."""
    INDEX = "keyIndex"
    """Each key of a record has its item in the index, and each item its key."""


class Note(Enum):
    """A note is something unusual that is as it should be; the value is its name in reports."""

    EXPIRED = "unitsBelowTheLog"
    """Entries of records that expired are removed by the next compaction."""
    ABOVE_MAXIMUM = "unitsAboveTheMaximum"
    """RocketMQ leaves these entries when it cuts a queue; no reader sees them."""
    UNDISPATCHED = "recordsToDispatch"
    """Records at or above the check point: the next start dispatches them."""
    DELETED = "recordsOfDeletedTopics"
    """The records of a deleted topic leave with their segments; its queues were removed at once."""
    REMOVED_LIGHT = "recordsOfRemovedLightQueues"
    """The records of light queues that expired, were deleted or were idle leave with their segments, too."""
    NO_FILE_NAME = "recordsOfQueuesThatNoFileCanHave"
    """Queue files leave out light queues whose names no file can have; later entries of these queues are in RocksDB."""
    EARLIER_LIFE = "recordsFromBeforeTheTopicWasMadeAnew"
    BEFORE_DOUBLE_WRITE = "recordsFromBeforeDoubleWrite"
    """RocksDB has these entries only once Quarry has opened the store."""
    AFTER_FILE_QUEUES = "recordsNewerThanTheQueueFiles"
    """Quarry does not write queue files, and a broker that was killed had not written the last entries."""
    GIVEN_UP = "unitsOfGivenUpRecords"
    """An operator gave the damaged record up (`quarry recover --replace-damaged`): groups pass over it."""
    TORN_END = "tornBytesAtTheEnd"
    """The last stop was unclean: the next start cuts these bytes and keeps them in a `.broken` file."""
    EXPIRED_IN_FLIGHT = "deliveriesOfExpiredMessages"
    TAGS_NOT_INDEXED = "tagsWithoutItems"
    """RocketMQ before 5.5 has no items of tags in its index files."""
    INDEXED_TWICE = "itemsThatComeTwice"
    """RocketMQ stores the items of its last record again when it continues after a stop."""
    INDEX_ELSEWHERE = "indexFilesElsewhere"
    """The files lie in an object store: their content is not compared."""
    EXPIRED_PENDING = "heldMessagesThatExpired"
    """Expired half messages, or delayed ones that could not be carried over for lack of space, go when they are due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference is one place where two parts of a store disagree. `expected` and `found` are words."""

    check: Check
    file: Path
    expected: str
    found: str
    queue: QueueId | None = None
    queue_offset: QueueOffset | None = None
    physical_offset: PhysicalOffset | None = None

    def as_json(self) -> dict[str, str | int | None]:
        return {
            "check": self.check.value,
            "file": str(self.file),
            "topic": None if self.queue is None else self.queue.topic,
            "queueId": None if self.queue is None else self.queue.number,
            "queueOffset": self.queue_offset,
            "phyOffset": self.physical_offset,
            "expected": self.expected,
            "found": self.found,
        }

    def __str__(self) -> str:
        place = [str(self.file)]
        if self.queue is not None:
            at = "" if self.queue_offset is None else f"@{self.queue_offset}"
            place.append(f"{self.queue.topic}/{self.queue.number}{at}")
        if self.physical_offset is not None:
            place.append(f"offset {self.physical_offset}")
        return f"{': '.join(place)}: expected {self.expected}, found {self.found}"


class Count(NamedTuple):
    checked: int
    differences: int


@dataclass(slots=True)
class VerifyReport:
    """The report is the outcome. `differences` holds the first ones of each check; `counts` has the totals."""

    counts: dict[Check, Count]
    differences: list[Difference]
    notes: dict[Note, int]
    log_begin: PhysicalOffset
    log_end: PhysicalOffset
    clean_stop: bool

    @property
    def agrees(self) -> bool:
        return not any(count.differences for count in self.counts.values())

    def as_json(self) -> dict[str, object]:
        """Return the verdict as JSON, without the differences."""
        return {
            "verdict": "agree" if self.agrees else "differ",
            "checks": {
                check.value: {"checked": count.checked, "differences": count.differences}
                for check, count in self.counts.items()
            },
            "notes": {note.value: count for note, count in self.notes.items()},
            "logBegin": self.log_begin,
            "logEnd": self.log_end,
            "cleanStop": self.clean_stop,
        }


@dataclass(slots=True)
class Findings:
    """Findings collect differences. Of each check the first `kept_max` are kept (None: all); all are counted."""

    kept_max: int | None
    kept: list[Difference] = field(default_factory=list)
    checked: Counter[Check] = field(default_factory=Counter)
    differing: Counter[Check] = field(default_factory=Counter)
    notes: Counter[Note] = field(default_factory=Counter)

    def count(self, check: Check, number: int = 1) -> None:
        """Count more things that were checked, whatever the result."""
        self.checked[check] += number

    def differ(self, difference: Difference) -> None:
        self.differing[difference.check] += 1
        if self.kept_max is None or self.differing[difference.check] <= self.kept_max:
            self.kept.append(difference)

    def note(self, note: Note, number: int = 1) -> None:
        self.notes[note] += number

    def drain(self) -> list[Difference]:
        """Return the differences that were kept since the last call."""
        kept, self.kept = self.kept, []
        return kept

    def absorb(self, other: Findings) -> None:
        """Add the counts of other findings. The differences that these have kept are not taken over."""
        self.checked.update(other.checked)
        self.differing.update(other.differing)
        self.notes.update(other.notes)

    def differences(self) -> list[Difference]:
        """Return the differences that were kept, in the order of the checks."""
        order = list(Check)
        return sorted(self.kept, key=lambda each: order.index(each.check))

    def counts(self) -> dict[Check, Count]:
        """Return the counts in the order of the checks, without checks that did not apply to the store."""
        made = [check for check in Check if check in self.checked or check in self.differing]
        return {check: Count(self.checked[check], self.differing[check]) for check in made}


VERDICTS_KEPT: Final = 20
THE_BROKER: Final = "the broker"
"""The name in `asked_by` of a sweep that checks the log, which nobody has begun."""
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

    @property
    def is_sweep(self) -> bool:
        """Return whether it is a sweep of the check of the log, which has the check `log` alone."""
        return self.asked_by == THE_BROKER

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
        """Save a verdict durably; the oldest ones of its kind beyond `VERDICTS_KEPT` are deleted."""
        batch = self._engine.batch()
        row = {**asdict(verdict), "state": verdict.state.value}
        batch.put(self._family, _PREFIX + _ID.pack(verdict.id), json.dumps(row, sort_keys=True).encode())
        others = [each for each in self.all() if each.is_sweep == verdict.is_sweep and each.id != verdict.id]
        for each in others[VERDICTS_KEPT - 1 :]:
            batch.delete(self._family, _PREFIX + _ID.pack(each.id))
        self._engine.write(batch, sync=True)

    def all(self) -> list[Verdict]:
        """Return all verdicts, the newest first."""
        return [_decoded(json.loads(value)) for _, value in self._family.scan(prefix_range(_PREFIX), reverse=True)]


def _decoded(row: dict[str, Any]) -> Verdict:
    known = {each.name for each in fields(Verdict)}  # a later version may have added some
    return Verdict(
        **{name: value for name, value in row.items() if name in known} | {"state": VerdictState(row["state"])}
    )
