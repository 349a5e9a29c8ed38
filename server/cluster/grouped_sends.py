"""Brings sends of message groups to the member that stores them: this one, another one, or none yet.

A send that cannot be stored now waits as long as its client does: until a handover ends, or the owner is back. Sends of
one group keep their order while they wait. Sends for another member go in one call at a time, with all that have
arrived since the call before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.cluster.message_groups import MessageGroups, Place
from quarry_mq.server.cluster.peers import ForwardedSend, Peers
from quarry_mq.server.errors import MemberUnreachable, NotAMember, OwnerAway
from quarry_mq.store.errors import Invalid

AGAIN_S: Final = 0.1
"""Seconds until waiting sends are tried again."""
GATHER_S: Final = 0.002
"""Seconds to gather sends before a call.

A call of another member costs as much as the messages of some ten sends.
"""
FORWARDED_AT_ONCE: Final = 500
FORWARDED_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes of requests in one call; a call has one request at least."""
CLIENTS_SHARE_S: Final = 0.2
"""Seconds by which a send is answered before its client gives up, so that the client learns the reason."""


@dataclass(eq=False, kw_only=True, slots=True)
class GroupedSend:
    """A send that waits for its owner. One of the callbacks is called, once."""

    topic: str
    message_group: str
    deadline_s: float
    """Seconds of the monotonic clock."""
    forwarded: Callable[[], ForwardedSend]
    take: Callable[[Place], None]
    """Stores the message on this member."""
    answered: Callable[[bytes], None]
    failed: Callable[[Exception], None]


class GroupedSends:
    """Forwards sends of message groups to their owners, or keeps them waiting. Lives on the event loop's thread."""

    def __init__(self, own_name: str, groups: MessageGroups, peers: Peers, clock: Clock) -> None:
        self._own_name = own_name
        self._groups = groups
        self._peers = peers
        self._clock = clock
        self._waiting: dict[tuple[str, str], deque[GroupedSend]] = {}
        self._outgoing: dict[str, deque[GroupedSend]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self.forwarded = 0
        """Number of sends that other members have stored."""
        groups.on_change(self._try_again)

    def __len__(self) -> int:
        """Return the number of sends that wait or are on their way."""
        # may be asked on any thread
        return sum(map(len, (*self._waiting.values(), *self._outgoing.values())))

    def send(self, send: GroupedSend) -> None:
        """Bring a send to its owner, after the waiting sends of its group."""
        before = self._waiting.get((send.topic, send.message_group))
        if before is not None:
            before.append(send)
        elif not self._go(send):
            self._wait(send)

    def place(self, message_group: str) -> Place | None:
        """Return the place of a forwarded send if this member may store it. None: the other member has to try again."""
        place = self._groups.place(message_group)
        return place if place.member == self._own_name else None

    def began(self, place: Place) -> None:
        self._groups.began(place)

    def ended(self, place: Place) -> None:
        self._groups.ended(place)

    def stop(self) -> None:
        """Forward nothing more: no client waits for answers any more."""
        if self._again is not None:
            self._again.cancel()
        for task in self._tasks:
            task.cancel()

    # -- waiting

    def _go(self, send: GroupedSend) -> bool:
        """Send it to its owner if there is one now; return whether it is on its way."""
        place = self._groups.place(send.message_group)
        if place.member is None:
            return False
        if place.member == self._own_name:
            send.take(place)
            return True
        outgoing = self._outgoing.get(place.member)
        if outgoing is None:
            outgoing = self._outgoing[place.member] = deque()
            self._begin(self._bring(place.member, outgoing))
        outgoing.append(send)
        return True

    def _wait(self, send: GroupedSend) -> None:
        self._waiting.setdefault((send.topic, send.message_group), deque()).append(send)
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        waiting, self._waiting = self._waiting, {}
        now_s = self._clock.monotonic_s()
        for sends in waiting.values():
            for send in sends:
                if send.deadline_s <= now_s:
                    self._give_up(send)
                else:
                    self.send(send)

    def _give_up(self, send: GroupedSend) -> None:
        owner = self._groups.place(send.message_group).member
        whom = (
            "the handover between members"
            if owner is None
            else f"member {owner}, which has earlier messages of the group"
        )
        send.failed(OwnerAway(f"message group {send.message_group[:80]!r} waits for {whom}"))

    # -- to other members

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring(self, name: str, outgoing: deque[GroupedSend]) -> None:
        """Forward all sends for a member. What the member does not accept now waits here."""
        while outgoing:
            await asyncio.sleep(GATHER_S)
            batch, requests = self._batch(outgoing)
            try:
                answers = await self._peers.forward(name, requests)
            except (MemberUnreachable, NotAMember, Invalid):
                outgoing.extendleft(reversed(batch))
                break
            for send, answer in zip(batch, answers, strict=True):
                if answer is None:
                    self._wait(send)
                else:
                    self.forwarded += 1
                    send.answered(answer)
            if None in answers:
                break  # later sends may be of the same groups
        del self._outgoing[name]
        for send in outgoing:
            self._wait(send)

    def _batch(self, outgoing: deque[GroupedSend]) -> tuple[list[GroupedSend], list[ForwardedSend]]:
        batch: list[GroupedSend] = []
        requests: list[ForwardedSend] = []
        size = 0
        while outgoing and len(batch) < FORWARDED_AT_ONCE:
            request = outgoing[0].forwarded()
            size += len(request.body)
            if batch and size > FORWARDED_SIZE_MAX:
                break
            batch.append(outgoing.popleft())
            requests.append(request)
        return batch, requests
