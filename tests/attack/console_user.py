"""An honest user of the console who logs in at a steady pace, and minds how long that takes."""

from __future__ import annotations

import time
from typing import Final

from tests.attack.good_client import LATE_S, Pace, pace_of
from tests.console.browser import Browser

PER_SECOND: Final = 10


class ConsoleUser:
    """Log in over a new connection, without the cookie of the last login."""

    def __init__(self, address: str, user: str, secret: str) -> None:
        self._address = address
        self._user = user
        self._secret = secret
        self.refused: list[str] = []

    def close(self) -> None:
        """Do nothing: no connection is open between two logins."""

    def send(self, seconds: float) -> Pace:
        """A login that comes late because the one before took long is late."""
        latencies: list[float] = []
        began_s = time.monotonic()
        for number in range(round(seconds * PER_SECOND)):
            due_s = began_s + number / PER_SECOND
            if due_s > began_s + seconds + LATE_S:
                break
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._log_in()
            latencies.append(time.monotonic() - due_s)
        return pace_of(latencies, seconds)

    def _log_in(self) -> None:
        browser = Browser(self._address)
        try:
            answer = browser.log_in(self._user, self._secret)
            session = browser.get("/api/session")
        except OSError as error:
            self.refused.append(repr(error))
            return
        if answer.status != 204 or session.fields.get("user") != self._user:
            self.refused.append(f"{answer}; {session}")
