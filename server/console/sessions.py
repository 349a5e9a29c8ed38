"""Who is logged in. Secrets are in memory alone, and go with their session."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from quarry_mq.server.console.contract import Identity
from quarry_mq.store.clock import Clock

IDLE_END_S: Final = 30 * 60.0
ABSOLUTE_END_S: Final = 12 * 3600.0
"""From the last thing that its user did, and from the login."""

SESSIONS_MAX: Final = 256
"""Beyond it whoever did nothing for longest is logged out."""

ID_BYTES: Final = 32


@dataclass(slots=True, eq=False)
class Session:
    """`user` None: whoever the connection to the broker shows."""

    user: str | None
    secret: str | None = field(repr=False)
    identity: Identity
    began_s: float
    used_s: float
    on_end: set[Callable[[], None]] = field(default_factory=set)
    """What is called when it ends, such as the ends of its streams."""


class Sessions:
    """By ids that nobody guesses, of which only the hash is kept. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: str | None, secret: str | None, identity: Identity) -> str:
        """Returns its id."""
        self.sweep()
        while len(self._sessions) >= SESSIONS_MAX:
            self._end(min(self._sessions, key=lambda key: self._sessions[key].used_s))
        session_id, now_s = secrets.token_urlsafe(ID_BYTES), self._clock.monotonic_s()
        self._sessions[_key(session_id)] = Session(user, secret, identity, now_s, now_s)
        return session_id

    def find(self, session_id: str | None, idle_s: float = 0) -> Session | None:
        """The session, whose user last did something `idle_s` ago; None for one that has ended.

        A page that refreshes itself says so, or it would never be logged out.
        """
        if session_id is None:
            return None
        self.sweep()
        key = _key(session_id)
        session = self._sessions.get(key)
        if session is not None:
            session.used_s = max(session.used_s, self._clock.monotonic_s() - idle_s)
        return session

    def end(self, session_id: str | None) -> None:
        """Of no effect when there is no such session."""
        if session_id is not None:
            self._end(_key(session_id))

    def sweep(self) -> None:
        """End those that are over."""
        now_s = self._clock.monotonic_s()
        over = [
            key
            for key, each in self._sessions.items()
            if now_s - each.used_s >= IDLE_END_S or now_s - each.began_s >= ABSOLUTE_END_S
        ]
        for key in over:
            self._end(key)

    def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.secret = None
            for callback in tuple(session.on_end):
                callback()


def _key(session_id: str) -> bytes:
    return sha256(session_id.encode("utf-8", "surrogateescape")).digest()
