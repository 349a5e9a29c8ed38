"""Retry topics: messages for one group alone, beside those of a topic.

RocketMQ's POP consumption copies what was not acknowledged into such a topic. Quarry leaves messages where they are.
But a store of RocketMQ may hold some when it is opened, and dead letters that are sent again are put there. A group
that receives from the topic gets them, too, under the topic's name, from its retry topic's own position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from quarry_mq.server.filters import MessageFilter
from quarry_mq.store.metadata.names import RETRY_PREFIX
from quarry_mq.store.record.properties import ORIGIN_GROUP, RETRY_TOPIC

FIRST_NUMBER: Final = 1 << 30
"""In receipt handles, queues of retry topics are numbered from here on. No topic has as many queues."""
NUMBERS_EACH: Final = 1 << 29


_SEPARATORS: Final = "_+"
"""Between group and topic. No name has a `+`, so only the older `_` leaves open where the group ends."""


class RetryTopic(NamedTuple):
    """The name of one, and what is added to its queue numbers in receipt handles."""

    name: str
    first_number: int


def retry_topic_name(group: str, topic: str) -> str:
    """The one that is written: RocketMQ's default, which every RocketMQ 5 reads, where it is no other pair's, too."""
    separator = "+" if "_" in group or "_" in topic else "_"
    return f"{RETRY_PREFIX}{group}{separator}{topic}"


def retry_topics(group: str, topic: str) -> tuple[RetryTopic, ...]:
    """Those that are read: the second is RocketMQ's with `enableRetryTopicV2`."""
    return (
        RetryTopic(f"{RETRY_PREFIX}{group}_{topic}", FIRST_NUMBER),
        RetryTopic(f"{RETRY_PREFIX}{group}+{topic}", FIRST_NUMBER + NUMBERS_EACH),
    )


def topic_beside(group: str, name: str) -> str | None:
    """The topic that a retry topic of the group is beside, if the name is that of one."""
    beside = name.removeprefix(RETRY_PREFIX + group)
    return beside[1:] if group and beside != name and beside[:1] and beside[0] in _SEPARATORS else None


def is_retry_topic_of(group: str, name: str) -> bool:
    """Whether a topic of this name may hold messages for the group, as far as the name tells."""
    return name == RETRY_PREFIX + group or topic_beside(group, name) is not None


def is_for(group: str, name: str, properties: Mapping[str, str]) -> bool:
    """Whether a message in the retry topic of this name, which may be one of the group's, is for the group.

    Several pairs of group and topic may share a name of the older kind: `a` with `b_c`, and `a_b` with `c`.
    """
    if "+" in name:
        return is_retry_topic_of(group, name)
    origin = properties.get(ORIGIN_GROUP, "")
    if is_retry_topic_of(origin, name):
        return origin == group
    sent_to, beside = properties.get(RETRY_TOPIC), topic_beside(group, name)
    return not sent_to or beside is None or beside == sent_to


class ForGroup:
    """Of the messages of a retry topic that a filter lets through those that are for a group: a filter itself."""

    __slots__ = ("_group", "_name", "_wanted", "length")

    wants_all: Final = False

    def __init__(self, wanted: MessageFilter, group: str, name: str) -> None:
        self._wanted = wanted
        self._group = group
        self._name = name
        self.length = wanted.length

    def may_match(self, tags_code: int) -> bool:
        return self._wanted.may_match(tags_code)

    def matches(self, properties: Mapping[str, str]) -> bool:
        return is_for(self._group, self._name, properties) and self._wanted.matches(properties)


def for_group(wanted: MessageFilter, group: str, topic: str) -> MessageFilter:
    """What a group that reads this topic is to get of it."""
    return ForGroup(wanted, group, topic) if topic.startswith(RETRY_PREFIX) else wanted


class RetryOwner(NamedTuple):
    """A group, and the one topic that a retry topic of it is beside; None for the retry topic of all of its topics."""

    group: str
    topic: str | None


class RetryOwners:
    """Whose a retry topic may be: the name alone does not tell where the group ends."""

    def __init__(self, has_group: Callable[[str], bool], has_topic: Callable[[str], bool]) -> None:
        self._has_group = has_group
        self._has_topic = has_topic

    def of(self, name: str) -> list[RetryOwner]:
        """All that there are of the groups and topics that its name may be made of; at least one."""
        rest = name.removeprefix(RETRY_PREFIX)
        group, plus, topic = rest.partition("+")
        if plus:
            return [RetryOwner(group, topic)]
        splits = [(rest[:at], rest[at + 1 :]) for at, each in enumerate(rest) if each == "_"]
        found = [RetryOwner(*each) for each in splits if self._has_group(each[0]) and self._has_topic(each[1])]
        return found if found and not self._has_group(rest) else [RetryOwner(rest, None), *found]


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
