"""A table of rows by name in one column family, and the JSON of its rows: the common part of topics and groups.

The JSON documents (docs/formats/metadata.md) are compact, ASCII, with sorted keys: a row is always encoded in the same
way, and tools without Quarry can read it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from threading import Lock
from typing import Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from quarry_mq.kv import KeyRange, KeyValueEngine, WriteBatch
from quarry_mq.kv.keys import prefix_range
from quarry_mq.store.errors import AlreadyExists, Invalid, StoreDamaged

Row = TypeVar("Row")
Stage = Callable[[WriteBatch], None]
"""Adds to a batch the changes that must be written with it."""

Changes = Mapping[str, bytes | None]
"""Rows by name as they are to be stored; None: to be deleted."""

IsCounted = Callable[[str, bytes], bool]
"""Returns whether a row, given by its name and stored bytes, is counted."""

Resolve = Callable[[WriteBatch], Changes]
"""Returns the rows to take over as they are now, and adds to the batch the changes that must be written with them."""

PAGE_ROWS: Final = 256
"""Rows per scan of a listing: no iterator of the engine stays open while the caller works on a page."""

BATCH_ROWS: Final = 1000
"""Rows per batch of a bulk import: about 200 KiB."""


class NamesFound(NamedTuple):
    """The found names in their order, and the last name that was read; None when there are no more."""

    names: list[str]
    last: str | None


class RowJournal(Protocol):
    """A change log of a table, written in the batches that make the changes (`store.replication`)."""

    @property
    def writing(self) -> AbstractContextManager[object]:
        """A re-entrant lock, held from before the first `stage` of a batch until the batch is written."""

    def stage(self, batch: WriteBatch, name: str, value: bytes | None, *, by_use: bool = False) -> None:
        """Note that the batch, which changes the row once, sets it to this value; None: deletes it.

        `by_use`: the row was not created on purpose, but because its name was used.
        """


class NamedRows(Generic[Row]):
    """Rows keyed by the UTF-8 bytes of their name. A change costs one small write, whatever the table holds.

    Reads go through a cache of the `cached_max` most recently used names; a read never creates anything. Any thread may
    call. Changes are durable when the call returns.
    """

    def __init__(
        self,
        engine: KeyValueEngine,
        family: str,
        *,
        kind: str,
        not_found: type[Invalid],
        encode: Callable[[Row], bytes],
        decode: Callable[[str, bytes], Row],
        cached_max: int,
        journal: RowJournal | None = None,
        is_counted: IsCounted = lambda _name, _value: True,
    ) -> None:
        self._engine = engine
        self._family = engine.family(family)
        self._kind = kind
        self._not_found = not_found
        self._encode = encode
        self._decode = decode
        self._cached_max = cached_max
        self._journal = journal
        self._is_counted = is_counted
        self.changes = 0
        """The change in the number of counted rows since this object was made. Any thread may read it."""
        self._recording: AbstractContextManager[object] = nullcontext() if journal is None else journal.writing
        # Lock order: _writing, _recording, _caching. A get never waits for another thread's write to become durable.
        self._writing = Lock()  # makes the check for existence and the write one step
        self._caching = Lock()
        self._cached: OrderedDict[str, Row] = OrderedDict()  # guarded by _caching

    def get(self, name: str) -> Row | None:
        """Return the row, or None. Raises StoreDamaged for bytes that are not a row."""
        # Engine and cache are read under one lock: otherwise a row read before a change could be cached
        # after it.
        with self._caching:
            row = self._cached.get(name)
            if row is not None:
                if len(self._cached) >= self._cached_max:  # else none is evicted, and a move costs three memory reads
                    self._cached.move_to_end(name)
                return row
            value = self._family.get(_key(name))
            if value is None:
                return None
            row = self._decode(name, value)
            self._remember(name, row)
            return row

    def warm(self, after: str) -> str | None:
        """Load more rows into the cache, from the names after `behind`; "" begins. Rows in use stay longer than these.

        Returns the name after which there may be more; None when there are none, or no space. Rows that cannot be read
        are skipped: `get` reports them.
        """
        with self._caching:
            room = self._cached_max - len(self._cached)
            page = self._family.scan(KeyRange(_key(after) + b"\0", None), limit=min(room, PAGE_ROWS)) if room else []
            for key, value in page:
                name = key.decode()
                if name not in self._cached:
                    with suppress(StoreDamaged):
                        self._cached[name] = self._decode(name, value)
                        self._cached.move_to_end(name, last=False)
        return page[-1][0].decode() if page else None

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the names that have no row now. The cache is neither read nor changed, so all rows may be checked."""
        values = self._family.get_many([_key(name) for name in names])
        return [name for name, value in zip(names, values, strict=True) if value is None]

    def is_empty(self) -> bool:
        return not self._family.scan(KeyRange(b"", None), limit=1)

    def insert(self, name: str, row: Row, beside: Stage | None = None, *, by_use: bool = False) -> None:
        """Store a row of a new name, with the changes that `beside` stages in the same batch. Raises AlreadyExists."""
        with self._writing, self._recording:
            if self._family.get(_key(name)) is not None:
                raise AlreadyExists(f"{self._kind} {name} exists")
            batch = self._engine.batch()
            self._stage(batch, name, self._encode(row), by_use=by_use)
            if beside is not None:
                beside(batch)
            self._engine.write(batch, sync=True)
            self._count(name, None, self._encode(row))
            with self._caching:
                self._remember(name, row)

    def replace(self, name: str, row: Row) -> None:
        """Store a row in place of another of the same name. Raises the table's not-found error."""
        with self._writing, self._recording:
            before, after = self._require(name), self._encode(row)
            batch = self._engine.batch()
            self._stage(batch, name, after)
            self._engine.write(batch, sync=True)
            self._count(name, before, after)
            with self._caching:
                self._remember(name, row)

    def replace_many(self, rows: Mapping[str, Row]) -> None:
        """Store rows in place of others of the same names in one batch; the caller knows that they exist."""
        with self._writing, self._recording:
            batch = self._engine.batch()
            for name, row in rows.items():
                self._stage(batch, name, self._encode(row))
            self._engine.write(batch, sync=True)
            for name in rows:
                self.evict(name)

    def remove(self, name: str, beside: Stage | None = None) -> None:
        """Delete a row, with the changes that `beside` stages in the same batch. Raises the not-found error."""
        with self._writing, self._recording:
            before = self._require(name)
            batch = self._engine.batch()
            self.stage_removal(batch, name)
            if beside is not None:
                beside(batch)
            self._engine.write(batch, sync=True)
            self._count(name, before, None)
            self.evict(name)

    def stage_removal(self, batch: WriteBatch, name: str) -> None:
        """Stage the deletion of a row, if it exists, in the caller's batch: once that is written, call `forget`.

        With a journal it must be the batch of a table with the same journal.
        """
        self._stage(batch, name, None)

    def evict(self, name: str) -> None:
        """Evict the row from the cache: the next `get` reads it again."""
        with self._caching:
            self._cached.pop(name, None)

    def list(self, prefix: str) -> Iterator[Row]:
        """Yield the rows whose names begin with `prefix`, in name order, a page at a time.

        Each page is what the table holds when it is reached.
        """
        keys = prefix_range(_key(prefix))
        while True:
            page = self._family.scan(keys, limit=PAGE_ROWS)
            for key, value in page:
                yield self._decode(key.decode(), value)
            if len(page) < PAGE_ROWS:
                return
            keys = KeyRange(page[-1][0] + b"\0", keys.end)

    def counted(self) -> Iterator[object]:
        """Return an iterator with one item for each row that is counted, read as it is consumed."""
        return (
            None for key, value in self._family.iterate(KeyRange(b"", None)) if self._is_counted(key.decode(), value)
        )

    def names_after(self, after: str, limit: int, contains: str = "", *, counted_only: bool = True) -> NamesFound:
        """Scan the next `limit` rows after a name, "" for the first ones, bypassing the cache.

        Returns the names of counted rows, or of all, that contain the text; ASCII letters match in either case.
        """
        page = self._family.scan(KeyRange(_key(after) + b"\0" if after else b"", None), limit=limit)
        last = page[-1][0].decode() if len(page) == limit else None
        part = _key(contains).lower()
        # very many names are scanned to find a few: one search in all of them together shows that none matches
        if part and part not in b"\n".join([key for key, _ in page]).lower():
            return NamesFound([], last)
        found = [(key.decode(), value) for key, value in page if part in key.lower()]
        names = [name for name, value in found if not counted_only or self._is_counted(name, value)]
        return NamesFound(names, last)

    def insert_missing(self, rows: Iterable[tuple[str, Row]]) -> int:
        """Store the rows whose names are free, in batches of bounded size; return how many there were.

        After a crash the rows of whole batches are there; a repeated call completes the rest.
        """
        inserted = 0
        with self._writing, self._recording:
            batch = self._engine.batch()
            staged: set[str] = set()
            for name, row in rows:
                if name in staged or self._family.get(_key(name)) is not None:
                    continue
                staged.add(name)
                value = self._encode(row)
                self._stage(batch, name, value)
                self._count(name, None, value)
                inserted += 1
                if len(batch) >= BATCH_ROWS:
                    self._engine.write(batch)
                    batch = self._engine.batch()
                    staged.clear()
            self._engine.write(batch, sync=True)
        return inserted

    def take_over(self, resolve: Resolve) -> Changes:
        """Store or delete rows as another store has them, bypassing the journal; return the changes.

        `resolve` is called under the locks.
        """
        with self._writing, self._recording:
            batch = self._engine.batch()
            changes = resolve(batch)
            before = self._family.get_many([_key(name) for name in changes]) if changes else []
            for name, value in changes.items():
                self._put(batch, name, value)
            if len(batch):
                self._engine.write(batch, sync=True)
            for (name, value), old in zip(changes.items(), before, strict=True):
                self._count(name, old, value)
                self.evict(name)
        return changes

    def _stage(self, batch: WriteBatch, name: str, value: bytes | None, *, by_use: bool = False) -> None:
        self._put(batch, name, value)
        if self._journal is not None:
            self._journal.stage(batch, name, value, by_use=by_use)

    def _put(self, batch: WriteBatch, name: str, value: bytes | None) -> None:
        if value is None:
            batch.delete(self._family, _key(name))
        else:
            batch.put(self._family, _key(name), value)

    def _require(self, name: str) -> bytes:
        value = self._family.get(_key(name))
        if value is None:
            raise self._not_found(f"no {self._kind} {name}")
        return value

    def _count(self, name: str, before: bytes | None, after: bytes | None) -> None:
        """Adjust `changes` for a row that was changed; None: the row does not exist."""
        was = before is not None and self._is_counted(name, before)
        self.changes += (after is not None and self._is_counted(name, after)) - was

    def _remember(self, name: str, row: Row) -> None:
        self._cached[name] = row
        self._cached.move_to_end(name)
        if len(self._cached) > self._cached_max:
            self._cached.popitem(last=False)


