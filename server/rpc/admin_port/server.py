"""The admin port: the services of `quarry.admin.v1` with gRPC health and reflection, on grpcio and its own address.

It shares the event loop with the broker, so that administration needs no locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from server._generated.quarry.admin.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from server.administration import (
    Administration,
)
from server.faults import FaultLog
from server.front import LiveTls
from server.front.grpcio import bind
from server.pacing import Pacing
from server.rpc.admin_port.guard import AdminGuard
from server.rpc.admin_port.reading import RequestReader
from server.rpc.admin_port.reflected import reflected_pool
from server.rpc.admin_port.service import SERVICE_NAME, AdministeredBackups, AdminService, Expire, Summarize
from store.clock import SystemClock

REQUEST_SIZE_MAX: Final = 1024 * 1024
"""Bytes. What operators say is small."""

METADATA_SIZE_MAX: Final = 16 * 1024
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", METADATA_SIZE_MAX),
)


class MoreService(Protocol):
    """Another service on the admin port."""

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve it; returns its full name."""


class AdminServer:
    """The admin port of one broker."""

    def __init__(
        self,
        administration: Administration,
        faults: FaultLog,
        *,
        guard: AdminGuard | None = None,
        backups: AdministeredBackups,
        expire: Expire,
        summarize: Summarize,
        more: Sequence[MoreService] = (),
        pacing: Pacing | None = None,
        calls_max: int = 256,
        request_size_max: int = REQUEST_SIZE_MAX,
    ) -> None:
        """Beyond `calls_max` that are open at once calls are refused with RESOURCE_EXHAUSTED."""
        self._request_size_max = request_size_max
        self._guard = guard
        self._more = more
        self._calls_max = calls_max
        self._service = AdminService(
            administration, faults, backups, expire, summarize, pacing=pacing or Pacing(SystemClock())
        )
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str, tls: LiveTls | None = None, *, also: str | None = None) -> str:
        """Listen on `host:port` and return the bound address. Raises OSError that names the address.

        `also`: `unix:path` of a socket without TLS, on which `caller_peer` believes what it is told.
        """
        server = grpc.aio.server(
            interceptors=[RequestReader(), *([self._guard] if self._guard else ())],
            options=(*_OPTIONS, ("grpc.max_receive_message_length", self._request_size_max)),
            maximum_concurrent_rpcs=self._calls_max,
        )
        add_AdminServiceServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE_NAME, *(each.add_to(server) for each in self._more))
        listed = (*names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(listed, server, pool=reflected_pool())
        port = bind(server, address, tls)
        if also is not None:
            bind(server, also)
        await server.start()
        self._server = server
        for service in ("", *names):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return f"{address.rpartition(':')[0]}:{port}"

    async def stop(self, grace_s: float) -> None:
        """Tell health watchers, take no new calls, let open ones end within `grace_s`."""
        server, self._server = self._server, None
        if server is not None:
            await self._health.enter_graceful_shutdown()
            await server.stop(grace_s)
