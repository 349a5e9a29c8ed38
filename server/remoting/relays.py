"""Requests that the broker passes on to a client: replies to requests, and what operators ask consumers.

| request | passed on to |
|---|---|
| SEND_REPLY_MESSAGE | the producer that waits for the reply, as PUSH_REPLY_MESSAGE_TO_CLIENT |
| GET_CONSUMER_RUNNING_INFO | the consumer that the operator names |
| CONSUME_MESSAGE_DIRECTLY | the consumer that the operator names, with the record of the message |

The client's answer is the answer. A reply is not stored: nobody reads it but the producer that waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quarry_mq.protocol.messages.property_names import CLUSTER, PUSH_REPLY_TIME, REPLY_TO_CLIENT
from quarry_mq.protocol.names import DEFAULT_TOPIC
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.protocol.remoting.frames import Command
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.sends import REGION, SendHeader, send_header
from quarry_mq.server.remoting.sessions import RemotingSessions
from quarry_mq.server.remoting.wire import RemotingRefused, text_of
from quarry_mq.server.rpc.access import join, publish, read
from quarry_mq.server.rpc.sends import SendStore
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.errors import Invalid, OffsetOutOfRange
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.record import StoredMessage, parse_offset_message_id
from quarry_mq.store.record.properties import decode_properties, encode_properties
from quarry_mq.store.security.model import Action, ResourceKind

REPLY_TIMEOUT_S: Final = 3.0
"""Seconds that a producer has to take a reply; who replies waits as long."""

OPERATOR_TIMEOUT_S: Final = 10.0
"""Seconds that a consumer has to answer an operator, as in RocketMQ."""


class RemotingRelays:
    """Passes requests on to clients, and their answers back."""

    def __init__(
        self,
        edge: RemotingEdge,
        sessions: RemotingSessions,
        messages: MessageStore,
        sends: SendStore,
        settings: BrokerSettings,
    ) -> None:
        self._edge = edge
        self._sessions = sessions
        self._messages = messages
        self._sends = sends
        self._cluster = settings.broker.cluster

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        reply, operators = self._edge.handler(self._reply), self._edge.operators_handler
        return {
            RequestCode.SEND_REPLY_MESSAGE: reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: reply,
            RequestCode.GET_CONSUMER_RUNNING_INFO: operators(self._running_info),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: operators(self._consume_directly),
        }

    # -- replies

    def _reply(self, call: RemotingCall) -> None:
        """Push a reply to the producer that its properties name."""
        header = send_header(call.code, call.fields)
        self._edge.require(call, publish(header.topic))
        properties = decode_properties(header.properties.encode())
        client_id = properties.get(REPLY_TO_CLIENT, "")
        producer = self._sessions.producer(client_id)
        if producer is None:
            raise RemotingRefused(
                ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{client_id}> not found."
            )
        now_ms = self._sends.clock.wall_ms()
        properties |= {CLUSTER: self._cluster, PUSH_REPLY_TIME: str(now_ms), **REGION}

        def answered(answer: Command | None) -> None:
            if answer is None or answer.code != ResponseCode.SUCCESS:
                reason = "it did not answer" if answer is None else f"it answered with code {answer.code}"
                call.answer(
                    ResponseCode.SYSTEM_ERROR, REGION, remark=f"push reply message to {client_id} fail: {reason}"
                )
                return
            # the id and the offset are those that RocketMQ gives when it does not store replies
            call.answer(fields={"msgId": "0", "queueId": str(header.queue_number), "queueOffset": "0", **REGION})

        producer.ask(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            self._pushed(call, header, properties, now_ms),
            call.command.body,
            answered,
            timeout_s=REPLY_TIMEOUT_S,
        )

    def _pushed(
        self, call: RemotingCall, header: SendHeader, properties: Mapping[str, str], now_ms: int
    ) -> dict[str, str]:
        return {
            "producerGroup": header.group,
            "topic": header.topic,
            "defaultTopic": DEFAULT_TOPIC,
            "defaultTopicQueueNums": "4",
            "queueId": str(header.queue_number),
            "sysFlag": str(header.system_flag),
            "bornTimestamp": str(header.born_timestamp_ms),
            "flag": str(header.flag),
            "properties": encode_properties(properties).decode(),
            "reconsumeTimes": "0",
            "unitMode": "false",
            "bornHost": call.peer,
            "storeHost": call.connection.local,
            "storeTimestamp": str(now_ms),
        }

    # -- operators

    def _running_info(self, call: RemotingCall) -> None:
        group = text_of(call.fields, "consumerGroup")
        self._edge.require(call, (Access(ResourceKind.GROUP, group, Action.GET),))
        self._ask_consumer(call, group, call.fields, b"")

    def _consume_directly(self, call: RemotingCall) -> None:
        """Let a consumer consume a message at once, whatever its group has consumed."""
        fields = call.fields
        group, message_id = text_of(fields, "consumerGroup"), text_of(fields, "msgId")
        record = self._record(message_id)
        topic = fields.get("topic") or record.topic
        self._edge.require(call, join(group), read(record.topic, group))
        whole = bytes(self._messages.reader.read(record.physical_offset, record.size))
        known = {**fields, "topic": topic, "topicSysFlag": "0", "groupSysFlag": "0"}
        self._ask_consumer(call, group, known, whole)

    def _record(self, message_id: str) -> StoredMessage:
        try:
            _, offset = parse_offset_message_id(message_id)
            return self._messages.existing_record_at(offset)
        except (Invalid, OffsetOutOfRange) as error:
            raise RemotingRefused(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the id {message_id[:64]}"
            ) from error

    def _ask_consumer(self, call: RemotingCall, group: str, fields: Mapping[str, str], body: bytes) -> None:
        client_id = text_of(fields, "clientId")
        consumer = self._sessions.consumer(group, client_id)
        if consumer is None:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")

        def answered(answer: Command | None) -> None:
            if answer is None:
                call.answer(
                    ResponseCode.CONSUME_MESSAGE_TIMEOUT,
                    remark=f"consumer <{group}> <{client_id}> did not answer within {OPERATOR_TIMEOUT_S:.0f} s",
                )
            else:
                call.answer(answer.code, answer.fields, answer.body, answer.remark or "")

        passed_on = {name: value for name, value in fields.items() if name not in _PROOF}
        consumer.ask(call.code, passed_on, body, answered, timeout_s=OPERATOR_TIMEOUT_S)


_PROOF: Final = frozenset({"AccessKey", "Signature", "SecurityToken"})
"""Fields that prove who the operator is; the consumer does not see them."""
