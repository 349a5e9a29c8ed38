"""The share of one peer address: every address has its turn to be read from, however much comes from others.

In one loop iteration an address gets `FRAMES_PER_TURN` frames handled, or `SECONDS_PER_TURN` of time. What it sent
beyond that is put off to the next iteration, and the connection it came from is not read from meanwhile. A TLS
handshake takes a whole turn, and connections waiting for one take turns with the open connections of their address. So
a client that floods the broker makes others wait for one of its turns, some milliseconds, and not for everything it
sends. While there is no other client, turns follow each other at once, so nothing is slowed down needlessly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from quarry_mq.server.addresses import network_of, plain_address

FRAMES_PER_TURN: Final = 256
"""Frames of some 128 calls, or 4 MiB of large messages: 2 to 5 ms."""

SECONDS_PER_TURN: Final = 0.005
"""Seconds of a turn, for calls that cost more than others. Checked between frames, so one call may take longer."""

FRAMES_PER_HANDSHAKE: Final = FRAMES_PER_TURN
"""Frames that a handshake counts for: it costs an operation with the private key, 0.1 to 6 ms."""

PUT_OFF_MAX: Final = 16 * 1024 * 1024
"""Bytes of one address that may be put off; above that none of its connections is read from until they are handled."""

REFUSED_BEYOND: Final = 4 * PUT_OFF_MAX
"""Bytes of one address that may be put off before it gets no new connections.

A new connection is read from once before it can be told to wait, so new ones are accepted for longer, but not without
end.
"""


class Waiting(Protocol):
    """Something of an address that may wait for its turn."""

    def catch_up(self) -> None:
        """Handle what was put off, within what is left of the turn, and put off the rest again."""


class Reader(Waiting, Protocol):
    """A connection, as far as turns are concerned."""

    def listen(self) -> None:
        """Start or stop reading from the peer, depending on `Source.is_paused` and the connection's own state."""


class Source:
    """The connections of one address, and what is left of its turn."""

    __slots__ = (
        "address",
        "callers",
        "connections",
        "frames_left",
        "is_paused",
        "put_off",
        "put_off_size",
        "seconds_left",
        "turn",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections: dict[Reader, None] = {}  # the oldest first
        self.callers: dict[Waiting, None] = {}  # of each listener: the connections that are not accepted yet
        self.turn = 0
        self.frames_left = FRAMES_PER_TURN
        self.seconds_left = SECONDS_PER_TURN
        self.put_off: dict[Waiting, None] = {}
        self.put_off_size = 0
        self.is_paused = False

    def has_turn(self, turn: int) -> bool:
        """Return whether more may be handled in this turn. What exceeded earlier turns is subtracted from this one."""
        if self.turn != turn:
            passed, self.turn = turn - self.turn, turn
            self.frames_left = min(FRAMES_PER_TURN, self.frames_left + passed * FRAMES_PER_TURN)
            self.seconds_left = min(SECONDS_PER_TURN, self.seconds_left + passed * SECONDS_PER_TURN)
        return self.frames_left > 0 and self.seconds_left > 0

    def spend(self, frames: int, seconds: float) -> None:
        """Use up a part of the turn."""
        self.frames_left -= frames
        self.seconds_left -= seconds

    @property
    def is_full(self) -> bool:
        """Return whether the address gets no new connections."""
        return self.put_off_size > REFUSED_BEYOND

    def grew(self, size: int) -> None:
        """Add to the bytes that are put off, or subtract."""
        self.put_off_size += size
        is_paused = self.put_off_size > (PUT_OFF_MAX // 2 if self.is_paused else PUT_OFF_MAX)
        if is_paused is not self.is_paused:
            self.is_paused = is_paused
            for connection in list(self.connections):
                connection.listen()


class FairScheduler:
    """The sources of one front. `soon` runs a callback in the next loop iteration."""

    def __init__(self, soon: Callable[[Callable[[], None]], None]) -> None:
        self._soon = soon
        self._sources: dict[str, Source] = {}
        self._waiting: dict[Source, None] = {}
        self._is_scheduled = False
        self.number = 0

    def __len__(self) -> int:
        """Return the number of addresses that are connected or about to be."""
        return len(self._sources)

    def source(self, host: str) -> Source:
        """Return the source of a host's address, which is registered only by `join` or `await_callers`."""
        address = address_of(host)
        return self._sources.get(address) or Source(address)

    def busiest(self) -> Iterable[Reader]:
        """Return the connections of the address with most of them, the oldest first."""
        return max((each.connections for each in self._sources.values()), key=len, default=())

    def join(self, source: Source, connection: Reader) -> None:
        self._sources[source.address] = source
        source.connections[connection] = None

    def leave(self, source: Source, connection: Reader) -> None:
        source.connections.pop(connection, None)
        source.put_off.pop(connection, None)
        self._remove_unused(source)

    def await_callers(self, source: Source, callers: Waiting) -> None:
        """Register the source until `no_callers`. It is also used for the connections that come from these callers."""
        self._sources[source.address] = source
        source.callers[callers] = None

    def no_callers(self, source: Source, callers: Waiting) -> None:
        source.callers.pop(callers, None)
        source.put_off.pop(callers, None)
        self._remove_unused(source)

    def _remove_unused(self, source: Source) -> None:
        if not source.connections and not source.callers and self._sources.get(source.address) is source:
            del self._sources[source.address]

    def next(self) -> None:
        """Begin the next turn at the end of a loop iteration: every address may have more frames handled."""
        self.number += 1

    def put_off(self, source: Source, waiting: Waiting) -> None:
        """Put something off to the source's next turn."""
        source.put_off[waiting] = None
        self._waiting[source] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._soon(self._go_on)

    def _go_on(self) -> None:
        """Give one turn to every waiting source."""
        self._is_scheduled = False
        self.next()
        waiting, self._waiting = self._waiting, {}
        for source in waiting:
            while source.put_off and source.has_turn(self.number):
                first = next(iter(source.put_off))
                del source.put_off[first]
                first.catch_up()
            if source.put_off:
                self._waiting[source] = None
        if self._waiting:
            self._schedule()


def address_of(host: str) -> str:
    """Return the host's address; for IPv6 the network, which counts as one peer."""
    address = plain_address(host.partition("%")[0])
    return host if address is None else str(network_of(address))
