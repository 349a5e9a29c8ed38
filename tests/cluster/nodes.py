"""Members in one process: real stores and exchanges; only the wire between them is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.cluster.membership import Member, Members
from quarry_mq.server.cluster.replication import Exchange, Page, Peer
from quarry_mq.server.errors import MemberUnreachable
from quarry_mq.store.replication import Applied, Position
from tests.replication import members as stores

INTERVAL_S = 0.02
UNREACHABLE_S = 0.5
PATIENCE_S = 30.0


@dataclass
class Network:
    """Who can be called at which address."""

    nodes: dict[str, Node] = field(default_factory=dict)
    cut: set[frozenset[str]] = field(default_factory=set)
    calls: int = 0

    def between(self, caller: Node, address: str) -> Peer:
        return _Wire(self, caller, address)


class Node:
    """One member. `store` lives on when it is stopped."""

    def __init__(
        self, network: Network, name: str, seeds: set[str], store: stores.Member | None = None, *, told: str = ""
    ) -> None:
        """`told` is the admin address that it tells the others, if it is not the one where it answers."""
        self.network = network
        self.name = name
        self.address = f"{name}:8082"
        self.told = told or self.address
        self.store = store or stores.member(name)
        self.seen: list[Applied] = []
        self.members = Members(name, self.store.replicated, SystemClock(), unreachable_after_s=UNREACHABLE_S)
        self.exchange = Exchange(
            name,
            self.store.replicated,
            self.members,
            interval_s=INTERVAL_S,
            clock=SystemClock(),
            connect=lambda address: network.between(self, address),
            discover=self._discover,
            applied=self.seen.append,
        )
        self._seeds = seeds
        self._running: asyncio.Task[None] | None = None

    async def _discover(self) -> set[str]:
        return set(self._seeds)

    def start(self) -> Node:
        self.network.nodes[self.address] = self
        self.members.announce(
            Member(name=self.name, address=f"{self.name}:8081", tls_address=None, admin_address=self.told)
        )
        self._running = asyncio.get_running_loop().create_task(self.exchange.run())
        return self

    async def stop(self) -> None:
        self.network.nodes.pop(self.address, None)
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            if not self._running.cancelled() and (error := self._running.exception()) is not None:
                raise error

    def reachable(self) -> list[str]:
        return [each.member.name for each in self.members.all() if each.is_reachable]


class _Wire:
    """Implements server.cluster.replication.Peer."""

    def __init__(self, network: Network, caller: Node, address: str) -> None:
        self._network = network
        self._caller = caller
        self._address = address

    async def exchange(self, name: str, address: str, since: Position | None, rows_max: int) -> Page:
        await asyncio.sleep(0)
        self._network.calls += 1
        return self._there().exchange.asked(name, address, since, rows_max)

    async def nudge(self, name: str, address: str) -> None:
        await asyncio.sleep(0)
        self._there().exchange.nudged(name, address)

    async def close(self) -> None:
        pass

    def _there(self) -> Node:
        node = self._network.nodes.get(self._address)
        if node is None or frozenset({self._address, self._caller.address}) in self._network.cut:
            raise MemberUnreachable(f"{self._address}: refused")
        return node


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, f"not within {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.005)
