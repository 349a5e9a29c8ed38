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
        default="info", description="The lowest level of events that are logged.", json_schema_extra=LIVE
    )
    audit_file: Path | None = Field(
        default=None,
        description="A file to which denied calls and changes through the admin port are also logged, one JSON object "
        "per line. The broker only appends to it, and reopens it after it was moved away.",
    )
    access: bool = Field(default=False, description="Log one line for each call of a messaging client.")
    repeats_per_minute: int = Field(
        default=20,
        ge=0,
        description="Lines of one event that are written per minute. Of the lines above this limit only the last one "
        "is written, with the number of lines left out (`repeated`). 0: no limit. Lines of `log.access` are always "
        "written.",
    )


def _collector(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be a URL that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain a password; use OTEL_EXPORTER_OTLP_HEADERS instead")
    return url


class MetricsSection(Section):
    top_topics: int = Field(
        default=100,
        ge=1,
        le=1_000,
        description="How many topics, the busiest ones, have time series of their own; all others are added up in one "
        "series.",
    )
    top_groups: int = Field(
        default=100, ge=1, le=1_000, description="The same number for pairs of a consumer group and a topic."
    )
    lag_interval_ms: int = Field(
        default=15_000,
        ge=100,
        description="Pause between two runs that count the lag of groups and the pending messages.",
    )
    lag_limit_ms: int = Field(
        default=600_000,
        ge=1,
        description="A group whose oldest message waits longer than this is a concern (docs/concerns.md).",
    )


class TracingSection(Section):
    endpoint: Annotated[str, AfterValidator(_collector)] | None = Field(
        default=None,
        description="Where traces are sent: a collector that accepts OTLP over HTTP, such as "
        "`http://127.0.0.1:4318/v1/traces`. Without this setting nothing is traced. Needs the extra `tracing`.",
    )
    sample_ratio: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="The share of calls that are traced if the client has not decided; 1 means all.",
    )
