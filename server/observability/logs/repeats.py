"""Hold back events that repeat: a damaged file or hostile clients must not fill the disk with log lines.

In each minute that begins with a line of an event, a set number of its lines is written. Of the lines above that number
only the last is kept, without its traceback, and written when the minute is over; its key `repeated` is the number of
lines that were dropped before it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

import structlog
from structlog.typing import EventDict, WrappedLogger

from quarry_mq.protocol.clock import Clock

MINUTE_S: Final = 60.0
NEVER_HELD_BACK: Final = frozenset({"call", "call denied", "admin change"})
"""Events whose lines are all written: `log.access` asks for a line per call, and audit lines are a record."""

EVENTS_MAX: Final = 1_024
"""Most events that are told apart. There are about a hundred; a library may have any number of loggers."""

_Name = tuple[str, str, str]


class _Minute:
    """Count the lines of one event in the minute since the first of them."""

    __slots__ = ("began_s", "held_back", "last", "written")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.written = 0
        self.held_back = 0
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
        if self.per_minute > 0 and event["event"] not in NEVER_HELD_BACK and self._is_held_back(event):
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
            if each.held_back > 1:
                each.last["repeated"] = each.held_back - 1
            if each.held_back:
                self._write(each.last)

    def _is_held_back(self, event: EventDict) -> bool:
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
            minute.held_back += 1
            minute.last = {key: value for key, value in event.items() if key not in {"exc_info", "stack_info"}}
            return True
