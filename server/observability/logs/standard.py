"""Log what libraries log, Python's warnings and the ends of failed threads in the same way as our own events.

The C core of grpcio writes to standard error by itself, and only there; its environment variable `GRPC_VERBOSITY`
says how much.
"""

from __future__ import annotations

import logging
import threading

import structlog

from quarry_mq.server.observability.logs.levels import known_level

log = structlog.get_logger(__name__)


def take_over_standard_logging() -> None:
    """Send everything of `logging` through structlog, with warnings and failed threads."""
    root = logging.getLogger()
    root.handlers[:] = [_ToStructlog()]
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_ended


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - its arguments do not fit: it is logged without them
            text = str(record.msg)
        error = record.exc_info[1] if record.exc_info else None
        log.log(known_level(record.levelno), "message of a library", logger=record.name, text=text, exc_info=error)


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:
        name = None if ended.thread is None else ended.thread.name
        log.error("thread ended", thread=name, exc_info=ended.exc_value)
