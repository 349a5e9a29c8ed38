"""Levels of log lines, by name and by number."""

from __future__ import annotations

import logging

import structlog
from structlog.typing import EventDict, WrappedLogger


def number_of(level: str) -> int:
    """The number of a level by its name in lower case."""
    return logging.getLevelNamesMapping()[level.upper()]


def known_level(number: int) -> int:
    """The nearest level at or below a number that some library made up."""
    return max(logging.DEBUG, min(logging.CRITICAL, number // 10 * 10))


class _Shown:
    """The least important level that is shown: one for the process, as its log is."""

    number = logging.INFO


def set_log_level(level: str) -> None:
    """Show events of another level from now on, also those of loggers that exist, and of libraries."""
    _Shown.number = number_of(level)
    logging.getLogger().setLevel(_Shown.number)


def of_shown_level(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """A processor: drops what is not important enough."""
    if structlog.processors.NAME_TO_LEVEL[method] < _Shown.number:
        raise structlog.DropEvent
    return event
