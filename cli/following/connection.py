"""The connection of a slave to its master's HA port."""

from __future__ import annotations

import socket
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.remoting.ha import Push, SlaveSide
from quarry_mq.store.message import PhysicalOffset

REPORT_INTERVAL_S: Final = 4.0
"""Seconds between two reports at most: the master closes a connection that was silent for 20."""
SILENT_S: Final = 20.0
"""Seconds of silence after which a connection counts as lost: the master sends something every 5."""
_READ_SIZE: Final = 1 << 20


class HaConnection:
    """Receives pushes and sends reports. The methods raise OSError."""

    def __init__(
        self,
        address: tuple[str, int],
        begin: PhysicalOffset,
        clock: Clock,
        *,
        is_controlled: bool,
        wait_s: float,
    ) -> None:
        """Connect to ask for the log from `begin` on. `wait_s` is how long `receive` waits.

        `is_controlled`: the master is in controller mode.
        """
        self._clock = clock
        self._side = SlaveSide(is_controlled=is_controlled)
        self._begin: PhysicalOffset | None = begin
        """The offset that is still to be asked for."""
        self._heard_s = self._reported_s = clock.monotonic_s()
        self._socket = socket.create_connection(address, timeout=wait_s)
        self._socket.sendall(self._side.hello())
        self._ask()

    def _ask(self) -> None:
        if self._begin is not None and self._side.is_greeted:
            self._socket.sendall(self._side.report(self._begin))
            self._begin = None

    def close(self) -> None:
        self._socket.close()

    def receive(self) -> list[Push]:
        """Return the pushes that came, heartbeats among them; none if nothing came in time. Raises PushMalformed."""
        try:
            data = self._socket.recv(_READ_SIZE)
        except TimeoutError:
            if self._clock.monotonic_s() - self._heard_s >= SILENT_S:
                raise ConnectionResetError(f"the master has sent nothing for {SILENT_S:.0f} s") from None
            return []
        if not data:
            raise ConnectionResetError("the master has closed the connection")
        self._heard_s = self._clock.monotonic_s()
        pushes = self._side.feed(data)
        self._ask()
        return pushes

    def report(self, end: PhysicalOffset, *, is_new: bool) -> None:
        """Report how far the slave's log is on its disk, if this is new or the last report is old."""
        now_s = self._clock.monotonic_s()
        if self._begin is None and (is_new or now_s - self._reported_s >= REPORT_INTERVAL_S):
            self._socket.sendall(self._side.report(end))
            self._reported_s = now_s
