"""Limits of the h2 front: on memory, on useless requests, and on the share of one peer address.

A fair scheduler gives every address its turn to be read from, however much comes from others. In one loop iteration an
address gets `FRAMES_PER_TURN` frames handled, or `SECONDS_PER_TURN` of time. What it sent beyond that is put off to the
next iteration, and the connection it came from is not read from meanwhile. A TLS handshake takes a whole turn, and
connections waiting for one take turns with the open connections of their address. So a client that floods the broker
makes others wait for one of its turns, some milliseconds, and not for everything it sends. While there is no other
client, turns follow each other at once, so nothing is slowed down needlessly.

A budget limits the frames of a peer that carry nothing useful. PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM,
empty DATA, unknown frames: each costs the broker a microsecond or two and the peer almost nothing, so a peer could keep
the loop busy with them alone. Honest clients send some for each message they exchange and some per second, so that is
what they are allowed. A peer that spends more is disconnected with ENHANCE_YOUR_CALM (CVE-2019-9511 … 9518,
CVE-2023-44487, CVE-2024-27316).

Memory is limited for incoming requests, that is for incomplete messages and headers of open calls, and for answers that
clients have not read. When unread answers exceed their limit, some connections are chosen that lose theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from quarry_mq.server.addresses import network_of, plain_address
from quarry_mq.server.front.contract import FrontLimits

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


BURST: Final = 10_000
"""Frames allowed at once: an application with thousands of calls may cancel all of them when it stops."""

PER_SECOND: Final = 1_000
"""Frames allowed per second. A peer that spends exactly this keeps one core busy for some 2 ms of each second."""

PER_MESSAGE: Final = 8
"""Frames allowed for each message received or DATA frame sent. The grpc C core sends a WINDOW_UPDATE and a PING for
most.
"""


CALLS_PER_FRAME: Final = 16
"""Open calls that count as one frame, for a frame that concerns all of them."""


class AbuseBudget:
    """The budget of one connection. Counting is one addition; what was earned is added only when the budget seems
    spent.
    """

    __slots__ = ("_ceiling", "_earned_at_s", "_messages_counted", "_spent")

    def __init__(self, now_s: float) -> None:
        self._spent = 0
        self._ceiling = BURST
        self._earned_at_s = now_s
        self._messages_counted = 0

    def spend(self, amount: int, messages: int, now_s: float) -> bool:
        """Spend from the budget; return False if it is exceeded. `messages` is how many were exchanged since the
        beginning.
        """
        self._spent += amount
        if self._spent <= self._ceiling:
            return True
        earned = int((now_s - self._earned_at_s) * PER_SECOND) + (messages - self._messages_counted) * PER_MESSAGE
        self._earned_at_s, self._messages_counted = now_s, messages
        self._spent = max(0, self._spent - earned)
        return self._spent <= self._ceiling


MESSAGES_PER_CONNECTION: Final = 4
"""Number of messages of the largest size that may be incomplete at once, on one connection."""

MESSAGES_PER_ADDRESS: Final = 8
MESSAGES_IN_ALL: Final = 16
"""Twice the number of one address, so that no single address keeps others from sending."""


class Incoming:
    """Counts the bytes of incoming requests of all connections of a front."""

    __slots__ = ("_of_address", "blocks_size", "size")

    def __init__(self) -> None:
        self.size = 0
        self.blocks_size = 0
        """Bytes of incomplete header blocks. Requests do not share a bound with them."""
        self._of_address: dict[str, int] = {}

    def grew(self, address: str, size: int) -> None:
        """Add to the bytes held of calls from the address, or subtract."""
        self.size += size
        of_address = self._of_address.get(address, 0) + size
        if of_address:
            self._of_address[address] = of_address
        else:
            self._of_address.pop(address, None)

    def is_too_much(self, limits: FrontLimits, address: str, of_connection: int) -> bool:
        """Return whether too much is held for a connection of that address that itself holds `of_connection` bytes."""
        largest = limits.max_message_size
        return (
            of_connection > MESSAGES_PER_CONNECTION * largest
            or self.of(address) > MESSAGES_PER_ADDRESS * largest
            or self.size > MESSAGES_IN_ALL * largest
        )

    def of(self, address: str) -> int:
        return self._of_address.get(address, 0)


ROOM: Final = 8
"""Part of the limit that is made free if it is exceeded: an eighth, so that not every message causes a loss."""


class Reading(Protocol):
    """Describe one connection, as far as reading answers is concerned."""

    @property
    def unread_size(self) -> int:
        """Return the bytes that wait for the client to read them, in calls and in the transport."""

    @property
    def moved_in(self) -> int:
        """Return the number of the loop iteration in which the client last took something."""

    @property
    def is_dragging(self) -> bool:
        """Return whether the client takes something, but would need more than a minute for everything."""

    def look_at_pace(self) -> None:
        """Measure the pace; called every second."""

    def refresh(self) -> None:
        """Update how much the transport still holds."""

    def give_up(self) -> None:
        """Drop what waits, and end the calls or the connection if necessary."""


class Unread:
    """Bytes that wait for the clients of all connections to read them, and their limit."""

    __slots__ = ("_is_relieving", "_waiting", "answered_calls", "number", "size", "size_max")

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self.size_max = size_max
        self.number = 0
        """Number of the current loop iteration."""
        self.answered_calls = 0
        """Calls that no handler holds any more and that are open because their answers wait."""
        self._waiting: dict[Reading, None] = {}
        self._is_relieving = False

    def grew(self, reading: Reading, size: int) -> None:
        """Add to the bytes that wait for one of the clients, or subtract."""
        self.size += size
        if reading.unread_size:
            self._waiting[reading] = None
        else:
            self._waiting.pop(reading, None)

    @property
    def is_too_much(self) -> bool:
        return self.size > self.size_max

    def look_at_paces(self) -> None:
        """Measure the pace of all waiting connections. To be called every second."""
        for reading in self._waiting:
            reading.look_at_pace()

    def relieve(self) -> None:
        """Let the slowest connections give up what waits for them if the limit is exceeded, until an eighth of it is
        free.

        Connections that read too slowly come first, then those that have read nothing for longest. A client that reads
        goes on, even if the others have waited only briefly.
        """
        if self._is_relieving:
            return
        self._is_relieving = True
        try:
            for reading in list(self._waiting):
                reading.refresh()
            if not self.is_too_much:
                return
            wanted = self.size_max - self.size_max // ROOM
            for reading in sorted(self._waiting, key=_slowest_first):
                if self.size <= wanted:
                    break
                reading.give_up()
        finally:
            self._is_relieving = False


def _slowest_first(reading: Reading) -> tuple[bool, int]:
    return not reading.is_dragging, reading.moved_in
