"""The broker's own log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from server.settings.sections.base import LIVE, Section


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
