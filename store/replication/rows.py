"""Shared rows as values, the form in which members of a cluster exchange them, and their layout in the family `shared`.

The keys and values of the family are in docs/formats/shared-rows.md.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from struct import Struct
from typing import Final

from quarry_mq.kv import KeyRange
from quarry_mq.kv.keys import prefix_range
from quarry_mq.protocol.names import (
    INTERNAL_TOPIC_NAME_MAX,
    RETRY_PREFIX,
    is_light_queue,
    is_system_group,
    is_system_topic,
)
from quarry_mq.store.errors import Invalid, StoreDamaged
from quarry_mq.store.replication.horizons import NOTHING_TOLD, Horizons
from quarry_mq.store.security.model import USER_NAME

MEMBER_ID_BYTES: Final = 8
SEEN_MAX: Final = 15
"""The number of versions that a row carries besides the one it was based on, each by another member."""

COUNTER_MAX: Final = 2**32 - 1
AHEAD_MAX_MS: Final = 3_600_000
"""Milliseconds that another member's clock may be ahead: for as long its changes would win over all others."""

_VERSION: Final = Struct(">QI8s")
VERSION_BYTES: Final = _VERSION.size
assert VERSION_BYTES == 20


class SharedKind(StrEnum):
    """The kind says what a shared row is about."""

    TOPIC = "topic"
    GROUP = "group"
    USER = "user"
    POLICY = "policy"
    MEMBER = "member"


_KINDS: Final = frozenset(SharedKind)
_KIND: Final = re.compile(r"[a-z][a-z_]{0,31}")


@dataclass(frozen=True, order=True, slots=True)
class Version:
    """A version says when a row was written and by whom, on a clock not behind any version its writer had seen.

    The later version wins.
    """

    time_ms: int
    counter: int
    member: bytes

    def encode(self) -> bytes:
        """Return 20 bytes, big-endian, which sort like the versions."""
        return _VERSION.pack(self.time_ms, self.counter, self.member)

    @classmethod
    def decode(cls, data: bytes) -> Version:
        """Decode a version. Raises Invalid for anything but 20 bytes."""
        if len(data) != VERSION_BYTES:
            raise Invalid(f"a version has {VERSION_BYTES} bytes, not {len(data)}")
        return cls(*_VERSION.unpack(data))


@dataclass(frozen=True, slots=True)
class SharedRow:
    """A shared row is one row, or its deletion: then `value` is None.

    `kind` is a SharedKind, or the name of a kind that only newer versions know. `based_on` is the version that its
    writer changed, None for a new row. `seen` are the last earlier versions by other members, at most `SEEN_MAX`.
    """

    kind: str
    name: str
    version: Version
    based_on: Version | None
    value: bytes | None = field(repr=False)  # rows of users hold sealed secrets
    seen: tuple[Version, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """The position says how far one store has read the changes of another."""

    incarnation: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class ChangePage:
    """A page holds changes of a store after `since`, in the order in which it learned of them.

    `until` is what to ask for next; `more`: more changes are there already. `since` is 0 instead of the requested value
    if that lies after all changes, as when the store was restored from a copy.
    """

    incarnation: bytes
    since: int
    rows: tuple[SharedRow, ...]
    until: int
    more: bool
    horizons: Horizons = NOTHING_TOLD


@dataclass(frozen=True, slots=True)
class Conflict:
    """A conflict is a change of this store that lost against one whose writer did not know of it."""

    kind: str
    name: str
    overwritten: Version
    kept: Version


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a page says which rows it has changed here, and which changes were lost by it.

    `unread`: the rows of `changed` that only a newer version understands; they are kept and passed on unchanged.
    """

    changed: tuple[SharedRow, ...]
    conflicts: tuple[Conflict, ...]
    unread: tuple[SharedRow, ...] = ()


def member_id(name: str) -> bytes:
    """Return the 8 bytes by which versions tell members apart, made from the member's name."""
    return hashlib.blake2b(name.encode(), digest_size=MEMBER_ID_BYTES).digest()


def known_kind(kind: str) -> str:
    """Return the SharedKind where there is one of that name, else the name."""
    return SharedKind(kind) if kind in _KINDS else kind


def is_shared(kind: str, name: str) -> bool:
    """Return whether all members have the row: clients find everything that they can name on each member."""
    return name_fault(kind, name) is None


def name_fault(kind: str, name: str) -> str | None:
    """Return why a row of this name is not shared; None when it is.

    Retry topics, light queues and names reserved for brokers belong to the messages of one store.
    """
    match kind:
        case SharedKind.USER | SharedKind.POLICY:
            return None if USER_NAME.fullmatch(name) else "not a user name"
        case SharedKind.TOPIC if name.startswith(RETRY_PREFIX) or is_light_queue(name) or is_system_topic(name):
            return "topics of this name belong to one member"
        case SharedKind.GROUP if is_system_group(name):
            return "groups of this name belong to one member"
    if not _KIND.fullmatch(kind):
        return "the name of the kind is not valid"
    if not name or not name.isprintable():
        return "the name is blank or not printable"
    if len(name.encode()) > INTERNAL_TOPIC_NAME_MAX:
        return f"the name has more than {INTERNAL_TOPIC_NAME_MAX} bytes"
    return None


def was_known(version: Version, row: SharedRow) -> bool:
    """Return whether the writer of the row knew of this version of it, or of a later one by the same member."""
    known = (row.version, row.based_on, *row.seen)
    return any(each is not None and each.member == version.member and each >= version for each in known)


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
