"""The module reserves file descriptors for the store."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

RESERVE_SIZE: Final = 8

STARVED: Final = {errno.EMFILE, errno.ENFILE}
"""Errors of a call that found no free file descriptor."""

_Opened = TypeVar("_Opened")


class Reserve:
    """The reserve holds descriptors for the moment when the process, or the machine, has no others.

    Connections may use up the last one. A file that the store then opens, say for a checkpoint, uses one of the
    reserved descriptors.
    """

    def __init__(self) -> None:
        self._size = 0
        self._spares: list[int] = []

    def hold(self, size: int) -> None:
        """Hold this number of descriptors from now on. Raises OSError."""
        self._size = size
        while len(self._spares) < size:
            self._spares.append(_spare())

    def release(self) -> None:
        """Release all reserved descriptors."""
        self.hold(0)
        while self._spares:
            os.close(self._spares.pop())

    def opened(self, open_it: Callable[[], _Opened]) -> _Opened:
        """Return what `open_it` returns; it may be called more than once. Raises its OSError."""
        while True:
            try:
                opened = open_it()
            except OSError as error:
                if error.errno not in STARVED:
                    raise
                try:
                    os.close(self._spares.pop())
                except IndexError:
                    raise error from None
            else:
                self._fill()
                return opened

    def _fill(self) -> None:
        if len(self._spares) < self._size:
            with suppress(OSError):
                self._spares.append(_spare())


def _spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


RESERVE: Final = Reserve()


def hold_descriptors() -> None:
    """Reserve some descriptors, so that the store can open files when all others are in use."""
    RESERVE.hold(RESERVE_SIZE)
