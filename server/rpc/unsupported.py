"""Calls this broker does not serve. They answer with the code the protocol lists for that on every call."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server._generated.apache.rocketmq.v2 import service_pb2 as service
from server.front import Call, Method
from server.rpc.context import Answer, Edge
from server.wire.status import Refused

RequestT = TypeVar("RequestT", bound=Message)
AnswerT = TypeVar("AnswerT", bound=Answer)


def unsupported_methods(edge: Edge) -> dict[str, Method]:
    """By method name. Whether the request is good does not matter, but who sends it must be said."""

    def unary(name: str, request_type: type[RequestT], answer_type: type[AnswerT]) -> Method:
        def serve(_call: Call, _client_id: str, _request: RequestT) -> AnswerT:
            raise _not_supported(name)

        return Method(edge.unary(request_type, answer_type, serve))

    def pull(_call: Call, _client_id: str, _request: service.PullMessageRequest) -> None:
        raise _not_supported("PullMessage")

    calls: list[tuple[str, type[Message], type[Answer]]] = [
        (
            "ForwardMessageToDeadLetterQueue",
            service.ForwardMessageToDeadLetterQueueRequest,
            service.ForwardMessageToDeadLetterQueueResponse,
        ),
        ("EndTransaction", service.EndTransactionRequest, service.EndTransactionResponse),
        ("RecallMessage", service.RecallMessageRequest, service.RecallMessageResponse),
        ("SyncLiteSubscription", service.SyncLiteSubscriptionRequest, service.SyncLiteSubscriptionResponse),
        ("UpdateOffset", service.UpdateOffsetRequest, service.UpdateOffsetResponse),
        ("GetOffset", service.GetOffsetRequest, service.GetOffsetResponse),
        ("QueryOffset", service.QueryOffsetRequest, service.QueryOffsetResponse),
    ]
    methods = {name: unary(name, request_type, answer_type) for name, request_type, answer_type in calls}
    methods["PullMessage"] = Method(
        edge.server_stream(service.PullMessageRequest, service.PullMessageResponse, pull), streaming_out=True
    )
    return methods


def _not_supported(name: str) -> Refused:
    return Refused(definition.NOT_IMPLEMENTED, f"this broker does not support {name}")
