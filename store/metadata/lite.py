"""Lite topics: their settings at parents and groups, the names of their queues, and the clients subscribed to them.

A lite topic has no row. It exists as long as its queue: the light queue `%LMQ%$<parent>$<lite topic>`, number 0.

Subscriptions of clients to lite topics are rows of the family `lite`, by client and by lite topic. Their keys
(docs/formats/metadata.md §10), `counted` being a u32 length and the bytes:

    0x01 counted(group) counted(client) lite topic    -> nothing: the client is subscribed
    0x02 counted(group) counted(lite topic) client    -> nothing: the same, to be found by the lite topic
    0x03 counted(group) counted(client) lite topic    -> nothing: another client of an exclusive group has taken it
    0x04 counted(group) counted(client)               -> i64 wall-clock ms: when the client last sent its subscriptions

The first two are written and deleted together. A group is bound to one parent topic, so that is in no key. The lite
topic `""` stands for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, Self

from quarry_mq.kv import KeyRange, KeyValueEngine, WriteBatch
from quarry_mq.kv.keys import counted, prefix_range, read_counted
from quarry_mq.protocol import lite_attributes
from quarry_mq.protocol.lite_attributes import (
    CLIENT_EVENTS_DEFAULT,
    CLIENT_QUOTA_DEFAULT,
    EXPIRATION_MAX_MINUTES,
    NEVER,
    NO_LIMIT,
    LiteModel,
    read_or,
)
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX
from quarry_mq.store.metadata.groups import Group
from quarry_mq.store.metadata.topics import Topic, TopicType
from quarry_mq.store.state.identity import LITE

LITE_TOPIC_PREFIX: Final = f"{LIGHT_QUEUE_PREFIX}$"
"""The prefix of the names of all lite topics' queues."""

TTL_MIN_MINUTES: Final = 15
_MINUTE_MS: Final = 60_000
TTL_MAX_MS: Final = EXPIRATION_MAX_MINUTES * _MINUTE_MS

_SEPARATOR: Final = "$"
_LITE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class LiteGroup:
    """The lite topic settings of a group that is bound to a topic. See `protocol.lite_attributes`."""

    bind_topic: str
    """The one topic whose lite topics the group reads."""
    client_quota: int | None = CLIENT_QUOTA_DEFAULT
    """The number of lite topics that one client may subscribe to; None: any number."""
    model: LiteModel = LiteModel.SHARED
    reset_offset_on_exclusive: bool = False
    """True if a lite topic is read from its begin again when another client takes it over."""
    reset_offset_on_unsubscribe: bool = False
    wildcard: str | None = None
    """The name prefix of lite topics that the group gets without naming them, "" for all; None: none."""
    client_events_max: int = CLIENT_EVENTS_DEFAULT
    """The number of lite topics with something to deliver that are kept in order for one client."""

    @classmethod
    def of(cls, group: Group) -> Self | None:
        """Read the settings of a group; None if it is bound to no topic. Values that are not allowed count as unset."""
        attributes = group.attributes
        bind_topic = read_or(attributes, lite_attributes.BIND_TOPIC, lite_attributes.topic, "")
        if not bind_topic:
            return None
        quota = read_or(attributes, lite_attributes.CLIENT_QUOTA, lite_attributes.client_quota, CLIENT_QUOTA_DEFAULT)
        boolean = lite_attributes.boolean
        return cls(
            bind_topic=bind_topic,
            client_quota=None if quota == NO_LIMIT else quota,
            model=read_or(attributes, lite_attributes.MODEL, lite_attributes.model, LiteModel.SHARED),
            reset_offset_on_exclusive=read_or(attributes, lite_attributes.RESET_ON_EXCLUSIVE, boolean, default=False),
            reset_offset_on_unsubscribe=read_or(
                attributes, lite_attributes.RESET_ON_UNSUBSCRIBE, boolean, default=False
            ),
            wildcard=read_or(attributes, lite_attributes.WILDCARD, lite_attributes.wildcard, None),
            client_events_max=read_or(
                attributes,
                lite_attributes.CLIENT_EVENTS_MAX,
                lite_attributes.client_events_max,
                CLIENT_EVENTS_DEFAULT,
            ),
        )


