"""Retry topics: messages for one group alone, beside those of a topic.

RocketMQ's POP consumption copies what was not acknowledged into such a topic. Quarry leaves messages where they are.
But a store of RocketMQ may hold some when it is opened, and dead letters that are sent again are put there. A group
that receives from the topic gets them, too, under the topic's name, from its retry topic's own position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from store.metadata.names import RETRY_PREFIX

FIRST_NUMBER: Final = 1 << 30
"""In receipt handles, queues of retry topics are numbered from here on. No topic has as many queues."""
NUMBERS_EACH: Final = 1 << 29


RETRY_TOPIC: Final = "RETRY_TOPIC"
"""Property: the topic that a message in a retry topic was sent to."""
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
"""Property: the group that a message in a retry topic is for."""

_SEPARATORS: Final = "_+"
"""Between group and topic. No name has a `+`, so only the older `_` leaves open where the group ends."""


class RetryTopic(NamedTuple):
    """The name of one, and what is added to its queue numbers in receipt handles."""

    name: str
    first_number: int


def retry_topic_name(group: str, topic: str) -> str:
    """The one that is written: RocketMQ's default, which every RocketMQ 5 reads."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def retry_topics(group: str, topic: str) -> tuple[RetryTopic, ...]:
    """Those that are read: the second is RocketMQ's with `enableRetryTopicV2`."""
    return (
        RetryTopic(retry_topic_name(group, topic), FIRST_NUMBER),
        RetryTopic(f"{RETRY_PREFIX}{group}+{topic}", FIRST_NUMBER + NUMBERS_EACH),
    )


def topic_beside(group: str, name: str) -> str | None:
    """The topic that a retry topic of the group is beside, if the name is that of one."""
    beside = name.removeprefix(RETRY_PREFIX + group)
    return beside[1:] if group and beside != name and beside[:1] and beside[0] in _SEPARATORS else None


def topic_of_retry(name: str, properties: Mapping[str, str]) -> str | None:
    """The topic that a message in the retry topic of this name was sent to; None where nobody can tell."""
    topic = properties.get(RETRY_TOPIC)
    if topic:
        return topic
    _, plus, topic = name.partition("+")
    return topic if plus else topic_beside(properties.get(ORIGIN_GROUP, ""), name)


def queue_of_handle(group: str, topic: str, number: int) -> tuple[str, int]:
    """The topic and the number of the queue that a receipt handle's number stands for."""
    if number < FIRST_NUMBER:
        return topic, number
    which, number = divmod(number - FIRST_NUMBER, NUMBERS_EACH)
    return retry_topics(group, topic)[min(which, 1)].name, number
