"""Listening sockets that outlive the broker: who starts it keeps them open, so that clients wait where they would fail.

The convention is systemd's (sd_listen_fds(3)): `LISTEN_FDS` sockets from descriptor 3 on, meant for the process whose
id is `LISTEN_PID`. While no broker is there the kernel takes connections, up to the socket's backlog.
"""

from __future__ import annotations

import os
import socket
from typing import Final

FIRST_DESCRIPTOR: Final = 3


def has_inherited_sockets() -> bool:
    """Whether any were passed to this process."""
    return os.environ.get("LISTEN_PID") == str(os.getpid())


def inherited_socket(host: str, port: int) -> socket.socket | None:
    """One that listens on this address, as a copy for the caller to close; None when nobody has passed such a one."""
    if not has_inherited_sockets():
        return None
    count = os.environ.get("LISTEN_FDS", "")
    wanted = {address[:2] for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    for descriptor in range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + (int(count) if count.isdecimal() else 0)):
        passed = socket.socket(fileno=descriptor)
        try:
            if _listens(passed) and passed.getsockname()[:2] in wanted:
                return passed.dup()
        finally:
            passed.detach()  # it is not ours to close
    return None


def _listens(passed: socket.socket) -> bool:
    is_inet = passed.family in (socket.AF_INET, socket.AF_INET6)
    return is_inet and bool(passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
