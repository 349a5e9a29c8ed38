"""Holds ordered consumers back after a handover, until they have got what other members held of the moved groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.server.cluster.handover.rules import Barrier, Fence
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.store.metadata import TopicTable, TopicType

ASK_INTERVAL_S: Final = 0.1
WANTED_S: Final = 60.0
"""Seconds until a pair is no longer asked about; longer than any receive waits."""
ASKED_AT_ONCE: Final = 500
REMEMBERED_MAX: Final = 100_000
"""Number of pairs remembered for one fence, 20 MB or so. With very many lite topics some are asked about again."""


class Pair(NamedTuple):
    """A consumer group and a topic that it consumes in order."""

    group: str
    topic: str


class _Wanted(NamedTuple):
    """The time of a pair's last receive, and the log position from which its messages are held back."""

    at_s: float
    position: int


class Consumed(NamedTuple):
    """A member's answer: the pairs that have got everything before its fence.

    `is_passed`: the log of the member now begins at the fence or after it.
    """

    pairs: Collection[Pair]
    is_passed: bool


AskConsumed = Callable[[Fence, Sequence[Pair]], Awaitable[Consumed]]
"""Asks the member of a fence. Raises MemberUnreachable, NotAMember."""


class Barriers:
    """Keeps the barriers of this member, and asks other members about their fences.

    Lives on the event loop's thread.
    """

    def __init__(self, clock: Clock, *, ask: AskConsumed, released: Callable[[Pair], None]) -> None:
        """`released` is called with a pair that waits no longer, or for a later barrier."""
        self._clock = clock
        self._ask = ask
        self._released = released
        self._barriers: tuple[Barrier, ...] = ()
        self._consumed: dict[Fence, set[Pair]] = {}
        self._wanted: dict[Pair, _Wanted] = {}
        self._is_wanted = asyncio.Event()
        self.passed: set[Fence] = set()
        """Fences that lie before the beginning of their members' logs: no pair waits for them any more."""

    def set(self, barriers: tuple[Barrier, ...]) -> None:
        """Replace the barriers, which are in the order of their positions."""
        self._barriers = barriers
        fences = {fence for each in barriers for fence in each.fences}
        self._consumed = {fence: self._consumed.get(fence, set()) for fence in fences}
        self.passed &= fences
        for pair in tuple(self._wanted):
            self._release(pair)

    @property
    def is_empty(self) -> bool:
        return not self._barriers

    def barrier_of(self, group: str, topic: str) -> int | None:
        """Return the log position from which on the group may not get messages yet, or None.

        To be called before each delivery.
        """
        pair = Pair(group, topic)
        position = self._position(pair)
        if position is not None:
            self._wanted[pair] = _Wanted(self._clock.monotonic_s(), position)
            self._is_wanted.set()
        return position

    @property
    def waiting(self) -> int:
        """The number of pairs that are held back now, as far as a consumer receives for them."""
        return len(self._wanted)

    async def run(self) -> None:
        """Ask other members as long as a pair waits, until cancelled."""
        while True:
            await self._is_wanted.wait()
            too_old_s = self._clock.monotonic_s() - WANTED_S
            self._wanted = {pair: each for pair, each in self._wanted.items() if each.at_s > too_old_s}
            if not self._wanted:
                self._is_wanted.clear()
                continue
            async with asyncio.TaskGroup() as tasks:
                for fence in tuple(self._consumed):
                    tasks.create_task(self._ask_about(fence))
            for pair in tuple(self._wanted):
                self._release(pair)
            await asyncio.sleep(ASK_INTERVAL_S)

    async def _ask_about(self, fence: Fence) -> None:
        pairs = [pair for pair in self._wanted if self._is_open(fence, pair)]
        for begin in range(0, len(pairs), ASKED_AT_ONCE):
            try:
                answer = await self._ask(fence, pairs[begin : begin + ASKED_AT_ONCE])
            except (MemberUnreachable, NotAMember):
                return
            if answer.is_passed:
                self.passed.add(fence)
            known = self._consumed.get(fence)
            if known is not None:
                if len(known) > REMEMBERED_MAX:
                    known.clear()
                known.update(answer.pairs)

    def _position(self, pair: Pair) -> int | None:
        """Return the position of the first barrier that holds the pair back."""
        for barrier in self._barriers:
            if any(self._is_open(fence, pair) for fence in barrier.fences):
                return barrier.position
        return None

    def _is_open(self, fence: Fence, pair: Pair) -> bool:
        return fence not in self.passed and pair not in self._consumed[fence]

    def _release(self, pair: Pair) -> None:
        """Let the pair continue if nothing holds it back any more, or only a later barrier does."""
        if self._position(pair) != self._wanted[pair].position:
            del self._wanted[pair]
            self._released(pair)


WITH_GROUPS: Final = frozenset({TopicType.FIFO, TopicType.MIXED})


class OrderedTopics:
    """Asks the barriers only about topics whose messages may belong to message groups, and about lite topics."""

    def __init__(self, topics: TopicTable, barriers: Barriers) -> None:
        self._topics = topics
        self._barriers = barriers

    def barrier_of(self, group: str, topic: str) -> int | None:
        """Return the same as `Barriers.barrier_of`."""
        if self._barriers.is_empty:
            return None
        if not is_light_queue(topic):
            found = self._topics.get(topic)
            if found is None or found.type not in WITH_GROUPS:
                return None
        return self._barriers.barrier_of(group, topic)
