"""The command `quarry top`: its options, and its output by kind of terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from itertools import count as numbers
from typing import Annotated, Final

import typer

from quarry_mq.cli.contexts import chosen
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin
from quarry_mq.cli.online.top.poller import Known, look
from quarry_mq.cli.online.top.readings import Reading, Wish
from quarry_mq.cli.online.top.screen.tables import Canvas
from quarry_mq.cli.online.top.snapshot import ROWS, object_of, plain_text
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.output import json_line, speaks_utf8
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.clock import SystemClock

INTERVAL_DEFAULT_S: Final = 2.0
INTERVAL_MIN_S: Final = 0.1
WIDTH_DEFAULT: Final = 100
WIDTH_MIN: Final = 40
HEIGHT: Final = 60
"""Lines of a snapshot, which scrolls: there is room for ten groups and topics."""


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print everything once as plain text, and exit.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=INTERVAL_MIN_S, help="Time between two refreshes.")
    ] = INTERVAL_DEFAULT_S,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", metavar="N", min=1, help="With --json: number of refreshes; then end.", show_default=False
        ),
    ] = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per refresh.")] = False,
) -> None:
    """Watch a broker in the terminal: rates, stages, lag, topics, groups, storage, migration, jobs, members.

    If the output is not a terminal, or one without screen control, a snapshot is printed once.
    """
    if count is not None and not as_json:
        raise typer.BadParameter("is for --json", param_hint="--count")
    if as_json:
        _print_objects(admin, interval_s, 1 if once else count)
    elif once or not _can_be_drawn_on():
        _print_once(admin)
    else:
        from quarry_mq.cli.online.top.screen.view import TopView

        Reading(admin, chosen()).close()  # an unusable file of the context is reported before the screen is drawn
        for each in ("COLUMNS", "LINES"):  # the terminal knows its size better, also when that changes
            os.environ.pop(each, None)
        TopView(admin, chosen(), interval_s=interval_s).run()


def _can_be_drawn_on() -> bool:
    """Return whether the terminal supports drawing. Prints the reason if it is a terminal that does not."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    kind = os.environ.get("TERM", "")
    if kind in ("", "dumb", "unknown"):
        say(f"the terminal (TERM={kind}) cannot be drawn on: printing once", err=True)
        return False
    return True


def _print_once(admin: str) -> None:
    columns, _ = shutil.get_terminal_size((WIDTH_DEFAULT, HEIGHT))
    canvas = Canvas(width=max(WIDTH_MIN, columns), height=HEIGHT, plain=not speaks_utf8())
    known = Known(admin, SystemClock())
    with Reading(admin, chosen()) as reading:
        look(known, reading, Wish(limit=ROWS))
    if known.overview.problem is not None:
        end(Exit.COULD_NOT_RUN, str(known.overview.problem))
    say(plain_text(known, canvas))


def _print_objects(admin: str, interval_s: float, count: int | None) -> None:
    """Print objects at intervals.

    If the first call fails the command ends; later failures are in an object's `problems`.
    """
    clock = SystemClock()
    known = Known(admin, clock)
    with Reading(admin, chosen()) as reading:
        for number in numbers(1):
            began_s = clock.monotonic_s()
            look(known, reading, Wish(limit=ROWS))
            problem = known.overview.problem
            if problem is not None and number in (1, count):
                end(Exit.COULD_NOT_RUN, str(problem))
            say(json_line(object_of(known)))
            if number == count:
                return
            time.sleep(max(0.0, interval_s - (clock.monotonic_s() - began_s)))
