"""What a comparison of file queues and RocksDB queues has to offer, and the report that it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol, Self

FIRST_DIFFERENCES_MAX: Final = 100
"""How many differences a report names. Of the others it has the numbers."""


class QueueDifference(NamedTuple):
    """One place at which the two disagree. `kind` is a short word in lower case, the same for the same kind."""

    kind: str
    topic: str
    queue_number: int
    queue_offset: int | None
    """None: it is about the queue as a whole."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementReport:
    """What a comparison of all queues found. Stored as JSON in a row of `quarry/` (`MigrationRows.report`)."""

    began_at_ms: int
    ended_at_ms: int
    asked_by: str
    log_begin: int
    """Units of records below were not compared: the log no longer has them."""
    log_end: int
    """Units of records at or above were not compared: they came later."""
    queues: int
    units: int
    differences: Mapping[str, int] = field(default_factory=dict)
    """How many of each kind; none when files and RocksDB agree."""
    first: tuple[QueueDifference, ...] = ()
    """The first `FIRST_DIFFERENCES_MAX` of them, in the order of their queues."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """How many queues only one of the two can have, and were passed over, by the reason."""
    doubt: str | None = None
    """What has happened since that the report does not cover; None: it still stands."""

    @property
    def agrees(self) -> bool:
        return not self.differences

    def doubted(self, reason: str) -> AgreementReport:
        return self if self.doubt is not None else replace(self, doubt=reason)

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["differences"] = dict(self.differences)
        fields["notes"] = dict(self.notes)
        return json.dumps(fields, sort_keys=True).encode()

    @classmethod
    def decode(cls, row: bytes) -> Self:
        fields = json.loads(row)
        fields["first"] = tuple(QueueDifference(*each) for each in fields["first"])
        return cls(**fields)


class ComparisonProgress(NamedTuple):
    queues: int
    """How many were compared so far."""
    units: int


class Comparison(Protocol):
    """Compares every unit of every queue, and where each queue ends, while the broker runs.

    The thread that calls `step` is neither the event loop's nor always the same one, but never two at once. Between
    two steps it pauses, so that the work is throttled, and whoever cancels simply takes no further step.

    Compared is what the two are to have in common: units of records in [log begin, log end), log end being the
    watermark of both when it began, and the next offset of each queue that did not grow meanwhile. Names that are no
    file names are in RocksDB alone and are passed over. What is deleted, or expires, while it runs is no difference.
    """

    def step(self) -> bool:
        """Some thousand units more, at most some tens of milliseconds. Returns whether anything is left to do.

        Raises kv.KvError, OSError, StoreDamaged.
        """

    def progress(self) -> ComparisonProgress:
        """How far it is. Any thread may ask."""

    def report(self) -> AgreementReport:
        """What was found, once nothing is left to do."""

    def close(self) -> None:
        """Give back what it holds open. No step is under way. Repeatable."""
