"""The broker's own log."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from server.setting_sections.base import LIVE, Section


class LogSection(Section):
    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="`auto`: readable on a terminal, JSON lines elsewhere."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important events shown.", json_schema_extra=LIVE
    )
    access: bool = Field(default=False, description="A line for each call of a messaging client.")
