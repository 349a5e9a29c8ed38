"""Keep the sessions of logged-in users, and check that requests come from the console's own pages.

Secrets are in memory alone, and go with their session. The check is against forged requests and DNS rebinding.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import ip_address
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.console.calls import Identity

IDLE_END_S: Final = 30 * 60.0
ABSOLUTE_END_S: Final = 12 * 3600.0
"""Seconds after which a session ends: from its user's last action, and from the login."""

SESSIONS_MAX: Final = 256
"""Most sessions at once; beyond it the user who did nothing for longest is logged out."""

ID_BYTES: Final = 32


@dataclass(slots=True, eq=False)
class Session:
    """A session of a browser. `user` None stands for the user of the connection to the broker."""

    user: str | None
    secret: str | None = field(repr=False)
    identity: Identity
    began_s: float
    used_s: float
    on_end: set[Callable[[], None]] = field(default_factory=set)
    """Callbacks for the end of the session, such as those that end its streams."""


class Sessions:
    """Hold sessions by ids that cannot be guessed, of which only the hash is kept. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: str | None, secret: str | None, identity: Identity) -> str:
        """Begin a session and return its id."""
        self.sweep()
        while len(self._sessions) >= SESSIONS_MAX:
            self._end(min(self._sessions, key=lambda key: self._sessions[key].used_s))
        session_id, now_s = secrets.token_urlsafe(ID_BYTES), self._clock.monotonic_s()
        self._sessions[_key(session_id)] = Session(user, secret, identity, now_s, now_s)
        return session_id

    def find(self, session_id: str | None, idle_s: float = 0) -> Session | None:
        """Return the session, whose user last did something `idle_s` ago; None for one that has ended.

        A page that refreshes itself sends `idle_s`, or its user would never be logged out.
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
        """End the session. No effect when there is no such session."""
        if session_id is not None:
            self._end(_key(session_id))

    def sweep(self) -> None:
        """End the sessions whose time is over."""
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


HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
"""Pattern of a Host header: a name or an address, and perhaps a port."""

FETCH_SITES: Final = ("same-origin", "none")
"""Accepted values of `Sec-Fetch-Site`: a request of our page, and an address that the user typed."""


def host_of(header: str) -> str | None:
    """Return the host in a Host header, in lower case; None if the header is malformed."""
    found = HOST.fullmatch(header)
    return None if found is None else found[1].lower()


def port_of(header: str) -> str:
    """Return the port in a Host header; empty if it names none."""
    found = HOST.fullmatch(header)
    return "" if found is None else found[2] or ""


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Return whether the host is an address, `localhost` or one of these names: no other site's page can have asked.

    A foreign name can be pointed at any address after its page was loaded (DNS rebinding), and the browser takes the
    server there for the same origin.
    """
    host = host_of(header)
    if host is None:
        return False
    if host == "localhost" or host in names:
        return True
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_own_origin(origin: str, host: str) -> bool:
    """Return whether the `Origin` of a request is what its `Host` names. Behind a proxy the scheme may differ."""
    return origin.lower() in {f"http://{host}".lower(), f"https://{host}".lower()}
