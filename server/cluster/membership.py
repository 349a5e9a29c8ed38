"""The members of a cluster: their addresses and states, discovery, and the ownership of message groups.

A member keeps the list of all members, and which of them it can reach. Addresses of members come from the settings, and
from all addresses of a DNS name. What all members know of one is a replicated row (docs/formats/shared-rows.md).

A *view* is what a member knows of the cluster at a time: every member's name and state. Which member owns which message
groups is a pure function of a view. Message groups are divided into `SLOTS` slots by the hash with which RocketMQ's
Java and Go clients choose a queue. The owner of a slot is, among the active members that do not have their full share
yet, the one with the highest hash of slot and name together ("rendezvous hashing", Thaler and Ravishankar). So a member
that joins takes its share from all others, one that leaves gives its own to all others, and little else moves.

The hash is SipHash-2-4 (Aumasson and Bernstein, 2012) with the key that RocketMQ's clients use. The Java and Go clients
choose a queue for a message group by this hash of its name in UTF-8, modulo the number of queues in the route. Python
uses the function internally for its dictionaries, but does not expose it.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, partial
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.addresses import Address
from quarry_mq.server.errors import NoSuchMember
from quarry_mq.server.tasks import LastErrors
from quarry_mq.store.errors import Forbidden, Invalid, StoreDamaged
from quarry_mq.store.metadata import READ_WRITE, Permission
from quarry_mq.store.metadata.rows import Document, encode_document
from quarry_mq.store.replication import ReplicatedRows, SharedKind, SharedRow

log = structlog.get_logger(__name__)

_KEY: Final = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
_BEGIN: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_WORD: Final = Struct("<Q")

_State = tuple[int, int, int, int]


def siphash(data: bytes) -> int:
    """Return the hash as an unsigned number of 64 bits."""
    low, high = _KEY
    state = (_BEGIN[0] ^ low, _BEGIN[1] ^ high, _BEGIN[2] ^ low, _BEGIN[3] ^ high)
    whole = len(data) & ~7
    for (word,) in _WORD.iter_unpack(data[:whole]):
        state = _compressed(state, word)
    state = _compressed(state, int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    first, second, third, fourth = state[0], state[1], state[2] ^ 0xFF, state[3]
    for _ in range(4):
        first, second, third, fourth = _round(first, second, third, fourth)
    return first ^ second ^ third ^ fourth


def _compressed(state: _State, word: int) -> _State:
    first, second, third, fourth = state
    fourth ^= word
    for _ in range(2):
        first, second, third, fourth = _round(first, second, third, fourth)
    return first ^ word, second, third, fourth


def _round(first: int, second: int, third: int, fourth: int) -> _State:
    first = (first + second) & _MASK
    second = (second << 13 & _MASK | second >> 51) ^ first
    first = first << 32 & _MASK | first >> 32
    third = (third + fourth) & _MASK
    fourth = (fourth << 16 & _MASK | fourth >> 48) ^ third
    first = (first + fourth) & _MASK
    fourth = (fourth << 21 & _MASK | fourth >> 43) ^ first
    third = (third + second) & _MASK
    second = (second << 17 & _MASK | second >> 47) ^ third
    third = third << 32 & _MASK | third >> 32
    return first, second, third, fourth


VIEW_ID_BYTES: Final = 16
SLOTS: Final = 128
"""Number of slots. A power of two, since clients take the hash with a sign or without."""

RULE: Final = b"slots 1"
"""Name of the rule; members that would divide groups by different rules are never in one view."""


@dataclass(frozen=True)
class View:
    """Hold all known members by name, and whether each of them is active."""

    members: tuple[tuple[str, bool], ...]

    @classmethod
    def of(cls, states: Mapping[str, MemberState]) -> View:
        return cls(tuple((name, state is MemberState.ACTIVE) for name, state in sorted(states.items())))

    @cached_property
    def active(self) -> tuple[str, ...]:
        return tuple(name for name, is_active in self.members if is_active)

    @cached_property
    def draining(self) -> tuple[str, ...]:
        return tuple(name for name, is_active in self.members if not is_active)

    @cached_property
    def id(self) -> bytes:
        """`VIEW_ID_BYTES` that are the same on every member that has this view, and on no other."""
        digest = blake2b(digest_size=VIEW_ID_BYTES, person=RULE)
        for name, is_active in self.members:
            encoded = name.encode()
            digest.update(len(encoded).to_bytes(4, "big") + encoded + (b"\1" if is_active else b"\0"))
        return digest.digest()

    def others(self, name: str) -> list[str]:
        """Return the names of all members but this one."""
        return [each for each, _ in self.members if each != name]

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """The owner of each slot; empty when no member is active."""
        if not self.active:
            return ()
        share, more = divmod(SLOTS, len(self.active))
        left = dict.fromkeys(self.active, share + 1 if more else share)
        owners = []
        for slot in range(SLOTS):
            owner = max((name for name in self.active if left[name]), key=partial(_weight, slot))
            left[owner] -= 1
            owners.append(owner)
            if more and not left[owner]:
                more -= 1
                if not more:  # no further member may have one slot more than the others
                    left = {name: max(0, each - 1) for name, each in left.items()}
        return tuple(owners)


def slot_of(message_group: str) -> int:
    """Return the slot of a group: the index that RocketMQ's Java and Go clients choose among `SLOTS` queues."""
    return siphash(message_group.encode()) % SLOTS


