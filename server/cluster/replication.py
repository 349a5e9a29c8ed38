"""Members exchange replicated metadata, deletions included, and accept members that come back.

Each member asks every other one for what has changed there since its last question.

   every interval, and when another member has news:
       ask ─→ a page of rows ─→ apply (the later version stays) ─→ ask again while there is more

No member waits for another: each one is asked by a task of its own, and one that does not answer is asked again. With
many members each is asked less often: calls grow with the square of their number, and news is announced anyway.

A deletion leaves a tombstone, which is removed once every member has had time to hear of the deletion.

A member rejoins the cluster after an absence that was longer than deletions are kept. It takes all replicated rows from
another member, whose rows count. Of the rows that only the returning member has, those that the other one once knew
were deleted there, so they are deleted here. The rest was created here meanwhile, and is announced to the others like
any change.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import structlog

from quarry_mq.kv import EngineFull
from quarry_mq.protocol.clock import DAY_MS, Clock
from quarry_mq.server.cluster.membership import Members
from quarry_mq.server.errors import MemberUnreachable, NoSuchMember, NotAMember
from quarry_mq.server.tasks import until_set
from quarry_mq.store.errors import BrokerError, Forbidden, Invalid
from quarry_mq.store.message import QueueId
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.replication import (
    NOTHING_TOLD,
    Applied,
    DeletionsMissed,
    Horizons,
    Position,
    ReplicatedRows,
    SharedKind,
    SharedRow,
)

log = structlog.get_logger(__name__)

PAGE_ROWS: Final = 1_000
NUDGE_DELAY_S: Final = 0.02
"""Seconds within which changes are announced together."""
ASKED_PER_INTERVAL: Final = 10
"""Number of members to ask per interval. With more members each is asked less often, unless it announces news."""
ADDRESSES_MAX: Final = 1_000
TOLD_KEPT_S: Final = 600.0
"""Seconds until an address that is known only from a caller is forgotten when no member calls from there any more."""


class Page(NamedTuple):
    """A part of the changes of a member."""

    name: str
    rows: Sequence[SharedRow]
    since: int
    until: Position
    more: bool
    told: Horizons = NOTHING_TOLD
    is_ready: bool = False


class Peer(Protocol):
    """The admin port of another member. All calls raise MemberUnreachable, NotAMember or Invalid."""

    async def exchange(self, name: str, address: str, since: Position | None, rows_max: int) -> Page: ...

    async def nudge(self, name: str, address: str) -> None: ...

    async def close(self) -> None: ...


class _Followed:
    """A member that is asked, known by its address; its name is the one that it answers with."""

    __slots__ = ("address", "asked_s", "incarnation", "is_asked", "last_error", "name", "peer", "told", "woken")

    def __init__(self, address: str) -> None:
        self.address = address
        self.peer: Peer | None = None
        self.name: str | None = None
        self.incarnation = b""
        self.woken = asyncio.Event()
        self.asked_s = 0.0
        self.is_asked = False
        self.told: Horizons | None = None
        self.last_error = ""


class Exchange:
    """Asks all other members for changes, and answers their questions.

    Lives on the event loop's thread; rows are applied on another.
    """

    def __init__(
        self,
        name: str,
        replicated: ReplicatedRows,
        members: Members,
        *,
        interval_s: float,
        clock: Clock,
        connect: Callable[[str], Peer],
        discover: Callable[[], Awaitable[set[str]]],
        applied: Callable[[Applied], None],
    ) -> None:
        """`name` is this member's; `discover` finds admin addresses; `applied` is called with other members' changes.

        `connect` raises the same errors as a peer's calls.
        """
        self.own_name: Final = name
        self._interval_s = interval_s
        self._replicated = replicated
        self._members = members
        self._clock = clock
        self._connect = connect
        self._discover = discover
        self._applied = applied
        self._followed: dict[str, _Followed] = {}
        self._told: dict[str, float] = {}  # addresses that have asked here, and when
        self._targets: set[str] = set()
        self._own_addresses: set[str] = set()
        self._look = asyncio.Event()
        self._has_news = asyncio.Event()
        self._has_met_others = asyncio.Event()
        self._began_s = 0.0
        self._is_ready: Callable[[], bool] = bool

    @property
    def _own_address(self) -> str:
        own = self._members.own
        return "" if own is None else own.admin_address

    # -- what others ask

    def asked(self, name: str, address: str, since: Position | None, rows_max: int) -> Page:
        """Return the next page for another member, whose address is known from now on."""
        self._remember(name, address)
        if not self._members.is_heard(name):
            # it is back; but two members that refuse each other's answers must not ask each other all the time
            self._wake(name, asked_before_s=self._clock.monotonic_s() - self._interval_s)
        begin = since.sequence if since is not None and since.incarnation == self._replicated.incarnation else 0
        page = self._replicated.changes(begin, rows_max)
        until = Position(page.incarnation, page.until)
        return Page(self.own_name, page.rows, page.since, until, page.more, page.horizons, self._is_ready())

    def nudged(self, name: str, address: str) -> None:
        """Ask a member that has announced news."""
        self._remember(name, address)
        self._wake(name)

    def _wake(self, name: str, *, asked_before_s: float = math.inf) -> None:
        for followed in self._followed.values():
            if followed.name == name and followed.asked_s < asked_before_s:
                followed.woken.set()

    async def all_of(self, name: str) -> Page:
        """Return all rows that a member has.

        Raises NoSuchMember if it is not known, else the errors of a peer's calls.
        """
        followed = next((each for each in self._followed.values() if each.name == name), None)
        if followed is None:
            raise NoSuchMember(f"no member {name[:80]!r}: this member does not exchange data with it")
        rows: list[SharedRow] = []
        since: Position | None = None
        while True:
            page = await self._ask(followed, since, PAGE_ROWS)
            if page.name != name:
                raise MemberUnreachable(f"{followed.address}: the member there is now {page.name[:80]!r}")
            rows += page.rows
            since = page.until
            if not page.more:
                return page._replace(rows=rows)

    # -- what is asked

    async def met_others(self) -> None:
        """Return when every known member has been asked once, whether or not it has answered.

        A member that knows only addresses that do not answer waits
        for one of them, but not for ever: it may be the first member.
        """
        await self._has_met_others.wait()

    async def run(self, is_ready: Callable[[], bool] = bool) -> None:
        """Exchange rows with all other members until cancelled. `is_ready` is what they are told of this member."""
        self._is_ready = is_ready
        loop = asyncio.get_running_loop()

        def has_news() -> None:
            loop.call_soon_threadsafe(self._has_news.set)

        self._replicated.on_own_change(has_news)
        self._began_s = self._clock.monotonic_s()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tell())
                while True:
                    await self._look_around(tasks)
        finally:
            self._replicated.on_own_change(lambda: None)

    async def _look_around(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to ask members that were not asked before; then wait."""
        self._targets = await self._wanted()
        for address in self._targets:
            if address not in self._followed:
                self._followed[address] = _Followed(address)
                tasks.create_task(self._follow(self._followed[address]))
        self._members.notice()
        self._look_whether_all_are_asked()
        self._look.clear()
        await until_set(self._look, self._interval_s)

    async def _wanted(self) -> set[str]:
        rows = {seen.member.admin_address for seen in self._members.all()}
        own = {self._own_address, *self._own_addresses}
        # asked all the same, so that it is told why such a member cannot be called
        own -= {address for address in own if self._members.others_at(address)}
        found = await self._discover()
        kept_from_s = self._clock.monotonic_s() - TOLD_KEPT_S
        self._told = {address: at_s for address, at_s in self._told.items() if at_s > kept_from_s}
        return (found | self._told.keys() | rows) - own

    @property
    def _pause_s(self) -> float:
        """Seconds between two calls of one member.

        A member may leave two of them unanswered and still counts as reachable.
        """
        stretched_s = self._interval_s * len(self._followed) / ASKED_PER_INTERVAL
        return max(self._interval_s, min(stretched_s, self._members.unreachable_after_s / 3))

    async def _follow(self, followed: _Followed) -> None:
        # all were met at the same time; a share of the first pause spreads the questions from then on
        share = crc32(followed.address.encode()) / 2**32
        try:
            while followed.address in self._targets:
                followed.woken.clear()
                try:
                    await self._read_on(followed)
                    followed.last_error = ""
                except (BrokerError, EngineFull) as error:
                    self._report_once(followed, error)
                self._members.tried(followed.address, followed.name, followed.last_error)
                followed.is_asked = True
                self._look_whether_all_are_asked()
                await until_set(followed.woken, self._pause_s * share)
                share = 1.0
        finally:
            del self._followed[followed.address]
            if followed.peer is not None:
                await followed.peer.close()

    def _look_whether_all_are_asked(self) -> None:
        if self._has_met_others.is_set():
            return
        known = {seen.member.admin_address for seen in self._members.all() if not seen.is_self}
        others = self._followed.keys() - self._own_addresses | known
        asked = {address for address in others & self._followed.keys() if self._followed[address].is_asked}
        if asked != others:
            return
        is_heard = not asked or any(followed.name is not None for followed in self._followed.values())
        waited_s = self._clock.monotonic_s() - self._began_s
        if known or is_heard or waited_s > self._members.unreachable_after_s:
            self._has_met_others.set()

    async def _read_on(self, followed: _Followed) -> None:
        """Read and apply all changes of a member."""
        if followed.name is None and not await self._meet(followed):
            return
        name = followed.name
        if name is None or self._is_followed_elsewhere(followed):
            return
        more = True
        while more:
            position = self._replicated.position(name)
            page = await self._ask(followed, position, PAGE_ROWS)
            if page.name != name:
                followed.name = None  # another member has its address now
                return
            applied = Applied((), ())
            if page.rows or page.until != position or page.told != followed.told:
                applied = await asyncio.to_thread(
                    self._replicated.apply,
                    page.rows,
                    peer=name,
                    until=page.until,
                    since=page.since,
                    more=page.more,
                    told=page.told,
                )
                followed.told = page.told
            followed.incarnation = page.until.incarnation
            self.take(applied)
            # only now, as the rows may say where its admin address is
            self._members.heard(name, followed.address, is_ready=page.is_ready)
            more = page.more

    async def _meet(self, followed: _Followed) -> bool:
        """Learn the member's name; return False if it is this member itself."""
        page = await self._ask(followed, None, 1)
        if page.name == self.own_name:
            if page.until.incarnation == self._replicated.incarnation:
                for other in self._members.others_at(followed.address):
                    raise Invalid(
                        f"{followed.address} leads to this member, not to {other}: set cluster.advertise there"
                    )
                self._own_addresses.add(followed.address)
                self._targets.discard(followed.address)
                return False
            raise Invalid(f"the member there has the same name as this one, {page.name}: give each its own broker.name")
        followed.name, followed.incarnation = page.name, page.until.incarnation
        return True

    def _is_followed_elsewhere(self, followed: _Followed) -> bool:
        """Return whether the same member is asked at another of its addresses, and answers there.

        Its admin address is asked first, because all other calls go there.

        Raises Invalid if the other address has a different member of the same name.
        """
        same = [each for each in self._followed.values() if each.name == followed.name]
        own = None if followed.name is None else self._members.admin_address(followed.name)
        first = next((each for each in same if each.address == own), same[0])
        if first is followed or first.last_error:
            return False
        if first.incarnation != followed.incarnation:
            raise Invalid(
                f"it has the same name as the member at {first.address}, {followed.name}: give each its own broker.name"
            )
        return True

    async def _ask(self, followed: _Followed, since: Position | None, rows_max: int) -> Page:
        if followed.peer is None:
            followed.peer = self._connect(followed.address)
        followed.asked_s = self._clock.monotonic_s()
        return await followed.peer.exchange(self.own_name, self._own_address, since, rows_max)

    def take(self, applied: Applied) -> None:
        """Report conflicts and unknown rows, and notify the parts that depend on the changed rows."""
        for conflict in applied.conflicts:
            log.warning(
                "a change was overwritten by a later one, whose member did not know of it",
                kind=conflict.kind,
                name=conflict.name,
                changed_at_ms=conflict.overwritten.time_ms,
                later_at_ms=conflict.kept.time_ms,
            )
        for row in applied.unread:
            log.warning("what a newer version has written is kept and told on, unread", kind=row.kind, name=row.name)
        if applied.changed:
            self._members.changed(applied.changed)
            self._applied(applied)

    def _report_once(self, followed: _Followed, error: Exception) -> None:
        """Log a failure once per reason, since the member is asked again and again."""
        last_error = str(error)
        if last_error == followed.last_error:
            return
        if isinstance(error, DeletionsMissed):
            log.error("this member was away for too long and is left out", member=followed.name, reason=last_error)
        else:
            log.warning("a member cannot be asked", address=followed.address, member=followed.name, reason=last_error)
        followed.last_error = last_error

    async def _tell(self) -> None:
        """Announce changes of this member to the others, instead of waiting for them to ask."""
        while True:
            await self._has_news.wait()
            await asyncio.sleep(NUDGE_DELAY_S)
            self._has_news.clear()
            peers = [each.peer for each in self._followed.values() if each.peer is not None]
            nudges = [peer.nudge(self.own_name, self._own_address) for peer in peers]
            for outcome in await asyncio.gather(*nudges, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, MemberUnreachable | NotAMember):
                    raise outcome  # raise one error only: it ends the broker

    def _remember(self, name: str, address: str) -> None:
        if not address or name == self.own_name or len(self._told) >= ADDRESSES_MAX:
            return
        if address not in self._targets:
            self._look.set()
        self._told[address] = self._clock.monotonic_s()


