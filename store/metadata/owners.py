"""The owner of each topic or group that was created by being used: rows in `quarry/` by which they are counted.

    own:<kind> 0 <owner> 0 <name>   nothing      to count by
    owner:<kind> 0 <name>           the owner    to find the other row when the thing is deleted

Both are written, and deleted, in one batch with the row of the topic or group itself. What an operator created has no
owner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Final, TypeVar

from quarry_mq.kv import KeyValueEngine, WriteBatch
from quarry_mq.kv.keys import prefix_range
from quarry_mq.store.metadata.rows import Changes, NamedRows, Resolve
from quarry_mq.store.state.identity import META

Row = TypeVar("Row")

COUNTED_MAX: Final = 1_024
"""Owners whose counts are cached; those of other owners are counted when they create something."""


class Owners:
    """The owners of one kind of things: topics or groups. Any thread may call."""

    def __init__(self, engine: KeyValueEngine, kind: str) -> None:
        self._family = engine.family(META)
        self._kind = kind.encode()
        self._lock = Lock()
        self._counts: OrderedDict[str, int] = OrderedDict()  # guarded by _lock

    def count(self, owner: str) -> int:
        """Return how many of the things created for the owner still exist."""
        with self._lock:
            count = self._counts.get(owner)
            if count is None:
                count = len(self._family.scan(prefix_range(self._own(owner, ""))))
            self._keep(owner, count)
            return count

    def stage_made(self, batch: WriteBatch, name: str, owner: str) -> None:
        """Stage the rows of a new thing; call `add` when they are written."""
        batch.put(self._family, self._own(owner, name), b"")
        batch.put(self._family, self._owner(name), owner.encode())

    def stage_deleted(self, batch: WriteBatch, name: str) -> str | None:
        """Stage the deletion of a thing's rows; return its owner, for the call of `add` when that is written."""
        stored = self._family.get(self._owner(name))
        if stored is None:
            return None
        owner = stored.decode()
        batch.delete(self._family, self._own(owner, name))
        batch.delete(self._family, self._owner(name))
        return owner

    def add(self, owner: str, change: int) -> None:
        """Change the owner's cached count after a staged change was written."""
        with self._lock:
            if owner in self._counts:
                self._counts[owner] += change

    def _keep(self, owner: str, count: int) -> None:
        self._counts[owner] = count
        self._counts.move_to_end(owner)
        if len(self._counts) > COUNTED_MAX:
            self._counts.popitem(last=False)

    def _own(self, owner: str, name: str) -> bytes:
        return b"\0".join((b"own:" + self._kind, owner.encode(), name.encode()))

    def _owner(self, name: str) -> bytes:
        return b"owner:" + self._kind + b"\0" + name.encode()


def insert_owned(rows: NamedRows[Row], owners: Owners | None, name: str, row: Row, owner: str | None) -> None:
    """Insert the row, with those of its owner if it has one. Raises AlreadyExists."""
    if owners is None or owner is None:
        rows.insert(name, row)
        return
    rows.insert(name, row, lambda batch: owners.stage_made(batch, name, owner), by_use=True)
    owners.add(owner, 1)


def remove_owned(rows: NamedRows[Row], owners: Owners | None, name: str) -> None:
    """Remove the row, with those of its owner if it has one. Raises the table's not-found error."""
    if owners is None:
        rows.remove(name)
        return
    released: list[str | None] = []
    rows.remove(name, lambda batch: released.append(owners.stage_deleted(batch, name)))
    _release(owners, released)


def take_over_owned(rows: NamedRows[Row], owners: Owners | None, resolve: Resolve) -> None:
    """Do the same as `NamedRows.take_over`, and lower the counts of the owners of rows that it deletes."""
    if owners is None:
        rows.take_over(resolve)
        return
    released: list[str | None] = []

    def resolve_owned(batch: WriteBatch) -> Changes:
        changes = resolve(batch)
        released.extend(owners.stage_deleted(batch, name) for name, value in changes.items() if value is None)
        return changes

    rows.take_over(resolve_owned)
    _release(owners, released)


def _release(owners: Owners, released: Iterable[str | None]) -> None:
    for owner in released:
        if owner is not None:
            owners.add(owner, -1)
