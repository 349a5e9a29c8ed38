"""The report as a browser reads it, and the drawing in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from quarry_mq.pipeline.stats import report_html
from quarry_mq.pipeline.stats.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, chart, nice_above
from quarry_mq.pipeline.stats.model import (
    Duplicates,
    GroupStats,
    KeyStats,
    Lag,
    Point,
    QueueStats,
    RepeatedId,
    Skew,
    Statistics,
    TagStats,
    TopicStats,
    Volume,
    Wanted,
)
from quarry_mq.pipeline.stats.words import duration_text, short_text, size_text, time_text

MADE_AT = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
HOUR_MS = 3_600_000
BEGIN_MS = 1_795_219_200_000
SERIES = (Point(BEGIN_MS, 30, 3000), Point(BEGIN_MS + 2 * HOUR_MS, 90, 9000))
VOLUME = Volume(120, 12_000, 6_000, 1.5, 150.0)
HOSTILE = "<script>alert('x')</script>\"'&</bdi>{{ 7 * 7 }}"
VOID = {"meta"}


def stats(name: str = "orders") -> Statistics:
    """Statistics in which every text that comes from a store is `name`."""
    topic = TopicStats(
        topic=name,
        volume=VOLUME,
        first_stored=BEGIN_MS,
        last_stored=BEGIN_MS + 2 * HOUR_MS,
        busiest_minute=SERIES[1],
        queue_count=4,
        skew=Skew(1.5, 0.25),
        queues=(QueueStats(0, VOLUME),),
        tag_count=2,
        tags=(TagStats(name, VOLUME), TagStats(None, VOLUME)),
        keys=(KeyStats(name, 7),),
        duplicates=Duplicates(1, 2),
        series=SERIES,
    )
    return Statistics(
        wanted=Wanted(topics=(name,)),
        store=f"/data/{name}",
        volume=VOLUME,
        first_stored=BEGIN_MS,
        last_stored=BEGIN_MS + 2 * HOUR_MS,
        busiest_minute=SERIES[1],
        bucket_ms=HOUR_MS,
        series=SERIES,
        topic_count=9,
        topics=(topic,),
        duplicates=Duplicates(1, 2),
        repeated_ids=(RepeatedId(name, name, 3),),
        lag=Lag(None, 1, 17, 2, (GroupStats(name, name, 4, 17, 2, 3),)),
    )


class Page(HTMLParser):
    """Elements and texts, with every element closed where it must be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_names_of_strangers_are_nothing_but_text() -> None:
    plain, hostile = Page(report_html(stats(), MADE_AT)), Page(report_html(stats(HOSTILE), MADE_AT))
    assert [tag for tag, _ in plain.elements] == [tag for tag, _ in hostile.elements]
    assert [sorted(attributes) for _, attributes in plain.elements] == [
        sorted(attributes) for _, attributes in hostile.elements
    ]
    assert "script" not in {tag for tag, _ in hostile.elements}
    # topic (twice), tag, key, the group and its topic, the repeated id and its topic, what was wanted
    assert hostile.texts.count(HOSTILE) == 9


def test_the_page_loads_nothing_and_says_so_to_the_browser() -> None:
    page = Page(report_html(stats(), MADE_AT))
    policy = next(attributes for _, attributes in page.elements if "http-equiv" in attributes)
    assert policy == {
        "http-equiv": "Content-Security-Policy",
        "content": "default-src 'none'; style-src 'unsafe-inline'",
    }
    links = [value for _, attributes in page.elements for name, value in attributes.items() if name in ("src", "href")]
    assert links == ["#topic-1"]
    styles = page.texts[page.texts.index("Statistics of /data/orders") + 1 :]
    assert not any("url(" in text or "@import" in text for text in styles)


def test_every_bar_says_its_time_and_value() -> None:
    html = report_html(stats(), MADE_AT)
    assert html.count("<title>2026-11-21 00:00:00Z: 0.0083/s</title>") == 2
    assert html.count("<title>2026-11-21 02:00:00Z: 2.50 B/s</title>") == 2


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"lag": Lag("a broker runs")}, "How far groups are behind is not known: a broker runs"),
        ({"lag": Lag(None)}, "no group has read anything"),
        ({"topic_count": 21}, "And 20 more."),
    ],
)
def test_what_is_not_there_is_said(changed: dict[str, Any], told: str) -> None:
    assert any(told in text for text in Page(report_html(replace(stats(), **changed), MADE_AT)).texts)


def test_a_store_without_messages_has_a_report() -> None:
    empty = replace(
        stats(),
        volume=Volume(0, 0, 0, None, None),
        first_stored=None,
        last_stored=None,
        busiest_minute=None,
        series=(),
        topics=(),
        topic_count=0,
        wanted=Wanted(from_ms=0, to_ms=1),
    )
    page = Page(report_html(empty, MADE_AT))
    assert "no messages" in page.texts
    assert "svg" not in {tag for tag, _ in page.elements}


def test_bars_stand_at_their_times_and_as_high_as_their_values() -> None:
    drawn = chart(SERIES, HOUR_MS, lambda point: point.messages, short_text)
    width = (WIDTH - LEFT - RIGHT) / 3
    assert [bar.x for bar in drawn.bars] == pytest.approx([LEFT, LEFT + 2 * width], abs=0.01)
    assert [bar.width for bar in drawn.bars] == pytest.approx([width, width], abs=0.01)
    highest = HEIGHT - TOP - BOTTOM
    assert [bar.height for bar in drawn.bars] == pytest.approx([0.3 * highest, 0.9 * highest])
    assert all(bar.y + bar.height == pytest.approx(HEIGHT - BOTTOM) for bar in drawn.bars)
    assert [tick.label for tick in drawn.upward] == ["0", "50", "100"]
    assert [tick.label for tick in drawn.across] == ["00:00", "01:00", "02:00"]


def test_days_are_told_where_there_are_several_and_labels_are_few() -> None:
    points = [Point(BEGIN_MS + number * HOUR_MS, 1, 1) for number in range(100)]
    labels = [tick.label for tick in chart(points, HOUR_MS, lambda point: point.messages, short_text).across]
    assert labels[0] == "11-21 00:00"
    assert len(labels) == 6


@pytest.mark.parametrize(("value", "above"), [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (5, 5), (51, 100), (1.1e12, 2e12)])
def test_axes_end_at_a_round_number(value: float, above: float) -> None:
    assert nice_above(value) == pytest.approx(above)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.50 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (2**70, "1,024 EiB"),
    ],
)
def test_sizes_are_short(size: int, text: str) -> None:
    assert size_text(size) == text


def test_times_and_durations_are_readable() -> None:
    assert time_text(BEGIN_MS) == "2026-11-21 00:00:00Z"
    assert time_text(2**62) == str(2**62)
    assert [duration_text(minutes * 60_000) for minutes in (1, 30, 60, 180, 1440)] == [
        "1 minute",
        "30 minutes",
        "1 hour",
        "3 hours",
        "1 day",
    ]
