"""Topics: their settings and the table that stores them.

Names of topics and groups are checked by the rules of `quarry_mq.protocol.names`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from quarry_mq.kv import KeyValueEngine
from quarry_mq.protocol import lite_attributes
from quarry_mq.protocol.names import (
    DEAD_LETTER_PREFIX,
    INTERNAL_TOPIC_NAME_MAX,
    group_name_fault,
    is_light_queue,
    is_system_group,
    is_system_topic,
    is_topic_name,
    shown_name,
    topic_name_fault,
)
from quarry_mq.store.errors import AlreadyExists, Invalid, StoreDamaged, TopicNotFound
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


class IllegalTopicName(Invalid):
    """The name breaks a rule of topic names; the message says which."""


class IllegalGroupName(Invalid):
    """The name breaks a rule of consumer group names; the message says which."""


def check_topic_name(name: str) -> None:
    """Raise IllegalTopicName unless clients may use a topic of this name."""
    fault = topic_name_fault(name)
    if fault is not None:
        raise IllegalTopicName(f"topic name {shown_name(name)}: {fault}")


def check_internal_topic_name(name: str) -> None:
    """Raise IllegalTopicName unless the broker itself may store messages in a topic of this name.

    It may use system topics, and retry topics of up to 255 bytes, whose names may contain a `+`.
    """
    length = len(name.encode(errors="replace"))
    if not name or not name.isprintable():
        raise IllegalTopicName(f"topic name {shown_name(name)} is blank or not printable")
    if length > INTERNAL_TOPIC_NAME_MAX:
        raise IllegalTopicName(
            f"topic name {shown_name(name)}: {length} bytes, at most {INTERNAL_TOPIC_NAME_MAX} are allowed"
        )


def check_group_name(name: str) -> None:
    """Raise IllegalGroupName unless clients may use a consumer group of this name."""
    fault = group_name_fault(name)
    if fault is not None:
        raise IllegalGroupName(f"group name {shown_name(name)}: {fault}")


TOPICS_FAMILY: Final = "topics"

QUEUES_MAX: Final = 8192
"""The largest number of queues that a topic may be created with. A route answer lists them all at up to 300 bytes each:
this many stay below the 4 MiB that gRPC clients accept. Topics taken over from RocketMQ keep their number.
"""

GROUP_TOPIC_QUEUES: Final = 1

CACHED_TOPICS_MAX: Final = 131_072
"""Cached topics, about 40 MB: as many as have a million queues, with eight each."""

SYSTEM_ATTRIBUTE: Final = "quarry.system"
"""`true` on topics that RocketMQ made for itself under names only its configuration knows (cluster, broker)."""

_SYSTEM_BYTES: Final = SYSTEM_ATTRIBUTE.encode()


class TopicType(Enum):
    """The messages that a topic accepts. MIXED accepts normal, FIFO, delayed and transactional ones."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    PRIORITY = "priority"
    LITE = "lite"
    MIXED = "mixed"


class Permission(Flag):
    """The actions allowed to clients, as RocketMQ's permission bits; Permission(0) allows none."""

    WRITE = 2
    READ = 4


READ_WRITE: Final = Permission.READ | Permission.WRITE


@dataclass(frozen=True, slots=True)
class Topic:
    """Describe a topic. `read_queues` and `write_queues` differ only while a topic is shrunk or grown in two steps."""

    name: str
    type: TopicType
    read_queues: int
    write_queues: int
    permission: Permission = READ_WRITE
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_for_clients: bool = field(init=False, repr=False, compare=False)
    """True if clients may use a topic of this name: checked once, when the topic is read."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_for_clients", is_topic_name(self.name))
        # Rows are shared through the cache: a caller's later change of its map must not reach them.
        if not isinstance(self.attributes, MappingProxyType):
            object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    @property
    def queue_count(self) -> int:
        """The number of queues that may hold messages: after a lowering, the higher queues may still be read."""
        return max(self.read_queues, self.write_queues)

    @property
    def is_system(self) -> bool:
        """True for a broker's own topics: listings leave them out unless asked."""
        return is_system_topic(self.name) or self.attributes.get(SYSTEM_ATTRIBUTE) == "true"


def group_topic(name: str) -> Topic:
    """Return a topic that the broker creates for a group: for its dead letters, or a retry topic."""
    return Topic(name, TopicType.MIXED, GROUP_TOPIC_QUEUES, GROUP_TOPIC_QUEUES)


