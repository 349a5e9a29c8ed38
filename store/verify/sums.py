"""The module compares two collections of rows about the log without sorting or storing them.

Records come in the order of the log, entries in the order of their queues, and neither fits into memory. So both are
summed: the log is divided into pieces, and each piece has the number of its rows and the sum of their hashes, which
depends neither on the order nor on which process sums which rows. Pieces with equal sums hold equal rows (two different
collections collide with a probability of about 2^-64, by a hash with a new key for each verification); the other pieces
are compared row by row.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.consumequeue import ConsumeQueueEntry, EntryColumns
from quarry_mq.store.message import PhysicalOffset, QueueId

PIECE_BYTES: Final = 16 << 20
"""Bytes of log in a piece. A terabyte has 65,536 pieces: 20 MiB of sums."""
WAITING_MAX: Final = 8_192
"""Entries that are summed at a time."""

Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]

_KEY_SIZE: Final = 16
_MODULUS: Final = 1 << 64
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Multipliers of the finalizer of SplitMix64, in which every bit of a number changes about half of the
result's bits.
"""


def new_key() -> bytes:
    """Return a key for all sums of one verification."""
    return secrets.token_bytes(_KEY_SIZE)


def piece_of(at: PhysicalOffset) -> int:
    return at // PIECE_BYTES


class Sums:
    """The number and the sum of hashes of the rows of each piece. Sums made with the same key may be added and
    compared.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, places: Integers, columns: Iterable[Integers]) -> None:
        """Add rows of the records at `places`; each of the columns is an array of the same shape (n,)."""
        if not len(places):
            return
        hashes = np.zeros(len(places), np.uint64)
        for number, column in enumerate(columns):
            hashes ^= column.astype(np.int64).view(np.uint64)
            hashes += np.uint64(self.hash_of(b"%d" % number))
            _mix(hashes)
        pieces = places // PIECE_BYTES
        begins = np.flatnonzero(np.diff(pieces, prepend=pieces[0] - 1))
        counts = np.diff(begins, append=len(pieces))
        totals = np.add.reduceat(hashes, begins)
        for piece, count, total in zip(pieces[begins].tolist(), counts.tolist(), totals.tolist(), strict=True):
            self._add(piece, count, total)

    def hash_of(self, octets: bytes) -> int:
        """Return 64 bits that stand for a text in a column of hashes."""
        return int.from_bytes(blake2b(octets, digest_size=8, key=self._key).digest(), "little")

    def absorb(self, other: Sums) -> None:
        """Add other sums to these."""
        for piece, (count, total) in other._sums.items():
            self._add(piece, count, total)

    def differing(self, other: Sums) -> list[int]:
        """Return the numbers of the pieces that differ, ascending."""
        nothing = [0, 0]
        mine, theirs = self._sums, other._sums
        return sorted(
            piece for piece in mine.keys() | theirs.keys() if mine.get(piece, nothing) != theirs.get(piece, nothing)
        )

    def _add(self, piece: int, count: int, total: int) -> None:
        known = self._sums[piece]
        known[0] += count
        known[1] = (known[1] + total) % _MODULUS

    def __getstate__(self) -> tuple[bytes, dict[int, list[int]]]:
        return self._key, dict(self._sums)

    def __setstate__(self, state: tuple[bytes, dict[int, list[int]]]) -> None:
        self.__init__(state[0])  # type: ignore[misc]
        self._sums.update(state[1])


class EntrySums:
    """Sums of entries. Fields that are not compared, for example the store time, are left out of the hash."""

    def __init__(self, key: bytes, *, with_time: bool) -> None:
        self._with_time = with_time
        self._sums = Sums(key)
        self._queues: dict[QueueId, int] = {}
        self._waiting: list[tuple[int, ...]] = []

    def add(self, queue: QueueId, entry: ConsumeQueueEntry, *, with_offset: bool = True) -> None:
        offset, physical_offset, size, tags_code, store_timestamp_ms = entry
        index = self._queues.setdefault(queue, len(self._queues))
        row = (index, offset if with_offset else 0, physical_offset, size, tags_code, store_timestamp_ms or 0)
        self._waiting.append(row)
        if len(self._waiting) == WAITING_MAX:
            self._sum_waiting()

    def add_all(self, entries: EntryColumns, *, by_place: Callable[[QueueId], bool]) -> None:
        """Add each of the entries, for queues that are `by_place` without the queue offset."""
        if not len(entries):
            return
        counted = np.array([not by_place(queue) for queue in entries.queues], np.bool_)
        offsets = np.where(counted[entries.queue_index], entries.queue_offset, 0)
        self._add(entries.queues, entries.queue_index, offsets, entries)

    def absorb(self, other: EntrySums) -> None:
        self._sum_waiting()
        other._sum_waiting()
        self._sums.absorb(other._sums)

    def differing(self, other: EntrySums) -> list[int]:
        """Return the numbers of the pieces that differ, ascending."""
        self._sum_waiting()
        other._sum_waiting()
        return self._sums.differing(other._sums)

    def _sum_waiting(self) -> None:
        if not self._waiting:
            return
        rows = np.array(self._waiting, np.int64).T
        entries = EntryColumns(tuple(self._queues), *rows)
        self._add(entries.queues, entries.queue_index, entries.queue_offset, entries)
        self._waiting.clear()
        self._queues.clear()

    def _add(self, queues: Sequence[QueueId], index: Integers, offsets: Integers, entries: EntryColumns) -> None:
        hashes = [self._sums.hash_of(b"%d %s" % (queue.number, queue.topic.encode())) for queue in queues]
        of_queues = np.array(hashes, np.uint64).view(np.int64)[index]
        columns = [of_queues, offsets, entries.physical_offset, entries.size, entries.tags_code]
        if self._with_time:
            columns.append(entries.store_timestamp_ms)
        self._sums.add(entries.physical_offset, columns)

    def __getstate__(self) -> tuple[bool, Sums]:
        self._sum_waiting()
        return self._with_time, self._sums

    def __setstate__(self, state: tuple[bool, Sums]) -> None:
        self._with_time, self._sums = state
        self._queues, self._waiting = {}, []


def _mix(hashes: Hashes) -> None:
    """Mix the bits of the hashes in place."""
    hashes ^= hashes >> np.uint64(30)
    hashes *= _MULTIPLIERS[0]
    hashes ^= hashes >> np.uint64(27)
    hashes *= _MULTIPLIERS[1]
    hashes ^= hashes >> np.uint64(31)
