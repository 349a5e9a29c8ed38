"""Consumer groups: their settings and the table that stores them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from quarry_mq.kv import KeyValueEngine
from quarry_mq.protocol import lite_attributes
from quarry_mq.protocol.names import is_system_group
from quarry_mq.store.errors import GroupNotFound, Invalid
from quarry_mq.store.metadata.owners import Owners, insert_owned, remove_owned, take_over_owned
from quarry_mq.store.metadata.rows import (
    Document,
    NamedRows,
    NamesFound,
    Resolve,
    RowJournal,
    check_attributes,
    encode_document,
)
from quarry_mq.store.metadata.topics import check_group_name
from quarry_mq.store.record.properties import DELAY_LEVELS_MS

GROUPS_FAMILY: Final = "groups"
CACHED_GROUPS_MAX: Final = 65_536

ATTEMPTS_DEFAULT: Final = 17
"""The default number of attempts: RocketMQ's 16 retries and the first delivery."""

ATTEMPTS_MAX: Final = 2**31 - 1
"""The largest number of attempts: the protocol announces attempts as a signed 32-bit number."""

BACKOFF_STEPS_MAX: Final = 100
BACKOFF_MULTIPLIER_MAX: Final = 100
BACKOFF_MS_MAX: Final = 7 * 24 * 3600 * 1000

BACKOFF_STEPS_DEFAULT: Final = DELAY_LEVELS_MS
"""The default delays: RocketMQ's 18 delay levels. They are whole seconds, as some clients ignore fractions."""


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays that grow by a factor from `initial_ms` up to `max_ms`."""

    initial_ms: int = 5 * 1000
    max_ms: int = 2 * 3600 * 1000
    multiplier: float = 2.0


@dataclass(frozen=True, slots=True)
class CustomizedBackoff:
    """A list of delays; the last one repeats."""

    next_ms: tuple[int, ...] = BACKOFF_STEPS_DEFAULT


Backoff = ExponentialBackoff | CustomizedBackoff


@dataclass(frozen=True, slots=True)
class Group:
    """Describe one consumer group. `fifo` groups get each queue's messages in order; a disabled group gets none."""

    name: str
    fifo: bool = False
    max_attempts: int = ATTEMPTS_DEFAULT
    enabled: bool = True
    backoff: Backoff = CustomizedBackoff()
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Rows are shared through the cache: a caller's later change of its map must not reach them.
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))


class GroupTable:
    """Keep all groups of a store, in the family `groups`. Any thread may call; changes are durable on return."""

    def __init__(
        self,
        engine: KeyValueEngine,
        *,
        owners: Owners | None = None,
        journal: RowJournal | None = None,
        cached_max: int = CACHED_GROUPS_MAX,
    ) -> None:
        """Open the table. Without `owners`, groups are not counted by owner."""
        self._owners = owners
        self._rows = NamedRows[Group](
            engine,
            GROUPS_FAMILY,
            kind="group",
            not_found=GroupNotFound,
            encode=encode_group,
            decode=decode_group,
            cached_max=cached_max,
            journal=journal,
            is_counted=lambda name, _: not is_system_group(name),
        )

    @property
    def changes(self) -> int:
        """The change in the number of groups since this object was made, without the broker's own groups."""
        return self._rows.changes

    def counted(self) -> Iterator[object]:
        """Return an iterator with one item for each current group, without the broker's own groups."""
        return self._rows.counted()

    def names_after(self, after: str, limit: int, contains: str = "") -> NamesFound:
        """Do the same as `NamedRows.names_after`, without the broker's own groups."""
        return self._rows.names_after(after, limit, contains)

    def get(self, name: str) -> Group | None:
        """Return the group, or None. Never creates one. Raises StoreDamaged for an unreadable row."""
        return self._rows.get(name)

    def create(self, group: Group, *, owner: str | None = None) -> None:
        """Add a group, counted among those of its owner if it has one.

        Raises AlreadyExists, IllegalGroupName, or Invalid naming the field.
        """
        check_group_name(group.name)
        _check(group)
        insert_owned(self._rows, self._owners, group.name, group, owner)

    def update(self, group: Group) -> None:
        """Replace a group's settings. Raises GroupNotFound, or Invalid naming the field."""
        _check(group)
        self._rows.replace(group.name, group)

    def delete(self, name: str) -> None:
        """Delete a group's settings. Raises GroupNotFound."""
        remove_owned(self._rows, self._owners, name)

    def list(self, prefix: str = "") -> Iterator[Group]:
        """Yield the groups whose names begin with `prefix`, in name order, read a page at a time."""
        return self._rows.list(prefix)

    def count_of(self, owner: str) -> int:
        """Return how many of the groups created for the owner still exist."""
        return 0 if self._owners is None else self._owners.count(owner)

    def add_missing(self, groups: Iterable[Group]) -> int:
        """Add the groups whose names are free, as they are; return their number. For groups of an older store."""
        return self._rows.insert_missing((group.name, group) for group in groups)

    def take_over(self, resolve: Resolve) -> None:
        """Take over the rows of another store, see `NamedRows.take_over`."""
        take_over_owned(self._rows, self._owners, resolve)


