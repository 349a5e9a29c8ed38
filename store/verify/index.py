"""The module verifies the key index against the log: both are summed piece by piece, and differing pieces are
compared.

The index must have the items of all records between the beginning of its oldest file and the offset up to which a start
would trust it. The next start reads later records from the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from quarry_mq.protocol.messages.property_names import TAGS
from quarry_mq.store.consumequeue.dispatch import is_queued
from quarry_mq.store.errors import StoreDamaged, StoreUnusable
from quarry_mq.store.index.facts import DAMAGED, IndexFile, IndexKind, checked, index_files, items_in
from quarry_mq.store.index.indexes import NO_INDEXES, KeyIndexes
from quarry_mq.store.index.keys import Integers, KeyItems, items_of, key_hash, key_text, keys_of, tag_text
from quarry_mq.store.index.message_index import IndexState
from quarry_mq.store.index.opening import HASH_ROW, TIERED_ROW
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.message import DispatchRequest, PhysicalOffset
from quarry_mq.store.offline import OfflineStore, indexes_of
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.state.identity import META
from quarry_mq.store.verify.log import walk
from quarry_mq.store.verify.report import Check, Difference, Findings, Note
from quarry_mq.store.verify.sums import PIECE_BYTES, Sums, piece_of

Item = tuple[int, int]
"""An item is a hash and a physical offset."""


class Coverage(NamedTuple):
    """The coverage is the items that the files of one kind must have: of the records that begin in [begin, end)."""

    kind: IndexKind
    begin: PhysicalOffset
    end: PhysicalOffset
    skipped: frozenset[int]
    """The pieces that are in files which are not on this machine."""

    @property
    def with_tags(self) -> bool:
        return self.kind is IndexKind.HASH

    def chosen(self, items: KeyItems) -> KeyItems:
        """Return those of the items that are covered."""
        places = items.physical_offset
        chosen = (places >= self.begin) & (places < self.end)
        return KeyItems(items.hashes[chosen], places[chosen], items.stored_ms[chosen])


def coverages(store: OfflineStore, indexes: KeyIndexes) -> list[Coverage]:
    """Return what can be compared of a store's index; nothing of an index that has gaps."""
    found = []
    for kind in IndexKind:
        files = [each for each in index_files(indexes) if each.kind is kind]
        end = _trusted_up_to(store, indexes, kind, files)
        if end is not None and not any(each.stage == DAMAGED for each in files):
            skipped = frozenset(piece for each in files if not each.is_local for piece in _pieces_of(each))
            begin = PhysicalOffset(max(store.minimum, files[0].begin_offset + (files[0].begin_offset > store.minimum)))
            found.append(Coverage(kind, begin, end, skipped))
    return found


def tell_uncompared(store: OfflineStore, indexes: KeyIndexes, findings: Findings) -> None:
    """Report what is not compared: damaged files, and files that lie in an object store."""
    for each in index_files(indexes):
        if each.stage == DAMAGED:
            findings.differ(_damage(store, each, each.damage))
        elif not each.is_local:
            findings.note(Note.INDEX_ELSEWHERE)


def _trusted_up_to(
    store: OfflineStore, indexes: KeyIndexes, kind: IndexKind, files: list[IndexFile]
) -> PhysicalOffset | None:
    """Return where the next start continues; None if it rebuilds the index, or goes back to a state before a crash."""
    if store.found.has_abort or not files:
        return None
    row = HASH_ROW if kind is IndexKind.HASH else TIERED_ROW
    stored = None
    if store.found.kind is StoreKind.QUARRY:
        stored = store.state_engine().family(META).get(row.encode())
    if stored is None:
        return PhysicalOffset(files[-1].end_offset + 1) if kind is IndexKind.HASH else None
    state = IndexState.unpack(stored)
    if kind is IndexKind.HASH and indexes.hash_files is not None:
        known = indexes.hash_files.state
        # RocketMQ has run since
        if known is not None and [known.name, *known.header] != state.files:
            return PhysicalOffset(files[-1].end_offset + 1)
    return state.up_to


def _pieces_of(file: IndexFile) -> range:
    first, last = PhysicalOffset(file.begin_offset), PhysicalOffset(file.end_offset)
    return range(piece_of(first), piece_of(last) + 1)


@contextmanager
def indexes_to_compare(store: OfflineStore, findings: Findings) -> Iterator[KeyIndexes]:
    """Open the index files of a store, if they can be read. Those of a store that a broker runs on are left alone."""
    with ExitStack() as closing:
        indexes = NO_INDEXES
        if store.log_limit is None:
            try:
                indexes = closing.enter_context(indexes_of(store))
            except StoreUnusable as error:
                findings.differ(
                    Difference(check=Check.INDEX, file=error.path, expected="an index file", found=error.reason)
                )
        yield indexes


