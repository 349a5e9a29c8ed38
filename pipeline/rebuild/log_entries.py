"""Chooses which consume queue entries a task makes of the records that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quarry_mq.store.consumequeue import EntryColumns, FileConsumeQueues
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.migration.present_entries import PresentAssignment, PresentEntries
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.scan import RecordBatch, ScannedRequests
from quarry_mq.store.verify.log import entries_in

EntriesOf = Callable[[RecordBatch], EntryColumns]


class LogEntries(Protocol):
    """A choice of entries. Spark sends it to the tasks."""

    @property
    def counts_light(self) -> bool:
        """Return whether light queues get consecutive offsets once all their entries are sorted together."""

    def opened(self, root: Path) -> AbstractContextManager[EntriesOf]:
        """Return a context manager that gives the function which makes entries of a batch."""


@dataclass(frozen=True, slots=True)
class StatedEntries:
    """Provide all entries, with the offsets that their records state."""

    counts_light: bool

    @contextmanager
    def opened(self, root: Path) -> Iterator[EntriesOf]:  # noqa: ARG002 - records state all that entries need
        yield entries_in


@dataclass(frozen=True, slots=True)
class FileEntries:
    """The entries that the queue files hold, with the files' offsets for light queues.

    The files are durable and unchanging.
    """

    minimum: PhysicalOffset
    end: PhysicalOffset
    units_per_file: int
    counts_light: bool = False

    @contextmanager
    def opened(self, root: Path) -> Iterator[EntriesOf]:
        with closing(self.files(root)) as files, closing(PresentEntries(PosixDisk(), files)) as present_entries:
            assignment = PresentAssignment(present_entries)

            def entries_of(batch: RecordBatch) -> EntryColumns:
                entries = ScannedRequests(batch, slice(None), assignment).entries
                return entries.select(present_entries.mask(entries)).compact()

            yield entries_of

    def files(self, root: Path) -> FileConsumeQueues:
        """Return the queue files, opened for reading."""
        return FileConsumeQueues(
            PosixDisk(),
            StorePaths(root).consume_queue,
            minimum_physical_offset=self.minimum,
            dispatched_up_to=self.end,
            save_dispatched=_save_nothing,
            after_crash=False,
            units_per_file=self.units_per_file,
        )


def _save_nothing(_: PhysicalOffset, /, *, emptied: bool) -> None:
    """Store nothing: the files are only read."""