def lite_topic_ttl_ms(topic: Topic) -> int | None:
    """Return how long a lite topic of this topic stays after its last message.

    None: for ever, as in topics of other types.
    """
    if topic.type is not TopicType.LITE:
        return None
    minutes = read_or(topic.attributes, lite_attributes.EXPIRATION, lite_attributes.expiration, NEVER)
    return max(minutes, TTL_MIN_MINUTES) * _MINUTE_MS if minutes > 0 else None


def is_lite_topic_name(text: str) -> bool:
    """Return whether a lite topic may have this name, or one that begins with it. The protocol limits the length."""
    return _LITE_NAME.fullmatch(text) is not None


def light_queue_name(parent: str, lite: str) -> str:
    """Return the name of a lite topic's queue."""
    return f"{light_queue_prefix(parent)}{lite}"


def light_queue_prefix(parent: str) -> str:
    """Return the prefix of the queue names of a topic's lite topics. A few other topics' queues may have it, too."""
    return f"{LITE_TOPIC_PREFIX}{parent}{_SEPARATOR}"


def parse_light_queue_name(name: str) -> tuple[str, str] | None:
    """Return parent and lite topic; None for any other name, including those of other light queues.

    The last separator counts: names of lite topics have none, those of topics taken over from RocketMQ may.
    """
    if not name.startswith(LITE_TOPIC_PREFIX):
        return None
    parent, _, lite = name[len(LITE_TOPIC_PREFIX) :].rpartition(_SEPARATOR)
    return (parent, lite) if parent and is_lite_topic_name(lite) else None


ALL_OF_THEM: Final = ""
"""Stands for all lite topics of the parent that exist and will exist."""

BY_CLIENT: Final = b"\x01"
BY_LITE_TOPIC: Final = b"\x02"
TAKEN_AWAY: Final = b"\x03"
SYNCED: Final = b"\x04"
_TIME: Final = Struct(">q")
PAGE_ROWS: Final = 1024


class LiteClientRow(NamedTuple):
    """The time at which a client of a group last sent its subscriptions, ms since 1970."""

    group: str
    client_id: str
    synced_ms: int


