"""The rules that decide when segments expire, and the count of what consumer groups lose by it.

The rules are pure functions:

    any time              a segment is past its retention when its newest record is `retention_ms` old
    in a `delete_when`    segments past their retention go, the oldest first
    hour, or on request
    above clean_percent   they go at any hour
    above force_percent   on the log's file system, segments go whatever their age, until that much is free again
    above refuse_percent  sends are refused; receives and acknowledgements still work

Thresholds and hours are RocketMQ's (`diskMaxUsedSpaceRatio`, `diskSpaceCleanForciblyRatio`,
`diskSpaceWarningLevelRatio`, `deleteWhen`). Unlike in RocketMQ, forced deletion ends when it has freed enough space.

Consumer groups lose the messages that they have not read when the log begins later (rmq#4549: a full disk deleted
messages that no consumer had read).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.store.errors import Invalid
from quarry_mq.store.fs import DiskSpace
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset

HOUR_MS: Final = 3_600_000


class Cause(Enum):
    """The cause says why a segment is deleted."""

    AGE = "age"
    ROOM = "room"  # it is not old enough, but the disk is nearly full


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpirySettings:
    """The settings of expiry say how long the log is kept, and how full the disk may get.

    `delete_when` are hours of the local clock, each valid for the whole hour; without any, every hour counts. `force`
    allows to delete segments that are younger than `retention_ms`.
    """

    retention_ms: int = 72 * HOUR_MS
    delete_when: frozenset[int] = frozenset({4})
    clean_percent: int = 75
    force_percent: int = 85
    refuse_percent: int = 90
    force: bool = True
    segments_per_round: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.clean_percent <= self.force_percent <= self.refuse_percent <= 100:
            raise Invalid("expiry: clean_percent, force_percent and refuse_percent must ascend")
        if not all(0 <= hour <= 23 for hour in self.delete_when):
            raise Invalid("expiry.delete_when: hours are 0 to 23")


class FileSystem(NamedTuple):
    """The object names one of the store's folders and says how full its file system is."""

    directory: Path
    space: DiskSpace


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """The situation holds the facts that a decision is based on.

    `now_ms` is compared with store times; `hour` is the local hour, 0 to 23. `log` is None when the file system does
    not tell its size. `going_bytes` belong to segments that expired before and still have their files. `futile`: a
    recent forced deletion freed no space, as when backups hold the same files.
    """

    now_ms: int
    hour: int
    log: FileSystem | None = None
    others: Sequence[FileSystem] = ()
    going_bytes: int = 0
    requested: bool = False
    futile: bool = False

    @property
    def fullest_percent(self) -> int:
        spaces = [*(self.others), *([self.log] if self.log is not None else [])]
        return max((each.space.used_percent for each in spaces), default=0)


class Candidate(NamedTuple):
    """A candidate is a segment that may be deleted. `newest_ms`: no record in it is newer; None when
    that is not known.
    """

    base: PhysicalOffset
    newest_ms: int | None


class Plan(NamedTuple):
    """A plan lists the segments to delete, the oldest first, each with the cause."""

    segments: tuple[tuple[Candidate, Cause], ...]

    @property
    def forced(self) -> int:
        """Return how many segments are deleted before their time."""
        return sum(cause is Cause.ROOM for _, cause in self.segments)


def decide(settings: ExpirySettings, situation: Situation, candidates: Iterable[Candidate], segment_size: int) -> Plan:
    """Return which of the candidates (oldest first) are to be deleted now.

    No candidate is skipped: the plan ends at the first that has to stay. Later candidates are not asked for.
    """
    may_expire = (
        situation.requested
        or not settings.delete_when
        or situation.hour in settings.delete_when
        or situation.fullest_percent > settings.clean_percent
    )
    wanted_bytes = _wanted_bytes(settings, situation)
    if not may_expire and wanted_bytes <= 0:
        return Plan(())
    chosen: list[tuple[Candidate, Cause]] = []
    for candidate in candidates:
        if may_expire and is_expired(settings, situation.now_ms, candidate):
            cause = Cause.AGE
        elif wanted_bytes > 0:
            cause = Cause.ROOM
        else:
            break
        chosen.append((candidate, cause))
        wanted_bytes -= segment_size
        if len(chosen) == settings.segments_per_round:
            break
    return Plan(tuple(chosen))


def is_expired(settings: ExpirySettings, now_ms: int, candidate: Candidate) -> bool:
    return candidate.newest_ms is not None and candidate.newest_ms + settings.retention_ms <= now_ms


class Forced(NamedTuple):
    """A forced deletion was to free space: the object says what was deleted, and how much was used before."""

    freed_bytes: int
    used_bytes: int
    log_end: PhysicalOffset

    def was_futile(self, used_bytes: int, log_end: PhysicalOffset) -> bool:
        """Return whether less than half of the space is free again now that the files are gone; new segments are
        allowed for.
        """
        return used_bytes - (log_end - self.log_end) > self.used_bytes - self.freed_bytes // 2


def refusal(settings: ExpirySettings, situation: Situation) -> str:
    """Return why sends are refused; empty when they are not."""
    for each in ([situation.log] if situation.log is not None else []) + list(situation.others):
        if each.space.used_percent > settings.refuse_percent:
            return (
                f"the file system of {each.directory} is {each.space.used_percent} % full; sends are refused above "
                f"{settings.refuse_percent} %"
            )
    return ""


def _wanted_bytes(settings: ExpirySettings, situation: Situation) -> int:
    """Return how many bytes have to be freed regardless of age: only on the log's file system, where deleting helps."""
    if situation.log is None or situation.futile or not settings.force:
        return 0
    space = situation.log.space
    if space.used_percent <= settings.force_percent:
        return 0
    allowed = settings.force_percent * space.total_bytes // 100
    return space.used_bytes - allowed - situation.going_bytes


PAGE_POSITIONS: Final = 64
"""Committed offsets per page: so few that the event loop's thread does not wait longer for the interpreter than for one
of its own calls.
"""


class Unread(NamedTuple):
    """Messages that a group has not received yet and never will, over all queues."""

    messages_by_group: dict[str, int]
    complete: bool
    """False when there were more committed offsets of groups than were read."""

    @property
    def messages(self) -> int:
        return sum(self.messages_by_group.values())


def count_unread(
    positions: Iterator[tuple[str, QueueId, QueueOffset]],
    unread_below: Callable[[QueueId, QueueOffset, PhysicalOffset], int],
    minimum: PhysicalOffset,
    *,
    positions_max: int,
    go_on: Callable[[], bool],
) -> Unread:
    """Return what each group has not read below `minimum`. Reads at most `positions_max` committed offsets.

    `go_on` is called after each page of them; it may take its time, and returns False to end the count. Messages that
    were delivered and not acknowledged are not counted; messages that a group's filter would skip are.
    """
    found: dict[str, int] = {}
    for looked_at, (group, queue, next_offset) in enumerate(positions):
        if looked_at >= positions_max or (looked_at % PAGE_POSITIONS == PAGE_POSITIONS - 1 and not go_on()):
            return Unread(found, complete=False)
        count = unread_below(queue, next_offset, minimum)
        if count:
            found[group] = found.get(group, 0) + count
    return Unread(found, complete=True)
