"""Rows of a store's database, taken apart by docs/formats: where groups stand, and what they have in flight."""

from __future__ import annotations

from collections import defaultdict
from struct import unpack_from

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.store.message import QueueId


def positions(engine: KeyValueEngine) -> dict[str, dict[QueueId, int]]:
    """Return the next offset of each queue, by group (docs/formats/metadata.md, section 4)."""
    found: dict[str, dict[QueueId, int]] = defaultdict(dict)
    for key, value in engine.family("offsets").scan(KeyRange(b"\x01", b"\x02")):
        group, at = _text(key, 1, 4)
        topic, at = _text(key, at, 4)
        found[group][QueueId(topic, unpack_from(">I", key, at)[0])] = unpack_from(">q", value)[0]
    return found


def in_flight(engine: KeyValueEngine) -> dict[str, set[tuple[QueueId, int]]]:
    """Return the queue and offset of each message in flight, by group (docs/formats/delivery-state.md, section 1)."""
    found: dict[str, set[tuple[QueueId, int]]] = defaultdict(set)
    for key, _ in engine.family("inflight").scan(KeyRange(b"", b"\xff\xff")):
        group, at = _text(key, 0, 2)
        topic, at = _text(key, at, 2)
        number, offset = unpack_from(">iq", key, at)
        found[group].add((QueueId(topic, number), offset))
    return found


def _text(key: bytes, at: int, size: int) -> tuple[str, int]:
    """A text behind its length of so many bytes, and where it ends."""
    begin = at + size
    end = begin + int.from_bytes(key[at:begin], "big")
    return key[begin:end].decode(), end