class IndexComparison:
    """The class compares one kind of index files with the log.

    Several of these with the same key may each do a part: then the sums `stored` and `expected` of all of them are
    added up.
    """

    def __init__(
        self, store: OfflineStore, indexes: KeyIndexes, coverage: Coverage, findings: Findings, key: bytes
    ) -> None:
        self._store = store
        self._indexes = indexes
        self.coverage: Final = coverage
        self._findings = findings
        self.stored: Final = Sums(key)
        self.expected: Final = Sums(key)
        findings.count(Check.INDEX, 0)

    @property
    def files(self) -> list[IndexFile]:
        """Return the files that can be read."""
        return [each for each in index_files(self._indexes) if each.kind is self.coverage.kind and each.is_local]

    def read_items(self, file: IndexFile) -> None:
        """Sum the items of a file, and check its structure."""
        try:
            for items in items_in(self._indexes, file):
                self.stored.add(*_columns(self.coverage.chosen(items)))
        except StoreDamaged as damage:
            self._findings.differ(_damage(self._store, file, str(damage)))
            return
        if not file.is_filled:
            found = checked(self._indexes, file)
            if found.damage:
                self._findings.differ(_damage(self._store, file, found.damage))

    def add_records(self, requests: Iterable[DispatchRequest]) -> None:
        """Sum the items that the records must have."""
        items = self.coverage.chosen(items_of(requests, with_tags=self.coverage.with_tags))
        self._findings.count(Check.INDEX, len(items))
        self.expected.add(*_columns(items))

    def differing(self) -> list[int]:
        """Return the numbers of the pieces to compare, ascending."""
        return [piece for piece in self.expected.differing(self.stored) if piece not in self.coverage.skipped]

    def compare(
        self,
        pieces: Collection[int],
        first_records: dict[int, PhysicalOffset],
        damage: Sequence[tuple[PhysicalOffset, PhysicalOffset]],
    ) -> None:
        """Compare pieces of the log. It is not known which items records that lie in `damage` must have."""
        if not pieces:
            return
        stored = self._stored_in(pieces)
        met: set[Item] = set()
        for piece in sorted(pieces):
            missing_tags, has_tags = [], False
            for item, (text, is_tag) in self._expected_in(piece, first_records):
                met.add(item)
                if stored[item] > 0:
                    stored[item] -= 1
                    has_tags = has_tags or is_tag
                elif is_tag:
                    missing_tags.append((item, text))
                else:
                    self._differ(item, f"an item of the key {text!r}, with the hash {item[0]}", "none")
            if not has_tags:
                self._findings.note(Note.TAGS_NOT_INDEXED, len(missing_tags))
                continue
            for item, text in missing_tags:
                self._differ(item, f"an item of the tag {text!r}, with the hash {item[0]}", "none")
        for item, count in sorted((+stored).items()):
            if item in met:
                self._findings.note(Note.INDEXED_TWICE, count)
            elif not self._is_lost(PhysicalOffset(item[1]), damage):
                self._differ(item, "no other key", f"{count} with the hash {item[0]}")

    def _is_lost(self, at: PhysicalOffset, damage: Sequence[tuple[PhysicalOffset, PhysicalOffset]]) -> bool:
        return any(begin <= at < end for begin, end in damage) or self._store.is_replaced(at)

    def _expected_in(
        self, piece: int, first_records: dict[int, PhysicalOffset]
    ) -> Iterator[tuple[Item, tuple[str, bool]]]:
        """Yield the items that the records of a piece must have, with the hashed text and whether it is a tag."""
        start = first_records.get(piece)
        if start is None:
            return
        coverage = self.coverage
        for found in walk(self._store, start, PhysicalOffset((piece + 1) * PIECE_BYTES)):
            at = found.physical_offset
            is_meant = coverage.begin <= at < coverage.end
            if not isinstance(found, StoredMessage) or not is_meant or not is_queued(found.system_flag):
                continue
            for key in keys_of(found.properties):
                text = key_text(found.topic, key)
                yield (key_hash(text), at), (text, False)
            tag = found.properties.get(TAGS) if coverage.with_tags else None
            if tag:
                text = tag_text(found.topic, tag)
                yield (key_hash(text), at), (text, True)

    def _stored_in(self, pieces: Collection[int]) -> Counter[Item]:
        stored: Counter[Item] = Counter()
        wanted = np.array(sorted(pieces), np.int64)
        for file in self.files:
            if not any(piece in pieces for piece in _pieces_of(file)):
                continue
            for some in items_in(self._indexes, file):
                items = self.coverage.chosen(some)
                inside = np.isin(items.physical_offset // PIECE_BYTES, wanted)
                hashes, places = items.hashes[inside].tolist(), items.physical_offset[inside].tolist()
                stored.update(zip(hashes, places, strict=True))
        return stored

    def _differ(self, item: Item, expected: str, found: str) -> None:
        self._findings.differ(
            Difference(
                check=Check.INDEX,
                file=_directory(self._store, self.coverage.kind),
                expected=expected,
                found=found,
                physical_offset=PhysicalOffset(item[1]),
            )
        )


def _damage(store: OfflineStore, file: IndexFile, reason: str) -> Difference:
    directory = _directory(store, file.kind)
    return Difference(check=Check.INDEX, file=directory / file.name, expected="a whole file", found=reason)


def _directory(store: OfflineStore, kind: IndexKind) -> Path:
    return store.paths.index if kind is IndexKind.HASH else store.paths.key_index


def _columns(items: KeyItems) -> tuple[Integers, list[Integers]]:
    return items.physical_offset, [items.hashes.astype(np.int64), items.physical_offset]
