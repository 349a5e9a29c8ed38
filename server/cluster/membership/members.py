"""Keeps the list of the cluster's members, and which of them this member can reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.cluster.membership.member import Member, MemberState
from quarry_mq.server.cluster.membership.views import View
from quarry_mq.server.errors import NoSuchMember
from quarry_mq.store.errors import Forbidden, Invalid, StoreDamaged
from quarry_mq.store.replication import ReplicatedRows, SharedKind, SharedRow

log = structlog.get_logger(__name__)

KIND: Final = SharedKind.MEMBER

ANNOUNCE_AGAIN_S: Final = 30.0
"""Shortest time in seconds between two announcements: two members of one name would do nothing else."""


class SeenMember(NamedTuple):
    """A member as this one sees it.

    `silent_ms`: time since it was last heard of; None for this member, and for one that was never heard of.
    """

    member: Member
    is_self: bool
    is_reachable: bool
    silent_ms: int | None


class Members:
    """The members of the cluster. The list is replicated; which of them are reachable is this member's own view.

    Lives on the event loop's thread.
    """

    def __init__(self, own_name: str, replicated: ReplicatedRows, clock: Clock, *, unreachable_after_s: float) -> None:
        self._own_name = own_name
        self._own: Member | None = None
        self._announced_s = 0.0
        self._began_s = clock.monotonic_s()
        self._replicated = replicated
        self._clock = clock
        self.unreachable_after_s = unreachable_after_s
        self._heard_s: dict[str, float] = {}
        self._was_reachable: set[str] = set()
        self._callbacks: list[Callable[[], None]] = []
        self._view: View | None = None
        self._members = {row.name: member for row in replicated.list(KIND) if (member := _read(row)) is not None}

    @property
    def own(self) -> Member | None:
        """The broker's own member, as it was announced; None before that."""
        return self._own

    @property
    def is_draining(self) -> bool:
        """True while this member takes no new messages."""
        own = self._members.get(self._own_name)
        return own is not None and own.state is MemberState.DRAINING

    def announce(self, own: Member) -> None:
        """Store the addresses of this member. Whether it is draining stays as it was."""
        self._own = own
        self._announced_s = self._clock.monotonic_s()
        known = self._members.get(own.name)
        wanted = own if known is None else own.in_state(known.state)
        if wanted != known or self._replicated.get(KIND, own.name) is None:
            self._put(wanted)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back each time that a member has joined, gone or changed."""
        self._callbacks.append(callback)

    @property
    def view(self) -> View:
        """Keep all known members and their states."""
        if self._view is None:
            self._view = View.of({name: member.state for name, member in self._members.items()})
        return self._view

    def admin_address(self, name: str) -> str | None:
        """Return the address for calls of a member; None for one that is not known."""
        member = self._members.get(name)
        return None if member is None else member.admin_address

    def all(self) -> list[SeenMember]:
        """Return all members, ordered by name."""
        now_s = self._clock.monotonic_s()
        return [
            SeenMember(
                member,
                is_self=name == self._own_name,
                is_reachable=self.is_reachable(name),
                silent_ms=round((now_s - heard_s) * 1000) if (heard_s := self._heard_s.get(name)) is not None else None,
            )
            for name, member in sorted(self._members.items())
        ]

    def routed(self) -> list[Member]:
        """Return the other members that routes list, by name: those that are reachable, or could not be heard of yet.

        A client asks for its route every 30 s. If it asked a member that has just started and knows its cluster from
        its disk alone, the route without the others would list that member only, and the client could not send when
        that member goes away.
        """
        is_new_here = self._clock.monotonic_s() - self._began_s < self.unreachable_after_s
        return [
            member
            for name, member in sorted(self._members.items())
            if name != self._own_name and (self.is_reachable(name) or (is_new_here and name not in self._heard_s))
        ]

    def others(self) -> list[Member]:
        """Return the other members that were heard of recently, by name."""
        return [
            member
            for name, member in sorted(self._members.items())
            if name != self._own_name and self.is_reachable(name)
        ]

    def is_reachable(self, name: str) -> bool:
        """Return whether a member was heard of recently; this member always counts as reachable."""
        heard_s = self._heard_s.get(name)
        return name == self._own_name or (
            heard_s is not None and self._clock.monotonic_s() - heard_s < self.unreachable_after_s
        )

    def heard(self, name: str) -> None:
        """Note that a member has answered."""
        self._heard_s[name] = self._clock.monotonic_s()

    def notice(self) -> None:
        """Log which members have become reachable or unreachable since the last call."""
        self._look_at_own()
        reachable = {name for name in self._members if self.is_reachable(name)} - {self._own_name}
        for name in sorted(reachable - self._was_reachable):
            log.info("member is reachable", member=name)
        for name in sorted(self._was_reachable - reachable):
            log.warning("member is not reachable, routes go without it", member=name)
        self._was_reachable = reachable

    def changed(self, rows: Iterable[SharedRow]) -> None:
        """Take over rows of members that other members have changed."""
        for row in rows:
            if row.kind is not KIND:
                continue
            member = _read(row)
            if member is not None:
                self._members[row.name] = member
            elif row.value is None:
                self._members.pop(row.name, None)
                self._heard_s.pop(row.name, None)
        self._look_at_own()
        self._tell_changed()

    def set_state(self, name: str, state: MemberState) -> Member:
        """Make a member take no new messages, or take them again. Raises NoSuchMember, Forbidden."""
        member = self._required(name)
        others = [each for each in self._members.values() if each.name != name and each.state is MemberState.ACTIVE]
        if state is MemberState.DRAINING and not others:
            raise Forbidden(f"{name} is the last member that accepts messages")
        changed = member.in_state(state)
        if changed != member:
            self._put(changed)
            log.info("member changed", member=name, state=state.value)
        return changed

    def remove(self, name: str) -> None:
        """Remove a member that is gone for good. Raises NoSuchMember, Forbidden."""
        self._required(name)
        if self.is_reachable(name):
            raise Forbidden(f"{name} is reachable: stop that broker first")
        self._replicated.remove(KIND, name)
        del self._members[name]
        self._heard_s.pop(name, None)
        log.info("member removed", member=name)
        self._tell_changed()

    def seen(self, name: str) -> SeenMember:
        """Return one member as this one sees it. Raises NoSuchMember."""
        self._required(name)
        return next(each for each in self.all() if each.member.name == name)

    def _look_at_own(self) -> None:
        """Announce this member again if its replicated row is wrong.

        Other members may still have the row from before this member's disk was lost, or a removal.
        """
        own, said = self._own, self._members.get(self._own_name)
        if own is None or (said is not None and said.in_state(own.state) == own):
            return
        if self._clock.monotonic_s() - self._announced_s > ANNOUNCE_AGAIN_S:
            log.warning(
                "members know this one otherwise, it is announced again: is its name used twice?",
                member=own.name,
                known_at=None if said is None else said.admin_address,
            )
            self.announce(own)

    def _put(self, member: Member) -> None:
        self._replicated.put(KIND, member.name, member.encode())
        self._members[member.name] = member
        self._tell_changed()

    def _tell_changed(self) -> None:
        self._view = None
        for callback in self._callbacks:
            callback()

    def _required(self, name: str) -> Member:
        member = self._members.get(name)
        if member is None:
            raise NoSuchMember(f"no member {name[:80]!r}")
        return member


def _read(row: SharedRow) -> Member | None:
    """Decode a row; None for a removed member, and for a row that a newer version has written in another format."""
    if row.value is None:
        return None
    try:
        return Member.decode(row.name, row.value)
    except (Invalid, StoreDamaged) as error:
        log.warning("what is known of a member cannot be read", member=row.name, reason=str(error))
        return None
