"""What is exported about the broker."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from server.settings.sections.base import Section


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
