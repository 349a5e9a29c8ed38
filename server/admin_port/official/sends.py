"""Send an operator's message, the same way as clients' sends."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.times import fill_ms
from quarry_mq.server.admin_port.calls.caller import caller_peer
from quarry_mq.server.admin_port.official.edge import Context, Names
from quarry_mq.server.front.contract import MessageHandler
from quarry_mq.server.front.local_call import LocalCall, call_locally
from quarry_mq.server.wire.status import Refused

CLIENT_ID: Final = "admin-port"
ID_VERSION: Final = "01"
ID_BYTES: Final = 16

_SENDERS: Final = (
    "tag",
    "keys",
    "message_id",
    "body_encoding",
    "born_host",
    "delivery_timestamp",
    "message_group",
    "trace_context",
    "lite_topic",
    "priority",
)
"""The system properties that a sender may set; the broker sets all others."""


def random_id() -> str:
    """Make a message id, as long as those that clients make."""
    return ID_VERSION + secrets.token_hex(ID_BYTES).upper()


class SendCalls:
    def __init__(self, names: Names, send: MessageHandler, clock: Clock, new_id: Callable[[], str] = random_id) -> None:
        """`send` is the handler of SendMessage for callers that are already authorized."""
        self._names = names
        self._send = send
        self._clock = clock
        self._new_id = new_id

    async def admin_send_message(
        self, request: pb.AdminSendMessageRequest, context: Context
    ) -> pb.AdminSendMessageResponse:
        topic = self._names.topic(request.topic)
        message = self._message(request)
        message.topic.name = topic.name
        call = LocalCall(
            "AdminSendMessage",
            peer=caller_peer(context),
            headers={"x-mq-client-id": CLIENT_ID},
            remaining_s=context.time_remaining(),
        )
        body = service.SendMessageRequest(messages=[message]).SerializeToString()
        sent = service.SendMessageResponse.FromString(await call_locally(self._send, call, body))
        answer = pb.AdminSendMessageResponse(status=sent.status)
        if sent.status.code == definition.OK:
            answer.message_id = sent.entries[0].message_id
        return answer

    def _message(self, request: pb.AdminSendMessageRequest) -> definition.Message:
        """Build the message to send. Raises Refused."""
        given = request.system_properties
        if given.message_type == definition.TRANSACTION:
            reason = "system_properties: a transaction needs a connected producer that can be asked for its outcome"
            raise Refused(definition.BAD_REQUEST, reason)
        if LIGHT_QUEUES in request.user_properties:
            # a producer needs a right for each of them
            raise Refused(
                definition.ILLEGAL_MESSAGE_PROPERTY_KEY, f"user_properties: only producers may set {LIGHT_QUEUES}"
            )
        message = definition.Message(body=request.body, user_properties=request.user_properties)
        system = message.system_properties
        system.CopyFrom(given)
        for field, _ in given.ListFields():
            if field.name not in _SENDERS:
                system.ClearField(field.name)
        if request.HasField("tag"):
            system.tag = request.tag
        if request.HasField("key"):
            system.keys.append(request.key)
        system.message_id = system.message_id or self._new_id()
        fill_ms(system.born_timestamp, self._clock.wall_ms())
        return message
