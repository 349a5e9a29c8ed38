"""A replica knows its role: whether it is the primary, and of which logs its log consists.

    <store>/replication/role.json    replaced as a whole
    <store>/replication/promote      an operator asks for the promotion of this replica (`quarry replica promote`)
    <store>/replication/seed         an operator asks for a new copy (`quarry replica seed`)
    <store>/replication/emptying     the old copy is being removed

An epoch is a term, the offset where the log of its primary began, and a random number. Two logs are equal up to the end
of the last epoch that both have, or up to the end of the shorter log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import randbits, token_hex
from typing import Final, NamedTuple

from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import CopyingDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset

NOTHING_SHARED: Final = -1


class Epoch(NamedTuple):
    """An epoch is the part of the log that the primary of one term wrote.

    The number is random: two copies that were promoted apart from each other may have one term and one start.
    """

    term: int
    start: int
    number: int


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a replica. `lineage` is the same on all copies of a store, and empty on a copy that has nothing."""

    lineage: str = ""
    term: int = 0
    is_primary: bool = False
    epochs: tuple[Epoch, ...] = ()
    origin: str = ""
    """The kind of the primary's store when Quarry first opened it."""
    segment_size: int = 0

    def promoted(self, term: int, log_end: PhysicalOffset) -> Role:
        """Return the role of the primary of a new term, whose log goes on at `log_end`."""
        kept = tuple(epoch for epoch in self.epochs if epoch.start < log_end or epoch.start == 0 == log_end)
        lineage = self.lineage or token_hex(16)
        return replace(
            self, lineage=lineage, term=term, is_primary=True, epochs=(*kept, Epoch(term, log_end, randbits(63)))
        )


def shared_end(ours: Sequence[Epoch], our_end: int, theirs: Sequence[Epoch], their_end: int) -> int:
    """Return up to where two logs are equal; `NOTHING_SHARED` if they have no epoch in common."""
    found = NOTHING_SHARED
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            break
        found = min(our_end, their_end, *(epochs[at + 1].start for epochs in (ours, theirs) if at + 1 < len(epochs)))
    return found


class RoleFiles:
    """The files in `replication/` of one store."""

    def __init__(self, disk: CopyingDisk, root: Path) -> None:
        self.disk = disk
        self._directory = StorePaths(root).replication

    @property
    def _path(self) -> Path:
        return self._directory / "role.json"

    def load(self) -> Role | None:
        """Return the role; None if the store never had copies. Raises StoreUnusable that names the file."""
        if not self.disk.exists(self._path):
            return None
        try:
            found = json.loads(self.disk.read(self._path))
            epochs = tuple(Epoch(*map(int, each)) for each in found["epochs"])
            return Role(
                str(found["lineage"]),
                int(found["term"]),
                bool(found["isPrimary"]),
                epochs,
                str(found["origin"]),
                int(found["segmentSize"]),
            )
        except (ValueError, KeyError, TypeError) as cause:
            raise StoreUnusable(
                self._path, f"it is damaged ({cause}): empty the directory of the store, and it is copied again"
            ) from cause

    def require_no_copy(self) -> None:
        """Raise StoreUnusable if the store is a copy: its log would part from the log of its primary unnoticed."""
        try:
            role = self.load()
        except OSError:  # the opening of the store names it
            return
        if role is not None and not role.is_primary:
            raise StoreUnusable(
                self._path,
                'the store is a copy and follows a primary: start it with replication.mode = "async". To serve it '
                f"without copies, promote it (`quarry replica promote --store {self._directory.parent}`), start it "
                "once with replication.mode, and then without",
            )

    def save(self, role: Role) -> None:
        """Write the role down durably."""
        self.disk.make_directories(self._directory)
        document = {
            "lineage": role.lineage,
            "term": role.term,
            "isPrimary": role.is_primary,
            "epochs": role.epochs,
            "origin": role.origin,
            "segmentSize": role.segment_size,
        }
        self.disk.replace_atomically(self._path, json.dumps(document).encode() + b"\n")

    def ask(self, what: str) -> None:
        """Leave a file that the replica looks for: `promote`, `seed` or `emptying`."""
        self.disk.make_directories(self._directory)
        self.disk.replace_atomically(self._directory / what, b"")

    def is_asked(self, what: str) -> bool:
        """Return whether there is such a file."""
        return self.disk.exists(self._directory / what)

    def drop_requests(self) -> None:
        """Remove the requests of operators: a primary has none."""
        self.done("promote")
        self.done("seed")

    def done(self, what: str) -> None:
        """Remove such a file."""
        if self.is_asked(what):
            self.disk.remove(self._directory / what)
