"""Renders statistics as one HTML file that needs nothing else: no script, no network.

Names come from senders of messages. The template escapes everything, and the page forbids the browser to run or load
anything.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from quarry_mq.pipeline.stats import chart as drawing
from quarry_mq.pipeline.stats.chart import Chart, chart
from quarry_mq.pipeline.stats.model import Point, Statistics
from quarry_mq.pipeline.stats.words import count_text, duration_text, short_text, size_text, time_text

TEMPLATE: Final = "report.html.jinja"
_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(count=count_text, size=size_text, short=short_text, time=time_text, duration=duration_text)


def report_html(found: Statistics, made_at: datetime) -> str:
    """Return the page. `made_at` is shown with its time zone."""

    def messages(points: tuple[Point, ...]) -> Chart:
        return chart(
            points, found.bucket_ms, lambda point: point.messages / bucket_s, lambda rate: f"{short_text(rate)}/s"
        )

    def volume(points: tuple[Point, ...]) -> Chart:
        return chart(
            points, found.bucket_ms, lambda point: point.store_bytes / bucket_s, lambda rate: f"{size_text(rate)}/s"
        )

    bucket_s = found.bucket_ms / 1000
    template = _ENVIRONMENT.get_template(TEMPLATE)
    return template.render(
        found=found,
        made_at=f"{made_at:%Y-%m-%d %H:%M %Z}",
        messages_chart=messages,
        volume_chart=volume,
        drawing=drawing,
    )
