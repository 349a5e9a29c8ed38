"""The parts into which a verification is divided, and what a task makes of each.

Every task opens the store for itself and has a `store.verify` verification of its own; the sums that it comes to are
added up, so that who reads what makes no difference.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from quarry_mq.kv import KeyRange
from quarry_mq.pipeline.progress import silent
from quarry_mq.pipeline.source.log_splits import Damage, LogSplit, read_split
from quarry_mq.store.consumequeue.rocks_layout import unit_prefix
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.facts import IndexFile
from quarry_mq.store.offline.store import OfflineStore, QueueReader
from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.record import Blank
from quarry_mq.store.verify import Difference
from quarry_mq.store.verify.index import indexes_to_compare
from quarry_mq.store.verify.queues import StoredSide
from quarry_mq.store.verify.report import Findings
from quarry_mq.store.verify.sources import QueuesPart, UnitSource
from quarry_mq.store.verify.sums import Sums, UnitSums
from quarry_mq.store.verify.verification import LogDamage, LogReading, Verification

QUEUES_PER_PART: Final = 20_000


class Job(NamedTuple):
    """What all tasks of one verification have in common."""

    root: Path
    key: bytes
    """Of all sums."""
    kept_max: int | None
    """Differences that are kept of each check; None: all."""
    wanted: frozenset[QueueId]
    """Queues that somebody is ahead of."""


@dataclass(slots=True)
class Outcome:
    """What came of a part. Fields that the part says nothing about are None or empty."""

    findings: Findings
    stored: tuple[int, StoredSide] | None = None
    """Of the comparison with this number."""
    stored_items: tuple[int, Sums] | None = None
    """Of the index comparison with this number."""
    expected: list[UnitSums] = field(default_factory=list)
    """Of each comparison."""
    expected_items: list[Sums] = field(default_factory=list)
    """Of each index comparison."""
    reading: LogReading | None = None
    first_records: dict[int, PhysicalOffset] = field(default_factory=dict)
    ends: dict[QueueId, QueueOffset] = field(default_factory=dict)


Steps = Generator[None, None, Outcome]
"""Between two steps differences are taken away, so that no task holds many."""


class Part(Protocol):
    """Something that a task does."""

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps: ...


@dataclass(frozen=True)
class QueuesRead:
    """Sum the units of some queues, and check each queue by itself."""

    comparison: int
    queues: QueuesPart

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:  # noqa: ARG002
        comparison = verification.comparisons[self.comparison]
        for _ in comparison.read_units(comparison.source.queues(self.queues)):
            yield
        return Outcome(verification.findings, stored=(self.comparison, comparison.stored))


@dataclass(frozen=True)
class IndexRead:
    """Sum the items of an index file."""

    comparison: int
    file: IndexFile

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:  # noqa: ARG002
        comparison = verification.index_comparisons[self.comparison]
        yield
        comparison.read_items(self.file)
        return Outcome(verification.findings, stored_items=(self.comparison, comparison.stored))


@dataclass(frozen=True)
class LogRead:
    """Sum what the records of a split must have."""

    split: LogSplit

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:
        reading = LogReading(self.split.begin, self.split.begin)
        ends: dict[QueueId, QueueOffset] = {}
        for found in read_split(store.segments, self.split, check_crc=True):
            if isinstance(found, Damage):
                reading.damaged(LogDamage(found.begin, found.end, found.reason))
            elif len(found) or isinstance(found.ended_by, Blank):
                reading.read(found.end)
                for queue, end in verification.add_batch(found, job.wanted).items():
                    ends[queue] = max(end, ends.get(queue, end))
                yield
        return Outcome(
            verification.findings,
            expected=[each.expected for each in verification.comparisons],
            expected_items=[each.expected for each in verification.index_comparisons],
            reading=reading,
            first_records=verification.first_records,
            ends=ends,
        )


@dataclass(frozen=True)
class RecordsCompared:
    """Look up the units of the records of some pieces of the log, which begin at these records."""

    comparison: int
    pieces: dict[int, PhysicalOffset]

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:  # noqa: ARG002
        comparison = verification.comparisons[self.comparison]
        for piece, start in self.pieces.items():
            comparison.compare_records(piece, start, verification.is_deleted)
            yield
        return Outcome(verification.findings)


@dataclass(frozen=True)
class UnitsCompared:
    """Read the records of the units that lie in some pieces of the log."""

    comparison: int
    queues: QueuesPart
    pieces: frozenset[int]

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:  # noqa: ARG002
        comparison = verification.comparisons[self.comparison]
        for queue in comparison.source.queues(self.queues):
            comparison.compare_units([queue], self.pieces)
            yield
        return Outcome(verification.findings)


@dataclass(frozen=True)
class IndexCompared:
    """Look up the items of some pieces of the log, which begin at these records."""

    comparison: int
    pieces: frozenset[int]
    first_records: dict[int, PhysicalOffset]
    damage: tuple[tuple[PhysicalOffset, PhysicalOffset], ...]

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:  # noqa: ARG002
        yield
        verification.index_comparisons[self.comparison].compare(self.pieces, self.first_records, self.damage)
        return Outcome(verification.findings)


def run_part(part: Part, job: Job) -> Iterator[Difference | Outcome]:
    """Do it, in a task: what differs, and in the end what came of it."""
    with verifying(job) as (verification, store):
        steps, findings = part.steps(verification, store, job), verification.findings
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                yield from findings.drain()
                yield ended.value
                return
            yield from findings.drain()


@contextmanager
def verifying(job: Job) -> Iterator[tuple[Verification, OfflineStore]]:
    """A verification of a task's own."""
    told_by_driver = Findings(0)
    with OfflineStore.open(PosixDisk(), job.root) as store, indexes_to_compare(store, told_by_driver) as indexes:
        yield Verification(store, indexes, silent, Findings(job.kept_max), job.key), store


def queue_parts(source: UnitSource, units_max: int) -> Iterator[QueuesPart]:
    """All queues in parts of about `units_max` units, none of them divided."""
    for part in _parts_of(source.reader, units_max):
        # only files are asked for by name
        yield part._replace(queues=None) if source.has_bounds else part


def _parts_of(reader: QueueReader, units_max: int) -> Iterator[QueuesPart]:
    begin, queues, units = b"", list[QueueId](), 0
    for queue in reader.queues():
        if units >= units_max or len(queues) == QUEUES_PER_PART:
            end = unit_prefix(queue)
            yield QueuesPart(KeyRange(begin, end), tuple(queues))
            begin, queues, units = end, [], 0
        bounds = reader.bounds(queue)
        queues.append(queue)
        units += bounds.maximum - bounds.minimum
    yield QueuesPart(KeyRange(begin, None), tuple(queues))


def divided(pieces: Sequence[int], parts: int) -> list[list[int]]:
    """Pieces that follow each other, in so many lists at most."""
    size = max(1, -(-len(pieces) // parts))
    return [list(pieces[begin : begin + size]) for begin in range(0, len(pieces), size)]
