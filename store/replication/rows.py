"""Shared rows as values: what members of a cluster tell each other."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from enum import StrEnum
from struct import Struct
from typing import Final

from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata.names import (
    INTERNAL_TOPIC_NAME_MAX,
    RETRY_PREFIX,
    is_light_queue,
    is_system_group,
    is_system_topic,
)
from quarry_mq.store.replication.horizons import NOTHING_TOLD, Horizons
from quarry_mq.store.security.model import USER_NAME

MEMBER_ID_BYTES: Final = 8
SEEN_MAX: Final = 15
"""Versions that a row carries beside the one it was based on: of that many other members."""

COUNTER_MAX: Final = 2**32 - 1
AHEAD_MAX_MS: Final = 3_600_000
"""A store does not follow a clock further ahead of its own: its changes would win for as long over all others."""

_VERSION: Final = Struct(">QI8s")
VERSION_BYTES: Final = _VERSION.size
assert VERSION_BYTES == 20


class SharedKind(StrEnum):
    """What a shared row is about."""

    TOPIC = "topic"
    GROUP = "group"
    USER = "user"
    POLICY = "policy"
    MEMBER = "member"


_KINDS: Final = frozenset(SharedKind)
_KIND: Final = re.compile(r"[a-z][a-z_]{0,31}")


@dataclass(frozen=True, order=True, slots=True)
class Version:
    """When a row was written, on a clock behind nothing its writer had seen, and by whom. The later one wins."""

    time_ms: int
    counter: int
    member: bytes

    def encode(self) -> bytes:
        """20 bytes, big endian, in the order of the versions."""
        return _VERSION.pack(self.time_ms, self.counter, self.member)

    @classmethod
    def decode(cls, data: bytes) -> Version:
        """Raises Invalid for anything but 20 bytes."""
        if len(data) != VERSION_BYTES:
            raise Invalid(f"a version has {VERSION_BYTES} bytes, not {len(data)}")
        return cls(*_VERSION.unpack(data))


@dataclass(frozen=True, slots=True)
class SharedRow:
    """One row, or its deletion: `value` is None then.

    `kind` is a SharedKind, or the name of one that only newer versions know. `based_on` is the version that its writer
    changed, None for one that was new. `seen` are the last versions by other members that came before that, at most
    `SEEN_MAX`.
    """

    kind: str
    name: str
    version: Version
    based_on: Version | None
    value: bytes | None = field(repr=False)  # those of users hold sealed secrets
    seen: tuple[Version, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """How far one store has read the changes of another."""

    incarnation: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Changes of a store behind `since`, in the order in which it came to know them.

    `until` is what to ask for next; `more`: there is more at once. `since` is 0 in place of what was asked for where
    that lies beyond all changes, as after a store was put back from a copy.
    """

    incarnation: bytes
    since: int
    rows: tuple[SharedRow, ...]
    until: int
    more: bool
    horizons: Horizons = NOTHING_TOLD


@dataclass(frozen=True, slots=True)
class Conflict:
    """A change of this store that gave way to one whose writer did not know of it."""

    kind: str
    name: str
    overwritten: Version
    kept: Version


@dataclass(frozen=True, slots=True)
class Applied:
    """What a page has changed here, and which changes were lost by it.

    `unread`: those of `changed` that only a newer version understands; they are kept and told on as they came.
    """

    changed: tuple[SharedRow, ...]
    conflicts: tuple[Conflict, ...]
    unread: tuple[SharedRow, ...] = ()


def member_id(name: str) -> bytes:
    """By which versions tell members apart: 8 bytes of a member's name."""
    return hashlib.blake2b(name.encode(), digest_size=MEMBER_ID_BYTES).digest()


def known_kind(kind: str) -> str:
    """The SharedKind where there is one of that name, else the name."""
    return SharedKind(kind) if kind in _KINDS else kind


def is_shared(kind: str, name: str) -> bool:
    """Whether all members have the row: what clients can name, they find on each of them."""
    return name_fault(kind, name) is None


def name_fault(kind: str, name: str) -> str | None:
    """Why no member tells others of a row of this name; None when it does.

    Retry topics, light queues and what is reserved for brokers belong to the messages of one store.
    """
    match kind:
        case SharedKind.USER | SharedKind.POLICY:
            return None if USER_NAME.fullmatch(name) else "no user name"
        case SharedKind.TOPIC if name.startswith(RETRY_PREFIX) or is_light_queue(name) or is_system_topic(name):
            return "topics of this name belong to one member"
        case SharedKind.GROUP if is_system_group(name):
            return "groups of this name belong to one member"
    if not _KIND.fullmatch(kind):
        return "the kind has no name of a kind"
    if not name or not name.isprintable():
        return "the name is blank or not printable"
    if len(name.encode()) > INTERNAL_TOPIC_NAME_MAX:
        return f"the name has more than {INTERNAL_TOPIC_NAME_MAX} bytes"
    return None


def was_known(version: Version, row: SharedRow) -> bool:
    """Whether who wrote the row knew of this version of it, or of a later one by the same member."""
    known = (row.version, row.based_on, *row.seen)
    return any(each is not None and each.member == version.member and each >= version for each in known)