START_DELAY_S: Final = 3_600.0
"""Seconds after a start in which nothing is removed: a cluster that was off as a whole first exchanges what it knew."""

INTERVAL_S: Final = 3_600.0


class TombstoneDeletion:
    """Removes old tombstones. Lives on the event loop's thread; the store is read on another."""

    def __init__(self, replicated: ReplicatedRows, clock: Clock, *, kept_days: int) -> None:
        self._replicated = replicated
        self._clock = clock
        self._kept_ms = kept_days * DAY_MS

    async def run(self) -> None:
        """Remove old tombstones once per interval, until cancelled."""
        await asyncio.sleep(START_DELAY_S)
        while True:
            try:
                deleted = await asyncio.to_thread(
                    self._replicated.delete_tombstones, self._clock.wall_ms() - self._kept_ms
                )
                if deleted:
                    log.info("old deletions were forgotten", count=deleted)
            except EngineFull as error:
                log.warning("old deletions could not be forgotten, it is tried again", reason=str(error))
            await asyncio.sleep(INTERVAL_S)


NAMED_MAX: Final = 5
"""Number of topics that an error names."""


class Rejoined(NamedTuple):
    """The result of rejoining, or of a dry run.

    `taken`: number of the other member's rows. `removed`: rows that are deleted here. `told`: rows that are announced
    to the others. `messages`: number of messages of each topic that is deleted.
    """

    taken: int
    removed: Sequence[SharedRow]
    told: Sequence[SharedRow]
    messages: dict[str, int]


