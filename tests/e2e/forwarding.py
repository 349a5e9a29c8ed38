"""A port that leads to another one, as a port mapping, a NodePort, a load balancer or an ingress does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle


class Forwarding:
    """Passes on bytes from a free port of 127.0.0.1, each connection to the next of its targets (`host:port`)."""

    def __init__(self) -> None:
        self._targets: Iterator[str] = iter(())
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._sockets: list[socket.socket] = []
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def lead_to(self, *targets: str) -> Forwarding:
        self._targets = cycle(targets)
        return self

    def close(self) -> None:
        for each in (self._listening, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                outer, _ = self._listening.accept()
                self.accepted += 1
                host, _, port = next(self._targets, ":0").rpartition(":")
                try:
                    inner = socket.create_connection((host, int(port)))
                except OSError:
                    outer.close()
                    continue
                self._sockets += [outer, inner]
                for one, other in ((outer, inner), (inner, outer)):
                    threading.Thread(target=_pass_on, args=[one, other], daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65_536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)
