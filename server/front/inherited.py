"""Listening sockets inherited from the parent process, which keeps them open while the broker restarts.

Clients then wait where they would otherwise fail. The convention is systemd's (sd_listen_fds(3)): `LISTEN_FDS` sockets
from descriptor 3 on, meant for the process whose id is `LISTEN_PID`. While no broker runs, the kernel accepts
connections, up to the socket's backlog.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

FIRST_DESCRIPTOR: Final = 3


def has_inherited_sockets() -> bool:
    """Return whether sockets were passed to this process."""
    return os.environ.get("LISTEN_PID") == str(os.getpid())


def inherited_sockets(host: str, port: int) -> list[socket.socket]:
    """Return the inherited sockets that listen on addresses of this host, as copies for the caller to close."""
    wanted = {address[:2] for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    found = []
    for descriptor in _passed():
        passed = socket.socket(fileno=descriptor)
        try:
            if _listens(passed) and passed.getsockname()[:2] in wanted:
                found.append(passed.dup())
        finally:
            passed.detach()
    return found


def close_inherited() -> None:
    """Close the inherited sockets. The process that passed them decides whether they stay open."""
    for descriptor in _passed():
        with suppress(OSError):  # it is not a socket
            passed = socket.socket(fileno=descriptor)
            if _listens(passed):
                passed.close()
            else:
                passed.detach()
    os.environ.pop("LISTEN_PID", None)


def _passed() -> range:
    count = os.environ.get("LISTEN_FDS", "") if has_inherited_sockets() else ""
    return range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + (int(count) if count.isdecimal() else 0))


def _listens(passed: socket.socket) -> bool:
    is_inet = passed.family in (socket.AF_INET, socket.AF_INET6)
    return is_inet and bool(passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
