"""Draws tables of topics and groups, and the details of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from quarry_mq.cli.online.top.facts import Group, Pair, Topic
from quarry_mq.cli.online.top.screen.lines import WARNING, Canvas, Column, flow, heading, item, styled, table
from quarry_mq.cli.online.top.screen.texts import bytes_text, count_text, rate_text, span_ms_text
from quarry_mq.cli.terminal.times import time_text

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
