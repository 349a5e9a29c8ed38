"""The rules for names of topics and groups, the names derived from them, and Java's rules for text.

The rules for names are RocketMQ's, so that every name valid here is valid there (docs/formats/metadata.md). The
alphabet is ASCII: characters and bytes are the same number.

Java's rules for text are used where RocketMQ uses them to interpret what a client sent. Python's own `strip` and
`split` know more white space than Java's `trim`, and other white space than its `isBlank`: U+3000 at the beginning of a
tag belongs to the tag.
"""

from __future__ import annotations

import re
from typing import Final

TOPIC_NAME_MAX: Final = 127
"""The longest topic name in characters. The length field of a V1 record's topic is one signed byte."""

GROUP_NAME_MAX: Final = 120
"""The longest group name in characters. Prefixes of retry and dead letter topics still fit in `TOPIC_NAME_MAX`."""

INTERNAL_TOPIC_NAME_MAX: Final = 255
"""The longest internal topic name in bytes. Retry topics join a group and a topic, and are stored in V2 records."""

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic of messages that wait for a delay level. Their tags code is the time of delivery."""

REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATION_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECKED_TOO_OFTEN_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
"""The topic name in the key of the checkpoint of queues in RocksDB. No real topic can have this name."""

DEFAULT_TOPIC: Final = "TBW102"
"""The topic whose route producers ask for when their own topic does not exist: it says how new topics are made."""

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
OPEN_TOPICS: Final = frozenset({TRACE_TOPIC, "BenchmarkTest"})
"""System topics to which remoting clients send: their traces, and the messages of RocketMQ's benchmark."""

SYSTEM_TOPICS: Final = OPEN_TOPICS | frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OPERATION_TOPIC,
        CHECKED_TOO_OFTEN_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        CHECKPOINT_TOPIC,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",  # with the next one, made by every RocketMQ 5.5 broker
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    }
)

ALPHABET: Final = "^[%|a-zA-Z0-9_-]+$"
_ALPHABET: Final = re.compile(ALPHABET, re.ASCII)
_ALPHABET_TEXT: Final = "letters, digits and % | _ - are allowed"
_SHOWN_MAX: Final = 60


def is_topic_name(name: str) -> bool:
    """Return whether clients may use a topic of this name."""
    return topic_name_fault(name) is None


def topic_name_fault(name: str) -> str | None:
    """Return why clients may not use a topic of this name; None if they may."""
    fault = _fault(name, TOPIC_NAME_MAX)
    if fault is None and is_system_topic(name):
        fault = "reserved for the broker"
    return fault


def group_name_fault(name: str) -> str | None:
    """Return why clients may not use a consumer group of this name; None if they may."""
    fault = _fault(name, GROUP_NAME_MAX)
    if fault is None and is_system_group(name):
        fault = "reserved for the broker"
    return fault


def _fault(name: str, length_max: int) -> str | None:
    if not name or name.isspace():
        return "blank"
    if not is_in_alphabet(name):
        return _ALPHABET_TEXT
    if len(name) > length_max:
        return f"{len(name)} characters, at most {length_max} are allowed"
    return None


def is_in_alphabet(name: str) -> bool:
    """Return whether names of topics and groups may contain all of its characters."""
    return _ALPHABET.fullmatch(name) is not None


def is_system_topic(name: str) -> bool:
    """Return whether a broker keeps its own messages in the topic."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    """Return whether a broker uses the group to read its own topics."""
    return name.startswith(SYSTEM_GROUP_PREFIX)


def is_light_queue(name: str) -> bool:
    """Return whether the name is that of a light queue: a consume queue with number 0 and no topic of its own."""
    return name.startswith(LIGHT_QUEUE_PREFIX)


def retry_topic_name(group: str) -> str:
    """Return the name of the topic where a group's messages wait for another attempt."""
    return RETRY_PREFIX + group


def dead_letter_topic_name(group: str) -> str:
    """Return the name of the topic that gets messages after the group's last attempt."""
    return DEAD_LETTER_PREFIX + group


def reply_topic_name(cluster: str) -> str:
    """Return the name of the topic to which consumers send replies to requests."""
    return cluster + REPLY_TOPIC_SUFFIX


def shown_name(name: str) -> str:
    """Return the name for an error message: escaped, and cut so that hostile input cannot fill logs."""
    return repr(name if len(name) <= _SHOWN_MAX else name[: _SHOWN_MAX - 1] + "…")


_UP_TO_SPACE: Final = "".join(map(chr, range(0x21)))

_WHITE_SPACE: Final = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f "
    "\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)
"""White space as Java defines it: without the non-breaking spaces (U+00A0, U+2007, U+202F), and without U+0085."""


def trimmed(text: str) -> str:
    """Return the text without characters up to U+0020 at both ends, as `String.trim` does."""
    return text.strip(_UP_TO_SPACE)


def is_blank(text: str) -> bool:
    """Return whether the text holds nothing but white space, as `StringUtils.isBlank` does."""
    return not text.strip(_WHITE_SPACE)
