"""The space that an accepted message may take for properties, and the space reserved for those it gets later.

The properties of a record have 32,767 bytes. A message that is delivered late, committed, given to a group again,
dead-lettered or sent once more is copied each time, and each copy adds properties on where it comes from. So a message
is accepted only if everything it may ever get fits beside what its sender gave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quarry_mq.protocol.limits import (
    BORN_HOST_SIZE_MAX,
    ENTRIES_MAX,
    MESSAGE_ID_SIZE_MAX,
    NAME_SIZE_MAX,
    TRACE_CONTEXT_SIZE_MAX,
)
from quarry_mq.protocol.messages import property_names as reserved
from quarry_mq.store.record.layout import CRC_PROPERTY_SIZE, PROPERTIES_LENGTH_MAXIMUM

_NUMBER_SIZE: Final = 20
"""Characters of a number of 64 bits with a sign."""
LIGHT_QUEUE_OFFSET_SIZE: Final = _NUMBER_SIZE
"""Bytes that a record needs for the offset in each light queue that it names, with a comma."""
_SEPARATORS_SIZE: Final = 2
"""Bytes of the separators of each property."""

_PLACE_SIZE: Final = NAME_SIZE_MAX + 2 * (1 + _NUMBER_SIZE)
MARKS: Final[Mapping[str, int]] = {
    reserved.RESENT_FROM: _PLACE_SIZE,
    reserved.RESENT_ID: MESSAGE_ID_SIZE_MAX,
    reserved.REPLAYED_FROM: _PLACE_SIZE,
    reserved.REPLAYED_ID: MESSAGE_ID_SIZE_MAX,
}
"""User properties that mark a message as a copy that was sent again, and the size of the largest value.

They do not count against the number of properties a message may have, so every accepted message can be sent again.
"""

ADDED_LATER: Final[Mapping[str, int]] = {
    reserved.REAL_TOPIC: NAME_SIZE_MAX,
    reserved.REAL_QUEUE: _NUMBER_SIZE,
    reserved.DELIVER_AT_MS: _NUMBER_SIZE,
    reserved.TIMER_OUT_MS: _NUMBER_SIZE,
    reserved.DEQUEUED_MS: _NUMBER_SIZE,
    reserved.ROLL_TIMES: _NUMBER_SIZE,
    reserved.TRANSACTION_ID: MESSAGE_ID_SIZE_MAX,
    reserved.DEAD_LETTER_TOPIC: NAME_SIZE_MAX,
    reserved.DEAD_LETTER_MESSAGE_ID: MESSAGE_ID_SIZE_MAX,
    reserved.ORIGIN_GROUP: NAME_SIZE_MAX,
    reserved.RETRY_TOPIC: NAME_SIZE_MAX,
    **MARKS,
}
"""Properties that the copies of a message may have beside its own, and the size of the largest value."""

_FROM_FIELDS: Final[Mapping[str, int]] = {
    reserved.TAGS: 0,  # counted with the user properties, as the keys are
    reserved.KEYS: ENTRIES_MAX,
    reserved.UNIQUE_KEY: MESSAGE_ID_SIZE_MAX,
    reserved.PRODUCER_GROUP: NAME_SIZE_MAX,
    reserved.BORN_TIMESTAMP: _NUMBER_SIZE,
    reserved.BORN_HOST: BORN_HOST_SIZE_MAX,
    reserved.TRANSACTION: len("true"),
    reserved.TRANSACTION_RECOVERY_S: _NUMBER_SIZE,
    reserved.MESSAGE_GROUP: 0,  # as large as a setting allows
    reserved.PRIORITY: _NUMBER_SIZE,
    reserved.LITE_TOPIC: NAME_SIZE_MAX,
    reserved.LIGHT_QUEUES: NAME_SIZE_MAX,  # the name for a lite topic; other names are user properties
    reserved.LIGHT_QUEUE_OFFSETS: LIGHT_QUEUE_OFFSET_SIZE,
    reserved.TRACE_CONTEXT: TRACE_CONTEXT_SIZE_MAX,
    reserved.RECONSUME_TIMES: _NUMBER_SIZE,
}
"""Properties made from other fields of a message, and the size of the largest value that is not counted elsewhere."""


def _size_of(properties: Mapping[str, int]) -> int:
    return sum(len(name) + size + _SEPARATORS_SIZE for name, size in properties.items())


ROOM_FOR_LATER: Final = _size_of(ADDED_LATER) + len("\x02") + CRC_PROPERTY_SIZE
"""Bytes of a record's properties that accepted messages leave free."""
ROOM_FOR_SENDERS: Final = PROPERTIES_LENGTH_MAXIMUM - ROOM_FOR_LATER - _size_of(_FROM_FIELDS)
"""Bytes that the settings may divide among user properties, tag, keys and message group."""


def uncounted(properties: Mapping[str, str]) -> tuple[int, int]:
    """Return how many of the user properties are marks, and how many of their bytes do not count."""
    found = [name for name in MARKS if name in properties]
    return len(found), sum(len(name) + min(len(properties[name].encode()), MARKS[name]) for name in found)


def needed_by(*, properties_count: int, properties_size: int, message_group_size: int) -> int:
    """Return how many bytes of `ROOM_FOR_SENDERS` a message may take with these settings."""
    return properties_count * _SEPARATORS_SIZE + properties_size + message_group_size
