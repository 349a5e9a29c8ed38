"""Makes Arrow arrays from places in memory, for many records at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quarry_mq.store.record import decode_properties
from quarry_mq.store.record.layout import ENTRY_END, NAME_END
from quarry_mq.store.scan.columns import Bytes, Flags, Integers

_HEX_DIGITS: Final = np.frombuffer(b"".join(b"%02X" % value for value in range(256)), np.uint8).reshape(256, 2)
_DISTINCT_NAMES_MAX: Final = 62
"""Distinct names that fit into one integer, with a bit for each."""
PROPERTIES: Final = pa.map_(pa.string(), pa.string())


def binaries(memory: memoryview, starts: Integers, lengths: Integers, present: Flags | None = None) -> pa.Array:
    """Copy the bytes at those places into a binary array of shape (n,), null where not `present`."""
    ends = starts + lengths
    joined = b"".join([memory[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
    return _variable(pa.binary(), joined, lengths, present)


def texts(memory: memoryview, starts: Integers, lengths: Integers, present: Flags | None = None) -> pa.Array:
    """Copy the bytes at those places into a string array.

    Bytes that are not UTF-8 become U+FFFD, as everywhere in Quarry.
    """
    return _decoded(binaries(memory, starts, lengths, present))


def picked(values: Sequence[str], index: Integers) -> pa.Array:
    """Return `values[index]` as a string array of shape (n,)."""
    return pa.array(values, pa.string()).take(pa.array(index))


def hex_texts(octets: Bytes) -> pa.Array:
    """Return each row of a (n, k) array as 2k upper-case hex digits."""
    digits = np.ascontiguousarray(_HEX_DIGITS[octets])
    return _variable(pa.string(), digits, np.full(len(octets), 2 * octets.shape[1], np.int64), None)


def fixed_binaries(octets: Bytes) -> pa.Array:
    """Return each row of a (n, k) array as a binary of k bytes."""
    return _variable(pa.binary(), np.ascontiguousarray(octets), np.full(len(octets), octets.shape[1], np.int64), None)


def property_maps(memory: memoryview, starts: Integers, lengths: Integers) -> pa.Array:
    """Return stored properties as maps in stored order, equal to what `decode_properties` gives for each record."""
    pieces = [memory[start:end] for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]
    # the last entry may lack its end byte
    joined = b"".join([piece if not piece or piece[-1] == ENTRY_END else bytes(piece) + b"\x02" for piece in pieces])
    plain = _plain_maps(np.frombuffer(joined, np.uint8), _entry_ends(pieces))
    return _exact_maps(pieces) if plain is None else plain


def _entry_ends(pieces: Sequence[memoryview]) -> Integers:
    """Return the ends of the records' properties when they are joined, each with the end byte of its last entry."""
    lengths = [len(piece) + (bool(piece) and piece[-1] != ENTRY_END) for piece in pieces]
    return np.cumsum(np.array(lengths, np.int64))


def _plain_maps(octets: Bytes, row_ends: Integers) -> pa.Array | None:
    """Return the property maps of regular records; None if any record is irregular.

    Regular is `name 0x01 value 0x02` and nothing else, no empty name or value, no name twice in a record, all UTF-8.
    """
    separators = octets <= ENTRY_END
    places = np.flatnonzero(separators)
    name_ends, entry_ends = places[::2], places[1::2]
    if len(name_ends) != len(entry_ends):
        return None
    if not ((octets[name_ends] == NAME_END).all() and (octets[entry_ends] == ENTRY_END).all()):
        return None
    lengths = np.diff(places, prepend=-1) - 1
    if not (lengths > 0).all():
        return None
    try:
        parts = pa.Array.from_buffers(
            pa.binary(), len(places), [None, _offsets(lengths), pa.py_buffer(octets[~separators])]
        ).cast(pa.string())
    except pa.ArrowInvalid:
        return None
    offsets = np.concatenate([[0], np.searchsorted(entry_ends, row_ends)]).astype(np.int32)
    even = np.arange(0, len(places), 2)
    names, values = parts.take(pa.array(even)), parts.take(pa.array(even + 1))
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


def _exact_maps(pieces: Sequence[memoryview]) -> pa.Array:
    return pa.array([list(decode_properties(bytes(piece)).items()) for piece in pieces], PROPERTIES)


def _variable(kind: pa.DataType, data: bytes | NDArray[np.uint8], lengths: Integers, present: Flags | None) -> pa.Array:
    validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(lengths), [validity, _offsets(lengths), pa.py_buffer(data)])


def _offsets(lengths: Integers) -> pa.Buffer:
    return pa.py_buffer(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _decoded(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if each is None else each.decode("utf-8", "replace") for each in array.to_pylist()]
        return pa.array(decoded, pa.string())
