"""Authenticate calls of the messaging port: their signatures, and the dates that they were signed with.

A date has to be recent. Java, Python, Go and C# write their *local* time with a `Z` behind it, Node.js and C++ UTC in
the same form, Rust RFC 3339 with its offset. So a date without an offset of its own is valid when it is the present
time in UTC, in the broker's own zone or in one of the zones that the settings name (ADR 26).
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.signature import (
    AUTHORIZATION,
    DATE,
    DATE_SIZE_MAX,
    Claim,
    date_signature,
    parse_authorization,
    remoting_signature,
)
from quarry_mq.server.errors import Outcome, Unauthenticated
from quarry_mq.server.front import Call
from quarry_mq.server.front.remoting import RemotingCall
from quarry_mq.server.security.credentials import Credentials, Identity, source_of
from quarry_mq.store.lru_cache import LruCache

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


REMEMBERED_MAX: Final = 8192
"""Proofs kept in each of two generations. A client makes a new one each second."""


class Authenticator:
    """Authenticate a call by its signature if it has one, else by the client's certificate.

    Valid signatures are remembered, so that the calls of one second cost one HMAC: until a user changes, and no
    longer than their date is fresh.
    """

    def __init__(self, credentials: Credentials, freshness: Freshness, clock: Clock) -> None:
        self._credentials = credentials
        self._freshness = freshness
        self._clock = clock
        self._generation = credentials.generation
        self._remembered: LruCache[tuple[str, str], tuple[Identity, int | None]]
        self._remembered = LruCache(REMEMBERED_MAX)

    def identify(self, call: Call) -> Identity:
        """Return who calls. Raises Unauthenticated, TooManyFailures."""
        authorization, date = call.header(AUTHORIZATION), call.header(DATE) or ""
        if authorization is not None:
            known = self._recall((authorization, date))
            if known is not None:
                self._credentials.metrics.remembered()
                return known
        return self._credentials.timed(lambda: self._find_out(call, authorization, date))

    def _recall(self, proof: tuple[str, str]) -> Identity | None:
        if self._generation != self._credentials.generation:
            self._generation = self._credentials.generation
            self._remembered = LruCache(REMEMBERED_MAX)
        known = self._remembered.get(proof)
        if known is None:
            return None
        identity, fresh_until_ms = known
        return identity if fresh_until_ms is None or self._clock.wall_ms() <= fresh_until_ms else None

    def _find_out(self, call: Call, authorization: str | None, date: str) -> Identity:
        claim = parse_authorization(authorization)
        if claim is None or authorization is None:
            return self._credentials.by_certificate(call.peer_certificate)
        # before the signature: a wrong clock is no attack, and its owner has to see this error
        fresh_until_ms = self._freshness.fresh_until_ms(date, self._clock.wall_ms())
        identity = self._credentials.by_signature(
            claim, source_of(call.peer), lambda secret: date_signature(secret, date)
        )
        if self._remembered.is_full:
            self._remembered.rotate()
        self._remembered.put((authorization, date), (identity, fresh_until_ms))
        return identity


SIGNATURE_FIELD: Final = "Signature"
ACCESS_KEY_FIELD: Final = "AccessKey"
SIGNS_UNIQUE_KEY_QUERY: Final = 400
"""Version of clients from which on they sign this field, too; older ones add it after they have signed (RocketMQ
4.9.3).
"""

_LEFT_OUT: Final = frozenset({SIGNATURE_FIELD})
_LEFT_OUT_BEFORE: Final = frozenset({SIGNATURE_FIELD, "_UNIQUE_KEY_QUERY"})


class RemotingAuthenticator:
    """Authenticate a request of the remoting protocol by its signature if it has one, else by a certificate.

    The signature covers no time, so a request that somebody has recorded can be sent again: only TLS prevents that.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def identify(self, call: RemotingCall) -> Identity:
        """Return who calls. Raises Unauthenticated, TooManyFailures."""
        return self._credentials.timed(lambda: self._find_out(call))

    def _find_out(self, call: RemotingCall) -> Identity:
        command, fields = call.command, call.fields
        user = fields.get(ACCESS_KEY_FIELD)
        if not user:
            return self._credentials.by_certificate(call.connection.peer_certificate)
        try:
            signature = b64decode(fields.get(SIGNATURE_FIELD, ""), validate=True)
        except ValueError:
            signature = b""
        left_out = _LEFT_OUT if command.version >= SIGNS_UNIQUE_KEY_QUERY else _LEFT_OUT_BEFORE
        return self._credentials.by_signature(
            Claim(user, signature),
            source_of(call.peer),
            lambda secret: remoting_signature(secret, fields, command.body, left_out=left_out),
        )
