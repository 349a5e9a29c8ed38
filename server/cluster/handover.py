"""Handovers of message groups between members: the rules, the barriers, and the stored row.

The rules decide when a member may take the messages of a message group; they never wait and make no calls.

Members learn of each other's states at different moments (`server.cluster.membership.View`), and a group whose owner
changes must neither be taken by two members, nor be delivered by the new owner before what the old one holds of it. So
when the members change, each member by itself

1. *adopts* the new view: from then on it takes no message of a group that it does not own in it;
2. *fences* it, once all messages that it had taken before are in its log: the log's end is stored with the view;
3. asks all other members of the view for their fences. A member answers as soon as it has fenced the same view;
4. *settles* it when all have answered: it takes the groups that have moved to it. The end of its own log is the
   *barrier*: ordered consumers get what comes after it when they have got what each member holds before its fence.

A group that a member owned in the view that it settled last, and in all views since, has not been on any other member:
it is taken without a pause. No other member can have taken it, because a member that settles a view has heard from all
members, after it adopted the view itself, that they are in it; and a member that is in a view takes only what it owns
there.

So a barrier holds ordered consumers back until they have got what other members held of the moved groups. For that,
each member is asked whether consumer groups have got everything that its log holds before a fence.

A member's progress in a handover is one row of its store (docs/formats/metadata.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from quarry_mq.kv import KeyValueEngine
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.server.cluster.membership import SLOTS, MemberState, View, slot_of
from quarry_mq.server.delivery.model import MessageSource
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata import TopicTable, TopicType
from quarry_mq.store.metadata.rows import Document, Fields, encode_document
from quarry_mq.store.state.identity import META

SLOTS_REMEMBERED: Final = 65_536


class Fence(NamedTuple):
    """The end of a member's log at the time when it had stopped taking messages that it no longer owns."""

    member: str
    position: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """Messages of the own log after `position` wait for those that other members hold before their fences."""

    position: int
    fences: tuple[Fence, ...]


def _without(barrier: Barrier, gone: Callable[[Fence], bool]) -> Barrier:
    return replace(barrier, fences=tuple(each for each in barrier.fences if not gone(each)))


@dataclass(frozen=True, slots=True)
class HandoverState:
    """The part of a handover that outlives the process.

    `views`: the view that was settled last, if there is one, and all that were adopted since. `fence` is that of the
    last view, None while there is none.
    """

    views: tuple[View, ...] = ()
    has_settled: bool = False
    fence: int | None = None
    barriers: tuple[Barrier, ...] = ()

    @property
    def is_settled(self) -> bool:
        return self.has_settled and len(self.views) == 1


class Handover:
    """Decide one member's part in a handover. `state` has to be stored before any other member hears of it."""

    def __init__(self, own_name: str, state: HandoverState) -> None:
        self._own_name = own_name
        self.state = state
        self._slots: LruCache[str, int] = LruCache(SLOTS_REMEMBERED)

    @property
    def view(self) -> View | None:
        """The view that was adopted last."""
        return self.state.views[-1] if self.state.views else None

    # -- what is asked of it for each message

    def owner(self, message_group: str) -> str | None:
        """Return the member that owns the group in the view adopted last; None before there is one."""
        view = self.view
        return view.owners[self._slot(message_group)] if view is not None and view.owners else None

    def may_take(self, message_group: str) -> bool:
        """Return whether this member, which owns the group, may take its messages already."""
        if self.state.is_settled:
            return True
        slot = self._slot(message_group)
        return self.state.has_settled and all(self._owns(view, slot) for view in self.state.views)

    def _owns(self, view: View, slot: int) -> bool:
        return bool(view.owners) and view.owners[slot] == self._own_name

    def _slot(self, message_group: str) -> int:
        slot = self._slots.get(message_group)
        if slot is None:
            slot = slot_of(message_group)
            if self._slots.is_full:
                self._slots.rotate()
            self._slots.put(message_group, slot)
        return slot

    # -- the steps

    def adopt(self, view: View) -> bool:
        """Begin a handover if the view differs from the one before; return whether it does."""
        if view == self.view:
            return False
        views = tuple(each for each in self.state.views[1:] if each != view)
        settled = self.state.views[:1]
        self.state = replace(self.state, views=(*settled, *views, view), fence=None)
        return True

    def fenced(self, position: int) -> HandoverState:
        """Return the state to store when the log ends at this position. The fence is valid once the state is stored."""
        return replace(self.state, fence=position)

    def settled(self, position: int, fences: Mapping[str, int]) -> HandoverState:
        """Return the state to store when all others have sent their fences and the own log ends at this position."""
        view = self.state.views[-1]
        others = view.others(self._own_name)
        barriers = list(self.state.barriers)
        if self._may_have_come():
            # an empty log holds nothing back, also after its member has left for good
            wait_for = tuple(Fence(name, fences[name]) for name in others if fences[name])
            barriers.append(Barrier(position, wait_for))
        # messages on a member that was removed are given up with it
        kept = [_without(each, lambda fence: fence.member not in others) for each in barriers]
        return HandoverState(
            views=(view,),
            has_settled=True,
            fence=self.state.fence,
            barriers=tuple(each for each in kept if each.fences),
        )

    def passed(self, fences: Collection[Fence]) -> HandoverState:
        """Return the state to store when nothing is left before some fences."""
        kept = [_without(each, lambda fence: fence in fences) for each in self.state.barriers]
        return replace(self.state, barriers=tuple(each for each in kept if each.fences))

    def _may_have_come(self) -> bool:
        """Return whether there may be groups that this member owns now but did not own all the time."""
        *earlier, now = self.state.views
        own = [slot for slot in range(SLOTS) if self._owns(now, slot)]
        if not self.state.has_settled:
            return bool(own)
        return any(not self._owns(view, slot) for view in earlier for slot in own)


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


