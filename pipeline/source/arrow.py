"""Makes Arrow arrays from places in memory, for many records at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quarry_mq.store.record import decode_properties
from quarry_mq.store.record.layout import ENTRY_END, NAME_END
from quarry_mq.store.scan.columns import Bytes, Flags, Integers

_DISTINCT_NAMES_MAX: Final = 62
"""Distinct names that fit into one integer, with a bit for each."""
PROPERTIES: Final = pa.map_(pa.string(), pa.string())


def binaries(memory: memoryview, starts: Integers, lengths: Integers, present: Flags | None = None) -> pa.Array:
    """Copy the bytes at those places into a binary array of shape (n,), null where not `present`.

    The places that are present are in the order of the memory and do not overlap.
    """
    if present is None:
        return _copied(memory, starts, lengths, pa.array(2 * np.arange(len(starts))))
    # a take by a null gives a null
    index = pa.array(2 * (np.cumsum(present) - 1), mask=~present)
    return _copied(memory, starts[present], lengths[present], index)


def _copied(memory: memoryview, starts: Integers, lengths: Integers, index: pa.Array) -> pa.Array:
    """Copy pieces of memory by their numbers, in which the gap after each piece counts too.

    Arrow copies without an object of Python for each piece.
    """
    if not len(starts):
        return pa.nulls(len(index), pa.binary())
    begin, end = int(starts[0]), int(starts[-1] + lengths[-1])
    bounds = np.stack([starts, starts + lengths], axis=1).ravel() - begin
    data = [None, pa.py_buffer(bounds), pa.py_buffer(memory[begin:end])]
    all_pieces = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, data)
    return all_pieces.take(index).cast(pa.binary())


def texts(memory: memoryview, starts: Integers, lengths: Integers, present: Flags | None = None) -> pa.Array:
    """Copy the bytes at those places into a string array.

    Bytes that are not UTF-8 become U+FFFD, as everywhere in Quarry.
    """
    return decoded(binaries(memory, starts, lengths, present))


def picked(values: Sequence[str], index: Integers) -> pa.Array:
    """Return `values[index]` as a string array of shape (n,)."""
    return pa.array(values, pa.string()).take(pa.array(index))


def hex_texts(octets: Bytes) -> pa.Array:
    """Return each row of a (n, k) array as 2k upper-case hex digits."""
    digits = np.frombuffer(octets.tobytes().hex().upper().encode(), np.uint8)
    return _variable(pa.string(), digits, np.full(len(octets), 2 * octets.shape[1], np.int64))


def fixed_binaries(octets: Bytes) -> pa.Array:
    """Return each row of a (n, k) array as a binary of k bytes."""
    return _variable(pa.binary(), np.ascontiguousarray(octets), np.full(len(octets), octets.shape[1], np.int64))


def property_maps(memory: memoryview, starts: Integers, lengths: Integers) -> pa.Array:
    """Return stored properties as maps in stored order, equal to what `decode_properties` gives for each record."""
    stored = binaries(memory, starts, lengths)
    plain = _plain_maps(_ended(stored))
    if plain is not None:
        return plain
    return pa.array([list(decode_properties(each).items()) for each in stored.to_pylist()], PROPERTIES)


def _ended(stored: pa.Array) -> pa.Array:
    """Return properties with the end byte of each record's last entry, which may be missing."""
    octets, ends = _octets_of(stored), _ends_of(stored)
    filled = ends[np.diff(ends, prepend=0) > 0]
    if (octets[filled - 1] == ENTRY_END).all():
        return stored
    lacks = pc.and_(pc.greater(pc.binary_length(stored), 0), pc.invert(pc.ends_with(stored, b"\x02")))
    end = pc.if_else(lacks, pa.scalar(b"\x02"), pa.scalar(b""))
    return pc.binary_join_element_wise(stored, end, pa.scalar(b""))


def _octets_of(array: pa.Array) -> Bytes:
    """Return the bytes of all values of a binary array that is no slice, one after the other."""
    data = array.buffers()[2]
    return np.frombuffer(b"" if data is None else data, np.uint8)[: _ends_of(array)[-1] if len(array) else 0]


def _ends_of(array: pa.Array) -> NDArray[np.int32]:
    return np.frombuffer(array.buffers()[1], np.int32)[1 : len(array) + 1]


def _plain_maps(stored: pa.Array) -> pa.Array | None:
    """Return the property maps of regular records; None if any record is irregular.

    Regular is `name 0x01 value 0x02` and nothing else, no empty name or value, no name twice in a record, all UTF-8.
    """
    octets, row_ends = _octets_of(stored), _ends_of(stored)
    places = np.flatnonzero(octets <= ENTRY_END)
    name_ends, entry_ends = places[::2], places[1::2]
    if len(name_ends) != len(entry_ends):
        return None
    if not ((octets[name_ends] == NAME_END).all() and (octets[entry_ends] == ENTRY_END).all()):
        return None
    starts = np.concatenate([[0], places[:-1] + 1]) if len(places) else places
    lengths = places - starts
    if not (lengths > 0).all():
        return None
    try:
        names, values = (binaries(octets.data, starts[part::2], lengths[part::2]).cast(pa.string()) for part in (0, 1))
    except pa.ArrowInvalid:
        return None
    offsets = np.concatenate([[0], np.searchsorted(entry_ends, row_ends)]).astype(np.int32)
    if _has_repeated(names, offsets):
        return None
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)


def _has_repeated(names: pa.Array, offsets: NDArray[np.int32]) -> bool:
    """Return whether a name comes twice in one record.

    May be a false yes when the records have more than `_DISTINCT_NAMES_MAX` different names.
    """
    encoded = names.dictionary_encode()
    if len(encoded.dictionary) > _DISTINCT_NAMES_MAX:
        return True
    rows = np.flatnonzero(np.diff(offsets))
    if not len(rows):
        return False
    bits = np.left_shift(1, encoded.indices.to_numpy().astype(np.int64))
    starts = offsets[rows]
    return bool((np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)).any())


def _variable(kind: pa.DataType, data: NDArray[np.uint8], lengths: Integers) -> pa.Array:
    return pa.Array.from_buffers(kind, len(lengths), [None, _offsets(lengths), pa.py_buffer(data)])


def _offsets(lengths: Integers) -> pa.Buffer:
    return pa.py_buffer(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def decoded(array: pa.Array) -> pa.Array:
    """Return binaries as strings. Bytes that are not UTF-8 become U+FFFD."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if each is None else each.decode("utf-8", "replace") for each in array.to_pylist()]
        return pa.array(decoded, pa.string())
