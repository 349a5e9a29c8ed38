"""Requests as official clients send them, to be changed in one place by each test."""

from __future__ import annotations

from collections.abc import Mapping

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def message(
    *,
    topic: str = "orders",
    body: bytes = b"body",
    user_properties: Mapping[str, str] | None = None,
    message_id: str = "0156F7E71C361B21BC024CCDBE00000000",
    **system: object,
) -> definition.Message:
    """`system` are fields of the system properties."""
    return definition.Message(
        topic=definition.Resource(name=topic),
        user_properties=dict(user_properties or {}),
        system_properties=definition.SystemProperties(message_id=message_id, **system),  # type: ignore[arg-type]
        body=body,
    )


def send(*messages: definition.Message) -> service.SendMessageRequest:
    return service.SendMessageRequest(messages=messages)