class LiteSubscriptionTable:
    """Stores the subscriptions. Changes are staged into batches of the caller. Reads see what was written.

    One thread stages.
    """

    def __init__(self, engine: KeyValueEngine) -> None:
        self._family = engine.family(LITE)

    # -- reading

    def of_client(self, group: str, client_id: str, after: str | None = None, limit: int | None = None) -> list[str]:
        """Return the client's lite topics by name; with `behind`, those after that name. At most `limit`."""
        prefix = _prefix(BY_CLIENT, group, client_id)
        keys = prefix_range(prefix)
        if after is not None:
            keys = KeyRange(prefix + after.encode() + b"\0", keys.end)
        return [key[len(prefix) :].decode() for key, _ in self._family.scan(keys, limit=limit)]

    def clients_of(self, group: str, lite_topic: str) -> list[str]:
        """Return the clients of the group that are subscribed to the lite topic by its name."""
        prefix = _prefix(BY_LITE_TOPIC, group, lite_topic)
        return [key[len(prefix) :].decode() for key, _ in self._family.scan(prefix_range(prefix))]

    def wanted(self, group: str) -> Iterator[str]:
        """Yield each lite topic to which a client of the group is subscribed by name. Costs one read for each."""
        prefix = BY_LITE_TOPIC + counted(group.encode())
        keys = prefix_range(prefix)
        while found := self._family.scan(keys, limit=1):
            lite_topic, at = read_counted(found[0][0], len(prefix))
            if lite_topic:
                yield lite_topic.decode()
            keys = KeyRange(prefix_range(found[0][0][:at]).end or b"", keys.end)

    def groups(self) -> Iterator[str]:
        """Yield the groups that have a subscribed client. Costs one read for each."""
        keys = prefix_range(BY_LITE_TOPIC)
        while found := self._family.scan(keys, limit=1):
            group, at = read_counted(found[0][0], len(BY_LITE_TOPIC))
            yield group.decode()
            keys = KeyRange(prefix_range(found[0][0][:at]).end or b"", keys.end)

    def is_subscribed(self, group: str, client_id: str, lite_topic: str) -> bool:
        return self._family.get(_prefix(BY_CLIENT, group, client_id) + lite_topic.encode()) is not None

    def is_known(self, group: str, client_id: str) -> bool:
        """Return whether the client has sent its subscriptions, and was not removed since."""
        return self._family.get(_prefix(SYNCED, group, client_id)) is not None

    def taken_from(self, group: str, client_id: str) -> list[str]:
        """Return the lite topics that another client has taken away from this one."""
        prefix = _prefix(TAKEN_AWAY, group, client_id)
        return [key[len(prefix) :].decode() for key, _ in self._family.scan(prefix_range(prefix))]

    def clients(self, after: LiteClientRow | None = None, limit: int = PAGE_ROWS) -> list[LiteClientRow]:
        """Return clients of all groups that have sent their subscriptions: at most `limit`, those after `behind`."""
        keys = prefix_range(SYNCED)
        if after is not None:
            keys = KeyRange(_prefix(SYNCED, after.group, after.client_id) + b"\0", keys.end)
        return [_parse_synced(key, value) for key, value in self._family.scan(keys, limit=limit)]

    # -- staging

    def stage_added(self, batch: WriteBatch, group: str, client_id: str, lite_topic: str) -> None:
        batch.put(self._family, _prefix(BY_CLIENT, group, client_id) + lite_topic.encode(), b"")
        batch.put(self._family, _prefix(BY_LITE_TOPIC, group, lite_topic) + client_id.encode(), b"")
        batch.delete(self._family, _prefix(TAKEN_AWAY, group, client_id) + lite_topic.encode())

    def stage_removed(self, batch: WriteBatch, group: str, client_id: str, lite_topic: str) -> None:
        batch.delete(self._family, _prefix(BY_CLIENT, group, client_id) + lite_topic.encode())
        batch.delete(self._family, _prefix(BY_LITE_TOPIC, group, lite_topic) + client_id.encode())

    def stage_taken_away(self, batch: WriteBatch, group: str, client_id: str, lite_topic: str) -> None:
        """Stage that another client has the lite topic now.

        It is remembered until this client subscribes to it again, or does not want it any more.
        """
        self.stage_removed(batch, group, client_id, lite_topic)
        batch.put(self._family, _prefix(TAKEN_AWAY, group, client_id) + lite_topic.encode(), b"")

    def stage_given_up(self, batch: WriteBatch, group: str, client_id: str, lite_topic: str) -> None:
        """Stage that the client no longer wants a lite topic that was taken away from it."""
        batch.delete(self._family, _prefix(TAKEN_AWAY, group, client_id) + lite_topic.encode())

    def stage_synced(self, batch: WriteBatch, group: str, client_id: str, now_ms: int) -> None:
        batch.put(self._family, _prefix(SYNCED, group, client_id), _TIME.pack(now_ms))

    def stage_client_gone(self, batch: WriteBatch, group: str, client_id: str) -> None:
        """Stage the removal of the client's other rows. Its subscriptions are removed one by one."""
        batch.delete(self._family, _prefix(SYNCED, group, client_id))
        batch.delete_range(self._family, prefix_range(_prefix(TAKEN_AWAY, group, client_id)))

    def stage_group_gone(self, batch: WriteBatch, group: str) -> None:
        for kind in (BY_CLIENT, BY_LITE_TOPIC, TAKEN_AWAY, SYNCED):
            batch.delete_range(self._family, prefix_range(kind + counted(group.encode())))

    def all_rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield group, client and lite topic of every subscription, read a page at a time."""
        keys = prefix_range(BY_CLIENT)
        while True:
            page = self._family.scan(keys, limit=PAGE_ROWS)
            for key, _ in page:
                group, at = read_counted(key, len(BY_CLIENT))
                client_id, at = read_counted(key, at)
                yield group.decode(), client_id.decode(), key[at:].decode()
            if len(page) < PAGE_ROWS:
                return
            keys = KeyRange(page[-1][0] + b"\0", keys.end)


def _prefix(kind: bytes, group: str, name: str) -> bytes:
    return kind + counted(group.encode()) + counted(name.encode())


def _parse_synced(key: bytes, value: bytes) -> LiteClientRow:
    group, at = read_counted(key, len(SYNCED))
    client_id, _ = read_counted(key, at)
    return LiteClientRow(group.decode(), client_id.decode(), int(_TIME.unpack(value)[0]))
