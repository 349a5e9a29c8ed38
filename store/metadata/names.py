"""Checks of names of topics and groups by the rules of `quarry_mq.protocol.names`."""

from __future__ import annotations

from quarry_mq.protocol.names import INTERNAL_TOPIC_NAME_MAX, group_name_fault, shown_name, topic_name_fault
from quarry_mq.store.errors import Invalid


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
