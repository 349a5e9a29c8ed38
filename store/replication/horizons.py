"""Horizons say how much a store knows of what each member has changed, and up to where deletions were dropped.

Both are sequences of the members. A store that does not know a member's changes up to the point where its deletions
were dropped may hold rows that no other store has any more, and nothing that it reads shows that.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType
from typing import Final, NamedTuple

from quarry_mq.kv import Family, KeyValueEngine, WriteBatch
from quarry_mq.kv.keys import prefix_range

KNOWN: Final = b"k\0"
FORGOTTEN: Final = b"f\0"
_SEQUENCE: Final = Struct(">Q")
_NONE: Final[Mapping[str, int]] = MappingProxyType({})


class Horizons(NamedTuple):
    """The horizons are sequences by the names of members.

    `known`: all changes of the member up to this sequence have come, from itself or through others; empty for a store
    that has not read any member to the end yet. `forgotten`: deletions up to this sequence may have been dropped, by
    the member or by others.
    """

    known: Mapping[str, int] = _NONE
    forgotten: Mapping[str, int] = _NONE

    def missed(self, forgotten: Mapping[str, int]) -> str | None:
        """Return a member some of whose deletions may never arrive; None if all arrived, or if nothing
        was ever known.
        """
        if not self.known:
            return None
        return next((name for name, until in sorted(forgotten.items()) if self.known.get(name, 0) < until), None)


NOTHING_TOLD: Final = Horizons()


class StoredHorizons:
    """The horizons of one open store, kept in rows. The change log's lock guards all calls."""

    def __init__(self, engine: KeyValueEngine, family: Family) -> None:
        self._engine = engine
        self._family = family
        self._known = self._load(KNOWN)
        self._forgotten = self._load(FORGOTTEN)

    @property
    def now(self) -> Horizons:
        return Horizons(MappingProxyType(self._known), MappingProxyType(self._forgotten))

    def write(self, batch: WriteBatch, told: Horizons, *, sync: bool = False) -> None:
        """Write the batch, and with it every sequence in `told` that is higher than before."""
        known = self._stage(batch, KNOWN, self._known, told.known)
        forgotten = self._stage(batch, FORGOTTEN, self._forgotten, told.forgotten)
        if len(batch):
            self._engine.write(batch, sync=sync)
        self._known |= known
        self._forgotten |= forgotten

    def replace(self, batch: WriteBatch, told: Horizons) -> None:
        """Write the batch, and with it the horizons of another store in place of all that were here."""
        for prefix in (KNOWN, FORGOTTEN):
            batch.delete_range(self._family, prefix_range(prefix))
        known = self._stage(batch, KNOWN, _NONE, told.known)
        forgotten = self._stage(batch, FORGOTTEN, _NONE, told.forgotten)
        self._engine.write(batch, sync=True)
        self._known, self._forgotten = known, forgotten

    def _stage(
        self, batch: WriteBatch, prefix: bytes, here: Mapping[str, int], told: Mapping[str, int]
    ) -> dict[str, int]:
        higher = {name: sequence for name, sequence in told.items() if sequence > here.get(name, -1)}
        for name, sequence in higher.items():
            batch.put(self._family, prefix + name.encode(), _SEQUENCE.pack(sequence))
        return higher

    def _load(self, prefix: bytes) -> dict[str, int]:
        rows = self._family.scan(prefix_range(prefix))
        return {key[len(prefix) :].decode(): int(_SEQUENCE.unpack(value)[0]) for key, value in rows}
