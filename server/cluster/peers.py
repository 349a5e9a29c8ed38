"""Calls of members by their names, wherever they are reached now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from quarry_mq.server.cluster.handover.barriers import Consumed, Pair
from quarry_mq.server.cluster.handover.rules import Fence
from quarry_mq.server.cluster.membership.members import Members
from quarry_mq.server.cluster.reading_order import GroupLeft
from quarry_mq.server.errors import MemberUnreachable


class Confirmation(NamedTuple):
    """Which view a member is in, and the fence with which it has entered it; None: not yet."""

    view_id: bytes
    fence: int | None


class ForwardedSend(NamedTuple):
    """A client's send on its way to the member that owns its message group.

    `peer` is the client's address, `body` its SendMessageRequest.
    """

    client_id: str
    peer: str
    body: bytes


class LiteChange(NamedTuple):
    """What a client has said of the lite topics that it wants: `body` is its SyncLiteSubscriptionRequest."""

    client_id: str
    body: bytes


class GroupPeer(Protocol):
    """Another member. All raise MemberUnreachable, NotAMember or Invalid."""

    async def confirm(self) -> Confirmation: ...

    async def consumed(self, position: int, pairs: Sequence[Pair]) -> Consumed: ...

    async def forward(self, sends: Sequence[ForwardedSend]) -> list[bytes | None]:
        """The SendMessageResponse of each; None for those that it cannot take now."""

    async def change_lite(self, change: LiteChange) -> None: ...

    async def overview(self) -> bytes:
        """It at a glance, a quarry.admin.v1.Overview."""

    async def left_in_order(self, topic: str) -> list[GroupLeft]:
        """What groups have still to get of the topic in order."""

    async def close(self) -> None: ...


class Peers:
    """Opens a connection when it is first needed, and another one when a member has moved."""

    def __init__(self, members: Members, connect: Callable[[str, str], GroupPeer]) -> None:
        """`connect` to an admin address, of a member by its name; raises MemberUnreachable."""
        self._members = members
        self._connect = connect
        self._open: dict[str, tuple[str, GroupPeer]] = {}

    async def confirm(self, name: str) -> Confirmation:
        return await (await self._peer(name)).confirm()

    async def consumed(self, fence: Fence, pairs: Sequence[Pair]) -> Consumed:
        return await (await self._peer(fence.member)).consumed(fence.position, pairs)

    async def forward(self, name: str, sends: Sequence[ForwardedSend]) -> list[bytes | None]:
        return await (await self._peer(name)).forward(sends)

    async def change_lite(self, name: str, change: LiteChange) -> None:
        await (await self._peer(name)).change_lite(change)

    async def overview(self, name: str) -> bytes:
        return await (await self._peer(name)).overview()

    async def left_in_order(self, name: str, topic: str) -> list[GroupLeft]:
        return await (await self._peer(name)).left_in_order(topic)

    async def close(self) -> None:
        for _, peer in self._open.values():
            await peer.close()
        self._open.clear()

    async def _peer(self, name: str) -> GroupPeer:
        address = self._members.admin_address(name)
        if address is None:
            raise MemberUnreachable(f"no member {name} is known")
        known = self._open.get(name)
        if known is not None and known[0] == address:
            return known[1]
        peer = self._connect(address, name)
        self._open[name] = (address, peer)
        if known is not None:
            await known[1].close()
        return peer
