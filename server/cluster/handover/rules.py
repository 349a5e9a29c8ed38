"""The rules that decide when a member may take the messages of a message group; nothing here waits or calls.

Members learn of each other's states at different moments (`views.View`), and a group whose owner changes must neither
be taken by two members, nor be delivered by the new owner before what the old one holds of it. So when the members
change, each member by itself

1. *adopts* the new view: from then on it takes no message of a group that it does not own in it;
2. *fences* it, once all messages that it had taken before are in its log: the log's end is stored with the view;
3. asks all other members of the view for their fences. A member answers as soon as it has fenced the same view;
4. *settles* it when all have answered: it takes the groups that have moved to it. The end of its own log is the
   *barrier*: ordered consumers get what comes after it when they have got what each member holds before its fence.

A group that a member owned in the view that it settled last, and in all views since, has not been on any other member:
it is taken without a pause. No other member can have taken it, because a member that settles a view has heard from all
members, after it adopted the view itself, that they are in it; and a member that is in a view takes only what it owns
there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from quarry_mq.server.cluster.membership.views import SLOTS, View, slot_of
from quarry_mq.store.lru_cache import LruCache

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
            barriers.append(Barrier(position, tuple(Fence(name, fences[name]) for name in others)))
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
