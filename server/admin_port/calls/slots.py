"""Limit the open calls of the admin port, and choose the call that gives way.

Callers who are authenticated have slots that no stranger takes: members of the cluster have theirs, other callers have
theirs, of which each caller gets a half at most. A call begins as a stranger's. It stays one until its request has
arrived and its caller is known; a probe stays one until it ends. Among strangers a new call never waits: when there are
too many, the oldest call of the address with the most calls ends. So a flood from one address ends its own calls, and a
call that comes with its request, as members' calls do, leaves the strangers long before it would give way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from quarry_mq.server.addresses import network_of
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.rpc.limits import LimitsMet
from quarry_mq.server.security.terms import source_of

STRANGERS_SHARE: Final = 4
"""Slots of known callers for each slot of strangers, and slots of strangers for each slot of one address."""

REQUEST_WAIT_S: Final = 10.0
"""Seconds that a call may take to send its request."""

STRANGER_S: Final = 60.0
"""Seconds that a stranger's call may take in all: probes ask again, and no client may watch for ever."""

STRANGERS_LIMIT: Final = "admin_strangers"
CALLS_LIMIT: Final = "admin_calls"


class Slot:
    """The slot of one call."""

    def __init__(self, slots: CallSlots, peer: str, end: Callable[[str], None]) -> None:
        source = source_of(peer)
        self.address: Final = peer if source is None else str(network_of(source))
        self.end: Final = end
        self._slots = slots
        self._leave: Callable[[], None] = lambda: None

    def taken(self, leave: Callable[[], None]) -> None:
        """Release the slot that the call had, and note `leave` as what releases the new one."""
        self.close()
        self._leave = leave

    def admit(self, caller: str) -> None:
        """Move the call out of the strangers, as its caller is known now. Raises OverLimit."""
        self._slots.admit(self, caller)

    def admit_member(self) -> None:
        """Move the call out of the strangers, as its caller is a member of the cluster. Raises OverLimit."""
        self._slots.admit_member(self)

    def close(self) -> None:
        """Release the slot at the end of the call."""
        leave, self._leave = self._leave, lambda: None
        leave()


class CallSlots:
    """The slots of all calls. Lives on the event loop's thread."""

    def __init__(self, calls_max: int, met: LimitsMet) -> None:
        """`calls_max`: slots for members, and as many for other known callers."""
        self._calls_max = calls_max
        self._caller_max = max(1, calls_max // 2)
        self._strangers_max = max(2, calls_max // STRANGERS_SHARE)
        self._address_max = max(1, self._strangers_max // STRANGERS_SHARE)
        self._met = met
        self._members = 0
        self._callers: Counter[str] = Counter()
        self._strangers: dict[str, dict[Slot, None]] = {}
        """The slots of strangers by address, the oldest first."""
        self._strangers_count = 0

    @property
    def strangers(self) -> int:
        return self._strangers_count

    @property
    def known(self) -> int:
        return self._members + self._callers.total()

    def open(self, peer: str, end: Callable[[str], None]) -> Slot:
        """Give a slot to a new call from `ip:port`. `end` is called with a reason when the call has to give way."""
        slot = Slot(self, peer, end)
        here = self._strangers.get(slot.address, {})
        if len(here) >= self._address_max:
            self._give_way(here)
        elif self._strangers_count >= self._strangers_max:
            self._give_way(max(self._strangers.values(), key=len))
        self._strangers.setdefault(slot.address, {})[slot] = None
        self._strangers_count += 1
        slot.taken(lambda: self._leave_strangers(slot))
        return slot

    def admit(self, slot: Slot, caller: str) -> None:
        """Give the call one of the slots of known callers. Raises OverLimit."""
        if self._callers[caller] >= self._caller_max or self._callers.total() >= self._calls_max:
            raise OverLimit(CALLS_LIMIT, f"{self._callers[caller]} calls of {caller} are already open")
        self._callers[caller] += 1
        slot.taken(lambda: self._leave_callers(caller))

    def admit_member(self, slot: Slot) -> None:
        """Give the call one of the slots of members. Raises OverLimit."""
        if self._members >= self._calls_max:
            raise OverLimit(CALLS_LIMIT, f"{self._members} calls of members of the cluster are already open")
        self._members += 1
        slot.taken(self._leave_members)

    def _give_way(self, calls: dict[Slot, None]) -> None:
        self._met[STRANGERS_LIMIT] += 1
        oldest = next(iter(calls))
        oldest.close()
        oldest.end("too many unauthenticated calls are open: this call was dropped")

    def _leave_strangers(self, slot: Slot) -> None:
        here = self._strangers[slot.address]
        del here[slot]
        if not here:
            del self._strangers[slot.address]
        self._strangers_count -= 1

    def _leave_callers(self, caller: str) -> None:
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]

    def _leave_members(self) -> None:
        self._members -= 1


_OWN: Final[ContextVar[Slot | None]] = ContextVar("slot", default=None)
"""The slot of the current call, each of which is a task of its own."""


def call_has(slot: Slot) -> None:
    """Set the slot of the current call. To be called when a call begins."""
    _OWN.set(slot)


def caller_known(caller: str) -> None:
    """Note that the caller of the current call is authenticated. Raises OverLimit."""
    slot = _OWN.get()
    if slot is not None:
        slot.admit(caller)


def member_known() -> None:
    """Note that the caller of the current call is a member. Raises OverLimit."""
    slot = _OWN.get()
    if slot is not None:
        slot.admit_member()