class Rejoining:
    """Rejoins the cluster on an operator's request. Lives on the event loop's thread."""

    def __init__(self, exchange: Exchange, replicated: ReplicatedRows, messages_of: Callable[[str], int]) -> None:
        """`messages_of` returns the number of messages of a topic on this member."""
        self._exchange = exchange
        self._replicated = replicated
        self._messages_of = messages_of

    async def rejoin(self, name: str, *, dry_run: bool, delete_messages: bool) -> Rejoined:
        """Take all replicated rows from another member.

        Raises NoSuchMember, MemberUnreachable, NotAMember; Forbidden when nothing was missed, when the other member
        cannot say what it knows, or when messages would be deleted and `delete_messages` is not set; RowRefused or
        PeerAhead for rows that cannot be taken.
        """
        page = await self._exchange.all_of(name)
        if not page.told.known:
            raise Forbidden(f"{name} has not read from any other member yet: use another one, or wait")
        if self._replicated.horizons.missed(page.told.forgotten) is None:
            raise Forbidden(f"this member has not missed any deletion that {name} knows of")
        unknown = await asyncio.to_thread(self._replicated.unknown_to, page.rows, page.told)
        gone, told = (list(filter(self._is_of_others, rows)) for rows in unknown)
        topics = (row.name for row in gone if row.kind is SharedKind.TOPIC)
        messages = {topic: count for topic in topics if (count := self._messages_of(topic))}
        if not dry_run:
            if messages and not delete_messages:
                raise Forbidden(
                    f"{len(messages)} topics were deleted on other members and have messages here, such as "
                    f"{_some(messages)}: consume or back up the messages, then use --delete-messages"
                )
            taken = await asyncio.to_thread(
                self._replicated.rejoin, page.rows, peer=name, until=page.until, told=page.told, gone=gone
            )
            self._exchange.take(taken)
            log.info("rejoined the cluster", member=name, rows=len(page.rows), removed=len(gone), told=len(told))
        return Rejoined(len(page.rows), gone, told, messages)

    def _is_of_others(self, row: SharedRow) -> bool:
        return (row.kind, row.name) != (SharedKind.MEMBER, self._replicated.member)


def messages_of(store: OpenStore, topic: str) -> int:
    """Return the number of messages that a store holds of a topic."""
    row = store.topics.get(topic)
    queues = range(0 if row is None else row.queue_count)
    bounds = (store.messages.bounds(QueueId(topic, number)) for number in queues)
    return sum(each.maximum - each.minimum for each in bounds)


def _some(messages: dict[str, int]) -> str:
    return ", ".join(f"{topic} ({count})" for topic, count in sorted(messages.items())[:NAMED_MAX])
