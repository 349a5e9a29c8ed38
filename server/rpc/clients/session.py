"""Heartbeat and NotifyClientTermination: keep a client registered, or end its registration."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.front import Call, Method
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.wire.settings import ClientKind, ClientSettings
from quarry_mq.server.wire.status import Refused, fill_ok
from quarry_mq.server.wire.validate import check_group

_WITHOUT_HEARTBEAT: Final = frozenset({ClientKind.PULL_CONSUMER})


class SessionService:
    def __init__(self, edge: Edge, clients: ClientRegistry) -> None:
        self._edge = edge
        self._clients = clients

    def methods(self) -> dict[str, Method]:
        unary = self._edge.unary
        return {
            "Heartbeat": unary(service.HeartbeatRequest, service.HeartbeatResponse, self._heartbeat),
            "NotifyClientTermination": unary(
                service.NotifyClientTerminationRequest,
                service.NotifyClientTerminationResponse,
                self._notify_client_termination,
            ),
        }

    def _heartbeat(self, _call: Call, client_id: str, request: service.HeartbeatRequest) -> service.HeartbeatResponse:
        """Tell a client whether the broker knows it. Like every call, a heartbeat is a sign of life."""
        settings = self._settings(client_id)
        if settings.kind in _WITHOUT_HEARTBEAT:
            raise Refused(
                definition.UNRECOGNIZED_CLIENT_TYPE, f"{settings.kind.value}: clients of this type send no heartbeats"
            )
        if settings.kind is not ClientKind.PRODUCER:
            check_group(request.group.name)
        response = service.HeartbeatResponse()
        fill_ok(response.status)
        return response

    def _notify_client_termination(
        self, _call: Call, client_id: str, request: service.NotifyClientTerminationRequest
    ) -> service.NotifyClientTerminationResponse:
        if self._settings(client_id).kind is not ClientKind.PRODUCER:
            check_group(request.group.name)
        self._clients.terminate(client_id)
        response = service.NotifyClientTerminationResponse()
        fill_ok(response.status)
        return response

    def _settings(self, client_id: str) -> ClientSettings:
        settings = self._clients.find(client_id)
        if settings is None:
            raise Refused(definition.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        return settings