class LogSource(MessageSource, Protocol):
    """The part of the message store that the check reads."""

    @property
    def dispatched_up_to(self) -> PhysicalOffset: ...


class GroupProgress(Protocol):
    """The part of delivery that the check asks."""

    def is_done_before(self, group: str, queue: QueueId, offset: QueueOffset) -> bool: ...


class ConsumedBefore:
    """Answers other members about fences of this one. Lives on the event loop's thread."""

    def __init__(self, source: LogSource, progress: GroupProgress, log_begin: Callable[[], PhysicalOffset]) -> None:
        self._source = source
        self._progress = progress
        self._log_begin = log_begin

    def consumed(self, position: int, pairs: Sequence[Pair]) -> Consumed:
        """Return the pairs that have nothing left before the position."""
        if self._source.dispatched_up_to < min(position, self._source.appended_up_to):
            return Consumed((), is_passed=False)  # the log may hold messages that are not in the queues yet
        done = [pair for pair in pairs if self._is_done(position, pair)]
        return Consumed(done, is_passed=self._log_begin() >= position)

    def _is_done(self, position: int, pair: Pair) -> bool:
        for queue in self._source.iterate_queues(pair.topic):
            end = self._first_after(queue, position)
            # a group that never read here has still to get everything that the queue holds
            if end > self._source.bounds(queue).minimum and not self._progress.is_done_before(pair.group, queue, end):
                return False
        return True

    def _first_after(self, queue: QueueId, position: int) -> QueueOffset:
        """Return the first offset of the queue whose entry lies at the log position or after it."""
        low, high = self._source.bounds(queue)
        while low < high:
            middle = QueueOffset((low + high) // 2)
            entries = self._source.entries(queue, middle, 1)
            if entries and entries[0].physical_offset < position:
                low = QueueOffset(entries[0].queue_offset + 1)
            else:
                high = middle
        return low


ROW: Final = b"message_groups"


class HandoverRow:
    """The row of one store. A row that another incarnation of the store has written counts as none."""

    def __init__(self, engine: KeyValueEngine, incarnation: bytes) -> None:
        self._engine = engine
        self._family = engine.family(META)
        self._incarnation = incarnation.hex()

    def read(self, log_end: int) -> HandoverState:
        """Read the stored state. If the log has lost its end in a power cut, barriers after its end move to its end.

        Raises StoreDamaged.
        """
        stored = self._family.get(ROW)
        if stored is None:
            return HandoverState()
        row = Document(META, ROW.decode(), stored)
        if row.text("incarnation") != self._incarnation:
            return HandoverState()
        return HandoverState(
            views=tuple(_view(each) for each in row.parts("views")),
            has_settled=row.boolean("has_settled"),
            fence=row.integer("fence") if row.has("fence") else None,
            barriers=tuple(_barrier(each, log_end) for each in row.parts("barriers")),
        )

    def write(self, state: HandoverState) -> None:
        """Store the state durably. May be called on any thread. Raises EngineFull."""
        document: dict[str, object] = {
            "incarnation": self._incarnation,
            "views": [{"active": list(each.active), "draining": list(each.draining)} for each in state.views],
            "has_settled": state.has_settled,
            "barriers": [
                {"position": each.position, "fences": [fence._asdict() for fence in each.fences]}
                for each in state.barriers
            ],
        }
        if state.fence is not None:
            document["fence"] = state.fence
        batch = self._engine.batch()
        batch.put(self._family, ROW, encode_document(document))
        self._engine.write(batch, sync=True)


def _view(fields: Fields) -> View:
    states = dict.fromkeys(fields.text_list("active"), MemberState.ACTIVE)
    return View.of({**states, **dict.fromkeys(fields.text_list("draining"), MemberState.DRAINING)})


def _barrier(fields: Fields, log_end: int) -> Barrier:
    fences = tuple(Fence(each.text("member"), each.integer("position")) for each in fields.parts("fences"))
    return Barrier(min(fields.integer("position"), log_end), fences)
