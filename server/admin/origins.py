"""Tell which topics a stored message belongs to: the broker's internal topics hold copies of other topics' messages.

Such copies are scheduled, retried or dead letters. A user without the right to read a topic may not read its copies
either, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quarry_mq.protocol.messages.property_names import DEAD_LETTER_TOPIC, REAL_TOPIC, RETRY_TOPIC
from quarry_mq.protocol.names import (
    CHECKED_TOO_OFTEN_TOPIC,
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    is_system_topic,
)
from quarry_mq.server.delivery.retry_topics import topic_of_retry
from quarry_mq.store.pending.topics import TIMER_TOPIC
from quarry_mq.store.record import StoredMessage

INTERNAL_PREFIX: Final = "%"
"""The first character of the names of retry topics, dead letter topics and light queues."""

WAITING_TOPICS: Final = frozenset({TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, CHECKED_TOO_OFTEN_TOPIC})
"""Topics whose messages were all sent to another topic."""


def has_copies(topic: str) -> bool:
    """Return whether a topic or light queue of this name may hold messages of other topics."""
    return topic.startswith(INTERNAL_PREFIX) or is_system_topic(topic)


def topics_of(record: StoredMessage) -> frozenset[str] | None:
    """Return the topic that holds the message and those that it was sent to; None if they cannot be determined."""
    if not has_copies(record.topic):
        return frozenset((record.topic,))
    properties = record.properties
    found: set[str] = set()
    left: list[str] = [record.topic]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        if not has_copies(name):
            continue
        origin = _origin(name, properties)
        if origin is None:
            return None
        if origin:
            left.append(origin)
    return frozenset(found)


def _origin(name: str, properties: Mapping[str, str]) -> str | None:
    """Return the topic that a copy in this topic was sent to; "" if there is none, None if it cannot be determined."""
    if name.startswith(DEAD_LETTER_PREFIX):
        return properties.get(DEAD_LETTER_TOPIC) or properties.get(RETRY_TOPIC)
    if name.startswith(RETRY_PREFIX):
        return topic_of_retry(name, properties)
    if name in WAITING_TOPICS:
        return properties.get(REAL_TOPIC)
    return properties.get(REAL_TOPIC, "")
