"""The module checks the CRCs of many records: bodies against heads, records against their CRC properties."""

from __future__ import annotations

from typing import Final

import numpy as np

from quarry_mq.store.record.codec import crc32_of_each, hides_crc_property
from quarry_mq.store.record.layout import CRC_DIGITS, CRC_PROPERTY_SIZE, CRC_PROPERTY_START, ENTRY_END
from quarry_mq.store.scan.columns import Bytes, Flags, Integers, RecordColumns, pieces

_MASK: Final = 0x7FFF_FFFF
_POWERS: Final = 10 ** np.arange(CRC_DIGITS)
"""Powers for the property's digits, which come lowest first."""


def mismatches(segment: memoryview, octets: Bytes, columns: RecordColumns, *, require_crc_property: bool) -> Flags:
    """Return which records do not match one of their CRCs, or lack a required CRC property; shape (n,)."""
    starts, lengths = columns.body_position, columns.body_length
    wrong: Flags = _checksums(segment, starts, starts + lengths) != columns.body_crc
    if require_crc_property:
        wrong |= ~columns.has_crc_property
    wrong |= _hidden(segment, octets, columns)
    if not columns.has_crc_property.any():
        return wrong
    rows = np.flatnonzero(columns.has_crc_property)
    starts = columns.position[rows]
    property_starts = starts + columns.size[rows] - CRC_PROPERTY_SIZE
    wrong[rows] |= _stored(octets, property_starts) != _checksums(segment, starts, property_starts)
    return wrong


def _checksums(segment: memoryview, starts: Integers, ends: Integers) -> Integers:
    values = crc32_of_each(segment, starts.tolist(), ends.tolist())
    return np.array(values, np.int64) & _MASK


def _stored(octets: Bytes, property_starts: Integers) -> Integers:
    """Return the numbers in the CRC properties that begin there; -1 where no writer makes such a text."""
    text = pieces(octets, property_starts + len(CRC_PROPERTY_START), CRC_DIGITS + 1)
    values = text.view(np.uint8).reshape(-1, CRC_DIGITS + 1)
    digits = values[:, :CRC_DIGITS].astype(np.int64) - ord("0")
    proper = ((digits >= 0) & (digits <= 9)).all(axis=1) & (values[:, CRC_DIGITS] == ENTRY_END)
    return np.where(proper, digits @ _POWERS, -1)


def _hidden(segment: memoryview, octets: Bytes, columns: RecordColumns) -> Flags:
    """Return which records have a CRC property that one wrong byte hides."""
    hidden: Flags = np.zeros(len(columns), np.bool_)
    rows = np.flatnonzero(~columns.has_crc_property & (columns.properties_length >= CRC_PROPERTY_SIZE))
    if not len(rows):
        return hidden
    ends = columns.position[rows] + columns.size[rows]
    names = pieces(octets, ends - CRC_PROPERTY_SIZE, len(CRC_PROPERTY_START)).view(np.uint8)
    differing = names.reshape(-1, len(CRC_PROPERTY_START)) != np.frombuffer(CRC_PROPERTY_START, np.uint8)
    for row in rows[differing.sum(axis=1) <= 1].tolist():
        end = int(columns.position[row] + columns.size[row])
        properties = bytes(segment[int(columns.properties_position[row]) : end])
        hidden[row] = hides_crc_property(segment[int(columns.position[row]) : end], properties)
    return hidden
