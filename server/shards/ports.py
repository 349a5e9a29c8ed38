"""Keep messaging ports open while their shard is restarted: clients that connect meanwhile wait for it.

A shard gets the sockets of its ports by the convention of `server/front/inherited.py`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

BACKLOG: Final = 1024
FIRST_DESCRIPTOR: Final = 3


class Ports:
    """Hold the open ports of one shard. A port that cannot be opened is left to the shard, which reports why."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._sockets: list[socket.socket] = []

    def opened(self) -> list[int]:
        """Open the ports that are closed; return the descriptors for the process that is made next."""
        if not self._sockets:
            for address in self._addresses:
                with suppress(OSError):
                    self._sockets += _opened(address)
        _take_lowest(len(self._sockets))
        return [each.fileno() for each in self._sockets]

    def close(self) -> None:
        """Close the ports, so that no client waits for the shard. A running shard still has the sockets."""
        for each in self._sockets:
            each.close()
        self._sockets.clear()


def pass_on(descriptors: Sequence[int]) -> dict[str, str]:
    """Move the sockets, in a new process, to the expected descriptors. Return the variables that announce them."""
    copies = [socket.dup(each) for each in descriptors]  # all above these, since the numbers below are taken
    for number, copy in zip(passed_numbers(descriptors), copies, strict=True):
        os.dup2(copy, number)
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(descriptors))}


def passed_numbers(descriptors: Sequence[int]) -> range:
    """Return the descriptors under which a new process gets these sockets."""
    return range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + len(descriptors))


def _opened(address: str) -> list[socket.socket]:
    """Open a socket for each address of the host, as the broker would. Raises OSError."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            opened.append(socket.create_server(where[:2], family=family, backlog=BACKLOG))
    except OSError:
        for each in opened:
            each.close()
        raise
    return opened


def _take_lowest(count: int) -> None:
    """Occupy all descriptors below the inherited range, so that the pipes of `Popen` cannot land there.

    The unconnected sockets that occupy them are never closed.
    """
    while (taken := socket.socket()).fileno() < FIRST_DESCRIPTOR + count:
        taken.detach()
    taken.close()
