"""The tags code is the 8 bytes of a consume queue entry that let a reader filter without reading the record."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from quarry_mq.protocol.messages.property_names import DELAY_LEVEL, TAGS
from quarry_mq.protocol.names import SCHEDULE_TOPIC

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

DELAY_LEVELS_MS: Final = (
    *(seconds * _SECOND for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(hours * _HOUR for hours in (1, 2)),
)
"""The delays of RocketMQ's default `messageDelayLevel`: that of level n is at index n - 1."""

_LATEST_MS: Final = 2**63 - 1 - DELAY_LEVELS_MS[-1]
"""The latest time that is used: a record's time may be any number, but the sum with a delay must fit into an entry."""

assert len(DELAY_LEVELS_MS) == 18

_CACHED_LENGTH_MAXIMUM: Final = 256
"""Longer texts are hashed each time: few tags are so long, and caching them would cost megabytes."""


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: h = 31 * h + unit over the UTF-16 units, as a signed 32-bit integer."""
    if len(text) <= _CACHED_LENGTH_MAXIMUM:
        return _cached_hash(text)
    return _hash(text)


def tags_code(topic: str, properties: Mapping[str, str], store_timestamp_ms: int) -> int:
    """Return the tags code of a record with these properties, a signed 64-bit integer.

    It is the hash of the whole `TAGS` property, 0 without one. For the schedule topic with a delay level above 0 it is
    the time of delivery in ms; levels above the highest count as the highest. The topic decides first, because
    delivered copies still carry the level.
    """
    if topic == SCHEDULE_TOPIC and (level := _delay_level(properties)):
        return min(store_timestamp_ms, _LATEST_MS) + DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
    tags = properties.get(TAGS)
    return java_hash(tags) if tags else 0


def _delay_level(properties: Mapping[str, str]) -> int | None:
    """Return the level when it is a positive number. Anything else was written by no broker and counts as absent."""
    text = properties.get(DELAY_LEVEL, "")
    if not (text.isascii() and text.isdecimal()):
        return None
    return int(text[:10]) or None  # ten digits: enough to exceed every level, few enough to be fast


def _hash(text: str) -> int:
    entries = array("H", text.encode("utf-16-le", "surrogatepass"))
    if sys.byteorder == "big":
        entries.byteswap()
    value = 0
    for entry in entries:
        value = (31 * value + entry) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


_cached_hash = lru_cache(maxsize=8192)(_hash)
