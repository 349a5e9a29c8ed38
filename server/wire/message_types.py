"""Message types: which one a message has, and which ones a topic takes (docs/formats/protocol.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from quarry_mq.protocol.messages import property_names as reserved
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.metadata import Topic, TopicType

ACCEPTED_TYPES: Final[Mapping[TopicType, tuple[definition.MessageType, ...]]] = {
    TopicType.NORMAL: (definition.NORMAL,),
    TopicType.FIFO: (definition.FIFO,),
    TopicType.DELAY: (definition.DELAY,),
    TopicType.TRANSACTION: (definition.TRANSACTION,),
    TopicType.PRIORITY: (definition.PRIORITY,),
    TopicType.LITE: (definition.LITE,),
    TopicType.MIXED: (definition.NORMAL, definition.FIFO, definition.DELAY, definition.TRANSACTION),
}


TYPE_WORDS: Final = {number: name.lower() for name, number in definition.MessageType.items()}
"""Names of message types in metrics."""


def type_fault(topic: Topic, actual: str) -> str:
    """Return RocketMQ's text for messages of a type that the topic does not accept."""
    return f"TopicMessageType validate failed, the expected type is {topic.type.name}, but actual type is {actual}"


def derive_message_type(properties: definition.SystemProperties) -> definition.MessageType:
    """Return the type of a message that is being sent.

    Only TRANSACTION is taken as the sender states it. Otherwise the properties decide, so a message that calls itself
    NORMAL and has a delivery time is a DELAY message.
    """
    if properties.message_type == definition.TRANSACTION:
        return definition.TRANSACTION
    if properties.HasField("delivery_timestamp"):
        return definition.DELAY
    if properties.message_group:
        return definition.FIFO
    if properties.HasField("priority"):
        return definition.PRIORITY
    if properties.lite_topic:
        return definition.LITE
    return definition.NORMAL


SPECIAL_PROPERTIES: Final = frozenset(
    {
        reserved.TRANSACTION,
        reserved.DELIVER_AT_MS,
        reserved.DELAY_S,
        reserved.DELAY_MS,
        reserved.DELAY_LEVEL,
        reserved.MESSAGE_GROUP,
        reserved.PRIORITY,
        reserved.LITE_TOPIC,
    }
)
"""Properties of messages that are not NORMAL: a stored message with none of these is NORMAL."""


def stored_message_type(properties: Mapping[str, str]) -> definition.MessageType:
    """Return the type of a message, derived from its stored properties."""
    if properties.get(reserved.TRANSACTION) == "true":
        return definition.TRANSACTION
    if (
        reserved.DELIVER_AT_MS in properties
        or reserved.DELAY_S in properties
        or reserved.DELAY_MS in properties
        or reserved.DELAY_LEVEL in properties
    ):
        return definition.DELAY
    if reserved.MESSAGE_GROUP in properties:
        return definition.FIFO
    if reserved.PRIORITY in properties:
        return definition.PRIORITY
    if reserved.LITE_TOPIC in properties:
        return definition.LITE
    return definition.NORMAL


def check_types(topic: Topic, types: Iterable[definition.MessageType]) -> None:
    """Raise Refused (MESSAGE_PROPERTY_CONFLICT_WITH_TYPE) if the topic does not accept one of the types."""
    accepted = ACCEPTED_TYPES[topic.type]
    for each in types:
        if each not in accepted:
            name = definition.MessageType.Name(each)
            raise Refused(
                definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"{type_fault(topic, name)}: topic {topic.name} is of type {topic.type.value} and takes no {name} "
                "messages",
            )
