"""Times on the command line: dates, ages such as `2h`, and milliseconds since 1970.

An option that takes a TIME takes all three. An option that takes an OFFSET or a TIME reads a bare number as an offset.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Final

import typer

from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.times import TIME_MS_MAX

DATE: Final = "2026-11-21T14:30:00+01:00"
"""A date as messages show one."""
_MACHINE: Final = SystemClock()
_LETTER_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGE: Final = re.compile(r"(?:[0-9]{1,12}[smhd])+")

Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only messages stored at this time or later: a date, an age such as 2h, or ms since 1970.",
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Only messages stored at this time or earlier.", show_default=False),
]


def date_ms(text: str) -> int | None:
    """Parse a date in ISO 8601 to ms since 1970, as local time if it names no zone; None if it is invalid."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def time_ms(text: str) -> int | None:
    """Parse a time given as ms since 1970 or as a date to ms since 1970; None if it is invalid."""
    return int(text) if text.isascii() and text.isdecimal() else date_ms(text)


def span_ms(text: str) -> int | None:
    """Parse a length of time such as `90s`, `2h` or `1d12h` to ms; None if it is invalid."""
    if not _AGE.fullmatch(text):
        return None
    return sum(int(number) * _LETTER_MS[unit] for number, unit in re.findall(r"([0-9]+)([smhd])", text))


def past_ms(text: str, *, clock: Clock = _MACHINE) -> int | None:
    """Parse a date, or an age such as `2h` (two hours ago), to ms since 1970; None if it is invalid."""
    age_ms = span_ms(text)
    return date_ms(text) if age_ms is None else max(0, clock.wall_ms() - age_ms)


def option_ms(text: str | None, option: str, *, is_future: bool = False, clock: Clock = _MACHINE) -> int | None:
    """Return the ms since 1970 of an option's TIME. A length of time counts back from now, or forwards if `is_future`.

    Raises typer.BadParameter for an invalid time.
    """
    if text is None:
        return None
    length_ms = span_ms(text)
    if length_ms is None:
        found_ms = time_ms(text)
    else:
        now_ms = clock.wall_ms()
        found_ms = now_ms + length_ms if is_future else max(0, now_ms - length_ms)
    if found_ms is None or not 0 <= found_ms <= TIME_MS_MAX:
        length = "a time from now such as 2h" if is_future else "an age such as 2h"
        raise typer.BadParameter(
            f"{text!r} is neither a date like {DATE}, {length}, nor ms since 1970", param_hint=option
        )
    return found_ms
