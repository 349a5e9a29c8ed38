"""Messaging ports that stay open while their shard is started again: who connects meanwhile waits for it.

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
    """Of one shard. What cannot be opened is left to the shard, which says why."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._sockets: list[socket.socket] = []

    def opened(self) -> list[int]:
        """Open what is not; returns the descriptors for a process that is made next."""
        if not self._sockets:
            for address in self._addresses:
                with suppress(OSError):
                    self._sockets += _opened(address)
        _take_lowest(len(self._sockets))
        return [each.fileno() for each in self._sockets]

    def close(self) -> None:
        """Nobody is to wait any more. A shard that runs has the sockets still."""
        for each in self._sockets:
            each.close()
        self._sockets.clear()


def pass_on(descriptors: Sequence[int]) -> dict[str, str]:
    """In a new process: put the sockets where they are looked for. Returns the variables that tell of them."""
    copies = [socket.dup(each) for each in descriptors]  # all above, since what is below is taken
    for number, copy in zip(passed_numbers(descriptors), copies, strict=True):
        os.dup2(copy, number)
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(descriptors))}


def passed_numbers(descriptors: Sequence[int]) -> range:
    """The descriptors that a new process gets these as."""
    return range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + len(descriptors))


def _opened(address: str) -> list[socket.socket]:
    """One for each address of the host, as the broker would open them. Raises OSError."""
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
    """Leave none of the numbers free that a new process gets sockets as: its making needs numbers for pipes.

    What takes them stays, and is nothing.
    """
    while (taken := socket.socket()).fileno() < FIRST_DESCRIPTOR + count:
        taken.detach()
    taken.close()
