"""The interface of a comparison of file queues and RocksDB queues, and its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol, Self

FIRST_DIFFERENCES_MAX: Final = 100
"""The number of differences that a report names. The other differences are only counted."""


class QueueDifference(NamedTuple):
    """Describe one difference between the two. `kind` is a short word in lower case, the same for the same kind."""

    kind: str
    topic: str
    queue_number: int
    queue_offset: int | None
    """The queue offset of the difference; None: the queue as a whole differs."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementReport:
    """The result of a comparison of all queues. Stored as JSON in a row of `quarry/` (`MigrationRows.report`)."""

    began_at_ms: int
    ended_at_ms: int
    asked_by: str
    log_begin: int
    """Entries of records below this offset were not compared: the log no longer has them."""
    log_end: int
    """Entries of records at or above this offset were not compared: they came later."""
    queues: int
    units: int
    differences: Mapping[str, int] = field(default_factory=dict)
    """The number of differences of each kind; empty when files and RocksDB agree."""
    first: tuple[QueueDifference, ...] = ()
    """The first `FIRST_DIFFERENCES_MAX` differences, in the order of their queues."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """The number of skipped queues that only one of the two can have, by the reason."""
    doubt: str | None = None
    """An event since the comparison that the report does not cover; None: the report is still valid."""

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
    """The number of queues compared so far."""
    units: int


class Comparison(Protocol):
    """Compares every entry of every queue, and each queue's next offset, while the broker runs.

    `step` is called on threads other than the event loop's, not always the same one, but never on two at once. The
    caller pauses between two steps to throttle the work, and cancels by taking no further step.

    The two must agree on the entries of records in [log begin, log end), log end being the watermark of both when the
    comparison began, and on the next offset of each queue that did not grow meanwhile. Queues whose names are not valid
    file names are in RocksDB alone and are skipped. Entries that are deleted or expire meanwhile count as no
    difference.
    """

    def step(self) -> bool:
        """Compare some thousand more entries, for at most some tens of milliseconds. Returns whether any are left.

        Raises kv.KvError, OSError, StoreDamaged.
        """

    def progress(self) -> ComparisonProgress:
        """Return how far the comparison is. Any thread."""

    def report(self) -> AgreementReport:
        """Return the result, once nothing is left to do."""

    def close(self) -> None:
        """Close what is open. No step may be under way. Repeatable."""
