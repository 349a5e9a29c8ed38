"""Log lines: key=value on a terminal, JSON elsewhere (a container's log collector)."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def configure_logs(log_format: Literal["auto", "json", "console"], level: str) -> None:
    """Send all log events of this process to standard error: those of the level, and those above it."""
    set_log_level(level)
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, _in_reading_order, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[_of_level, *shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def set_log_level(level: str) -> None:
    """Show events of another level from now on, also those of loggers that exist."""
    _Level.number = logging.getLevelNamesMapping()[level.upper()]


class _Level:
    """The least important level that is shown. One for the process, as its log is."""

    number = logging.INFO


def _of_level(
    _logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Drop what is not important enough."""
    if structlog.processors.NAME_TO_LEVEL[method] < _Level.number:
        raise structlog.DropEvent
    return event


def _in_reading_order(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """When, how bad, what; then the rest."""
    first = ("timestamp", "level", "event")
    return {key: event[key] for key in (*first, *(key for key in event if key not in first)) if key in event}
