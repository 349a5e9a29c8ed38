"""Sends of message groups on their way to where they are stored: here, at another member, or nowhere yet.

What cannot be stored now waits as long as its client does: for a handover to end, or for the owner to be back. Sends of
one group keep their order while they wait. What goes to another member goes in one call at a time, with all that has
come meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final

from quarry_mq.server.cluster.message_groups import MessageGroups, Place
from quarry_mq.server.cluster.peers import ForwardedSend, Peers
from quarry_mq.server.errors import MemberUnreachable, NotAMember, OwnerAway
from quarry_mq.store.clock import Clock
from quarry_mq.store.errors import Invalid

AGAIN_S: Final = 0.1
"""How soon what waits is tried again."""
GATHER_S: Final = 0.002
"""A call of another member costs as much as the messages of some ten sends: let them come together."""
FORWARDED_AT_ONCE: Final = 500
FORWARDED_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes of requests in one call, of which there is one at least."""
CLIENTS_SHARE_S: Final = 0.2
"""So long before its client gives up a send is answered: the client learns the reason."""


@dataclass(eq=False, kw_only=True, slots=True)
class GroupedSend:
    """A send that waits for its place. One of the callbacks is called, once."""

    topic: str
    message_group: str
    deadline_s: float
    """On the monotonic clock."""
    forwarded: Callable[[], ForwardedSend]
    take: Callable[[Place], None]
    """Store it here."""
    answered: Callable[[bytes], None]
    failed: Callable[[Exception], None]


class GroupedSends:
    """Lives on the event loop's thread."""

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
        """Sends that other members have stored."""
        groups.on_change(self._try_again)

    def __len__(self) -> int:
        """How many wait, or are on their way."""
        # may be asked on any thread
        return sum(map(len, (*self._waiting.values(), *self._outgoing.values())))

    def send(self, send: GroupedSend) -> None:
        """Bring it to its place."""
        before = self._waiting.get((send.topic, send.message_group))
        if before is not None:
            before.append(send)
        elif not self._go(send):
            self._wait(send)

    def place(self, message_group: str) -> Place | None:
        """Where a send goes that another member has forwarded: here, or None, and it is asked to try again."""
        place = self._groups.place(message_group)
        return place if place.member == self._own_name else None

    def began(self, place: Place) -> None:
        self._groups.began(place)

    def ended(self, place: Place) -> None:
        self._groups.ended(place)

    def stop(self) -> None:
        """Bring nothing more anywhere: nobody waits for answers now."""
        if self._again is not None:
            self._again.cancel()
        for task in self._tasks:
            task.cancel()

    # -- waiting

    def _go(self, send: GroupedSend) -> bool:
        """Whether the send is on its way now."""
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
        whom = "a handover between members" if owner is None else f"member {owner}, which has the group's messages"
        send.failed(OwnerAway(f"message group {send.message_group[:80]!r} waits for {whom}"))

    # -- to other members

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring(self, name: str, outgoing: deque[GroupedSend]) -> None:
        """All that there is for a member. What it does not take now waits here."""
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
                break  # what is behind them may be of the same groups
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
