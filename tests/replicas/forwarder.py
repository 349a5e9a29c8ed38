"""An address at which connections are passed on to a server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Final

from quarry_mq.server.addresses import Address

LOOPBACK: Final = "127.0.0.1"


class Forwarder:
    """Passes bytes between clients and a server, and lets a test spoil them or choose another server."""

    def __init__(self, target: Address) -> None:
        self.target = target
        self._listener = socket.create_server((LOOPBACK, 0))
        self._ends: list[socket.socket] = [self._listener]
        self.connections = 0
        self.spoil: Callable[[bytes], bytes | None] = lambda data: data
        """Returns what is passed on of the primary's bytes; None to pass on nothing from then on."""
        Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> Address:
        return Address(LOOPBACK, self._listener.getsockname()[1])

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                inside, _ = self._listener.accept()
                try:
                    outside = socket.create_connection((self.target.host, self.target.port))
                except ConnectionRefusedError:
                    inside.close()
                    continue
                self.connections += 1
                self._ends += (inside, outside)
                Thread(target=self._pass, args=(inside, outside, lambda data: data), daemon=True).start()
                Thread(target=self._pass, args=(outside, inside, self._spoilt), daemon=True).start()

    def _spoilt(self, data: bytes) -> bytes | None:
        return self.spoil(data)

    def _pass(self, source: socket.socket, target: socket.socket, spoil: Callable[[bytes], bytes | None]) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                kept = spoil(data)
                if kept:
                    target.sendall(kept)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
