"""Fields of answers that may not be set: None stands for what the broker does not know."""

from __future__ import annotations

from typing import Any

from cli.terminal.times import time_text


def known(message: Any, field: str) -> Any:
    """None for what is not set."""
    return getattr(message, field) if message.HasField(field) else None


def known_time(message: Any, field: str) -> str | None:
    """Of a field in milliseconds since 1970."""
    milliseconds = known(message, field)
    return None if milliseconds is None else time_text(milliseconds)


def known_seconds(message: Any, field: str) -> float | None:
    """Of a field in milliseconds."""
    milliseconds = known(message, field)
    return None if milliseconds is None else milliseconds / 1000


def known_rounded(message: Any, field: str, digits: int = 1) -> float | None:
    value = known(message, field)
    return None if value is None else round(value, digits)
