"""Serve `quarry.admin.v1.ReplicaService` on the admin port: the copies of the store on other machines."""

from __future__ import annotations

from typing import Final

import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import replicas_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.replicas_pb2_grpc import (
    ReplicaServiceServicer,
    add_ReplicaServiceServicer_to_server,
)
from quarry_mq.server.admin_port.calls.edge import answers
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.replicas.process import WatchedCopies
from quarry_mq.server.replicas.status import ReplicaStatus
from quarry_mq.store.message_store import MessageStore

NAME: Final = pb.DESCRIPTOR.services_by_name["ReplicaService"].full_name


class ReplicaService(ReplicaServiceServicer):
    """Translates requests and answers. `copies` is None if the store has none."""

    def __init__(self, copies: WatchedCopies | None, messages: MessageStore, error_reporter: ErrorReporter) -> None:
        self._copies = copies
        self._messages = messages
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_ReplicaServiceServicer_to_server(self, server)
        return NAME

    @answers
    def ListReplicas(self, _request: pb.ListReplicasRequest) -> pb.ListReplicasResponse:
        copies = self._copies
        if copies is None:
            return pb.ListReplicasResponse()
        primary = pb.Replica(
            name=copies.name,
            role="primary",
            term=copies.term,
            is_connected=True,
            flushed_offset=self._messages.flushed_up_to,
            dispatched_offset=self._messages.dispatched_up_to,
        )
        return pb.ListReplicasResponse(replicas=[primary, *map(_message, copies.statuses())])


def _message(status: ReplicaStatus) -> pb.Replica:
    was_here = bool(status.address)
    return pb.Replica(
        name=status.name,
        role="copy",
        is_connected=status.is_connected,
        is_seeding=status.is_seeding,
        address=status.address,
        flushed_offset=status.flushed,
        dispatched_offset=status.position,
        lag_bytes=status.lag_bytes if was_here else None,
        lag_changes=status.lag_changes if was_here else None,
        lag_ms=int(1000 * status.lag_s) if status.is_connected else None,
    )