def _weight(slot: int, name: str) -> bytes:
    return blake2b(name.encode(), digest_size=8, salt=slot.to_bytes(4, "big")).digest()


TEXT_MAX: Final = 300
"""Largest number of characters of an address or a version."""


class MemberState(StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"
    """A draining member takes no new messages; consumers read it to its end."""
    STOPPING = "stopping"
    """A stopping member is about to end. It is like a draining one, and active again when it has started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A member of the cluster. Addresses are `host:port`.

    `address` is None where clients without TLS are not let in, `tls_address` where clients with TLS are not.
    """

    name: str
    address: str | None
    tls_address: str | None
    admin_address: str
    state: MemberState = MemberState.ACTIVE
    version: str = ""

    def advertised_to(self, *, is_secure: bool) -> Address | None:
        """Return the address for clients with or without TLS; None when they cannot reach the member."""
        text = self.tls_address if is_secure else self.address
        return None if text is None else Address.parse(text)

    def in_state(self, state: MemberState) -> Member:
        return replace(self, state=state)

    def encode(self) -> bytes:
        return encode_document(
            {
                "address": self.address or "",
                "tls_address": self.tls_address or "",
                "admin_address": self.admin_address,
                "state": self.state.value,
                "version": self.version,
            }
        )

    @classmethod
    def decode(cls, name: str, value: bytes) -> Member:
        """Decode a row. Raises StoreDamaged, or Invalid for text that is no address."""
        row = Document("members", name, value)
        texts = {key: row.text(key) for key in ("address", "tls_address", "admin_address", "version")}
        too_long = [key for key, text in texts.items() if len(text) > TEXT_MAX]
        if too_long:
            raise Invalid(f"member {name}: {too_long[0]} has more than {TEXT_MAX} characters")
        for key in ("address", "tls_address", "admin_address"):
            if texts[key] or key == "admin_address":
                try:
                    Address.parse(texts[key])
                except ValueError as cause:
                    raise Invalid(f"member {name}: {key}: {cause}") from None
        state = row.text("state")
        return cls(
            name=name,
            address=texts["address"] or None,
            tls_address=texts["tls_address"] or None,
            admin_address=texts["admin_address"],
            # a state that only a newer version knows counts as draining: nothing new is sent there, and nothing is lost
            state=MemberState(state) if state in set(MemberState) else MemberState.DRAINING,
            version=texts["version"],
        )


KIND: Final = SharedKind.MEMBER

ANNOUNCE_AGAIN_S: Final = 30.0
"""Shortest time in seconds between two announcements: two members of one name would do nothing else."""


@dataclass(slots=True)
class _Contact:
    """A contact keeps what was seen of another member since the start of this one. Times are monotonic seconds."""

    heard_s: float = -math.inf
    """The time of its last answer, at any address."""
    reached_s: float = -math.inf
    """The time of its last answer at its admin address."""
    is_ready: bool = False
    """True if its last answer said that it is ready."""
    problem: str = ""
    """The reason why the last question to its admin address failed."""
    logged_problem: str = ""

    @property
    def was_heard(self) -> bool:
        return self.heard_s > -math.inf


class SeenMember(NamedTuple):
    """A member as this one sees it.

    `is_heard`: whether it has answered recently, at any address. `is_reachable`: whether it has answered at its own
    admin address, where all calls go. `problem`: why it is not reachable, as far as that is known. `silent_ms`: time
    since it was last heard of; None for this member, and for one that was never heard of.
    """

    member: Member
    is_self: bool
    is_heard: bool
    is_reachable: bool
    problem: str
    silent_ms: int | None


class Members:
    """The members of the cluster. The list is replicated; which of them are reachable is this member's own view.

    Lives on the event loop's thread.
    """

    def __init__(self, own_name: str, replicated: ReplicatedRows, clock: Clock, *, unreachable_after_s: float) -> None:
        self._own_name = own_name
        self._own: Member | None = None
        self._is_leaving = False
        self._announced_s = 0.0
        self._began_s = clock.monotonic_s()
        self._replicated = replicated
        self._clock = clock
        self.unreachable_after_s = unreachable_after_s
        self._contacts: dict[str, _Contact] = {}
        self._was_heard: set[str] = set()
        self._callbacks: list[Callable[[], None]] = []
        self._view: View | None = None
        self._members = {row.name: member for row in replicated.list(KIND) if (member := _read(row)) is not None}

    @property
    def own(self) -> Member | None:
        """The broker's own member, as it was announced; None before that."""
        return self._own

    @property
    def running_ms(self) -> int:
        """Return the time since this member began to listen to others."""
        return round((self._clock.monotonic_s() - self._began_s) * 1000)

    @property
    def is_draining(self) -> bool:
        """True while this member takes no new messages."""
        return self.limit_of(self._own_name) is Permission.READ

    def limit_of(self, name: str) -> Permission:
        """Return the most that clients may do at a member, whatever a topic allows: one that is not active is read."""
        member = self._members.get(name)
        return READ_WRITE if member is None or member.state is MemberState.ACTIVE else Permission.READ

    def announce(self, own: Member) -> None:
        """Store the addresses of this member, which is stopping no longer. Whether it is draining stays as it was."""
        self._own = own
        self._announced_s = self._clock.monotonic_s()
        known = self._members.get(own.name)
        is_draining = known is not None and known.state is MemberState.DRAINING
        wanted = own.in_state(MemberState.DRAINING) if is_draining else own
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

    def others_at(self, address: str) -> list[str]:
        """Return the names of the other members that give this as their admin address."""
        return [
            name for name, member in self._members.items() if name != self._own_name and member.admin_address == address
        ]

    def all(self) -> list[SeenMember]:
        """Return all members, ordered by name."""
        now_s = self._clock.monotonic_s()
        return [
            SeenMember(
                member,
                is_self=name == self._own_name,
                is_heard=self.is_heard(name),
                is_reachable=self.is_reachable(name),
                problem="" if self.is_reachable(name) else contact.problem,
                silent_ms=round((now_s - contact.heard_s) * 1000) if contact.was_heard else None,
            )
            for name, member, contact in (
                (name, member, self._contact(name)) for name, member in sorted(self._members.items())
            )
        ]

    def routed(self) -> list[Member]:
        """Return the other members that routes list, by name: those that have answered, or could not be heard of yet.

        A client asks for its route every 30 s. If it asked a member that has just started and knows its cluster from
        its disk alone, the route without the others would list that member only, and the client could not send when
        that member goes away.
        """
        is_new_here = self._clock.monotonic_s() - self._began_s < self.unreachable_after_s
        return [
            member
            for name, member in sorted(self._members.items())
            if name != self._own_name and (self.is_heard(name) or (is_new_here and not self._contact(name).was_heard))
        ]

    def others(self) -> list[Member]:
        """Return the other members that were heard of recently, by name."""
        return [
            member for name, member in sorted(self._members.items()) if name != self._own_name and self.is_heard(name)
        ]

    def is_reachable(self, name: str) -> bool:
        """Return whether a member answered recently at its admin address; this member always counts as reachable."""
        return name == self._own_name or self._is_recent(self._contact(name).reached_s)

    def is_heard(self, name: str) -> bool:
        """Return whether a member answered recently at any address: its clients can still be served there."""
        return name == self._own_name or self._is_recent(self._contact(name).heard_s)

    def _contact(self, name: str) -> _Contact:
        return self._contacts.get(name) or _Contact()

    def _is_recent(self, at_s: float) -> bool:
        return self._clock.monotonic_s() - at_s < self.unreachable_after_s

    @property
    def is_another_ready(self) -> bool:
        """Return whether another member has said recently that it is ready."""
        return any(contact.is_ready and self._is_recent(contact.heard_s) for contact in self._contacts.values())

    def heard(self, name: str, address: str, *, is_ready: bool) -> None:
        """Note that a member has answered at an address, which may be another one than its admin address."""
        contact = self._contacts.setdefault(name, _Contact())
        contact.heard_s, contact.is_ready = self._clock.monotonic_s(), is_ready
        if address == self.admin_address(name):
            contact.reached_s = contact.heard_s

    def tried(self, address: str, answered: str | None, problem: str) -> None:
        """Note how a question to an address ended: which member answered there, or why none did."""
        for name in self.others_at(address):
            is_another = not problem and answered != name
            contact = self._contacts.setdefault(name, _Contact())
            contact.problem = f"{address}: member {answered} answers there" if is_another else problem

    def notice(self) -> None:
        """Log which members have become reachable or unreachable since the last call, and which cannot be called."""
        self._look_at_own()
        heard = {name for name in self._members if self.is_heard(name)} - {self._own_name}
        for name in sorted(heard - self._was_heard):
            log.info("member is reachable", member=name)
        for name in sorted(self._was_heard - heard):
            log.warning("member is not reachable, routes go without it", member=name)
        self._was_heard = heard
        for name in sorted(heard):
            self._log_problem(name, self._members[name].admin_address)

    def _log_problem(self, name: str, address: str) -> None:
        """Log once per reason that a member answers, but not at the address where it is called."""
        contact = self._contacts[name]  # it was heard of
        problem = contact.problem if contact.heard_s > contact.reached_s else ""
        if problem == contact.logged_problem:
            return
        if problem:
            log.warning("a member answers, but not at its admin address", member=name, address=address, reason=problem)
        else:
            log.info("a member answers at its admin address again", member=name, address=address)
        contact.logged_problem = problem

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
                self._contacts.pop(row.name, None)
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

    def leave(self) -> bool:
        """Give the message groups to the other members, and take no new messages until the next start.

        Return whether others have the groups: those that are away could not confirm that they take them. A draining
        member has given its groups away, but perhaps a moment ago. Raises EngineFull.
        """
        others = [each for each in self.all() if not each.is_self]
        own = self._members.get(self._own_name)
        if own is None or not any(each.member.state is MemberState.ACTIVE for each in others):
            return False
        if own.state is MemberState.DRAINING:
            return True
        if not all(each.is_reachable for each in others):
            return False
        self.set_state(own.name, MemberState.STOPPING)
        self._is_leaving = True
        return True

    def remove(self, name: str) -> None:
        """Remove a member that is gone for good. Raises NoSuchMember, Forbidden."""
        self._required(name)
        if self.is_heard(name):
            raise Forbidden(f"{name} is reachable: stop that broker first")
        self._replicated.remove(KIND, name)
        del self._members[name]
        self._contacts.pop(name, None)
        log.info("member removed", member=name)
        self._tell_changed()

    def seen(self, name: str) -> SeenMember:
        """Return one member as this one sees it. Raises NoSuchMember."""
        self._required(name)
        return next(each for each in self.all() if each.member.name == name)

    def _look_at_own(self) -> None:
        """Announce this member again if its replicated row is wrong.

        Other members may still have the row from before this member's disk was lost, or a removal, or a stop.
        """
        own, said = self._own, self._members.get(self._own_name)
        if own is None or self._is_leaving:
            return
        if said is not None and said.state is not MemberState.STOPPING and said.in_state(own.state) == own:
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


class Discovery:
    """Finds admin addresses, as `host:port`."""

    def __init__(self, members: Sequence[str], dns: str | None) -> None:
        self._members = frozenset(members)
        self._dns = None if dns is None else Address.parse(dns)
        self._found: set[str] = set()
        self._errors = LastErrors()

    async def addresses(self) -> set[str]:
        """Return the addresses of the settings and of the name.

        If the name cannot be looked up, its last addresses are used.
        """
        if self._dns is not None:
            await self._look_up(self._dns)
        return {*self._members, *self._found}

    def name_of(self, address: str) -> str | None:
        """Return the name by which an address was found, which is the name in its certificate."""
        return self._dns.host if self._dns is not None and address in self._found else None

    async def _look_up(self, name: Address) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
        except OSError as error:
            if self._errors.is_new(error):
                log.warning("the members' name cannot be looked up", name=name.host, reason=str(error))
            return
        self._errors.clear()
        self._found = {_text(address) for *_, address in found}


def _text(address: tuple[object, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
