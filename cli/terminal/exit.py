"""Ends commands: with an exit status and a line of explanation, or when Ctrl-C asks for it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from threading import Event
from typing import NoReturn

import typer

from quarry_mq.cli.terminal.hints import Names, hint, no_names
from quarry_mq.cli.terminal.text import say


class Exit(IntEnum):
    """Exit status of every command."""

    FINE = 0
    FINDING = 1
    COULD_NOT_RUN = 2


def end(status: Exit, text: str, names: Names | None = no_names) -> NoReturn:
    """End the command with one line on standard error, and a second one if there is something to try.

    `names` gives the broker's names, to find one that was mistyped; None: no second line, because a program reads the
    output.
    """
    line = " ".join(text.split())
    say(line, err=True)
    advice = None if names is None else hint(line, names)
    if advice is not None:
        say(f"hint: {advice}", err=True)
    raise typer.Exit(status)


@contextmanager
def asked_to_end() -> Iterator[Event]:
    """Set the event on Ctrl-C and SIGTERM while the block runs, then restore the old signal handlers."""
    asked = Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: asked.set()) for number in numbers]
    try:
        yield asked
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
