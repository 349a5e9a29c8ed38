"""Deliveries that are handed out and not yet acknowledged, as rows of the `inflight` family.

Key:   see `store.in_flight_key`
Value: i64 visible_at_ms, i64 delivery id, i64 lease_until_ms (0: no auto-renewal), i32 attempt, client id (UTF-8)

The row exists from the first hand-out to the acknowledgement. `visible_at_ms` in the past means that the
message waits for its next delivery.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from kv import KeyRange, KeyValueEngine, WriteBatch
from store.in_flight_key import pack_position, parse_key
from store.offsets import QueueId, QueueOffset
from store.state import INFLIGHT

_VALUE: Final = Struct(">qqqi")
assert _VALUE.size == 28


class InFlight:
    """One delivery. Mutable: redelivery and renewal change it in place."""

    __slots__ = ("attempt", "client_id", "delivery_id", "lease_until_ms", "visible_at_ms")

    def __init__(self, visible_at_ms: int, delivery_id: int, lease_until_ms: int, attempt: int, client_id: str) -> None:
        self.visible_at_ms = visible_at_ms
        self.delivery_id = delivery_id
        self.lease_until_ms = lease_until_ms
        self.attempt = attempt
        self.client_id = client_id

    def encode(self) -> bytes:
        return (
            _VALUE.pack(self.visible_at_ms, self.delivery_id, self.lease_until_ms, self.attempt)
            + self.client_id.encode()
        )

    @classmethod
    def decode(cls, value: bytes) -> InFlight:
        visible_at_ms, delivery_id, lease_until_ms, attempt = _VALUE.unpack_from(value)
        return cls(visible_at_ms, delivery_id, lease_until_ms, attempt, value[_VALUE.size :].decode())


class InFlightTable:
    """The rows, by group, topic, queue and offset."""

    def __init__(self, engine: KeyValueEngine) -> None:
        self._engine = engine
        self._family = engine.family(INFLIGHT)

    def put(self, batch: WriteBatch, prefix: bytes, number: int, offset: int, row: InFlight) -> None:
        batch.put(self._family, prefix + pack_position(number, offset), row.encode())

    def delete(self, batch: WriteBatch, prefix: bytes, number: int, offset: int) -> None:
        batch.delete(self._family, prefix + pack_position(number, offset))

    def delete_all(self, batch: WriteBatch, prefix: bytes) -> None:
        """All rows whose key begins with the prefix of a group, or of a group and topic."""
        batch.delete_range(self._family, KeyRange(prefix, _after(prefix)))

    def forget(self, rows: Iterable[tuple[bytes, int, QueueOffset]]) -> None:
        """Delete rows by prefix, queue number and offset, at once: for the start of the broker."""
        batch = self._engine.batch()
        for prefix, number, offset in rows:
            self.delete(batch, prefix, number, offset)
        self._engine.write(batch)

    def all_rows(self) -> Iterator[tuple[str, QueueId, QueueOffset, InFlight]]:
        """Every row, for the start of the broker."""
        for key, value in self._family.iterate(KeyRange(b"", None)):
            yield *parse_key(key), InFlight.decode(value)


def _after(prefix: bytes) -> bytes:
    """The smallest key above all keys with this prefix; the prefix starts with a length below 0xFFFF."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
