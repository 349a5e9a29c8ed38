"""The admin port: the services of `quarry.admin.v1` with gRPC health and reflection, on grpcio and its own address.

It shares the event loop with the broker, so that administration needs no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import Default, DescriptorPool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from quarry_mq.server.admin_port.calls.guard import AdminGuard, CallSlots, RequestReader
from quarry_mq.server.admin_port.metadata.service import (
    SERVICE_NAME,
    AdminService,
)
from quarry_mq.server.front import LiveTls
from quarry_mq.server.front.grpcio import bind

REQUEST_SIZE_MAX: Final = 1024 * 1024
"""Bytes of a request. Operators' requests are small."""

METADATA_SIZE_MAX: Final = 16 * 1024
CONNECTION_CALLS_MAX: Final = 128
HANDSHAKE_MS: Final = 5_000
IDLE_MS: Final = 15_000
"""Milliseconds after which an idle connection is closed, since gRPC does not limit connections by address.

Members of a cluster call each other more often, so that their connections stay open.
"""

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", METADATA_SIZE_MAX),
    # a client that connects and sends nothing is disconnected soon
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", IDLE_MS),
)


class MoreService(Protocol):
    """Describe another service on the admin port."""

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""


class ServiceBook(Protocol):
    """Describe what collects services in the place of a server."""

    def collect(self, services: Sequence[MoreService]) -> None: ...


class AdminServer:
    """The admin port of one broker."""

    def __init__(
        self,
        service: AdminService,
        slots: CallSlots,
        *,
        guard: AdminGuard | None = None,
        more: Sequence[MoreService] = (),
        connections_max: int = 1_024,
        request_size_max: int = REQUEST_SIZE_MAX,
        book: ServiceBook | None = None,
    ) -> None:
        """`slots` bounds the open calls of callers; further ones are refused with RESOURCE_EXHAUSTED.

        `book`: gets all services, too, for calls that come by way of other members.
        """
        if book is not None:
            add_AdminServiceServicer_to_server(service, cast("grpc.aio.Server", book))
            book.collect(more)
        self._service = service
        self.slots: Final = slots
        self._request_size_max = request_size_max
        self._guard = guard
        self._more = more
        self._connections_max = connections_max
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str, tls: LiveTls | None = None, *, also: str | None = None) -> str:
        """Listen on `host:port` and return the bound address. Raises OSError that names the address.

        `also`: `unix:path` of a socket without TLS, on which `caller_peer` believes the address that the caller gives.
        """
        guards = [] if self._guard is None else [self._guard]
        reader = RequestReader(self.slots, asks_who_calls=any(each.asks for each in guards))
        server = grpc.aio.server(
            interceptors=[reader, *guards],
            options=(
                *_OPTIONS,
                ("grpc.max_receive_message_length", self._request_size_max),
                ("grpc.max_concurrent_streams", CONNECTION_CALLS_MAX),
                ("grpc.max_allowed_incoming_connections", self._connections_max),
            ),
        )
        add_AdminServiceServicer_to_server(self._service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE_NAME, *(each.add_to(server) for each in self._more))
        listed = (*names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(listed, server, pool=reflected_pool())
        port = bind(server, address, tls)
        if also is not None:
            bind(server, also)
        for service in ("", *names):  # before a client can watch: one that does not read would hold this up
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        self._server = server
        return f"{address.rpartition(':')[0]}:{port}"

    async def stop(self, grace_s: float) -> None:
        """Notify health watchers, take no new calls, let open ones end within `grace_s`."""
        server, self._server = self._server, None
        if server is not None:
            telling = asyncio.create_task(self._health.enter_graceful_shutdown())
            await asyncio.wait([telling], timeout=grace_s)  # a watcher that does not read holds it up
            await server.stop(grace_s)
            await telling


def reflected_pool() -> DescriptorPool:
    """Return a descriptor pool that also finds methods, for grpcurl's `describe Service.Method`.

    The default pool knows services by name, and no methods.
    """
    return cast("DescriptorPool", _WithMethods(Default()))


class _WithMethods:
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        """Find the file that defines a symbol, methods included. Raises KeyError."""
        file: FileDescriptor
        try:
            file = self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            file = self._pool.FindServiceByName(service).methods_by_name[method].containing_service.file
        return file