def _key(name: str) -> bytes:
    # A name that no text encoding accepts cannot be stored: looking it up finds nothing instead of failing.
    return name.encode(errors="surrogatepass")


FORMAT_VERSION: Final = 1
"""The version stored in every row as `format`. It is raised when a reader of old rows would misread new ones."""

ATTRIBUTES_SIZE_MAX: Final = 4096
"""The largest number of characters of all keys and values of one row: rows and their caches stay small."""


def encode_document(document: dict[str, object]) -> bytes:
    """Return the row's bytes: the document and its format version."""
    return json.dumps({"format": FORMAT_VERSION, **document}, separators=(",", ":"), sort_keys=True).encode()


class Fields:
    """Reads the fields of a row by type. Raises StoreDamaged naming table, row and field."""

    def __init__(self, table: str, name: str, fields: dict[str, object]) -> None:
        self._table = table
        self._name = name
        self._fields = fields

    def damaged(self, reason: str) -> NoReturn:
        raise StoreDamaged(Path("quarry"), f"table {self._table}, row {self._name!r}: {reason}")

    def has(self, field: str) -> bool:
        return field in self._fields

    def integer(self, field: str) -> int:
        value = self._fields.get(field)
        if not isinstance(value, int) or isinstance(value, bool):
            self.damaged(f"{field} is {value!r}, not an integer")
        return value

    def number(self, field: str) -> float:
        value = self._fields.get(field)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.damaged(f"{field} is {value!r}, not a number")
        return float(value)

    def boolean(self, field: str) -> bool:
        value = self._fields.get(field)
        if not isinstance(value, bool):
            self.damaged(f"{field} is {value!r}, not true or false")
        return value

    def text(self, field: str) -> str:
        value = self._fields.get(field)
        if not isinstance(value, str):
            self.damaged(f"{field} is {value!r}, not a text")
        return value

    def integers(self, field: str) -> tuple[int, ...]:
        value = self._fields.get(field)
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            self.damaged(f"{field} is {value!r}, not a list of integers")
        return tuple(value)

    def texts(self, field: str) -> dict[str, str]:
        value = self._fields.get(field)
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            self.damaged(f"{field} is {value!r}, not a map of texts")
        return value

    def text_list(self, field: str) -> list[str]:
        value = self._fields.get(field)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self.damaged(f"{field} is {value!r}, not a list of texts")
        return value

    def parts(self, field: str) -> list[Fields]:
        """Return the objects of a list."""
        value = self._fields.get(field)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.damaged(f"{field} is {value!r}, not a list of objects")
        return [Fields(self._table, self._name, each) for each in value]


class Document(Fields):
    """Decodes a whole row. Raises StoreDamaged."""

    def __init__(self, table: str, name: str, value: bytes) -> None:
        super().__init__(table, name, {})
        try:
            fields = json.loads(value)
        except ValueError as cause:
            self.damaged(f"not JSON: {cause}")
        if not isinstance(fields, dict):
            self.damaged("not a JSON object")
        self._fields = fields
        if self.integer("format") != FORMAT_VERSION:
            self.damaged(f"written in format {fields['format']}; this version reads {FORMAT_VERSION}")


def check_attributes(owner: str, attributes: Mapping[str, str]) -> None:
    """Raise Invalid when a key is empty, or all keys and values together are too long."""
    if "" in attributes:
        raise Invalid(f"{owner}: attributes: a key is empty")
    size = sum(len(key) + len(value) for key, value in attributes.items())
    if size > ATTRIBUTES_SIZE_MAX:
        raise Invalid(f"{owner}: attributes: {size} characters, at most {ATTRIBUTES_SIZE_MAX} are allowed")
