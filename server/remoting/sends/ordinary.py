"""Sends by remoting: single messages, batches, oneway sends, and what consumers send back to be consumed later.

The queue is the one that the client names: ordered producers choose it by a rule of their own. The type of the topic is
not checked, as by RocketMQ's broker: existing producers send any message to any topic.

| property of a message | where it is stored |
|---|---|
| `TRAN_MSG` = `true` | among the half messages, until its producer ends the transaction |
| `TIMER_DELAY_SEC`, `TIMER_DELAY_MS`, `TIMER_DELIVER_MS` | among the pending messages, until it is due |
| `DELAY` (a level) | in RocketMQ's topic for delay levels, so that RocketMQ can go on with the store |
| none of these | in its topic |

Plain sends take the fast path (`FastRemotingSends`). All others are served one by one here, and only here is a send
refused.

A consumer that sends a message back gets it again after a delay, from the retry topic of its group. After too many
attempts the message goes to the group's dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Final, NamedTuple

from quarry_mq.protocol.limits import ENTRIES_MAX
from quarry_mq.protocol.messages.property_names import (
    CLUSTER,
    CRC_PROPERTY,
    DELAY_LEVEL,
    DELAY_MS,
    DELAY_S,
    DELIVER_AT_MS,
    LIGHT_QUEUE_OFFSETS,
    LIGHT_QUEUES,
    ORIGIN_MESSAGE_ID,
    POP_CHECKPOINT,
    REAL_QUEUE,
    REAL_TOPIC,
    RETRY_TOPIC,
    TIMER_OUT_MS,
    TRANSACTION,
    UNIQUE_KEY,
    WAIT,
)
from quarry_mq.protocol.messages.system_flag import TRANSACTION_MASK
from quarry_mq.protocol.names import (
    HALF_TOPIC,
    OPEN_TOPICS,
    OPERATION_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    dead_letter_topic_name,
    retry_topic_name,
)
from quarry_mq.protocol.remoting.batches import BatchMalformed, split_batch
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.append.copies import Copies, copy_of
from quarry_mq.server.delivery.dead_letters import make_internal_topic
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.metadata import Directory
from quarry_mq.server.pending import half_of, scheduled
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.sessions import QueueLocks
from quarry_mq.server.remoting.wire import INT32, RemotingRefused, broker_topic, integer_of, is_true, text_of
from quarry_mq.server.rpc.access import join, publish
from quarry_mq.server.rpc.sends import SendStore
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.wire.messages import host_from_text
from quarry_mq.store.errors import Forbidden, GroupNotFound, OffsetOutOfRange
from quarry_mq.store.message import Appended, Host, Message, PhysicalOffset, QueueId
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.metadata import Group, Permission, Topic, TopicTable
from quarry_mq.store.pending.rows import TIMER_TOPIC
from quarry_mq.store.record import StoredMessage, offset_message_id
from quarry_mq.store.record.properties import DELAY_LEVELS_MS, decode_properties

REGION: Final[Mapping[str, str]] = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""Fields of every answer to a send, and properties of every message: clients that trace look for both."""

