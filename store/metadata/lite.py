"""Lite topics: the settings that their parent topic and groups have for them, and the names of their queues.

A lite topic has no row. It exists as long as its queue: the light queue `%LMQ%$<parent>$<lite topic>`, number 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

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
