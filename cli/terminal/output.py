"""Prints results of commands: JSON lines for programs, aligned text for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from quarry_mq.cli.terminal.text import one_line, say

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def speaks_utf8() -> bool:
    """Return whether standard output takes more than ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def json_line(fields: Mapping[str, object]) -> str:
    return _ENCODER.encode(fields)


def print_object(fields: Mapping[str, object], *, as_json: bool) -> None:
    """Print one object with all its fields."""
    if as_json:
        say(json_line(fields))
        return
    for line in object_lines(fields):
        say(line)


def object_lines(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield a line for each field, with the values below each other."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        yield f"{name:<{width}}  {_text(value)}".rstrip()


def print_rows(
    rows: Iterable[Mapping[str, object]], columns: Sequence[str], *, as_json: bool, kind: str = "rows"
) -> None:
    """Print many objects, one line each, as they come. People get the given columns, programs get all fields.

    Without any, people read "no" and the `kind`.

    Columns are as wide as their heading or a usual value: a million rows are not kept to find the widest.
    """
    if as_json:
        for row in rows:
            say(json_line(row))
        return
    widths = [max(len(column), 11) for column in columns]
    coming = iter(rows)
    first = list(islice(coming, 1))  # a refusal comes before the heading
    say(_line(columns, widths) if first else f"no {kind}")
    for row in chain(first, coming):
        say(_line([_text(row[column]) for column in columns], widths))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Join the cells of a line. The first column comes last: names are long and would misalign the others."""
    first, *others = cells
    return "  ".join([*(f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)), first])


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case str():
            return one_line(value)
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return " ".join(f"{one_line(str(name))}={_text(each)}" for name, each in value.items())
        case list() | tuple():
            return ", ".join(_text(each) for each in value)
        case _:
            return str(value)