def encode_group(group: Group) -> bytes:
    """Encode a group as the row of docs/formats/metadata.md §3."""
    match group.backoff:
        case ExponentialBackoff(initial_ms, max_ms, multiplier):
            backoff: dict[str, object] = {"initialMs": initial_ms, "maxMs": max_ms, "multiplier": multiplier}
        case CustomizedBackoff(next_ms):
            backoff = {"nextMs": list(next_ms)}
    return encode_document(
        {
            "fifo": group.fifo,
            "maxAttempts": group.max_attempts,
            "enabled": group.enabled,
            "attributes": dict(group.attributes),
            **backoff,
        }
    )


def decode_group(name: str, value: bytes) -> Group:
    """Decode a group's row. Raises StoreDamaged."""
    document = Document(GROUPS_FAMILY, name, value)
    backoff: Backoff
    if document.has("nextMs"):
        backoff = CustomizedBackoff(document.integers("nextMs"))
    else:
        backoff = ExponentialBackoff(
            document.integer("initialMs"), document.integer("maxMs"), document.number("multiplier")
        )
    return Group(
        name,
        document.boolean("fifo"),
        document.integer("maxAttempts"),
        document.boolean("enabled"),
        backoff,
        document.texts("attributes"),
    )


def _check(group: Group) -> None:
    if not 1 <= group.max_attempts <= ATTEMPTS_MAX:
        raise Invalid(f"group {group.name}: max_attempts is {group.max_attempts}; 1 to {ATTEMPTS_MAX} are allowed")
    fault = backoff_fault(group.backoff)
    if fault is not None:
        raise Invalid(f"group {group.name}: backoff: {fault}")
    check_attributes(f"group {group.name}", group.attributes)
    fault = lite_attributes.lite_attribute_fault(group.attributes, lite_attributes.OF_GROUPS)
    if fault is not None:
        raise Invalid(f"group {group.name}: {fault}")


def backoff_fault(backoff: Backoff) -> str | None:
    """Return what is wrong with the delays; None when clients can work with them."""
    match backoff:
        case CustomizedBackoff(next_ms):
            if not 1 <= len(next_ms) <= BACKOFF_STEPS_MAX:
                return f"{len(next_ms)} delays; 1 to {BACKOFF_STEPS_MAX} are allowed"
            if not all(0 < delay <= BACKOFF_MS_MAX for delay in next_ms):
                return f"every delay must be 1 to {BACKOFF_MS_MAX} ms"
        case ExponentialBackoff(initial_ms, max_ms, multiplier):
            if not 0 < initial_ms <= max_ms <= BACKOFF_MS_MAX:
                return f"0 < initial_ms <= max_ms <= {BACKOFF_MS_MAX} must hold, not {initial_ms}, {max_ms}"
            if not (math.isfinite(multiplier) and 1 <= multiplier <= BACKOFF_MULTIPLIER_MAX):
                return f"multiplier is {multiplier}; 1 to {BACKOFF_MULTIPLIER_MAX} are allowed"
    return None
