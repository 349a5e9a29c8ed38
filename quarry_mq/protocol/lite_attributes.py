"""The attributes of lite topics and their groups: the allowed values and their meaning.

| attribute                           | of    | allowed                                  | unset  |
|-------------------------------------|-------|------------------------------------------|--------|
| `lite.topic.expiration`             | topic | minutes, -1 to 43200; 0 and below: never | never  |
| `lite.bind.topic`                   | group | the name of a topic                      |        |
| `lite.sub.client.quota`             | group | -1 (no limit) or a number                | 2000   |
| `lite.sub.model`                    | group | `Shared`, `Exclusive`                    | Shared |
| `lite.sub.reset.offset.exclusive`   | group | `true`, `false`                          | false  |
| `lite.sub.reset.offset.unsubscribe` | group | `true`, `false`                          | false  |
| `lite.sub.wildcard`                 | group | `true`, `false`, or a prefix of names    | false  |
| `lite.sub.client.max.event.cnt`     | group | 10 or more                               | 400    |

A value that is not allowed is refused when a topic or group is created or changed. Rows of RocketMQ, of an older
version or of another member may contain one all the same: it is read as unset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, TypeVar

from quarry_mq.protocol.names import shown_name, topic_name_fault

EXPIRATION: Final = "lite.topic.expiration"
BIND_TOPIC: Final = "lite.bind.topic"
CLIENT_QUOTA: Final = "lite.sub.client.quota"
MODEL: Final = "lite.sub.model"
RESET_ON_EXCLUSIVE: Final = "lite.sub.reset.offset.exclusive"
RESET_ON_UNSUBSCRIBE: Final = "lite.sub.reset.offset.unsubscribe"
WILDCARD: Final = "lite.sub.wildcard"
CLIENT_EVENTS_MAX: Final = "lite.sub.client.max.event.cnt"

NEVER: Final = -1
NO_LIMIT: Final = -1
EXPIRATION_MAX_MINUTES: Final = 30 * 24 * 60
CLIENT_QUOTA_DEFAULT: Final = 2_000
CLIENT_EVENTS_DEFAULT: Final = 400
CLIENT_EVENTS_MIN: Final = 10
NUMBER_MAX: Final = 2**31 - 1
"""The largest number. RocketMQ's clients and tools cannot show a larger quota."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_PREFIX: Final = re.compile(r"([A-Za-z0-9_-]*)\*?", re.ASCII)

Value = TypeVar("Value")
Read = Callable[[str], Value]
"""Parses a value. Raises ValueError whose text says what is allowed."""


class LiteModel(Enum):
    """The rule for who gets the messages of a lite topic to which several clients of a group have subscribed."""

    SHARED = "Shared"
    """All of these clients share the messages; each message goes to one of them."""
    EXCLUSIVE = "Exclusive"
    """The client that subscribed last gets all messages."""


def integer(at_least: int, at_most: int) -> Read[int]:
    def read(text: str) -> int:
        # the pattern limits the digits first: a million of them must not be converted
        if not _INTEGER.fullmatch(text) or not at_least <= int(text) <= at_most:
            raise ValueError(f"must be a number from {at_least} to {at_most}")
        return int(text)

    return read


def boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


def model(text: str) -> LiteModel:
    try:
        return LiteModel(text)
    except ValueError:
        raise ValueError(f"{' or '.join(each.value for each in LiteModel)} is allowed") from None


def topic(text: str) -> str:
    fault = topic_name_fault(text)
    if fault is not None:
        raise ValueError(f"must be the name of a topic (topic name {shown_name(text)}: {fault})")
    return text


def wildcard(text: str) -> str | None:
    """Return the prefix of names, "" for all of them; None for no wildcard. RocketMQ's own value is `true`."""
    if text in ("true", "false"):
        return "" if text == "true" else None
    found = _PREFIX.fullmatch(text)
    if found is None:
        raise ValueError(
            "must be true, false, or a prefix of lite topic names (a-z A-Z 0-9 _ -, and optionally a final *)"
        )
    return found[1]


expiration: Final = integer(NEVER, EXPIRATION_MAX_MINUTES)
client_quota: Final = integer(NO_LIMIT, NUMBER_MAX)
client_events_max: Final = integer(CLIENT_EVENTS_MIN, NUMBER_MAX)

OF_TOPICS: Final[Mapping[str, Read[object]]] = {EXPIRATION: expiration}
OF_GROUPS: Final[Mapping[str, Read[object]]] = {
    BIND_TOPIC: topic,
    CLIENT_QUOTA: client_quota,
    MODEL: model,
    RESET_ON_EXCLUSIVE: boolean,
    RESET_ON_UNSUBSCRIBE: boolean,
    WILDCARD: wildcard,
    CLIENT_EVENTS_MAX: client_events_max,
}


def read_or(attributes: Mapping[str, str], name: str, read: Read[Value], default: Value) -> Value:
    """Return the value of an attribute; the default where it is unset or not allowed."""
    text = attributes.get(name)
    if text is None:
        return default
    try:
        return read(text)
    except ValueError:
        return default


def lite_attribute_fault(attributes: Mapping[str, str], allowed: Mapping[str, Read[object]]) -> str | None:
    """Return the attribute and its allowed values, when one of `allowed` has another value."""
    for name, read in allowed.items():
        text = attributes.get(name)
        if text is None:
            continue
        try:
            read(text)
        except ValueError as cause:
            return f"attribute {name} is {shown_name(text)}; {cause}"
    return None
