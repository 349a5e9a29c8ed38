"""Decide whether the date that a call was signed with is recent.

Java, Python, Go and C# write their *local* time with a `Z` behind it, Node.js and C++ UTC in the same form, Rust
RFC 3339 with its offset. So a date without an offset of its own is valid when it is the present time in UTC, in the
broker's own zone or in one of the zones that the settings name (ADR 26).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final

from quarry_mq.protocol.signature import DATE_SIZE_MAX
from quarry_mq.server.errors import Outcome, Unauthenticated

_BASIC: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)
_WITH_OFFSET: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)

LOCAL: Final = None
"""Stands for the time zone of this machine."""


class Freshness:
    """Check dates of signed calls. With `window_ms` None any date is fresh. `zones` are those of clients beside UTC."""

    def __init__(self, window_ms: int | None, zones: Sequence[tzinfo | None] = (LOCAL,)) -> None:
        self._window_ms = window_ms
        self._zones = zones

    def fresh_until_ms(self, date: str, now_ms: int) -> int | None:
        """Return until when the date is valid; None is for ever. Raises Unauthenticated that says how far off it is."""
        if len(date) > DATE_SIZE_MAX:
            raise _no_date(date)
        if self._window_ms is None:
            return None
        read_ms = list(self._readings_ms(date))
        if not read_ms:
            raise _no_date(date)
        nearest_ms = min(read_ms, key=lambda each: abs(each - now_ms))
        if abs(nearest_ms - now_ms) > self._window_ms:
            text = _far_off(date, nearest_ms - now_ms, self._window_ms, is_exact=len(read_ms) == 1)
            raise Unauthenticated(text, Outcome.STALE)
        return nearest_ms + self._window_ms

    def _readings_ms(self, date: str) -> Iterator[int]:
        """Yield all times that the text may mean."""
        try:
            if _WITH_OFFSET.fullmatch(date):
                yield _to_ms(datetime.fromisoformat(date))
                return
            found = _BASIC.fullmatch(date)
            if found is None or not self._zones:
                return
            plain = datetime(*map(int, found.groups()))  # type: ignore[arg-type]  # six numbers, no zone
            yield _to_ms(plain.replace(tzinfo=UTC))
            for zone in self._zones:
                for fold in (0, 1):  # an hour occurs twice when summer time ends
                    yield _to_ms(plain.replace(tzinfo=zone, fold=fold))
        except (ValueError, OverflowError, OSError):  # 31 February, or a year out of range
            return


def _no_date(date: str) -> Unauthenticated:
    return Unauthenticated(f"the date {date[:DATE_SIZE_MAX]!r} is not in a format that clients sign", Outcome.STALE)


def _to_ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _far_off(date: str, off_ms: int, window_ms: int, *, is_exact: bool) -> str:
    how = f"{abs(off_ms) / 1000:.0f} s {'ahead of' if off_ms > 0 else 'behind'} the broker's clock"
    hint = "" if is_exact else "; the zone of a client that signs its local time must be in security.client_zones"
    return f"the date {date} is {how}, more than security.date_window_s ({window_ms // 1000} s){hint}"
