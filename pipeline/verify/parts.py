"""Divides a verification into parts, and defines what a task does with each.

Every task opens the store for itself and has its own `store.verify` verification. The checksums are added up, so that
the division into parts does not affect the result.
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
from quarry_mq.store.consumequeue.rocks_layout import entry_prefix
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.facts import IndexFile
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.offline import OfflineStore, QueueReader
from quarry_mq.store.record import Blank
from quarry_mq.store.verify import Difference
from quarry_mq.store.verify.index import indexes_to_compare
from quarry_mq.store.verify.queues import StoredSide
from quarry_mq.store.verify.report import Findings
from quarry_mq.store.verify.sources import EntrySource, QueuesPart
from quarry_mq.store.verify.sums import EntrySums, Sums
from quarry_mq.store.verify.verification import LogDamage, LogReading, Verification

QUEUES_PER_PART: Final = 20_000


class Job(NamedTuple):
    """The settings that all tasks of one verification share."""

    root: Path
    key: bytes
    """Key of all checksums."""
    kept_max: int | None
    """Differences that are kept of each check; None: all."""
    wanted: frozenset[QueueId]
    """Queues for which metadata claims offsets beyond the max offset."""


@dataclass(slots=True)
class Outcome:
    """The result of a part. Fields that the part does not determine are None or empty."""

    findings: Findings
    stored: tuple[int, StoredSide] | None = None
    """Number of the comparison, and what was read for it."""
    stored_items: tuple[int, Sums] | None = None
    """Number of the index comparison, and its sums."""
    expected: list[EntrySums] = field(default_factory=list)
    """The expected sums, one for each comparison."""
    expected_items: list[Sums] = field(default_factory=list)
    """The expected sums, one for each index comparison."""
    reading: LogReading | None = None
    first_records: dict[int, PhysicalOffset] = field(default_factory=dict)
    ends: dict[QueueId, QueueOffset] = field(default_factory=dict)


Steps = Generator[None, None, Outcome]
"""Between two steps the differences are taken away, so that no task holds many."""


class Part(Protocol):
    """A unit of work that a task does."""

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps: ...


@dataclass(frozen=True)
class QueuesRead:
    """Sums the entries of some queues, and checks each queue by itself."""

    comparison: int
    queues: QueuesPart

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:  # noqa: ARG002
        comparison = verification.comparisons[self.comparison]
        for _ in comparison.read_entries(comparison.source.queues(self.queues)):
            yield
        return Outcome(verification.findings, stored=(self.comparison, comparison.stored))


@dataclass(frozen=True)
class IndexRead:
    """Sums the items of an index file."""

    comparison: int
    file: IndexFile

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:  # noqa: ARG002
        comparison = verification.index_comparisons[self.comparison]
        yield
        comparison.read_items(self.file)
        return Outcome(verification.findings, stored_items=(self.comparison, comparison.stored))


@dataclass(frozen=True)
class LogRead:
    """Sums the entries and items that the records of a split should have."""

    split: LogSplit

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:
        split = self.split.located(store.segments)
        reading = LogReading(split.begin, split.begin)
        ends: dict[QueueId, QueueOffset] = {}
        for found in read_split(store.segments, split, check_crc=True):
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
    """Looks up the entries of the records of some pieces of the log, which begin at these records."""

    comparison: int
    pieces: dict[int, PhysicalOffset]

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:  # noqa: ARG002
        comparison = verification.comparisons[self.comparison]
        for piece, start in self.pieces.items():
            comparison.compare_records(piece, start, verification.is_deleted)
            yield
        return Outcome(verification.findings)


@dataclass(frozen=True)
class EntriesCompared:
    """Reads the records of the entries that lie in some pieces of the log."""

    comparison: int
    queues: QueuesPart
    pieces: frozenset[int]

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:  # noqa: ARG002
        comparison = verification.comparisons[self.comparison]
        for queue in comparison.source.queues(self.queues):
            comparison.compare_entries([queue], self.pieces)
            yield
        return Outcome(verification.findings)


@dataclass(frozen=True)
class IndexCompared:
    """Looks up the items of some pieces of the log, which begin at these records."""

    comparison: int
    pieces: frozenset[int]
    first_records: dict[int, PhysicalOffset]
    damage: tuple[tuple[PhysicalOffset, PhysicalOffset], ...]

    def steps(self, verification: Verification, store: OfflineStore, job: Job) -> Steps:  # noqa: ARG002
        yield
        verification.index_comparisons[self.comparison].compare(self.pieces, self.first_records, self.damage)
        return Outcome(verification.findings)


def run_part(part: Part, job: Job) -> Iterator[Difference | Outcome]:
    """Run the part in a task. Yields the differences, and its outcome last."""
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
    """Give the task its own verification and store."""
    told_by_driver = Findings(0)
    with OfflineStore.open(PosixDisk(), job.root) as store, indexes_to_compare(store, told_by_driver) as indexes:
        yield Verification(store, indexes, silent, Findings(job.kept_max), job.key), store


def queue_parts(source: EntrySource, entries_max: int) -> Iterator[QueuesPart]:
    """Yield all queues in parts of about `entries_max` entries; no queue is divided."""
    for part in _parts_of(source.reader, entries_max):
        # only file queues are requested by name
        yield part._replace(queues=None) if source.has_bounds else part


def _parts_of(reader: QueueReader, entries_max: int) -> Iterator[QueuesPart]:
    begin, queues, entries = b"", list[QueueId](), 0
    for queue in reader.queues():
        if entries >= entries_max or len(queues) == QUEUES_PER_PART:
            end = entry_prefix(queue)
            yield QueuesPart(KeyRange(begin, end), tuple(queues))
            begin, queues, entries = end, [], 0
        bounds = reader.bounds(queue)
        queues.append(queue)
        entries += bounds.maximum - bounds.minimum
    yield QueuesPart(KeyRange(begin, None), tuple(queues))


def divided(pieces: Sequence[int], parts: int) -> list[list[int]]:
    """Divide consecutive pieces among at most `parts` lists."""
    size = max(1, -(-len(pieces) // parts))
    return [list(pieces[begin : begin + size]) for begin in range(0, len(pieces), size)]
