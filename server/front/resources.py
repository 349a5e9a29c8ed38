"""The resources that all fronts of a broker share: connections and their limits, turns, and loop iterations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Protocol, cast

from quarry_mq.server.front.contract import FrontLimits, FrontStats
from quarry_mq.server.front.fairness import FairScheduler, Reader, Source
from quarry_mq.server.front.memory import Incoming, Unread
from quarry_mq.server.tasks import run_guarded


class FrontConnection(Reader, Protocol):
    """A connection of any front, as far as its resources are concerned."""

    @property
    def has_calls(self) -> bool:
        """Return whether the peer waits for something, so that the connection must not give way to another."""

    def give_way(self) -> None:
        """Make room for another connection: the last bytes are written, but not waited for."""

    def depart(self) -> None:
        """Leave the front. What was put off is dropped, since its answers could not be delivered."""

    def flush(self) -> None:
        """Write everything that the loop iteration has produced, in one piece."""


class FrontResources:
    """The connections of all fronts of a broker, with what they share. It lives on the event loop's thread."""

    def __init__(self, limits: FrontLimits) -> None:
        self.limits = limits
        self.stats = FrontStats()
        self.scheduler = FairScheduler(_soon)
        self.incoming = Incoming()
        self.unread = Unread(limits.max_unread_size)
        self._connections: dict[FrontConnection, None] = {}  # the oldest first
        self._pass_callbacks: list[Callable[[], None]] = []
        self._unflushed: list[FrontConnection] = []
        self._pass_ends = False  # whether `_end_pass` is scheduled
        self._pass_began_s = 0.0
        self._calls_seen = 0

    def configure(self, limits: FrontLimits) -> None:
        """Apply other limits from now on."""
        self.limits = limits
        self.unread.size_max = limits.max_unread_size

    # -- connections

    def add(self, connection: FrontConnection, host: str) -> Source | None:
        """Add one more connection of the host. Return the source of its address, or None to refuse the connection.

        At a limit the oldest connection without an open call gives way. One of the same address comes first, and is the
        only choice if that address has too many; then come those of the address with most connections. An address that
        is far behind with handling its bytes gets no new connections.
        """
        stats, limits = self.stats, self.limits
        source = self.scheduler.source(host)
        if source.is_full:
            stats.limits_met["unhandled_size"] += 1
            stats.connections_refused += 1
            return None
        for limit, most, present in (
            ("connections_per_address", limits.max_connections_per_address, source.connections),
            ("connections", limits.max_connections, self._connections),
        ):
            if len(present) < most:
                continue
            stats.limits_met[limit] += 1
            # its own before those of others: a client that connects again and again only replaces its own connections
            busiest = self.scheduler.busiest() if present is self._connections else ()
            candidates = cast("Iterable[FrontConnection]", chain(source.connections, busiest, present))
            idle = next((each for each in candidates if not each.has_calls), None)
            if idle is None:
                stats.connections_refused += 1
                return None
            idle.give_way()
            idle.depart()
        self._connections[connection] = None
        self.scheduler.join(source, connection)
        stats.connections += 1
        stats.connections_open = len(self._connections)
        return source

    def remove(self, connection: FrontConnection, source: Source) -> None:
        """Remove a connection that has ended, or that another front takes over."""
        self.scheduler.leave(source, connection)
        self._connections.pop(connection, None)
        self.stats.connections_open = len(self._connections)

    # -- loop iterations

    @property
    def pass_is_open(self) -> bool:
        """Return whether work waits for the end of the loop iteration."""
        return self._pass_ends

    def to_flush(self, connection: FrontConnection) -> None:
        """Write the connection's pending bytes when the loop iteration ends."""
        self._unflushed.append(connection)
        self._let_pass_end()

    def after_pass(self, callback: Callable[[], None]) -> None:
        """Run the callback once, at the end of the current loop iteration, in order of registration."""
        self._pass_callbacks.append(callback)
        self._let_pass_end()

    def _let_pass_end(self) -> None:
        if not self._pass_ends:
            self._pass_ends = True
            loop = asyncio.get_running_loop()
            self._pass_began_s = loop.time()
            loop.call_soon(self._end_pass)

    def _end_pass(self) -> None:
        """Do the work that was put off to the end of the loop iteration, then write all answers, one write per
        connection.
        """
        self._pass_ends = False
        self.scheduler.next()
        self.unread.number += 1
        callbacks, self._pass_callbacks = self._pass_callbacks, []
        for callback in callbacks:
            run_guarded(callback)
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()
        if self.unread.is_too_much:
            self.unread.relieve()
        stats = self.stats
        stats.pass_seconds.add(asyncio.get_running_loop().time() - self._pass_began_s)
        stats.pass_calls.add(stats.calls - self._calls_seen)
        self._calls_seen = stats.calls


def _soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)
