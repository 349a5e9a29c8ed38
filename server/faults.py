"""Faults of the broker that calls meet, and what the log hears of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from quarry_mq.kv import EngineCorrupt, KvError
from quarry_mq.server.errors import MemberUnreachable, NoCluster, NotAMember
from quarry_mq.server.wire.status import is_expected
from quarry_mq.store.clock import Clock
from quarry_mq.store.errors import MessageGivenUp, SecretsUnreadable, StoreDamaged, StorePoisoned

REPEATED_AFTER_S: Final = 300.0
PLACES_MAX: Final = 256
"""Damaged places that are told apart: no more lines than that in `REPEATED_AFTER_S`, however much is damaged."""

log = structlog.get_logger(__name__)


class FaultLog:
    """Writes faults into the log, and no more of it than an operator can read.

    Errors of clients are theirs to see. A poisoned store refuses thousands of sends a second, and was logged when
    it came to be so. A damaged place is met at every receive of every group that stands before it: it gets a line
    without traceback now and then, and each time is counted. So does a file of a database that cannot be read or
    written, uncounted: whoever asks meets it, as often as they ask; and so do secrets that the key is missing for.
    Anything else gets a traceback.
    """

    def __init__(self, clock: Clock, *, damage_met: Callable[[], None], passed_over: Callable[[], None]) -> None:
        """`damage_met` is called each time that something damaged is met, `passed_over` for what was given up."""
        self._clock = clock
        self._damage_met = damage_met
        self._passed_over = passed_over
        self._logged_s: dict[str, float] = {}
        """When each damaged place was last logged, oldest first."""

    def recent(self) -> list[str]:
        """Damaged places and the like that were met within `REPEATED_AFTER_S`, or soon before, the last one first."""
        now_s = self._clock.monotonic_s()
        return [text for text, at_s in reversed(self._logged_s.items()) if now_s - at_s < REPEATED_AFTER_S]

    def report(self, error: Exception, **where: object) -> None:
        """`where` goes into the log beside the error."""
        if is_expected(error) or isinstance(error, StorePoisoned):
            return
        if isinstance(error, MessageGivenUp):
            self._passed_over()
            if self._is_due(str(error)):
                log.warning("message passed over", error=str(error), **where)
            return
        if isinstance(error, StoreDamaged | EngineCorrupt):
            self._damage_met()
            if self._is_due(str(error)):
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
        if type(error) is KvError:  # subclasses tell what else it is
            if self._is_due(str(error)):
                log.error("disk error", error=str(error), **where)
            return
        log.error("call failed", exc_info=error, **where)

    def _is_due(self, place: str) -> bool:
        logged_s, now_s = self._logged_s, self._clock.monotonic_s()
        while logged_s and now_s - next(iter(logged_s.values())) >= REPEATED_AFTER_S:
            del logged_s[next(iter(logged_s))]
        if place in logged_s or len(logged_s) >= PLACES_MAX:
            return False
        logged_s[place] = now_s
        return True