class TopicTable:
    """Keep all topics of a store, in the family `topics`. Any thread may call; changes are durable on return."""

    def __init__(
        self,
        engine: KeyValueEngine,
        *,
        owners: Owners | None = None,
        journal: RowJournal | None = None,
        has_group: Callable[[str], bool] = lambda _: False,
        cached_max: int = CACHED_TOPICS_MAX,
    ) -> None:
        """Open the table. Without `owners`, topics are not counted by owner.

        `has_group` returns whether a group exists, and with it its dead letter topic.
        """
        self._owners = owners
        self._has_group = has_group
        self._rows = NamedRows[Topic](
            engine,
            TOPICS_FAMILY,
            kind="topic",
            not_found=TopicNotFound,
            encode=encode_topic,
            decode=decode_topic,
            cached_max=cached_max,
            journal=journal,
            is_counted=_is_no_system_topic,
        )

    @property
    def changes(self) -> int:
        """The change in the number of topics since this object was made, without the broker's own topics."""
        return self._rows.changes

    def counted(self) -> Iterator[object]:
        """Return an iterator with one item for each current topic, without the broker's own topics."""
        return self._rows.counted()

    def names_after(self, after: str, limit: int, contains: str = "", *, include_system: bool = False) -> NamesFound:
        """Do the same as `NamedRows.names_after`, without the broker's own topics unless `include_system`."""
        return self._rows.names_after(after, limit, contains, counted_only=not include_system)

    def get(self, name: str) -> Topic | None:
        """Return the topic, or None. Never creates one (rmq#9792). Raises StoreDamaged for an unreadable row.

        The dead letter topic of a group exists as long as the group; it has a row from its first message on.
        """
        topic = self._rows.get(name)
        if topic is None and name.startswith(DEAD_LETTER_PREFIX):
            group = name.removeprefix(DEAD_LETTER_PREFIX)
            if not is_system_group(group) and self._has_group(group):
                return group_topic(name)
        return topic

    def stored(self, name: str) -> Topic | None:
        """Return the topic if it has a row, else None. Only topics with a row are listed and counted."""
        return self._rows.get(name)

    def make_for_group(self, name: str) -> bool:
        """Give a topic that the broker creates for a group a row; return whether it had none."""
        if self._rows.get(name) is not None:
            return False
        try:
            self.create(group_topic(name), internal=True)
        except AlreadyExists:
            return False
        return True

    def warm(self, after: str) -> str | None:
        """Load more topics into the cache, see `NamedRows.warm`."""
        return self._rows.warm(after)

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the names that no topic has now."""
        return self._rows.missing(names)

    def create(self, topic: Topic, *, internal: bool = False, owner: str | None = None) -> None:
        """Add a topic. `internal` admits names that only the broker may use: system and long retry topics.

        With an `owner` it is counted among those that were created for that owner.

        Raises AlreadyExists, IllegalTopicName, or Invalid naming the field.
        """
        _check(topic, internal=internal)
        insert_owned(self._rows, self._owners, topic.name, topic, owner)

    def update(self, topic: Topic) -> None:
        """Replace a topic's settings. Raises TopicNotFound, or Invalid naming the field."""
        _check(topic, internal=True)
        if self.get(topic.name) is not None:
            self.make_for_group(topic.name)
        self._rows.replace(topic.name, topic)

    def delete(self, name: str) -> None:
        """Delete a topic's settings. Raises TopicNotFound."""
        remove_owned(self._rows, self._owners, name)

    def list(self, prefix: str = "") -> Iterator[Topic]:
        """Yield the topics whose names begin with `prefix`, in name order, read a page at a time."""
        return self._rows.list(prefix)

    def count_of(self, owner: str) -> int:
        """Return how many of the topics created for the owner still exist."""
        return 0 if self._owners is None else self._owners.count(owner)

    def add_missing(self, topics: Iterable[Topic]) -> int:
        """Add the topics whose names are free, as they are; return their number. For topics of an older store."""
        return self._rows.insert_missing((topic.name, topic) for topic in topics)

    def take_over(self, resolve: Resolve) -> None:
        """Take over the rows of another store, see `NamedRows.take_over`."""
        take_over_owned(self._rows, self._owners, resolve)


def _is_no_system_topic(name: str, value: bytes) -> bool:
    """Return whether the topic is none of the broker's own. It is called for a million rows, and decodes few."""
    if is_system_topic(name):
        return False
    return _SYSTEM_BYTES not in value or not decode_topic(name, value).is_system


def encode_topic(topic: Topic) -> bytes:
    """Encode a topic as the row of docs/formats/metadata.md §2."""
    return encode_document(
        {
            "type": topic.type.value,
            "readQueues": topic.read_queues,
            "writeQueues": topic.write_queues,
            "permission": topic.permission.value,
            "attributes": dict(topic.attributes),
        }
    )


def decode_topic(name: str, value: bytes) -> Topic:
    """Decode a topic's row. Raises StoreDamaged."""
    try:
        like = _decoded(value)
    except StoreDamaged:
        return _decode(name, value)  # the error names the row
    return Topic(name, like.type, like.read_queues, like.write_queues, like.permission, like.attributes)


@lru_cache(maxsize=1024)
def _decoded(value: bytes) -> Topic:
    """Decode a topic without its name: very many topics have the same settings."""
    return _decode("", value)


def _decode(name: str, value: bytes) -> Topic:
    document = Document(TOPICS_FAMILY, name, value)
    try:
        return Topic(
            name,
            TopicType(document.text("type")),
            document.integer("readQueues"),
            document.integer("writeQueues"),
            Permission(document.integer("permission")),
            document.texts("attributes"),
        )
    except ValueError as cause:  # a type or permission that does not exist
        document.damaged(str(cause))


def _check(topic: Topic, *, internal: bool) -> None:
    if internal:
        check_internal_topic_name(topic.name)
    else:
        check_topic_name(topic.name)
    if is_light_queue(topic.name):
        raise IllegalTopicName(
            f"topic name {topic.name!r}: light queues are created by their first message, not as topics"
        )
    for name, queues in (("read_queues", topic.read_queues), ("write_queues", topic.write_queues)):
        if not 1 <= queues <= QUEUES_MAX:
            raise Invalid(f"topic {topic.name}: {name} is {queues}; 1 to {QUEUES_MAX} are allowed")
    check_attributes(f"topic {topic.name}", topic.attributes)
    fault = lite_attributes.lite_attribute_fault(topic.attributes, lite_attributes.OF_TOPICS)
    if fault is not None:
        raise Invalid(f"topic {topic.name}: {fault}")
