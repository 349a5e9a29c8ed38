"""Settings of the broker's log, metrics and traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from quarry_mq.server.settings.sections.base import LIVE, Section


class LogSection(Section):
    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="`auto`: readable on a terminal, JSON lines elsewhere."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important events shown.", json_schema_extra=LIVE
    )
    audit_file: Path | None = Field(
        default=None,
        description="A file for what the log says of denied calls and of changes through the admin port, a JSON object "
        "a line. It is only added to, and opened anew when it was moved away.",
    )
    access: bool = Field(default=False, description="A line for each call of a messaging client.")
    repeats_per_minute: int = Field(
        default=20,
        ge=0,
        description="Lines of one event in a minute; of more only the last is written, with how many there were "
        "before it (`repeated`). 0: all are written, as lines of `log.access` always are.",
    )


def _collector(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be a URL that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a password; OTEL_EXPORTER_OTLP_HEADERS may hold one")
    return url


class MetricsSection(Section):
    top_topics: int = Field(
        default=100,
        ge=1,
        le=1_000,
        description="How many topics have series of their own, the busiest ones; the others are summed up.",
    )
    top_groups: int = Field(
        default=100, ge=1, le=1_000, description="The same for pairs of a consumer group and a topic."
    )
    lag_interval_ms: int = Field(
        default=15_000,
        ge=100,
        description="Pause between two rounds in which the lag of groups, and how much waits, is found out.",
    )


class TracingSection(Section):
    endpoint: Annotated[str, AfterValidator(_collector)] | None = Field(
        default=None,
        description="Where traces go: a collector that takes OTLP over HTTP, as `http://127.0.0.1:4318/v1/traces`. "
        "Without it nothing is traced. Needs the extra `tracing`.",
    )
    sample_ratio: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Which part of the calls is traced that no client has decided about; 1 is all of them.",
    )
