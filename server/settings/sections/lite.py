"""Lite topics."""

from __future__ import annotations

from pydantic import Field

from server.settings.sections.base import Section


class LiteSection(Section):
    expiry_interval_ms: int = Field(
        default=120_000,
        ge=0,
        description="How often lite topics are looked for whose last message is older than their topic's "
        "`lite.topic.expiration`. 0: none expires.",
    )
