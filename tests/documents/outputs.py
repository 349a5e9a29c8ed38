"""Compares outputs with those that a page shows, and finds which names of the page stand for which of this run.

`…` in a line stands for any text, a line of it alone for any lines. What is another each time is known by its form:
ids, secrets and names of backups may be any other, but the same wherever the page has the same; times and durations may
be any. Runs of spaces count as one, since columns are as wide as what is in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

ANYTHING: Final = "…"

NAMES: Final = {
    "message id": r"\b01[0-9A-F]{32}\b",
    "offset id": r"\b[0-9A-F]{32}\b",
    "backup": r"\b\d{8}T\d{6}\.\d{3}Z",
    "secret": r"(?<![\w-])[A-Za-z0-9_-]{32}(?![\w-])",
}
"""Each another in every run, and one of the page is the same one of the run throughout."""

QUANTITIES: Final = {
    "time": r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?",
    "clock": r"\b\d\d:\d\d:\d\d(?:\.\d+)?\b",
    "milliseconds since 1970": r"\b1[6-9]\d{11}\b",
    "duration": r"\b\d+(?:[.,]\d+)? ?(?:ns|µs|ms|s|min|h)\b",
}

_VARYING: Final = re.compile("|".join(f"({form})" for form in [*NAMES.values(), *QUANTITIES.values()]))
_FORMS: Final = [*NAMES.values(), *QUANTITIES.values()]


class Bindings:
    """Names of things that this run calls by other names than the page."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def bind(self, shown: str, actual: str) -> bool:
        """Return whether the pair agrees with the known ones; a name is bound once."""
        return self._names.setdefault(shown, actual) == actual

    def put_into(self, command: str) -> str:
        for shown, actual in self._names.items():
            command = command.replace(shown, actual)
        return command


def matches(expected: Sequence[str], actual: Sequence[str], bindings: Bindings) -> bool:
    """Return whether all lines are as expected; then names are bound."""
    pairs = _aligned(tuple(map(_plain, expected)), tuple(map(_plain, actual)))
    return pairs is not None and all(
        bindings.bind(shown, found) for one, other in pairs for shown, found in _names(one, other)
    )


def _plain(line: str) -> str:
    return re.sub(r"\s+", " ", line).strip()


def _aligned(expected: tuple[str, ...], actual: tuple[str, ...]) -> list[tuple[str, str]] | None:
    """Return which line is which; None if they do not match. Quadratic at most."""
    # reachable[i][j]: the first i expected lines match the first j actual ones
    reachable = [[False] * (len(actual) + 1) for _ in range(len(expected) + 1)]
    reachable[0][0] = True
    for i, line in enumerate(expected):
        for j in range(len(actual) + 1):
            if line == ANYTHING:
                reachable[i + 1][j] = reachable[i][j] or (j > 0 and reachable[i + 1][j - 1])
            elif j > 0 and reachable[i][j - 1]:
                reachable[i + 1][j] = _pattern(line).fullmatch(actual[j - 1]) is not None
    if not reachable[-1][-1]:
        return None
    pairs, j = [], len(actual)
    for i in range(len(expected), 0, -1):
        if expected[i - 1] == ANYTHING:
            while not reachable[i - 1][j]:
                j -= 1
        else:
            pairs.append((expected[i - 1], actual[j - 1]))
            j -= 1
    return pairs[::-1]


def _names(expected: str, actual: str) -> Iterator[tuple[str, str]]:
    found = _pattern(expected).fullmatch(actual)
    assert found is not None
    shown = [each for each in _VARYING.finditer(expected) if ANYTHING not in each[0]]
    for number, each in enumerate(shown):
        if each.lastindex is not None and each.lastindex <= len(NAMES):
            yield each[0], found[number + 1]


@cache
def _pattern(line: str) -> re.Pattern[str]:
    parts, at = [], 0
    for each in _VARYING.finditer(line):
        assert each.lastindex is not None
        parts += [_literal(line[at : each.start()]), f"({_FORMS[each.lastindex - 1]})"]
        at = each.end()
    return re.compile("".join([*parts, _literal(line[at:])]))


def _literal(text: str) -> str:
    return ".*".join(map(re.escape, text.split(ANYTHING)))
