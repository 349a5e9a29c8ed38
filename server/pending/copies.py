"""Builds the records of pending messages, and the records that end their wait (docs/formats/held-messages.md)."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.messages.property_names import (
    DELIVER_AT_MS,
    DEQUEUED_MS,
    LIGHT_QUEUE_OFFSETS,
    REAL_QUEUE,
    REAL_TOPIC,
    RECALLED_KEY,
    ROLL_TIMES,
    TAGS,
    TIMER_OUT_MS,
    TRANSACTION_ID,
    UNIQUE_KEY,
)
from quarry_mq.protocol.messages.system_flag import TRANSACTION_MASK, TransactionState
from quarry_mq.protocol.names import CHECKED_TOO_OFTEN_TOPIC, HALF_TOPIC, OPERATION_TOPIC
from quarry_mq.server.append.copies import copy_of
from quarry_mq.server.errors import NotWaiting
from quarry_mq.store.message import Host, Message
from quarry_mq.store.pending.messages import number_of
from quarry_mq.store.pending.rows import OPERATION_DONE, TIMER_TOPIC
from quarry_mq.store.record import StoredMessage

PENDING_QUEUE: Final = 0
QUEUE_DIGITS_MAX: Final = 9


def scheduled(message: Message, due_ms: int) -> Message:
    """Return the scheduled message as it is stored until it is due, in RocketMQ's topic for timers."""
    return message._replace(
        topic=TIMER_TOPIC,
        queue_number=PENDING_QUEUE,
        properties={
            **message.properties,
            REAL_TOPIC: message.topic,
            REAL_QUEUE: str(message.queue_number),
            TIMER_OUT_MS: str(due_ms),
        },
    )


def delivered(record: StoredMessage, *, store_host: Host, now_ms: int) -> Message:
    """Return the copy of a scheduled message for its real topic, which names the record.

    Raises NotWaiting if the record names no topic.
    """
    copy = _copy(record, store_host)
    return copy._replace(properties={**copy.properties, DEQUEUED_MS: str(now_ms)})


def _copy(record: StoredMessage, store_host: Host) -> Message:
    """Return the message in the record, addressed to the topic and queue that it was sent to.

    Raises NotWaiting if it names none.
    """
    properties = record.properties
    topic, number = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE, "")
    if not topic or not (number.isascii() and number.isdecimal() and len(number) <= QUEUE_DIGITS_MAX):
        raise NotWaiting(f"the record at offset {record.physical_offset} does not say where the message has to go")
    properties.pop(LIGHT_QUEUE_OFFSETS, None)
    copy = copy_of(record, topic=topic, queue_number=int(number), properties=properties, store_host=store_host)
    return copy._replace(prepared_transaction_offset=record.physical_offset)


def carried_over(record: StoredMessage, *, due_ms: int, store_host: Host) -> Message:
    """Return the pending message as it is written again at the end of the log, naming the record that it replaces.

    A message with a delay level also goes to the topic for timers from then on: its delay does not start again.
    """
    properties = record.properties
    rolls = number_of(properties.get(ROLL_TIMES)) or 0
    properties.pop(LIGHT_QUEUE_OFFSETS, None)
    properties.setdefault(DELIVER_AT_MS, str(due_ms))
    properties.setdefault(TIMER_OUT_MS, str(due_ms))
    properties[ROLL_TIMES] = str(rolls + 1)
    copy = copy_of(record, topic=TIMER_TOPIC, queue_number=PENDING_QUEUE, properties=properties, store_host=store_host)
    return copy._replace(prepared_transaction_offset=record.physical_offset)


def half_of(message: Message) -> Message:
    """Return the half message, stored until its producer ends the transaction.

    Its transaction bits come back when it is committed.
    """
    return message._replace(
        topic=HALF_TOPIC,
        queue_number=PENDING_QUEUE,
        properties={
            **message.properties,
            REAL_TOPIC: message.topic,
            REAL_QUEUE: str(message.queue_number),
            TRANSACTION_ID: message.properties.get(UNIQUE_KEY, ""),
        },
        system_flag=message.system_flag & ~TRANSACTION_MASK,
    )


def committed(record: StoredMessage, *, store_host: Host) -> Message:
    """Return the committed message for consumers, naming its half message. Raises NotWaiting if that names no topic."""
    copy = _copy(record, store_host)
    copy_properties = dict(copy.properties)
    del copy_properties[REAL_TOPIC], copy_properties[REAL_QUEUE]
    return copy._replace(
        properties=copy_properties, system_flag=(record.system_flag & ~TRANSACTION_MASK) | TransactionState.COMMIT
    )


def given_up(record: StoredMessage, *, store_host: Host) -> Message:
    """Return a half message that was checked too often, addressed to RocketMQ's topic for such messages."""
    return _copy(record, store_host)._replace(
        topic=CHECKED_TOO_OFTEN_TOPIC, queue_number=PENDING_QUEUE, prepared_transaction_offset=0
    )


def resolved(queue_offset: int, *, store_host: Host, now_ms: int) -> Message:
    """Return the record which says that a half message is no longer pending."""
    return Message(
        topic=OPERATION_TOPIC,
        queue_number=PENDING_QUEUE,
        body=b"%d," % queue_offset,
        properties={TAGS: OPERATION_DONE},
        born_timestamp_ms=now_ms,
        born_host=store_host,
        store_host=store_host,
    )


def recall(record: StoredMessage, *, due_ms: int, store_host: Host) -> Message:
    """Return the record which says that a scheduled message is no longer pending; RocketMQ understands it, too."""
    properties = record.properties
    real_topic, message_id = properties.get(REAL_TOPIC, ""), properties.get(UNIQUE_KEY, "")
    return Message(
        topic=TIMER_TOPIC,
        queue_number=PENDING_QUEUE,
        body=b"",
        properties={
            UNIQUE_KEY: message_id,
            REAL_TOPIC: real_topic,
            REAL_QUEUE: properties.get(REAL_QUEUE, "0"),
            RECALLED_KEY: f"{real_topic}+{message_id}",
            DELIVER_AT_MS: str(due_ms),
            TIMER_OUT_MS: properties.get(TIMER_OUT_MS, str(due_ms)),
        },
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        store_host=store_host,
        prepared_transaction_offset=record.physical_offset,
    )
