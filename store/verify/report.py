"""What a verification says: counts per check, the first differences in words, and what is no difference."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset


class Check(Enum):
    """What is compared with what; the value is its name in reports."""

    LOG = "log"
    """Each record of the commit log is whole, and nothing that was durable is missing."""
    RECORDS = "records"
    """Each record has its unit in RocksDB: place, size, tags code, store time."""
    UNITS = "units"
    """Each unit in RocksDB points at a whole record of its queue; places ascend with offsets."""
    OFFSETS = "offsets"
    """Stored minima and maxima agree with the units and are not inverted."""
    CHECKPOINT = "checkpoint"
    """The dispatch check point is not above the log's end."""
    FILE_RECORDS = "fileRecords"
    """As RECORDS, in RocketMQ's queue files."""
    FILE_UNITS = "fileUnits"
    """As UNITS, in RocketMQ's queue files."""
    TOPICS = "topics"
    """Each topic with queues has metadata."""
    GROUPS = "groups"
    """No group is ahead of its queue."""
    IN_FLIGHT = "inFlight"
    """Each delivery that is under way is of a message there is, and will come to an end."""
    HELD = "heldMessages"
    """Delayed and half messages wait exactly as the log says."""
    INDEX = "keyIndex"
    """Each key of a record has its item in the index, and each item its key."""


class Note(Enum):
    """What was met and is as it should be; the value is its name in reports."""

    EXPIRED = "unitsBelowTheLog"
    """Units of records that expired; they leave with the next compaction."""
    ABOVE_MAXIMUM = "unitsAboveTheMaximum"
    """RocketMQ leaves them behind when it cuts a queue; nobody sees them."""
    UNDISPATCHED = "recordsToDispatch"
    """Records at or above the check point: the next start dispatches them."""
    DELETED = "recordsOfDeletedTopics"
    """Deleting a topic removes its queues at once, its records leave with their segments."""
    REMOVED_LIGHT = "recordsOfRemovedLightQueues"
    """Those of lite topics that expired or were deleted, and of light queues that were idle; as above."""
    NO_FILE_NAME = "recordsOfQueuesThatNoFileCanHave"
    """Queue files leave out light queues whose names no file can have; they have what came once there were others."""
    EARLIER_LIFE = "recordsFromBeforeTheTopicWasMadeAnew"
    BEFORE_DOUBLE_WRITE = "recordsFromBeforeDoubleWrite"
    """RocksDB has them only once Quarry has opened the store."""
    AFTER_FILE_QUEUES = "recordsNewerThanTheQueueFiles"
    """Quarry does not write queue files; a broker that was killed had not written the last ones."""
    GIVEN_UP = "unitsOfGivenUpRecords"
    """An operator gave the damaged record up (`quarry recover --replace-damaged`): groups pass over it."""
    TORN_END = "tornBytesAtTheEnd"
    """The last stop was unclean: the next start cuts these bytes and keeps them in a `.broken` file."""
    EXPIRED_IN_FLIGHT = "deliveriesOfExpiredMessages"
    TAGS_NOT_INDEXED = "tagsWithoutItems"
    """RocketMQ before 5.5 has no items of tags in its index files."""
    INDEXED_TWICE = "itemsThatComeTwice"
    """RocketMQ puts the items of its last record again when it goes on after a stop."""
    INDEX_ELSEWHERE = "indexFilesElsewhere"
    """They lie in an object store: what they hold is not compared."""
    EXPIRED_HELD = "heldMessagesThatExpired"
    """Half messages, or delayed ones that could not be carried over for want of room: they go when it is their time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where two parts of a store disagree. `expected` and `found` are words."""

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
    """The outcome. `differences` holds the first ones of each check; `counts` tells how many there are."""

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
        """The verdict, without the differences."""
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
    """Collects. Of each check the first `kept_max` differences are kept (None: all), all are counted."""

    kept_max: int | None
    kept: list[Difference] = field(default_factory=list)
    checked: Counter[Check] = field(default_factory=Counter)
    differing: Counter[Check] = field(default_factory=Counter)
    notes: Counter[Note] = field(default_factory=Counter)

    def count(self, check: Check, number: int = 1) -> None:
        """So many more things were looked at, whatever came of it."""
        self.checked[check] += number

    def differ(self, difference: Difference) -> None:
        self.differing[difference.check] += 1
        if self.kept_max is None or self.differing[difference.check] <= self.kept_max:
            self.kept.append(difference)

    def note(self, note: Note, number: int = 1) -> None:
        self.notes[note] += number

    def drain(self) -> list[Difference]:
        """Those that were kept since it was last asked."""
        kept, self.kept = self.kept, []
        return kept

    def absorb(self, other: Findings) -> None:
        """Add what others have counted. What they have kept is not taken over."""
        self.checked.update(other.checked)
        self.differing.update(other.differing)
        self.notes.update(other.notes)

    def differences(self) -> list[Difference]:
        """Those that were kept, in the order of the checks."""
        order = list(Check)
        return sorted(self.kept, key=lambda each: order.index(each.check))

    def counts(self) -> dict[Check, Count]:
        """In the order of the checks; those that did not apply to the store are left out."""
        made = [check for check in Check if check in self.checked or check in self.differing]
        return {check: Count(self.checked[check], self.differing[check]) for check in made}
