"""Finds the addresses of members: those in the settings, and all addresses of a DNS name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import structlog

from quarry_mq.server.addresses import Address
from quarry_mq.server.tasks.worker import LastErrors

log = structlog.get_logger(__name__)


class Discovery:
    """Finds admin addresses, as `host:port`."""

    def __init__(self, members: Sequence[str], dns: str | None) -> None:
        self._members = frozenset(members)
        self._dns = None if dns is None else Address.parse(dns)
        self._found: set[str] = set()
        self._errors = LastErrors()

    async def addresses(self) -> set[str]:
        """Return the addresses of the settings and of the name.

        If the name cannot be looked up, its last addresses are used.
        """
        if self._dns is not None:
            await self._look_up(self._dns)
        return {*self._members, *self._found}

    def name_of(self, address: str) -> str | None:
        """Return the name by which an address was found, which is the name in its certificate."""
        return self._dns.host if self._dns is not None and address in self._found else None

    async def _look_up(self, name: Address) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
        except OSError as error:
            if self._errors.is_new(error):
                log.warning("the members' name cannot be looked up", name=name.host, reason=str(error))
            return
        self._errors.clear()
        self._found = {_text(address) for *_, address in found}


def _text(address: tuple[object, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
