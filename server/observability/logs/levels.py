"""Translate levels of log lines between name and number, and drop lines below the shown level."""

from __future__ import annotations

import logging

import structlog
from structlog.typing import EventDict, WrappedLogger


def number_of(level: str) -> int:
    """Return the number of a level by its name in lower case."""
    return logging.getLevelNamesMapping()[level.upper()]


def known_level(number: int) -> int:
    """Return the nearest standard level at or below a library's own number."""
    return max(logging.DEBUG, min(logging.CRITICAL, number // 10 * 10))


class _Shown:
    """Hold the lowest level that is shown: one for the process, as there is one log."""

    number = logging.INFO


def set_log_level(level: str) -> None:
    """Set the lowest level that is shown, also for existing loggers and for libraries."""
    _Shown.number = number_of(level)
    logging.getLogger().setLevel(_Shown.number)


def of_shown_level(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Drop events below the shown level. A processor."""
    if structlog.processors.NAME_TO_LEVEL[method] < _Shown.number:
        raise structlog.DropEvent
    return event
