"""Serve `quarry.admin.v1.ClientService` on the admin port: the connected clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import clients_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.clients_pb2_grpc import (
    ClientServiceServicer,
    add_ClientServiceServicer_to_server,
)
from quarry_mq.server.addresses import host_of
from quarry_mq.server.admin_port.calls.edge import streams
from quarry_mq.server.clients import Client, ClientRegistry
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.remoting.sessions import ListedClient, RemotingSessions
from quarry_mq.server.wire.settings import ClientKind
from quarry_mq.store.errors import GroupNotFound, Invalid, TopicNotFound
from quarry_mq.store.metadata import GroupTable, TopicTable, check_group_name
from quarry_mq.store.metadata.topics import check_internal_topic_name

NAME: Final = pb.DESCRIPTOR.services_by_name["ClientService"].full_name
LOOKED_AT_ONCE: Final = 1_024
"""Clients that are looked at before other tasks get their turn."""
PAGE_NAMES: Final = 4_096
"""Clients and topics of a page, unless one client alone has more: at most half a MiB of names."""


class ClientService(ClientServiceServicer):
    """Lists the clients that are connected, without those that are considered lost but still kept."""

    def __init__(
        self,
        clients: ClientRegistry,
        remoting: RemotingSessions,
        topics: TopicTable,
        groups: GroupTable,
        error_reporter: ErrorReporter,
    ) -> None:
        self._clients = clients
        self._remoting = remoting
        self._topics = topics
        self._groups = groups
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_ClientServiceServicer_to_server(self, server)
        return NAME

    @streams
    def ListClients(self, request: pb.ListClientsRequest) -> Iterator[pb.ListClientsResponse]:
        page, names = pb.ListClientsResponse(), 0
        for count, row in enumerate(self._rows(request), start=1):
            if row is not None:
                weight = 1 + len(row.topics)
                if page.clients and names + weight > PAGE_NAMES:
                    yield page
                    page, names = pb.ListClientsResponse(), 0
                page.clients.append(row)
                names += weight
            if count % LOOKED_AT_ONCE == 0:
                yield page
                page, names = pb.ListClientsResponse(), 0
        yield page

    def _rows(self, request: pb.ListClientsRequest) -> Iterator[pb.Client | None]:
        """Yield the clients by gRPC, then those by remoting; None for one that does not match the request."""
        for client in self._asked_for(request):
            yield _row(client, request.topic) if _is_wanted(client, request) else None
        for listed in self._remoting.listed():
            yield _remoting_row(listed, request.topic) if _is_listed(listed, request) else None

    def _asked_for(self, request: pb.ListClientsRequest) -> Iterable[Client]:
        """Return all clients that may match the request. Raises Invalid, TopicNotFound, GroupNotFound."""
        if request.type not in pb.ClientType.values():
            raise Invalid(f"type: {request.type} is unknown")
        if request.topic and self._topics.get(request.topic) is None:
            check_internal_topic_name(request.topic)
            raise TopicNotFound(f"topic: no topic {request.topic}")
        if not request.group:
            return self._clients
        if request.type == pb.CLIENT_TYPE_PRODUCER:
            raise Invalid("group: not allowed for producers, which have no group")
        consumers = self._clients.consumers_of(request.group)
        if (
            not consumers
            and self._remoting.consumers(request.group) is None
            and self._groups.get(request.group) is None
        ):
            check_group_name(request.group)
            raise GroupNotFound(f"group: no group {request.group}")
        return consumers


def _is_wanted(client: Client, request: pb.ListClientsRequest) -> bool:
    if client.is_lost or (request.topic and request.topic not in client.settings.topics):
        return False
    is_producer = client.settings.kind is ClientKind.PRODUCER
    return request.type in (
        pb.CLIENT_TYPE_UNSPECIFIED,
        pb.CLIENT_TYPE_PRODUCER if is_producer else pb.CLIENT_TYPE_CONSUMER,
    )


def _is_listed(listed: ListedClient, request: pb.ListClientsRequest) -> bool:
    kind = pb.CLIENT_TYPE_PRODUCER if listed.is_producer else pb.CLIENT_TYPE_CONSUMER
    return (
        request.type in (pb.CLIENT_TYPE_UNSPECIFIED, kind)
        and (not request.topic or request.topic in listed.topics)
        and (not request.group or (request.group == listed.group and not listed.is_producer))
    )


def _remoting_row(listed: ListedClient, topic: str) -> pb.Client:
    client = listed.client
    return pb.Client(
        client_id=client.client_id,
        kind="remoting producer" if listed.is_producer else "remoting consumer",
        group=listed.group,
        topics=[topic] if topic else listed.topics,
        language=client.language.name,
        version=str(client.version),
        address=host_of(listed.peer),
        settings_at_ms=client.seen_ms,
    )


def _row(client: Client, topic: str) -> pb.Client:
    settings = client.settings
    return pb.Client(
        client_id=client.client_id,
        kind=settings.kind.value,
        group=settings.group or "",
        topics=[topic] if topic else settings.topics,
        language=settings.language,
        version=settings.version,
        hostname=settings.hostname,
        address=host_of(client.peer),
        settings_at_ms=client.settings_ms,
    )