RECEIVED_ONLY: Final = (CRC_PROPERTY, POP_CHECKPOINT, "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "1ST_POP_TIME")
"""Properties that a consumer adds to what it receives, and that come back when it sends the message again."""

PENDING_NAMES: Final = (TRANSACTION, DELAY_LEVEL, DELAY_S, DELAY_MS, DELIVER_AT_MS)
RESERVED_TOPICS: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC})

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry (10 s); each further one waits a level longer."""

TIMER_DELAY_MAX_MS: Final = 3 * 24 * 3600 * 1000
"""The farthest time of delivery, as in RocketMQ."""


TYPE_WORD: Final = "NORMAL"
"""Sends by remoting are counted under this type: the types of topics are not checked."""


class SendHeader(NamedTuple):
    """The custom header of a send."""

    group: str
    topic: str
    queue_number: int
    system_flag: int
    born_timestamp_ms: int
    flag: int
    properties: str
    reconsume_times: int
    max_reconsume_times: int | None


_LONG_NAMES: Final = (
    "producerGroup", "topic", "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes",
    "maxReconsumeTimes",
)  # fmt: skip
_SHORT_NAMES: Final = ("a", "b", "e", "f", "g", "h", "i", "j", "l")


def send_header(code: int, fields: Mapping[str, str]) -> SendHeader:
    """Read the header of a send: its fields have long names in the first version of the request, else short ones.

    Raises RemotingRefused.
    """
    has_long_names = code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
    group, topic, queue, flags, born, flag, properties, times, times_max = (
        _LONG_NAMES if has_long_names else _SHORT_NAMES
    )
    return SendHeader(
        text_of(fields, group),
        text_of(fields, topic),
        integer_of(fields, queue, within=INT32),
        integer_of(fields, flags, 0, within=INT32),
        integer_of(fields, born, 0),
        integer_of(fields, flag, 0, within=INT32),
        fields.get(properties, ""),
        integer_of(fields, times, 0, within=INT32),
        integer_of(fields, times_max, within=INT32) if times_max in fields else None,
    )


def says_batch(fields: Mapping[str, str]) -> bool:
    """Return whether the header of a send says that its body is a batch."""
    return is_true(fields, "m") or is_true(fields, "batch")


def stored_properties(text: str, cluster: str) -> dict[str, str]:
    """Return the properties of a single message as they are stored, from those in the header of its send."""
    properties = decode_properties(text.encode())
    for name in RECEIVED_ONLY:
        properties.pop(name, None)
    properties[CLUSTER] = cluster
    properties.update(REGION)
    return properties


def answer_fields(store_host: Host, queue_number: int, appended: Sequence[Appended], unique_key: str) -> dict[str, str]:
    """Return the fields that answer a send. `unique_key` is empty for a batch."""
    fields = {
        "msgId": ",".join([offset_message_id(store_host, each.physical_offset) for each in appended]),
        "queueId": str(queue_number),
        "queueOffset": str(appended[0].queue_offset),
        **REGION,
    }
    return {**fields, "transactionId": unique_key} if unique_key else fields


class RemotingSends:
    """Stores what remoting clients send."""

    def __init__(
        self,
        edge: RemotingEdge,
        sends: SendStore,
        copies: Copies,
        *,
        directory: Directory,
        messages: MessageStore,
        topics: TopicTable,
        locks: QueueLocks,
        settings: BrokerSettings,
    ) -> None:
        self._edge = edge
        self._sends = sends
        self._copies = copies
        self._directory = directory
        self._messages = messages
        self._topics = topics
        self._locks = locks
        self.configure(settings)

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._limits = settings.for_wire()
        self._cluster = settings.broker.cluster
        self._default_queues = settings.topics.default_queues

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        send = self._edge.handler(self._send)
        return {
            RequestCode.SEND_MESSAGE: send,
            RequestCode.SEND_MESSAGE_V2: send,
            RequestCode.SEND_BATCH_MESSAGE: self._edge.handler(self._send_batch),
            RequestCode.CONSUMER_SEND_MESSAGE_BACK: self._edge.handler(self._send_back),
            RequestCode.RECALL_MESSAGE: self._edge.handler(self._recall),
        }

    # -- sends

    def _send(self, call: RemotingCall) -> None:
        header = send_header(call.code, call.fields)
        if says_batch(call.fields):
            self._send_batch(call)
            return
        topic, number = self._place(call, header)
        self._check_size(call.command.body)
        properties = stored_properties(header.properties, self._cluster)
        properties.setdefault(UNIQUE_KEY, _unique_key())
        message = self._message(call, header, QueueId(topic.name, number), call.command.body, properties)
        message = self._retried(header, message) if topic.name.startswith(RETRY_PREFIX) else message
        self._store(call, header, [self._as_pending(message)], number, properties[UNIQUE_KEY])

    def _send_batch(self, call: RemotingCall) -> None:
        header = send_header(call.code, call.fields)
        topic, number = self._place(call, header)
        if topic.name.startswith(RETRY_PREFIX):
            raise RemotingRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot go to a retry topic")
        self._check_size(call.command.body)
        try:
            batch = split_batch(call.command.body, ENTRIES_MAX)
        except BatchMalformed as error:
            raise RemotingRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        if not batch:
            raise RemotingRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch without messages")
        messages = []
        for flag, body, raw_properties in batch:
            properties = decode_properties(raw_properties)
            message = self._message(call, header, QueueId(topic.name, number), body, properties)
            messages.append(message._replace(flag=flag))
        self._store(call, header, messages, number, "")

    def _place(self, call: RemotingCall, header: SendHeader) -> tuple[Topic, int]:
        """Check a send in RocketMQ's order, and return its topic and queue. Raises what forbids it."""
        name = header.topic
        if name.startswith(RETRY_PREFIX):
            self._edge.require(call, join(name.removeprefix(RETRY_PREFIX)))
        else:
            self._edge.require(call, publish(name))
        if name in RESERVED_TOPICS:
            raise Forbidden(f"the topic {name} is reserved for the broker")
        if name.startswith(RETRY_PREFIX):
            self._directory.group(name.removeprefix(RETRY_PREFIX))
            make_internal_topic(self._topics, name)
        elif name in OPEN_TOPICS and self._topics.stored(name) is None:
            self._topics.create(broker_topic(name, self._default_queues), internal=True)
        topic = self._directory.topic_to_send(name, self._edge.user)
        if Permission.WRITE not in topic.permission:
            raise Forbidden(f"the topic {name} may not be written")
        number = header.queue_number
        if number >= topic.queue_count or number < -1:
            raise RemotingRefused(
                ResponseCode.INVALID_PARAMETER,
                f"topic {name} has {topic.queue_count} queues, and none of number {number}",
            )
        return topic, self._sends.queues.next_queue(topic) if number == -1 else number

    def _check_size(self, body: bytes) -> None:
        if len(body) > self._limits.body_size_max:
            raise RemotingRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message body size is over the limit: {len(body)} bytes, {self._limits.body_size_max} are allowed",
            )

    def _message(
        self,
        call: RemotingCall,
        header: SendHeader,
        queue: QueueId,
        body: bytes,
        properties: Mapping[str, str],
    ) -> Message:
        born_ms = header.born_timestamp_ms
        return Message(
            queue.topic,
            queue.number,
            body,
            properties,
            born_ms if born_ms >= 0 else self._sends.clock.wall_ms(),
            host_from_text(call.peer),
            self._sends.identity.store_host(),
            flag=header.flag,
            system_flag=header.system_flag & ~TRANSACTION_MASK,
            reconsume_times=max(header.reconsume_times, 0),
        )

    def _as_pending(self, message: Message) -> Message:
        """Return the message as it is stored: pending messages lie in topics of their own. Raises RemotingRefused."""
        properties = message.properties
        if not any(name in properties for name in PENDING_NAMES):
            return message
        if properties.get(TRANSACTION, "").lower() == "true":
            return half_of(message)
        due_ms = self._due_ms(properties)
        if due_ms is not None:
            return scheduled(message, due_ms) if due_ms > self._sends.clock.wall_ms() else message
        return with_delay_level(message, _level_of(properties))

    def _due_ms(self, properties: Mapping[str, str]) -> int | None:
        """Return when a message is to be delivered that names a time or a delay. Raises RemotingRefused."""
        now_ms = self._sends.clock.wall_ms()
        for name, factor, base_ms in ((DELAY_S, 1000, now_ms), (DELAY_MS, 1, now_ms), (DELIVER_AT_MS, 1, 0)):
            if name not in properties:
                continue
            due_ms = base_ms + factor * integer_of(properties, name)
            if due_ms - now_ms > TIMER_DELAY_MAX_MS:
                raise RemotingRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"timer message illegal, the delay time should not be bigger than the max delay "
                    f"{TIMER_DELAY_MAX_MS // 1000} s",
                )
            return due_ms
        return None

    def _store(
        self, call: RemotingCall, header: SendHeader, messages: Sequence[Message], number: int, unique_key: str
    ) -> None:
        sends, started_s = self._sends, self._sends.clock.monotonic_s()
        sends.births.check_names(messages)
        size = sum(len(each.body) for each in messages)
        sends.waiting_sizes.take(call.peer, size)

        def stored(appended: Sequence[Appended], error: Exception | None) -> None:
            sends.waiting_sizes.give(call.peer, size)
            if error is not None:
                self._edge.refuse(call, error)
                return
            sends.metrics.sent(len(appended), sends.clock.monotonic_s() - started_s)
            sends.metrics.traffic.sent(header.topic, TYPE_WORD, appended)
            fields = answer_fields(messages[0].store_host, number, appended, unique_key)
            if messages[0].topic == TIMER_TOPIC:
                fields["recallHandle"] = sends.delays.recall_handle(
                    header.topic,
                    int(messages[0].properties[TIMER_OUT_MS]),
                    appended[0].physical_offset,
                    unique_key,
                )
            call.answer(fields=fields)

        sends.commit.send(messages, stored)

    def _recall(self, call: RemotingCall) -> None:
        """Cancel the delivery of a message that waits for its time, by the handle that its send returned."""
        name, handle = text_of(call.fields, "topic"), text_of(call.fields, "recallHandle")
        self._edge.require(call, publish(name))
        topic = self._directory.topic(name)

        def recalled(error: Exception | None) -> None:
            if error is None:
                call.answer(fields={"msgId": message_id})
            else:
                self._edge.refuse(call, error)

        message_id = self._sends.delays.recall(topic.name, handle, recalled)

    # -- retries

    def _retried(self, header: SendHeader, message: Message) -> Message:
        """Return a message that a consumer sends to its own retry topic, because it could not send it back.

        After too many attempts, and from consumers that consume in order, it goes to the group's dead letters.
        """
        group = self._directory.group(header.topic.removeprefix(RETRY_PREFIX))
        most = _retries_max(group, header.max_reconsume_times)
        if header.reconsume_times <= most and not self._locks.has_locks(group.name):
            return message
        return self._dead_letter(group.name, message)

    def _dead_letter(self, group: str, message: Message) -> Message:
        name = dead_letter_topic_name(group)
        make_internal_topic(self._topics, name)
        properties = {key: value for key, value in message.properties.items() if key != DELAY_LEVEL}
        self._sends.metrics.pending.dead_lettered()
        self._sends.metrics.traffic.dead_lettered(group, properties.get(RETRY_TOPIC, ""))
        return message._replace(topic=name, queue_number=0, properties=properties)

    def _send_back(self, call: RemotingCall) -> None:
        """Store a message again that a consumer could not consume: for later, or among the dead letters of its group.

        The copy keeps the body, the properties and the birth of the message, and counts one attempt more.
        """
        fields = call.fields
        name, offset = text_of(fields, "group"), integer_of(fields, "offset")
        level = integer_of(fields, "delayLevel", within=INT32)
        self._edge.require(call, join(name))
        group = self._directory.find_group(name)
        if group is None:
            raise GroupNotFound(f"subscription group [{name}] does not exist")
        try:
            record = self._messages.existing_record_at(PhysicalOffset(offset))
        except OffsetOutOfRange as error:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"no message lies at offset {offset}") from error
        most = _retries_max(group, integer_of(fields, "maxReconsumeTimes", -1, within=INT32))
        copy = self._copy(record, fields.get("originTopic", ""))
        if record.reconsume_times >= most or level < 0:
            message = self._dead_letter(name, copy)
        else:
            retry_topic = retry_topic_name(name)
            make_internal_topic(self._topics, retry_topic)
            topic = self._directory.topic(retry_topic)
            number = self._sends.queues.next_queue(topic)
            waits = level or FIRST_RETRY_LEVEL + record.reconsume_times
            message = with_delay_level(copy._replace(topic=retry_topic, queue_number=number), waits)

        def stored(_: object, error: Exception | None) -> None:
            if error is None:
                self._sends.metrics.traffic.sent_back(name, record.topic)
            self._edge.ended(call, error)

        self._copies.move([message], stored)

    def _copy(self, record: StoredMessage, origin_topic: str) -> Message:
        properties = dict(record.properties)
        for name in (*RECEIVED_ONLY, REAL_TOPIC, REAL_QUEUE, LIGHT_QUEUES, LIGHT_QUEUE_OFFSETS, DELAY_LEVEL):
            properties.pop(name, None)
        properties.setdefault(RETRY_TOPIC, origin_topic or record.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, offset_message_id(record.store_host, record.physical_offset))
        properties[WAIT] = "false"
        copy = copy_of(
            record,
            topic=record.topic,
            queue_number=record.queue_number,
            properties=properties,
            store_host=self._copies.store_host(),
        )
        return copy._replace(
            system_flag=record.system_flag & ~TRANSACTION_MASK, reconsume_times=record.reconsume_times + 1
        )


def with_delay_level(message: Message, level: int) -> Message:
    """Return the message as it waits for a delay level (1 to 18), in RocketMQ's topic; level 0 does not wait."""
    if level <= 0:
        return message
    level = min(level, len(DELAY_LEVELS_MS))
    return message._replace(
        topic=SCHEDULE_TOPIC,
        queue_number=level - 1,
        properties={
            **message.properties,
            DELAY_LEVEL: str(level),
            REAL_TOPIC: message.topic,
            REAL_QUEUE: str(message.queue_number),
        },
    )


def _level_of(properties: Mapping[str, str]) -> int:
    """Return the delay level of a message; RocketMQ takes a text that is no number for none."""
    try:
        return integer_of(properties, DELAY_LEVEL, 0, within=INT32)
    except RemotingRefused:
        return 0


def _retries_max(group: Group, of_client: int | None) -> int:
    """Return how often a message is retried: as often as the client says, else as the group does."""
    return group.max_attempts - 1 if of_client is None or of_client < 0 else of_client


def _unique_key() -> str:
    """Return an id for a message whose producer gave it none."""
    return token_hex(16).upper()
