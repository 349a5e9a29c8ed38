"""Which lite topics a client wants is told to all members: its receives come to each of them, and so may messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from quarry_mq.server.cluster.membership.members import Members
from quarry_mq.server.cluster.peers import LiteChange, Peers
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.store.errors import Invalid

SPREAD_TIMEOUT_S: Final = 1.0
"""How long a client waits for members that do not answer: it has two seconds, and repeats what it wants every 30."""


class LiteSpreading:
    """Lives on the event loop's thread."""

    def __init__(self, members: Members, peers: Peers) -> None:
        self._members = members
        self._peers = peers
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, change: LiteChange, told: Callable[[], None]) -> None:
        """Tell all members that are reachable; `told` hears when they know, or when it takes too long.

        Who has not heard of it hears it when the client repeats what it wants.
        """
        names = [each.name for each in self._members.others()]
        if not names:
            told()
            return
        task = asyncio.get_running_loop().create_task(self._tell_all(names, change, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Tell nobody any more: nobody waits for answers now."""
        for task in self._tasks:
            task.cancel()

    async def _tell_all(self, names: list[str], change: LiteChange, told: Callable[[], None]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SPREAD_TIMEOUT_S):
                await asyncio.gather(*(self._tell(name, change) for name in names))
        told()

    async def _tell(self, name: str, change: LiteChange) -> None:
        with suppress(MemberUnreachable, NotAMember, Invalid):
            await self._peers.change_lite(name, change)
