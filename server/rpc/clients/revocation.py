"""Ends calls that last long when the rights of their users have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.front import Call
from quarry_mq.server.rpc.access import settings_needs
from quarry_mq.server.rpc.clients.telemetry import TelemetryService
from quarry_mq.server.security.credentials import Identity
from quarry_mq.server.security.gate import Gate


class Revocation:
    """Ends streams and waiting receives of clients that may not continue, when users or rules have changed.

    All waiting receives end as if no message had come: their clients ask again, and their rights are checked again.
    """

    def __init__(
        self,
        gate: Gate,
        telemetry: TelemetryService,
        clients: ClientRegistry,
        *,
        end_waiting: Sequence[Callable[[], None]],
    ) -> None:
        self._gate = gate
        self._telemetry = telemetry
        self._clients = clients
        self._end_waiting = end_waiting
        self._generation = gate.generation

    def sweep(self) -> None:
        """End what is no longer allowed; to be called every few seconds."""
        self._telemetry.end_silent_strangers()
        generation = self._gate.generation
        if generation == self._generation:
            return
        self._generation = generation
        self._telemetry.end_where(self._check)
        for end in self._end_waiting:
            end()

    def _check(self, call: Call, identity: Identity, client_id: str | None) -> None:
        """Check that a client could register again as it did. Raises PermissionDenied."""
        settings = None if client_id is None else self._clients.find(client_id)
        needs = [] if settings is None else settings_needs(settings.group, settings.topics)
        self._gate.check(identity, call.peer, needs)
