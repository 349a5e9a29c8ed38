"""Lays out lines of text for a screen of any width. Colours only emphasize what words say."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

TITLE: Final = "bold cyan"
LABEL: Final = "cyan"
QUIET: Final = "dim"
WARNING: Final = "bold yellow"
BAD: Final = "bold red"
GOOD: Final = "green"
STRONG: Final = "bold"

LABEL_WIDTH: Final = 11
GAP: Final = 3
COLUMN_GAP: Final = 2
NAME_WIDTH_MIN: Final = 10
NAME_WIDTH_MAX: Final = 40
NARROW: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """The area to draw on. `plain`: the terminal does not support UTF-8."""

    width: int
    height: int
    plain: bool = False

    @property
    def is_narrow(self) -> bool:
        return self.width < NARROW


def styled(*parts: str | tuple[str, str]) -> Text:
    """Join texts, or pairs of text and style, to one line."""
    return Text.assemble(*parts, no_wrap=True, end="")


def fitted(text: str, width: int, *, is_right: bool = False, plain: bool = False) -> str:
    """Return the text in exactly `width` columns; a longer text is cut and ends with a mark."""
    missing = width - cell_len(text)
    if missing >= 0:
        return " " * missing + text if is_right else text + " " * missing
    return set_cell_size(text, max(0, width - 1)) + ("~" if plain else "…") if width > 0 else ""


def flow(label: str, items: Iterable[Text], width: int) -> list[Text]:
    """Lay out a label and its items: as many items on a line as fit, the others below."""
    lines = [styled((f"{label:<{LABEL_WIDTH}}", LABEL))]
    for item in items:
        if item.cell_len > width - LABEL_WIDTH:
            lines = _words(lines, item, width)
            continue
        line = lines[-1]
        is_first = line.cell_len <= LABEL_WIDTH
        if not is_first and line.cell_len + GAP + item.cell_len > width:
            line = styled(" " * LABEL_WIDTH)
            lines.append(line)
            is_first = True
        line.append_text(styled("" if is_first else " " * GAP)).append_text(item)
    return lines


def _words(lines: list[Text], item: Text, width: int) -> list[Text]:
    """Append an item that is too long for one line, broken at its spaces, and return the lines."""
    if lines[-1].cell_len > LABEL_WIDTH:
        lines.append(styled(" " * LABEL_WIDTH))
    for number, word in enumerate(item.split(" ")):
        if number and lines[-1].cell_len + 1 + word.cell_len > width:
            lines.append(styled(" " * LABEL_WIDTH))
        elif number:
            lines[-1].append(" ")
        lines[-1].append_text(word)
    return lines


def item(name: str, value: str, style: str = "") -> Text:
    """Return a value with its name before it."""
    return styled((f"{name} ", QUIET), (value, style)) if name else styled((value, style))


def wrapped(text: str, width: int, *, style: str = "", indent: str = "", first: str | None = None) -> list[Text]:
    """Wrap a sentence over several lines; `first` begins the first line, `indent` all others."""
    begin = indent if first is None else first
    lines = textwrap.wrap(text, max(10, width), initial_indent=begin, subsequent_indent=indent)
    return [styled((line, style)) for line in lines]


def heading(title: str, remark: str, width: int, *, plain: bool = False) -> Text:
    """Return a title with a dim remark after it, cut to the width."""
    rest = fitted(remark, max(0, min(cell_len(remark), width - cell_len(title) - 2)), plain=plain)
    return styled((title, TITLE), ("  " + rest if rest else "", QUIET))


# -- tables


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    `text` makes the cell of a row at a time (ms). If space is short, the columns with the highest `rank` go. The first
    column of a table takes the width that the others leave, or at most `width` if that is not 0.
    """

    title: str
    width: int
    rank: int
    text: Callable[[Any, int], str]
    is_right: bool = True
    style: Callable[[Any], str] = lambda _: ""


def fitting(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """Return the columns that fit, with their widths: the first takes the width that the others leave."""
    first, *others = columns
    kept = list(others)

    def left() -> int:
        return width - sum(each.width + COLUMN_GAP for each in kept)

    wanted = first.width or max(NAME_WIDTH_MIN, min(NAME_WIDTH_MAX, width * 24 // 100))
    while kept and left() < wanted:
        kept.remove(max(kept, key=lambda each: each.rank))
    return [(first, max(1, first.width or left())), *((each, each.width) for each in kept)]


def table(columns: Sequence[Column], rows: Sequence[Any], canvas: Canvas, now_ms: int) -> list[Text]:
    """Return the titles and a line for each row, as wide as the canvas."""
    chosen = fitting(columns, canvas.width)
    gap = " " * COLUMN_GAP

    def line(cells: Iterable[tuple[str, str]]) -> Text:
        parts: list[str | tuple[str, str]] = []
        for (column, width), (text, style) in zip(chosen, cells, strict=True):
            cell = fitted(text, width, is_right=column.is_right, plain=canvas.plain)
            parts += [gap, (cell, style)] if parts else [(cell, style)]
        return styled(*parts)

    lines = [line((column.title, QUIET) for column, _ in chosen)]
    lines += [line((column.text(row, now_ms), column.style(row)) for column, _ in chosen) for row in rows]
    return lines


def side_by_side(left: Sequence[Text], right: Sequence[Text], left_width: int, gap: int) -> list[Text]:
    """Join two blocks of lines side by side."""
    lines = []
    for number in range(max(len(left), len(right))):
        line = left[number].copy() if number < len(left) else styled("")
        if number < len(right):
            line.append(" " * (left_width + gap - line.cell_len))
            line.append_text(right[number])
        lines.append(line)
    return lines
