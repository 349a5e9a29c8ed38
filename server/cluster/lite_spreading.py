"""Forwards clients' subscriptions to lite topics to all members, since the clients receive from each of them.

Messages of the lite topics may be on each member, too.
"""

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
"""Seconds that a client waits for members that do not answer.

The client gives up after two seconds, and repeats its subscriptions every 30.
"""


class LiteSpreading:
    """Forwards subscriptions to the reachable members. Lives on the event loop's thread."""

    def __init__(self, members: Members, peers: Peers) -> None:
        self._members = members
        self._peers = peers
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, change: LiteChange, told: Callable[[], None]) -> None:
        """Forward a change to all reachable members; `told` is called when they have it, or when it takes too long.

        A member that missed the change gets it when the client repeats its subscriptions.
        """
        names = [each.name for each in self._members.others()]
        if not names:
            told()
            return
        task = asyncio.get_running_loop().create_task(self._tell_all(names, change, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Forward nothing more: no client waits for answers any more."""
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
