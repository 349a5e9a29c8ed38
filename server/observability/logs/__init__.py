"""Write log lines: key=value on a terminal, JSON elsewhere (a container's log collector).

Everything that this process has to say goes this way, also what libraries say: one line per event, values that came
from outside made harmless, the same event not more often than an operator can read. `docs/log-events.md` has them all.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.server.observability.logs.processors import (
    Repeats,
    clean,
    of_shown_level,
    set_log_level,
    take_over_standard_logging,
)

__all__ = ["Repeats", "configure_logs", "set_log_level"]


class _Output(structlog.PrintLogger):
    """Write lines and ignore errors: a stop must not fail because the reader is gone or a disk is full."""

    def msg(self, message: str) -> None:
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warning = error = critical = exception = msg


def configure_logs(
    log_format: Literal["auto", "json", "console"],
    level: str,
    repeats_per_minute: int = 0,
    *,
    clock: Clock | None = None,
) -> Repeats:
    """Send all log events of this process to standard error. Returns the processor that holds repeated ones back.

    Lines of one event beyond `repeats_per_minute` are held back; with 0 none ever is.
    """
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    rendering: list[Processor] = [structlog.processors.format_exc_info, clean]
    if as_json:
        rendering += [_in_reading_order, structlog.processors.JSONRenderer()]
    else:
        rendering.append(
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        )
    output = _Output(sys.stderr)

    def write(event: EventDict) -> None:
        rendered: object = event
        for processor in rendering:
            rendered = processor(output, str(event["level"]), rendered)  # type: ignore[arg-type]
        output.msg(str(rendered))

    repeats = Repeats(repeats_per_minute, clock or SystemClock(), write)
    structlog.configure(
        processors=[
            of_shown_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            repeats,
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=True,
    )
    take_over_standard_logging()
    set_log_level(level)
    return repeats


def _in_reading_order(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Put time, level and event first; then the rest."""
    first = ("timestamp", "level", "event")
    return {key: event[key] for key in (*first, *(key for key in event if key not in first)) if key in event}
