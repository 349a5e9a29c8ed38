"""The module reports a verification: counts per check, the first differences in words, and notes on what is normal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset


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
