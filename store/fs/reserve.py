"""Descriptors that the store keeps for itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

RESERVE_SIZE: Final = 8

_STARVED: Final = {errno.EMFILE, errno.ENFILE}

_Opened = TypeVar("_Opened")


class Reserve:
    """Descriptors that are held for the moment when the process, or the machine, has no others.

    Connections may take the last one. What the store opens then, for a checkpoint say, takes the place of one of these.
    """

    def __init__(self) -> None:
        self._size = 0
        self._held: list[int] = []

    def hold(self, size: int) -> None:
        """So many from now on. Raises OSError."""
        self._size = size
        while len(self._held) < size:
            self._held.append(_spare())

    def release(self) -> None:
        """None any more."""
        self.hold(0)
        while self._held:
            os.close(self._held.pop())

    def opened(self, open_it: Callable[[], _Opened]) -> _Opened:
        """What `open_it` returns; it may be called again. Raises its OSError."""
        while True:
            try:
                opened = open_it()
            except OSError as error:
                if error.errno not in _STARVED:
                    raise
                try:
                    os.close(self._held.pop())
                except IndexError:
                    raise error from None
            else:
                self._fill()
                return opened

    def _fill(self) -> None:
        if len(self._held) < self._size:
            with suppress(OSError):
                self._held.append(_spare())


def _spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


RESERVE: Final = Reserve()


def hold_descriptors() -> None:
    """Let this process keep some descriptors, so that the store can open files when all others are in use."""
    RESERVE.hold(RESERVE_SIZE)
