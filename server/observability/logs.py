"""Write log lines: key=value on a terminal, JSON elsewhere (a container's log collector).

Everything that this process has to say goes this way, also what libraries say: one line per event, values that came
from outside made harmless, the same event not more often than an operator can read. `docs/log-events.md` has them all.

A client may have sent the values of a line. One event must stay one line, and no line may be forged: a name with a line
break in it would forge the next line, one with escape sequences would control the operator's terminal, and a long one
would fill the disk. What libraries log, Python's warnings and the ends of failed threads are logged in the same way as
our own events; only the C core of grpcio writes to standard error by itself (`GRPC_VERBOSITY` says how much).

Events that repeat are held back: a damaged file or hostile clients must not fill the disk with log lines. In each
minute that begins with a line of an event, a set number of its lines is written. Of the lines above that number only
the last is kept, without its traceback, and written when the minute is over; its key `repeated` is the number of lines
that were dropped before it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Final, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from quarry_mq.protocol.clock import Clock, SystemClock

log = structlog.get_logger(__name__)


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


MINUTE_S: Final = 60.0
NEVER_SUPPRESSED: Final = frozenset({"call", "call denied", "admin change"})
"""Events whose lines are all written: `log.access` asks for a line per call, and audit lines are a record."""

EVENTS_MAX: Final = 1_024
"""Most events that are told apart. There are about a hundred; a library may have any number of loggers."""

_Name = tuple[str, str, str]


class _Minute:
    """Count the lines of one event in the minute since the first of them."""

    __slots__ = ("began_s", "last", "suppressed", "written")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.written = 0
        self.suppressed = 0
        self.last: EventDict = {}


class Repeats:
    """Hold back repeated events, as a processor of structlog. Any thread may log."""

    def __init__(self, per_minute: int, clock: Clock, write: Callable[[EventDict], None]) -> None:
        """`write` writes a line that was held back. With `per_minute` 0 no line is held back."""
        self.per_minute = per_minute
        self._clock = clock
        self._write = write
        self._lock = Lock()
        self._minutes: dict[_Name, _Minute] = {}  # guarded by _lock; the oldest first

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if self.per_minute > 0 and event["event"] not in NEVER_SUPPRESSED and self._is_suppressed(event):
            raise structlog.DropEvent
        return event

    def tell_due(self, *, all_of_them: bool = False) -> None:
        """Write lines held back in minutes that are over; to be called now and then, and at the end for all."""
        now_s = self._clock.monotonic_s()
        over: list[_Minute] = []
        with self._lock:
            while self._minutes:
                oldest = next(iter(self._minutes))
                if not all_of_them and now_s - self._minutes[oldest].began_s < MINUTE_S:
                    break
                over.append(self._minutes.pop(oldest))
        for each in over:
            if each.suppressed > 1:
                each.last["repeated"] = each.suppressed - 1
            if each.suppressed:
                self._write(each.last)

    def _is_suppressed(self, event: EventDict) -> bool:
        self.tell_due()
        name = (str(event["level"]), str(event["event"]), str(event.get("logger", "")))
        with self._lock:
            minute = self._minutes.get(name)
            if minute is None:
                if len(self._minutes) >= EVENTS_MAX:
                    return False  # too many events: better too many lines than the first of an event lost
                minute = self._minutes[name] = _Minute(self._clock.monotonic_s())
            if minute.written < self.per_minute:
                minute.written += 1
                return False
            minute.suppressed += 1
            minute.last = {key: value for key, value in event.items() if key not in {"exc_info", "stack_info"}}
            return True


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


VALUE_LENGTH_MAX: Final = 2_048
"""Most characters of one value. Errors that name a file are far shorter."""
TRACEBACK_LENGTH_MAX: Final = 16_384
CUT: Final = "…"
TRACEBACK: Final = "exception"


def clean(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Clean all values of an event and drop keys without one. A processor for after exceptions become text."""
    for key, value in tuple(event.items()):
        if value is None:
            del event[key]
        elif key == TRACEBACK:
            event[key] = clean_traceback(str(value))
        elif isinstance(value, str):
            event[key] = clean_text(value, VALUE_LENGTH_MAX)
        elif not isinstance(value, int | float):
            event[key] = _clean_other(value)
    return event


def clean_text(text: str, length_max: int) -> str:
    """Return printable text on one line, of `length_max` characters at most."""
    if len(text) > length_max:
        text = text[: length_max - 1] + CUT
    return text if text.isprintable() else "".join(map(_visible, text))


def clean_traceback(text: str) -> str:
    """Indent all lines but the first, so that none looks like a log line. Of a long text the end is kept."""
    if len(text) > TRACEBACK_LENGTH_MAX:
        text = CUT + text[-TRACEBACK_LENGTH_MAX:]
    return "\n  ".join(clean_text(line, VALUE_LENGTH_MAX) for line in text.split("\n"))


def _clean_other(value: object) -> object:
    """Return short collections as they are, and long ones as shortened text."""
    text = repr(value)
    return value if len(text) <= VALUE_LENGTH_MAX else clean_text(text, VALUE_LENGTH_MAX)


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


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
