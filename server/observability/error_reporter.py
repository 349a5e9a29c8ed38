"""Report faults of the broker that calls meet, without flooding the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from quarry_mq.kv import EngineCorrupt, KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.errors import MemberUnreachable, NoCluster, NotAMember
from quarry_mq.server.wire.status import is_expected
from quarry_mq.store.errors import MessageGivenUp, SecretsUnreadable, StoreDamaged, StorePoisoned

REPEATED_AFTER_S: Final = 300.0
PLACES_MAX: Final = 256
"""Damaged places that are told apart: the log gets no more lines than this in `REPEATED_AFTER_S`."""

log = structlog.get_logger(__name__)


class Damage(NamedTuple):
    """A damaged place. `path` is the damaged file, or the directory of the damaged database; None if it is not known.
    `first_s` is the monotonic time at which it was first met, `record_at` the log offset of a record.
    """

    text: str
    path: Path | None
    first_s: float
    record_at: int | None = None


class ErrorReporter:
    """Write faults into the log, but no more lines than an operator can read.

    Errors of clients are not logged: the client sees them. A poisoned store refuses thousands of sends a second, and
    is logged once, when it is poisoned. A damaged place is met at every receive of every group whose offset is before
    it: it gets a line without traceback now and then, and is counted each time. A database file that cannot be read or
    written gets such a line, too, but is not counted, since any call may meet it; so do secrets whose key is missing.
    Anything else gets a traceback.
    """

    def __init__(self, clock: Clock, *, damage_met: Callable[[], None], passed_over: Callable[[], None]) -> None:
        """`damage_met` is called each time damaged data is met, `passed_over` for each message that is given up."""
        self._clock = clock
        self._damage_met = damage_met
        self._passed_over = passed_over
        self._logged_s: dict[str, float] = {}
        """Monotonic time at which each damaged place was last logged, oldest first."""
        self._damage: dict[str, Damage] = {}

    def recent(self) -> list[str]:
        """Return the faults but damage that were logged within `REPEATED_AFTER_S`, the last one first."""
        now_s = self._clock.monotonic_s()
        logged = reversed(self._logged_s.items())
        return [text for text, at_s in logged if now_s - at_s < REPEATED_AFTER_S and text not in self._damage]

    def damage(self) -> list[Damage]:
        """Return the damaged places that were met since the start, the last one first, without those forgotten."""
        return list(reversed(self._damage.values()))

    def drop(self, damage: Damage) -> None:
        """Drop a damaged place that is whole again, or is gone; whoever meets it again is told again."""
        if self._damage.pop(damage.text, None) is not None:
            self._logged_s.pop(damage.text, None)
            log.info("damage is gone", place=damage.text)

    def report(self, error: Exception, **where: object) -> None:
        """Log the error, unless it is expected or was logged recently; `where` is logged with it."""
        if is_expected(error) or isinstance(error, StorePoisoned):
            return
        if isinstance(error, MessageGivenUp):
            self._passed_over()
            if self._is_due(str(error)):
                log.warning("message passed over", error=str(error), **where)
            return
        if isinstance(error, StoreDamaged | EngineCorrupt):
            self._damage_met()
            if self._is_due(self._note_damage(error)):
                log.error("damaged data", error=str(error), **where)
            return
        if isinstance(error, SecretsUnreadable):
            if self._is_due(str(error)):
                log.error("no key for secrets", error=str(error), **where)
            return
        if isinstance(error, NotAMember):
            if self._is_due("a call of no member"):
                log.warning("a call of no member was refused", reason=str(error), **where)
            return
        if isinstance(error, MemberUnreachable | NoCluster):
            return
        if type(error) is KvError:  # its subclasses are other faults
            if self._is_due(str(error)):
                log.error("disk error", error=str(error), **where)
            return
        log.error("call failed", exc_info=error, **where)

    def _note_damage(self, error: StoreDamaged | EngineCorrupt) -> str:
        """Return the place that is damaged, the same for all who meet it."""
        place, record_at = (error.place, error.record_at) if isinstance(error, StoreDamaged) else (str(error), None)
        if record_at is not None:
            known = (each.text for each in self._damage.values() if each.record_at == record_at)
            place = next(known, place)  # who reads it for another purpose tells of it in other words
        if place not in self._damage and len(self._damage) < PLACES_MAX:
            path = error.path if isinstance(error, StoreDamaged) else error.directory
            self._damage[place] = Damage(place, path, self._clock.monotonic_s(), record_at)
        return place

    def _is_due(self, place: str) -> bool:
        logged_s, now_s = self._logged_s, self._clock.monotonic_s()
        while logged_s and now_s - next(iter(logged_s.values())) >= REPEATED_AFTER_S:
            del logged_s[next(iter(logged_s))]
        if place in logged_s or len(logged_s) >= PLACES_MAX:
            return False
        logged_s[place] = now_s
        return True
