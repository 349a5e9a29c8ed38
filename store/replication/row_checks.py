"""The module checks rows that another store sends before any of them is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from quarry_mq.protocol.names import shown_name
from quarry_mq.store.errors import Invalid, StoreDamaged
from quarry_mq.store.message import QUEUE_NUMBER_MAX
from quarry_mq.store.metadata.groups import ATTEMPTS_MAX, backoff_fault, decode_group
from quarry_mq.store.metadata.topics import decode_topic
from quarry_mq.store.replication.horizons import Horizons
from quarry_mq.store.replication.rows import (
    AHEAD_MAX_MS,
    COUNTER_MAX,
    MEMBER_ID_BYTES,
    SEEN_MAX,
    SharedKind,
    SharedRow,
    Version,
    name_fault,
)
from quarry_mq.store.security.model import decode_user
from quarry_mq.store.security.policies import decode_policy

VALUE_BYTES_MAX: Final = 1 << 20
"""The largest value in bytes. The longest rules of a user take three quarters of it."""

TIME_MAX_MS: Final = 2**63 - 1
QUEUES_MAX: Final = QUEUE_NUMBER_MAX
"""The largest number of queues. Topics taken over from RocketMQ keep the numbers that they have."""

FAULT_SHOWN_MAX: Final = 300


class RowRefused(Invalid):
    """Another store sent an invalid row; nothing that came with it was stored."""


class PeerAhead(Invalid):
    """Another store's clock is too far ahead of this store's; nothing of what it sent was stored."""


class PeerMissed(Invalid):
    """Another store was away while deletions were dropped; nothing of what it sent was stored."""


class DeletionsMissed(Invalid):
    """Other stores dropped deletions while this store was away; nothing that they send is stored until it rejoins."""


def check_horizons(here: Horizons, told: Horizons, peer: str) -> None:
    """Raise PeerMissed or DeletionsMissed if one of the two stores may have missed deletions of the other."""
    missed = told.missed(here.forgotten)
    if missed is not None:
        raise PeerMissed(
            f"member {shown_name(peer)} was away for longer than deletions are remembered and may still have what was "
            f"deleted on {shown_name(missed)}: run `quarry cluster rejoin NAME` there, with the name of a member that "
            "was not away"
        )
    missed = here.missed(told.forgotten)
    if missed is not None:
        raise DeletionsMissed(
            "this member was away for longer than deletions are remembered and may still have what was deleted on "
            f"{shown_name(missed)}: `quarry cluster rejoin {peer}` copies all replicated metadata from there"
        )


def check_rows(rows: Iterable[SharedRow], peer: str, wall_ms: int) -> None:
    """Raise RowRefused, naming kind, row and peer, for an invalid row, and PeerAhead for one from a clock too far
    ahead.
    """
    for row in rows:
        fault = row_fault(row)
        if fault is not None:
            where = f"{row.kind} {shown_name(row.name)} from member {shown_name(peer)}"
            raise RowRefused(f"{where}: {fault[:FAULT_SHOWN_MAX]}")
        ahead_ms = row.version.time_ms - wall_ms
        if ahead_ms > AHEAD_MAX_MS:
            raise PeerAhead(
                f"{row.kind} {shown_name(row.name)} from member {shown_name(peer)} was written {ahead_ms} ms ahead of "
                f"our clock; at most {AHEAD_MAX_MS} ms are accepted: set the clocks of all members"
            )


def row_fault(row: SharedRow) -> str | None:
    """Return why a row cannot be stored; None when it can."""
    fault = name_fault(row.kind, row.name) or _version_fault(row)
    if fault is not None or row.value is None:
        return fault
    if len(row.value) > VALUE_BYTES_MAX:
        return f"{len(row.value)} bytes, at most {VALUE_BYTES_MAX} are allowed"
    if is_unread(row):
        return None
    check = _VALUE_FAULTS.get(row.kind)
    return None if check is None else check(row.name, row.value)


def is_unread(row: SharedRow) -> bool:
    """Return whether only a newer version of Quarry understands the row: its kind, or the document that
    is its value.
    """
    if row.value is None:
        return False
    decode = _DECODERS.get(row.kind)
    if decode is None:
        return row.kind not in _KINDS
    try:
        decode(row.name, row.value)
    except _UNREADABLE:
        return _is_document(row.value)
    return False


def _is_document(value: bytes) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


def _version_fault(row: SharedRow) -> str | None:
    earlier = row.seen if row.based_on is None else (row.based_on, *row.seen)
    if not all(map(_is_whole, (row.version, *earlier))):
        return "a version is not valid"
    if any(each >= row.version for each in earlier):
        return "the change is based on a version later than its own"
    if len(row.seen) > SEEN_MAX:
        return f"{len(row.seen)} versions were seen, at most {SEEN_MAX} are allowed"
    return None


def _is_whole(version: Version) -> bool:
    return (
        0 <= version.time_ms <= TIME_MAX_MS
        and 0 <= version.counter <= COUNTER_MAX
        and len(version.member) == MEMBER_ID_BYTES
    )


def _topic_fault(name: str, value: bytes) -> str | None:
    try:
        topic = decode_topic(name, value)
    except _UNREADABLE as cause:
        return str(cause)
    if not all(0 <= queues <= QUEUES_MAX for queues in (topic.read_queues, topic.write_queues)):
        return f"{topic.read_queues} and {topic.write_queues} queues"
    return None


def _group_fault(name: str, value: bytes) -> str | None:
    try:
        group = decode_group(name, value)
    except _UNREADABLE as cause:
        return str(cause)
    if not 1 <= group.max_attempts <= ATTEMPTS_MAX:
        return f"maxAttempts is {group.max_attempts}"
    return backoff_fault(group.backoff)


def _user_fault(name: str, value: bytes) -> str | None:
    try:
        decode_user(name, value)
    except _UNREADABLE:
        return "not a valid row of a user"  # the cause may show what is sealed
    return None


def _policy_fault(name: str, value: bytes) -> str | None:
    try:
        decode_policy(name, value)
    except _UNREADABLE as cause:
        return str(cause)
    return None


def _no_fault(name: str, value: bytes) -> None:  # noqa: ARG001 - what a member says is not the store's to read
    return None


_UNREADABLE: Final = (StoreDamaged, ValueError, RecursionError)
_KINDS: Final = frozenset(SharedKind)
_DECODERS: Final[Mapping[str, Callable[[str, bytes], object]]] = {
    SharedKind.TOPIC: decode_topic,
    SharedKind.GROUP: decode_group,
    SharedKind.USER: decode_user,
    SharedKind.POLICY: decode_policy,
}
_VALUE_FAULTS: Final[Mapping[str, Callable[[str, bytes], str | None]]] = {
    SharedKind.TOPIC: _topic_fault,
    SharedKind.GROUP: _group_fault,
    SharedKind.USER: _user_fault,
    SharedKind.POLICY: _policy_fault,
    SharedKind.MEMBER: _no_fault,
}
