"""Dead letters: messages that were delivered to a group as often as it allows, in a topic of the group's own.

The copy has the body, tag, keys, id and user properties of the message, and names its origin. Any consumer may read the
topic. Its name is `%DLQ%` and the group's name, as in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from quarry_mq.protocol.messages.property_names import (
    DEAD_LETTER_MESSAGE_ID,
    DEAD_LETTER_TOPIC,
    DELAY_LEVEL,
    DELIVER_AT_MS,
    DEQUEUED_MS,
    LIGHT_QUEUE_OFFSETS,
    LIGHT_QUEUES,
    ORIGIN_GROUP,
    REAL_QUEUE,
    REAL_TOPIC,
    RETRY_TOPIC,
    ROLL_TIMES,
    TIMER_OUT_MS,
    TRANSACTION,
    UNIQUE_KEY,
)
from quarry_mq.protocol.messages.system_flag import TRANSACTION_MASK
from quarry_mq.protocol.names import dead_letter_topic_name
from quarry_mq.server.append.copies import Copies, copy_of, is_final
from quarry_mq.server.delivery import Forwarded
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.message import Appended, Host, Message
from quarry_mq.store.metadata import TopicTable
from quarry_mq.store.record import StoredMessage, offset_message_id

log = structlog.get_logger(__name__)

LEFT_OUT: Final = frozenset(
    {
        LIGHT_QUEUES,
        LIGHT_QUEUE_OFFSETS,
        DELAY_LEVEL,
        DELIVER_AT_MS,
        DEQUEUED_MS,
        REAL_QUEUE,
        REAL_TOPIC,
        ROLL_TIMES,
        TIMER_OUT_MS,
        TRANSACTION,
    }
)
"""Properties that say how the message got to its queue; they do not apply to the copy."""


class DeadLetterStore:
    """Stores dead letters as messages; implements `server.delivery.DeadLetters`."""

    def __init__(
        self,
        topics: TopicTable,
        *,
        copies: Copies,
        dead_lettered: Callable[[str, str], None],
    ) -> None:
        """`buried` is called with the group and the topic of each message that was dead-lettered."""
        self._topics = topics
        self._copies = copies
        self._dead_lettered = dead_lettered

    def forward(self, group: str, topic: str, record: StoredMessage, attempts: int, forwarded: Forwarded) -> None:
        name = dead_letter_topic_name(group)
        try:
            make_internal_topic(self._topics, name)
        except BrokerError as error:
            self._tell(group, topic, record, error)
            forwarded(error)
            return

        def stored(_appended: Sequence[Appended], error: Exception | None) -> None:
            if error is None:
                self._dead_lettered(group, topic)
            else:
                self._tell(group, topic, record, error)
            forwarded(error)

        self._copies.move([_dead_letter(name, topic, record, attempts, self._copies.store_host())], stored)

    def _tell(self, group: str, topic: str, record: StoredMessage, error: Exception) -> None:
        if not is_final(error):
            log.warning("a dead letter is not stored", group=group, topic=topic, error=str(error))
            return
        self._copies.metrics.dead_letter_refused()
        log.error(
            "a message cannot be a dead letter: it stays in its topic, and its group gets it no more",
            group=group,
            topic=record.topic,
            queue=record.queue_number,
            offset=record.queue_offset,
            error=str(error),
        )


def make_internal_topic(topics: TopicTable, name: str) -> None:
    """Create one of the topics that the broker creates for a group, unless it exists."""
    if topics.make_for_group(name):
        log.info("topic created for a group", topic=name)


def copied_properties(record: StoredMessage) -> dict[str, str]:
    """Return the properties for a copy of the message. It keeps the id, but not how the message got to its queue."""
    kept = {key: value for key, value in record.properties.items() if key not in LEFT_OUT}
    kept.setdefault(UNIQUE_KEY, offset_message_id(record.store_host, record.physical_offset))
    return kept


def retry_of(record: StoredMessage, name: str, *, group: str, topic: str, store_host: Host) -> Message:
    """Return a copy of the message for a retry topic of this name, from where the group gets it as one of `topic`."""
    properties = copied_properties(record)
    for each in (DEAD_LETTER_TOPIC, DEAD_LETTER_MESSAGE_ID):
        properties.pop(each, None)
    copy = copy_of(
        record,
        topic=name,
        queue_number=0,
        properties={**properties, RETRY_TOPIC: topic, ORIGIN_GROUP: group},
        store_host=store_host,
    )
    return copy._replace(system_flag=record.system_flag & ~TRANSACTION_MASK)


def _dead_letter(name: str, topic: str, record: StoredMessage, attempts: int, store_host: Host) -> Message:
    properties = copied_properties(record)
    copy = copy_of(
        record,
        topic=name,
        queue_number=0,
        properties={**properties, DEAD_LETTER_TOPIC: topic, DEAD_LETTER_MESSAGE_ID: properties[UNIQUE_KEY]},
        store_host=store_host,
    )
    return copy._replace(system_flag=record.system_flag & ~TRANSACTION_MASK, reconsume_times=attempts)
