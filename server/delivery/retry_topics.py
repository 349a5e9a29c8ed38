"""Retry topics: messages for one group alone, which it gets together with those of a topic.

RocketMQ's POP consumption copies what was not acknowledged into such a topic; Quarry leaves messages where they are.
But a store of RocketMQ may have some when it is opened, and dead letters that are sent again are put there. A group
that receives from the topic gets them as well, under the topic's name, from its own offset in the retry topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from quarry_mq.protocol.messages.property_names import ORIGIN_GROUP, RETRY_TOPIC
from quarry_mq.protocol.names import RETRY_PREFIX
from quarry_mq.server.filters import MessageFilter

FIRST_NUMBER: Final = 1 << 30
"""Number from which on the queues of retry topics are numbered in receipt handles. No topic has as many queues."""
NUMBERS_EACH: Final = 1 << 29


_SEPARATORS: Final = "_+"
"""Separators between group and topic. No name has a `+`, so only the older `_` leaves open where the group ends."""


class RetryTopic(NamedTuple):
    """A retry topic's name, and what is added to its queue numbers in receipt handles."""

    name: str
    first_number: int


def retry_topic_name(group: str, topic: str) -> str:
    """Return the name of the retry topic that messages are written to.

    It is RocketMQ's default, which every RocketMQ 5 reads, unless that could also be the name for another group and
    topic.
    """
    separator = "+" if "_" in group or "_" in topic else "_"
    return f"{RETRY_PREFIX}{group}{separator}{topic}"


def retry_topics(group: str, topic: str) -> tuple[RetryTopic, ...]:
    """Return the retry topics that are read: the second is RocketMQ's with `enableRetryTopicV2`."""
    return (
        RetryTopic(f"{RETRY_PREFIX}{group}_{topic}", FIRST_NUMBER),
        RetryTopic(f"{RETRY_PREFIX}{group}+{topic}", FIRST_NUMBER + NUMBERS_EACH),
    )


def topic_beside(group: str, name: str) -> str | None:
    """Return the topic that a retry topic of the group belongs to, or None if the name is not that of one."""
    beside = name.removeprefix(RETRY_PREFIX + group)
    return beside[1:] if group and beside != name and beside[:1] and beside[0] in _SEPARATORS else None


def is_retry_topic_of(group: str, name: str) -> bool:
    """Return whether a topic of this name may hold messages for the group, judged by the name alone."""
    return name == RETRY_PREFIX + group or topic_beside(group, name) is not None


def is_for(group: str, name: str, properties: Mapping[str, str]) -> bool:
    """Return whether a message in the retry topic of this name, which may be one of the group's, is for the group.

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
    """A filter for the messages of a retry topic: those that are for a group and that another filter matches."""

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
    """Return the filter for a group that reads this topic."""
    return ForGroup(wanted, group, topic) if topic.startswith(RETRY_PREFIX) else wanted


class RetryOwner(NamedTuple):
    """A group, and the topic that its retry topic belongs to; None for the retry topic of all of the group's topics."""

    group: str
    topic: str | None


class RetryOwners:
    """Finds the possible owners of a retry topic: the name alone does not tell where the group ends."""

    def __init__(self, has_group: Callable[[str], bool], has_topic: Callable[[str], bool]) -> None:
        self._has_group = has_group
        self._has_topic = has_topic

    def of(self, name: str) -> list[RetryOwner]:
        """Return all owners among existing groups and topics that the name may stand for; at least one."""
        rest = name.removeprefix(RETRY_PREFIX)
        group, plus, topic = rest.partition("+")
        if plus:
            return [RetryOwner(group, topic)]
        splits = [(rest[:at], rest[at + 1 :]) for at, each in enumerate(rest) if each == "_"]
        found = [RetryOwner(*each) for each in splits if self._has_group(each[0]) and self._has_topic(each[1])]
        return found if found and not self._has_group(rest) else [RetryOwner(rest, None), *found]


def topic_of_retry(name: str, properties: Mapping[str, str]) -> str | None:
    """Return the topic that a message in the retry topic of this name was sent to; None if it cannot be determined."""
    topic = properties.get(RETRY_TOPIC)
    if topic:
        return topic
    _, plus, topic = name.partition("+")
    return topic if plus else topic_beside(properties.get(ORIGIN_GROUP, ""), name)


def handle_queue_of(group: str, name: str, number: int) -> tuple[str, int]:
    """Return the topic and the queue number by which receipt handles name a queue, as `queue_of_handle` undoes it."""
    topic = topic_beside(group, name) if name.startswith(RETRY_PREFIX) else None
    if topic is None:
        return name, number
    first_number = next(each.first_number for each in retry_topics(group, topic) if each.name == name)
    return topic, first_number + number


def queue_of_handle(group: str, topic: str, number: int) -> tuple[str, int]:
    """Return the topic and the number of the queue that a receipt handle's queue number stands for."""
    if number < FIRST_NUMBER:
        return topic, number
    which, number = divmod(number - FIRST_NUMBER, NUMBERS_EACH)
    return retry_topics(group, topic)[min(which, 1)].name, number
