"""Decides which message groups this member of a cluster takes now, and brings sends of the others to their members.

A handover follows the rules of `server.cluster.handover`, which never wait. `MessageGroups` carries it out: it waits,
asks other members and stores the state.

A send is stored by this member, by another one, or by none yet. A send that cannot be stored now waits as long as its
client does: until a handover ends, or the owner is back. Sends of one group keep their order while they wait. Sends for
another member go in one call at a time, with all that have arrived since the call before.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from quarry_mq.kv import EngineFull
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.cluster.handover import Barriers, Handover, HandoverRow, HandoverState
from quarry_mq.server.cluster.membership import Members, View
from quarry_mq.server.cluster.peers import Confirmation, ForwardedSend, Peers
from quarry_mq.server.errors import MemberUnreachable, NotAMember, OwnerAway
from quarry_mq.server.tasks import until_set
from quarry_mq.store.errors import Invalid

log = structlog.get_logger(__name__)

ASK_AGAIN_S: Final = 0.05
ASK_AGAIN_LONGEST_S: Final = 1.0
TELL_AFTER_S: Final = 5.0
"""Seconds after which a handover logs the members that it waits for."""


class Place(NamedTuple):
    """The member that takes a message now: its name, which may be this member's own, or None while no member may."""

    member: str | None
    adoption: int
    """The number of view adoptions when the place was determined."""


class MessageGroups:
    """The message groups of one member. Lives on the event loop's thread; rows are written on another."""

    def __init__(
        self,
        own_name: str,
        members: Members,
        row: HandoverRow,
        peers: Peers,
        barriers: Barriers,
        *,
        log_end: Callable[[], int],
        met_others: Callable[[], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """Build the message groups from the stored state. Raises StoreDamaged.

        `log_end`: the position where the next message is stored.
        `met_others` ends when all known members have been asked once.
        """
        self._own_name = own_name
        self._members = members
        self._row = row
        self._peers = peers
        self.barriers = barriers
        self._log_end = log_end
        self._met_others = met_others
        self._clock = clock
        self._handover = Handover(own_name, row.read(log_end()))
        self.barriers.set(self._handover.state.barriers)
        self._is_open = False
        self._adoption = 0
        self._storing: Counter[int] = Counter()
        self._stored = asyncio.Event()
        self._members_changed = asyncio.Event()
        self._waiting_for: tuple[str, ...] = ()
        self._callbacks: list[Callable[[], None]] = []

    # -- asked for each message

    def place(self, message_group: str) -> Place:
        """Return the member that takes a message of the group.

        If it is this one, call `began` and `ended` for the message.
        """
        owner = self._handover.owner(message_group)
        if owner == self._own_name and not (self._is_open and self._handover.may_take(message_group)):
            owner = None
        return Place(owner, self._adoption)

    def began(self, place: Place) -> None:
        """Note that a message is about to be stored here."""
        self._storing[place.adoption] += 1

    def ended(self, place: Place) -> None:
        """Note that a message is in the log, or will never be."""
        self._storing[place.adoption] -= 1
        if not self._storing[place.adoption]:
            del self._storing[place.adoption]
            self._stored.set()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back each time that the places of groups may have changed."""
        self._callbacks.append(callback)

    # -- asked by others

    def confirmation(self) -> Confirmation:
        state = self._handover.state
        return Confirmation(b"" if self._handover.view is None else self._handover.view.id, state.fence)

    # -- shown to operators

    @property
    def is_settled(self) -> bool:
        """True while no handover is under way here."""
        return self._is_open and self._handover.state.is_settled

    @property
    def active(self) -> tuple[str, ...]:
        """The members that share the message groups, as far as this member knows."""
        view = self._handover.view
        return () if view is None else view.active

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The members that the handover waits for."""
        return self._waiting_for

    # -- the handovers

    async def run(self) -> None:
        """Carry out handovers until cancelled."""
        self._members.on_change(self._members_changed.set)
        await self._met_others()
        self._is_open = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.barriers.run())
            while True:
                self._members_changed.clear()
                try:
                    await self._hand_over()
                except EngineFull as error:
                    log.warning("a handover of message groups cannot be written down", reason=str(error))
                    await asyncio.sleep(ASK_AGAIN_LONGEST_S)
                    continue
                await self._members_changed.wait()

    async def _hand_over(self) -> None:
        """Wait until the view of the members known now is settled, or the members change."""
        view = self._members.view
        if self._handover.adopt(view):
            self._adoption += 1
        self._tell_changed()
        if self._handover.state.fence is None:
            await self._until_earlier_are_stored()
            await self._write(self._handover.fenced(self._log_end()))
        if not self._handover.state.is_settled:
            fences = await self._fences_of_others(view)
            if fences is None:
                return
            self._handover.state = self._handover.passed(self.barriers.passed)
            await self._write(self._handover.settled(self._log_end(), fences))
            self.barriers.set(self._handover.state.barriers)
            log.info("message groups are settled", members=len(view.active))
        self._tell_changed()

    async def _until_earlier_are_stored(self) -> None:
        while any(adoption < self._adoption for adoption in self._storing):
            self._stored.clear()
            await self._stored.wait()

    async def _fences_of_others(self, view: View) -> dict[str, int] | None:
        """Return the fences of all other members once they are in the same view; None when the members have changed."""
        fences: dict[str, int] = {}
        missing = set(view.others(self._own_name))
        began_s, pause_s, told = self._clock.monotonic_s(), ASK_AGAIN_S, False
        while True:
            for name, confirmation in zip(missing, await self._ask(missing), strict=True):
                if confirmation is not None and confirmation.view_id == view.id and confirmation.fence is not None:
                    fences[name] = confirmation.fence
            missing -= fences.keys()
            self._waiting_for = tuple(sorted(missing))
            if not missing:
                return fences
            if not told and self._clock.monotonic_s() - began_s > TELL_AFTER_S:
                told = True
                log.warning("message groups that come here wait for members", members=sorted(missing))
            if await until_set(self._members_changed, pause_s):
                return None
            pause_s = min(pause_s * 1.5, ASK_AGAIN_LONGEST_S)

    async def _ask(self, names: set[str]) -> list[Confirmation | None]:
        async def confirmed(name: str) -> Confirmation | None:
            try:
                return await self._peers.confirm(name)
            except (MemberUnreachable, NotAMember, Invalid):
                return None

        return await asyncio.gather(*map(confirmed, names))

    async def _write(self, state: HandoverState) -> None:
        await asyncio.to_thread(self._row.write, state)
        self._handover.state = state

    def _tell_changed(self) -> None:
        for callback in self._callbacks:
            callback()


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
