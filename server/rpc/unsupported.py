"""Calls that are not served. They answer with the code the protocol lists for that on every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from google.protobuf.message import Message

from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server._generated.apache.rocketmq.v2 import service_pb2 as service
from server.front import Call, Method
from server.rpc.context import Answer, Edge
from server.wire.status import Refused

_UNARY: Final[Mapping[str, tuple[type[Message], type[Answer]]]] = {
    "SyncLiteSubscription": (service.SyncLiteSubscriptionRequest, service.SyncLiteSubscriptionResponse),
}


class UnsupportedService:
    """Whether the request is good does not matter, but who sends it must be said as everywhere."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def methods(self) -> dict[str, Method]:
        return {
            name: Method(self._edge.unary(request_type, answer_type, _refusal(name)))
            for name, (request_type, answer_type) in _UNARY.items()
        }


def _refusal(name: str) -> Callable[[Call, str, Message], NoReturn]:
    def refuse(_call: Call, _client_id: str, _request: Message) -> NoReturn:
        raise Refused(definition.NOT_IMPLEMENTED, f"the broker does not support {name}")

    return refuse
