"""The module lays out keys and values of the family `shared` (docs/formats/shared-rows.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

from quarry_mq.kv import KeyRange
from quarry_mq.kv.keys import prefix_range
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.replication.rows import VERSION_BYTES, Position, SharedKind, Version, known_kind

MICROSECONDS: Final = 1000
"""Microseconds in a millisecond: sequences count microseconds."""

INCARNATION: Final = b"i"
INCARNATION_BYTES: Final = 16
MEMBER: Final = b"m"
CLOCK: Final = b"c"
VERSIONS: Final = b"v\0"
VALUES: Final = b"d\0"
ORDER: Final = b"s"
POSITIONS: Final = b"p\0"

_CLOCK: Final = Struct(">QI")
_SEQUENCE: Final = Struct(">Q")
_POSITION: Final = Struct(">16sQ")
# version, version it was based on (zeros: none), flags, sequence; then versions that were seen
_STAMP: Final = Struct(">20s20sBQ")
assert _STAMP.size == 49
_NO_VERSION: Final = bytes(VERSION_BYTES)
_DELETED: Final = 1
_UNREAD: Final = 2

ORDER_RANGE: Final = prefix_range(ORDER)
EVERYTHING: Final = KeyRange(b"", b"\xff")


@dataclass(frozen=True, slots=True)
class Stamp:
    """A stamp is what is stored about a row besides its value."""

    version: Version
    based_on: Version | None
    seen: tuple[Version, ...]
    deleted: bool
    sequence: int
    unread: bool = False
    """True if only a newer version of Quarry understands the value: then it lies in `VALUES`, whatever its kind."""

    def encode(self) -> bytes:
        based_on = _NO_VERSION if self.based_on is None else self.based_on.encode()
        flags = (_DELETED if self.deleted else 0) | (_UNREAD if self.unread else 0)
        head = _STAMP.pack(self.version.encode(), based_on, flags, self.sequence)
        return head + b"".join(each.encode() for each in self.seen)

    @classmethod
    def decode(cls, data: bytes) -> Stamp:
        """Decode a stamp. Raises StoreDamaged."""
        if len(data) < _STAMP.size or (len(data) - _STAMP.size) % VERSION_BYTES:
            raise StoreDamaged(Path("quarry"), f"table shared: a version row of {len(data)} bytes")
        version, based_on, flags, sequence = _STAMP.unpack_from(data)
        return cls(
            version=Version.decode(version),
            based_on=None if based_on == _NO_VERSION else Version.decode(based_on),
            seen=tuple(
                Version.decode(data[at : at + VERSION_BYTES]) for at in range(_STAMP.size, len(data), VERSION_BYTES)
            ),
            deleted=bool(flags & _DELETED),
            sequence=sequence,
            unread=bool(flags & _UNREAD),
        )


def row_id(kind: str, name: str) -> bytes:
    """Return the id of a row in keys, and in the order of changes."""
    return kind.encode() + b"\0" + name.encode()


def parse_row_id(row: bytes) -> tuple[str, str]:
    kind, _, name = row.partition(b"\0")
    return known_kind(kind.decode()), name.decode()


def kind_range(prefix: bytes, kind: SharedKind) -> KeyRange:
    """Return the key range of all rows of a kind, in `VERSIONS` or `VALUES`."""
    return prefix_range(prefix + kind.encode() + b"\0")


def order_key(sequence: int) -> bytes:
    return ORDER + _SEQUENCE.pack(sequence)


def parse_order_key(key: bytes) -> int:
    return int(_SEQUENCE.unpack_from(key, len(ORDER))[0])


def position_key(peer: str) -> bytes:
    return POSITIONS + peer.encode()


def encode_position(position: Position) -> bytes:
    return _POSITION.pack(position.incarnation, position.sequence)


def decode_position(data: bytes) -> Position:
    return Position(*_POSITION.unpack(data))


def encode_clock(time_ms: int, counter: int) -> bytes:
    return _CLOCK.pack(time_ms, counter)


def decode_clock(data: bytes) -> tuple[int, int]:
    time_ms, counter = _CLOCK.unpack(data)
    return time_ms, counter
