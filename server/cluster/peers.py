"""Calls other members by name, at their current addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import structlog

from quarry_mq.server.cluster.handover import Consumed, Fence, Pair
from quarry_mq.server.cluster.membership import Members
from quarry_mq.server.cluster.reading_order import GroupLeft
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.server.tasks import LastErrors

log = structlog.get_logger(__name__)

_Answer = TypeVar("_Answer")


class Confirmation(NamedTuple):
    """The view that a member is in, and the fence with which it entered the view; None: not fenced yet."""

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
    """A client's change of its lite subscriptions; `body` is its SyncLiteSubscriptionRequest."""

    client_id: str
    body: bytes


class RelayedCall(NamedTuple):
    """A call of the admin port, `Service/Method`, that is made for an operator.

    `user` and `how` say who asks and how that was proved, both empty where nobody has to say; `peer` is the address.
    """

    method: str
    request: bytes
    user: str
    how: str
    peer: str


class CallEnded(Exception):
    """A call that was made for an operator has failed. `code` is the name of gRPC's code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class GroupPeer(Protocol):
    """Calls of another member. All raise MemberUnreachable, NotAMember or Invalid."""

    async def confirm(self) -> Confirmation: ...

    async def consumed(self, position: int, pairs: Sequence[Pair]) -> Consumed: ...

    async def forward(self, sends: Sequence[ForwardedSend]) -> list[bytes | None]:
        """Return the SendMessageResponse of each send; None for those that the member cannot take now."""

    async def change_lite(self, change: LiteChange) -> None: ...

    async def overview(self) -> bytes:
        """Return the member's overview, a quarry.admin.v1.Overview."""

    async def left_in_order(self, topic: str) -> list[GroupLeft]:
        """Return the number of messages of the topic that each ordered group has still to get."""

    async def relay(self, call: RelayedCall, answered: Callable[[bytes], Awaitable[None]]) -> None:
        """Make a call on the member, and hand out its serialized answers as they come. Raises CallEnded, too."""

    async def close(self) -> None: ...


class Peers:
    """Calls members by name; opens a connection when it is first needed, and another one when a member has moved."""

    def __init__(self, members: Members, connect: Callable[[str, str], GroupPeer]) -> None:
        """`connect` opens a connection to a member, given its admin address and its name. Raises MemberUnreachable."""
        self._members = members
        self._connect = connect
        self._open: dict[str, tuple[str, GroupPeer]] = {}
        self._errors = LastErrors()

    async def confirm(self, name: str) -> Confirmation:
        return await self._call(name, lambda peer: peer.confirm())

    async def consumed(self, fence: Fence, pairs: Sequence[Pair]) -> Consumed:
        return await self._call(fence.member, lambda peer: peer.consumed(fence.position, pairs))

    async def forward(self, name: str, sends: Sequence[ForwardedSend]) -> list[bytes | None]:
        return await self._call(name, lambda peer: peer.forward(sends))

    async def change_lite(self, name: str, change: LiteChange) -> None:
        await self._call(name, lambda peer: peer.change_lite(change))

    async def overview(self, name: str) -> bytes:
        return await self._call(name, lambda peer: peer.overview())

    async def left_in_order(self, name: str, topic: str) -> list[GroupLeft]:
        return await self._call(name, lambda peer: peer.left_in_order(topic))

    async def relay(self, name: str, call: RelayedCall, answered: Callable[[bytes], Awaitable[None]]) -> None:
        await self._call(name, lambda peer: peer.relay(call, answered))

    async def close(self) -> None:
        for _, peer in self._open.values():
            await peer.close()
        self._open.clear()

    async def _call(self, name: str, call: Callable[[GroupPeer], Awaitable[_Answer]]) -> _Answer:
        """Make a call; log once per reason that the member cannot be called."""
        try:
            answer = await call(await self._peer(name))
        except (MemberUnreachable, NotAMember) as error:
            if self._errors.is_new(error, name):
                log.warning("a call of a member failed", member=name, reason=str(error))
            raise
        self._errors.clear(name)
        return answer

    async def _peer(self, name: str) -> GroupPeer:
        address = self._members.admin_address(name)
        if address is None:
            raise MemberUnreachable(f"there is no member {name}")
        known = self._open.get(name)
        if known is not None and known[0] == address:
            return known[1]
        peer = self._connect(address, name)
        self._open[name] = (address, peer)
        if known is not None:
            await known[1].close()
        return peer
