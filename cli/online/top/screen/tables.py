"""Draws tables of topics and groups, and the details of one of them, on a screen of any width.

Values are formatted for people in few columns. An unknown value is `unknown`, never 0. Colours only emphasize what
words say.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from quarry_mq.cli.online.top.facts import Group, Pair, Topic
from quarry_mq.cli.terminal.quantities import UNKNOWN, bytes_text, count_text, rate_text, span_ms_text, span_text
from quarry_mq.cli.terminal.text import time_text

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


def latency_text(seconds: float | None, *, bound_s: float | None = None) -> str:
    """Format a percentile: `-` if no run was timed, `> 4.2 s` above the last bound."""
    if seconds is None:
        return "-"
    if math.isinf(seconds):
        return UNKNOWN if bound_s is None else f"> {span_text(bound_s)}"
    return span_text(seconds)


def least_text(text: str, *, is_whole: bool) -> str:
    """Add `at least` to a value that covers only a part of the whole."""
    return text if is_whole or text == UNKNOWN else f"at least {text}"


def percent_text(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share * 100:.0f} %"


def bar(share: float | None, width: int, *, plain: bool = False) -> str:
    """Return a bar of `width` columns, filled to a share."""
    full, empty = ("#", "-") if plain else ("█", "░")
    if share is None:
        return "?" * width
    filled = min(width, max(0, math.floor(share * width + 0.5)))
    return full * filled + empty * (width - filled)


def cut(text: str, width: int, *, plain: bool = False) -> str:
    """Cut a text to at most `width` columns; a mark at its end tells that it was cut."""
    if len(text) <= width:
        return text
    mark = "~" if plain else "…"
    return text[: max(0, width - 1)] + mark if width > 0 else ""


_RATE: Final = 8
_COUNT: Final = 9
_SPAN: Final = 11


def ago_text(at_ms: int | None, now_ms: int) -> str:
    return span_ms_text(None if at_ms is None else max(0, now_ms - at_ms))


def _note(group: Group) -> str:
    if not group.is_enabled:
        return "disabled"
    return "NO CONSUMER" if group.ready and not group.consumers else ""


def _warning(group: Group) -> str:
    return WARNING if _note(group) else ""


TOPICS: Final[Sequence[Column]] = (
    Column("topic", 0, 0, lambda row, _: row.name, is_right=False),
    Column("in/s", _RATE, 1, lambda row, _: rate_text(row.sent_per_second)),
    Column("out/s", _RATE, 2, lambda row, _: rate_text(row.received_per_second)),
    Column("messages", _COUNT, 3, lambda row, _: count_text(row.messages)),
    Column("size, about", 11, 6, lambda row, _: bytes_text(row.estimated_bytes)),
    Column("last sent", _SPAN, 4, lambda row, now_ms: ago_text(row.last_stored_at_ms, now_ms)),
    Column("groups", 7, 5, lambda row, _: count_text(row.group_count)),
    Column("queues", 6, 8, lambda row, _: _queues(row)),
    Column("type", 11, 7, lambda row, _: row.kind, is_right=False),
)
GROUPS: Final[Sequence[Column]] = (
    Column("group", 0, 0, lambda row, _: row.name, is_right=False),
    Column("ready", _COUNT, 1, lambda row, _: count_text(row.ready)),
    Column("in flight", 9, 4, lambda row, _: count_text(row.in_flight)),
    Column("behind by", _SPAN, 2, lambda row, _: span_ms_text(row.lag_ms)),
    Column("out/s", _RATE, 5, lambda row, _: rate_text(row.received_per_second)),
    Column("consumers", 9, 6, lambda row, _: count_text(row.consumers)),
    Column("dead letters", 12, 7, lambda row, _: count_text(row.dead_letters)),
    Column("topics", 6, 8, lambda row, _: count_text(row.topic_count)),
    Column("note", 11, 3, lambda row, _: _note(row), is_right=False, style=_warning),
)
_PAIR: Final[Sequence[Column]] = (
    Column("ready", _COUNT, 1, lambda row, _: count_text(row.ready)),
    Column("in flight", 9, 4, lambda row, _: count_text(row.in_flight)),
    Column("behind by", _SPAN, 2, lambda row, _: span_ms_text(row.lag_ms)),
    Column("out/s", _RATE, 3, lambda row, _: rate_text(row.received_per_second)),
    Column("consumers", 9, 5, lambda row, _: count_text(row.consumers)),
)
GROUPS_OF_TOPIC: Final[Sequence[Column]] = (
    Column("group", 0, 0, lambda row, _: row.group, is_right=False),
    *_PAIR,
)
TOPICS_OF_GROUP: Final[Sequence[Column]] = (
    Column("topic", 0, 0, lambda row, _: row.topic, is_right=False),
    *_PAIR,
)


def _queues(topic: Topic) -> str:
    if topic.read_queues == topic.write_queues:
        return count_text(topic.read_queues)
    return f"{topic.read_queues}/{topic.write_queues}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The rows of a view, and a remark on them."""

    columns: Sequence[Column]
    rows: Sequence[Topic] | Sequence[Group]
    remark: str


def matching_text(shown: int, matching: int, what: str, contains: str) -> str:
    """Return how many items match, and how many of them are shown."""
    matched = f"{count_text(matching)} {what.removesuffix('s') if matching == 1 else what}" + (
        f' with "{contains}"' if contains else ""
    )
    return matched if shown >= matching else f"{count_text(shown)} of {matched}"


def topic_details(topic: Topic, canvas: Canvas, now_ms: int) -> list[Text]:
    last = topic.last_stored_at_ms
    return [
        *flow("type", [item("", topic.kind), item("queues", _queues(topic))], canvas.width),
        *flow(
            "rates",
            [
                item("in", f"{rate_text(topic.sent_per_second)} /s"),
                item("out", f"{rate_text(topic.received_per_second)} /s"),
            ],
            canvas.width,
        ),
        *flow(
            "kept",
            [item("messages", count_text(topic.messages)), item("about", bytes_text(topic.estimated_bytes))],
            canvas.width,
        ),
        *flow(
            "last sent",
            [
                item("", "unknown" if last is None else f"{ago_text(last, now_ms)} ago"),
                item("", "" if last is None else time_text(last)),
            ],
            canvas.width,
        ),
        styled(""),
        *_pairs("GROUPS", GROUPS_OF_TOPIC, topic.pairs, topic.group_count, canvas),
    ]


def group_details(group: Group, canvas: Canvas) -> list[Text]:
    kind = "fifo" if group.is_fifo else "not in order"
    return [
        *flow("group", [item("", kind), item("max attempts", count_text(group.max_attempts))], canvas.width),
        *flow("consumers", [item("", count_text(group.consumers)), item("", _note(group), WARNING)], canvas.width),
        *flow(
            "waiting",
            [
                item("ready", count_text(group.ready)),
                item("in flight", count_text(group.in_flight)),
                item("behind by", span_ms_text(group.lag_ms)),
            ],
            canvas.width,
        ),
        *flow("dead", [item("letters not resent", count_text(group.dead_letters))], canvas.width),
        styled(""),
        *_pairs("TOPICS", TOPICS_OF_GROUP, group.pairs, group.topic_count, canvas),
    ]


def _pairs(
    title: str, columns: Sequence[Column], pairs: Sequence[Pair], count: int | None, canvas: Canvas
) -> list[Text]:
    remark = "none" if count == 0 else count_text(count)
    if count is None or count > len(pairs):
        remark = f"{len(pairs)} of {remark}"
    lines = [heading(title, remark, canvas.width)]
    return lines + (table(columns, pairs, canvas, 0) if pairs else [])
