"""Carries out clients' subscriptions to lite topics: adds, removes, replaces, expires and finds them.

Each change is on disk before the client gets its answer. A client repeats all its subscriptions every 30 seconds; what
it has not repeated for `EXPIRY_MS` is deleted, and all is deleted at once when the client disconnects. Committed
offsets of groups in their lite topics are kept, however long no client subscribes to them.

The lite topics to which the clients of a group subscribe are found whether or not they hold messages for it.

Everything runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, NamedTuple, Protocol

from quarry_mq.protocol.clock import JUMP_MAX_MS, Clock
from quarry_mq.protocol.lite_attributes import LiteModel
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.delivery import Delivery, StateWriter
from quarry_mq.server.delivery.lite import NamedQueues, lite_topics_from
from quarry_mq.server.errors import LiteQuotaExceeded
from quarry_mq.server.tasks import TimeSlice, until_set
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.message import QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata import GroupTable, TopicTable, TopicType
from quarry_mq.store.metadata.lite import ALL_OF_THEM, LiteClientRow, LiteGroup, LiteSubscriptionTable, light_queue_name
from quarry_mq.store.opening.open_store import OpenStore


class StartKind(Enum):
    STANDING = "where the group stands"
    OLDEST = "the oldest message"
    NEWEST = "what comes from now on"
    OFFSET = "an offset"
    TAIL = "the last so many messages"
    TIME = "the first message not older than a time"


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a subscription. `value` is an offset, a number of messages, or ms since 1970, as the kind says."""

    kind: StartKind
    value: int = 0

    STANDING: ClassVar[Start]
    OLDEST: ClassVar[Start]


Start.STANDING = Start(StartKind.STANDING)
Start.OLDEST = Start(StartKind.OLDEST)


class Queues(Protocol):
    """The part of the message store that finding a start needs."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def maximum(self, queue: QueueId) -> QueueOffset: ...

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset: ...


def offset_of(queues: Queues, queue: QueueId, start: Start) -> QueueOffset | None:
    """Return the offset, kept between the queue's min and max offset; None for the group's committed offset."""
    if start.kind is StartKind.STANDING:
        return None
    if start.kind is StartKind.NEWEST:
        return queues.maximum(queue)  # clients ask for it in thousands of queues, and bounds cost a search
    bounds = queues.bounds(queue)
    match start.kind:
        case StartKind.OLDEST:
            return bounds.minimum
        case StartKind.TAIL:
            wanted = bounds.maximum - start.value
        case StartKind.TIME:
            wanted = queues.offset_at_time(queue, start.value, TimeBoundary.LOWER)
        case _:
            wanted = start.value
    return QueueOffset(min(max(wanted, bounds.minimum), bounds.maximum))


EXPIRY_MS: Final = 180_000
"""Six times the interval at which clients repeat their subscriptions."""
QUOTA_SLACK: Final = 300
"""Number of lite topics that a client may have beyond its quota; RocketMQ's value.

A client counts its subscriptions by itself, and some that it has just dropped may still count here. The Python client
5.1.2 also subscribes to the single letters of a lite topic's name until it repeats all its subscriptions.
"""
LOOKED_AT_ONCE: Final = 1_024
"""Number of clients that are checked every few seconds, whether or not they have synchronized recently."""
DELETING_S: Final = 0.005
"""Seconds of deleting gone clients before other work gets its turn: all clients of a site may be gone at once."""
PAUSE_S: Final = 0.02

Done = Callable[[Exception | None], None]


class Asking(NamedTuple):
    """The client that changes its subscriptions, and its group."""

    group: str
    terms: LiteGroup
    client_id: str


class _Said(NamedTuple):
    terms: LiteGroup
    digest: bytes


@dataclass(slots=True)
class _Client:
    group: str
    said: _Said | None = None
    """The client's last `replace`, as long as the rows still match it."""


class Delivered(Protocol):
    """The receiver of changes: `server.delivery.lite.LiteDelivery`."""

    def changed(
        self, group: str, client_id: str, *, added: Iterable[str] = (), removed: Iterable[str] = ()
    ) -> None: ...

    def client_gone(self, client_id: str) -> None: ...

    def let_go(self, group: str, name: str) -> None: ...


class LightQueueMoves(Protocol):
    """The committed offsets of groups in light queues: `server.delivery.lite.LightQueues`."""

    def move(self, group: str, name: str, offset: QueueOffset) -> None: ...


class LiteSubscriptions:
    """The four actions of SyncLiteSubscription, and the removal of clients that are gone."""

    def __init__(
        self,
        table: LiteSubscriptionTable,
        *,
        writer: StateWriter,
        delivery: Delivered,
        queues: LightQueueMoves,
        start_of: Callable[[QueueId, Start], QueueOffset | None],
        taken_away: Callable[[str, str], None],
        clock: Clock,
    ) -> None:
        """`start_of` returns the offset where a subscription starts; None: the group's committed offset.

        `taken_away` notifies a client that another one now has the lite topic.
        """
        self._table = table
        self._writer = writer
        self._delivery = delivery
        self._queues = queues
        self._start_of = start_of
        self._taken_away = taken_away
        self._clock = clock
        self._up_since_s = clock.monotonic_s()
        self._swept: LiteClientRow | None = None
        """The last client that was checked; None: the next one is the first of all."""
        self._clients: dict[str, _Client] = {}
        """The clients that have synchronized since the start."""
        self._gone: dict[str, str] = {}
        """The groups of clients that are gone but whose rows are still stored."""
        self._has_gone = asyncio.Event()

    def add(self, asking: Asking, lite_topics: Iterable[str], start: Start, done: Done) -> None:
        """Subscribe to more lite topics, also to ones that were taken away.

        Raises LiteQuotaExceeded, and adds nothing then.
        """
        self._begin(asking)
        wanted = [each for each in dict.fromkeys(lite_topics) if not self._has(asking, each)]
        self._require_room(asking, len(self._table.of_client(asking.group, asking.client_id)) + len(wanted))
        self._change(asking, added=wanted, start=start, done=done)

    def remove(self, asking: Asking, lite_topics: Iterable[str], done: Done) -> None:
        """Unsubscribe from these lite topics; names that the client does not have are ignored."""
        self._begin(asking)
        names = list(dict.fromkeys(lite_topics))
        for name in names:
            self._table.stage_given_up(self._writer.batch(), asking.group, asking.client_id, name)
        self._change(asking, removed=[each for each in names if self._has(asking, each)], done=done)

    def last_said(self, client_id: str) -> bytes | None:
        """Return the digest of the client's last `replace`, if the rows may still match it."""
        said = self._said_by(client_id)
        return None if said is None else said.digest

    def repeat(self, asking: Asking, done: Done) -> bool:
        """Repeat the client's last `replace`; return whether the rows still match it. If not, nothing is done.

        A client with a hundred lite topics repeats them every 30 seconds, and comparing a hundred is costly.
        """
        said = self._said_by(asking.client_id)
        self._writer.write_now()  # the rows are now up to date: the group may have been deleted meanwhile
        if said is None or said.terms != asking.terms or not self._table.is_known(asking.group, asking.client_id):
            return False
        self._table.stage_synced(self._writer.batch(), asking.group, asking.client_id, self._clock.wall_ms())
        self._finish(asking, (), lambda: None, done)
        return True

    def replace(self, asking: Asking, lite_topics: Iterable[str], done: Done, *, digest: bytes | None = None) -> None:
        """Subscribe to exactly these lite topics, except for those that were taken away.

        The client is notified again of those. Raises LiteQuotaExceeded, and changes
        nothing then. In a group with a wildcard the client subscribes to all of its
        lite topics instead. `digest` is of the whole request, for `last_said`.
        """
        self._begin(asking)
        wanted = {ALL_OF_THEM: None} if asking.terms.wildcard is not None else dict.fromkeys(lite_topics)
        self._require_room(asking, len(wanted))
        before = dict.fromkeys(self._table.of_client(asking.group, asking.client_id))
        lost = self._table.taken_from(asking.group, asking.client_id)
        for name in lost:
            if name in wanted:
                self._taken_away(asking.client_id, name)
            else:
                self._table.stage_given_up(self._writer.batch(), asking.group, asking.client_id, name)
        if digest is not None and not lost:
            self._clients[asking.client_id].said = _Said(asking.terms, digest)
        self._change(
            asking,
            added=[each for each in wanted if each not in before and each not in lost],
            removed=[each for each in before if each not in wanted],
            done=done,
        )

    def clear(self, asking: Asking, done: Done) -> None:
        """Unsubscribe from everything."""
        self._begin(asking)
        removed = self._delete_rows(asking.group, asking.client_id)
        self._finish(asking, self._move_back(asking, removed), lambda: None, done)

    # -- the end of clients

    def client_gone(self, client_id: str) -> None:
        """Remove a client that disconnected or timed out."""
        client = self._clients.pop(client_id, None)
        if client is not None:
            self._gone[client_id] = client.group
            self._has_gone.set()
        self._delivery.client_gone(client_id)

    async def run(self, interval_s: float) -> None:
        """Delete the rows of clients that are gone or have not synchronized for `EXPIRY_MS`, until cancelled."""
        while True:
            if self._delete_gone() or self._sweep():
                await asyncio.sleep(PAUSE_S)
                continue
            await until_set(self._has_gone, interval_s)
            self._has_gone.clear()

    def _delete_gone(self) -> bool:
        """Delete the rows of some clients that are gone; return whether there are more."""
        time_slice = TimeSlice(self._clock, work_s=DELETING_S)
        self._writer.write_now()  # the rows are now up to date
        while self._gone and not time_slice.is_over:
            client_id = next(iter(self._gone))
            self._delete_rows(self._gone.pop(client_id), client_id)
        return bool(self._gone)

    def _sweep(self) -> bool:
        """Check some of the clients; return whether expired ones are left to be deleted."""
        self._writer.write_now()  # the rows are now up to date
        now_ms = self._clock.wall_ms()
        if self._clock.monotonic_s() - self._up_since_s < EXPIRY_MS / 1000:
            return False  # clients could not synchronize while the broker was down
        time_slice = TimeSlice(self._clock, work_s=DELETING_S)
        found = self._table.clients(self._swept, LOOKED_AT_ONCE)
        for row in found:
            self._swept = row
            if row.synced_ms > now_ms + JUMP_MAX_MS:  # written while a clock was far ahead: treated as written now
                self._table.stage_synced(self._writer.batch(), row.group, row.client_id, now_ms)
            elif row.synced_ms < now_ms - EXPIRY_MS:
                self._delete_rows(row.group, row.client_id)
                self._clients.pop(row.client_id, None)
                if time_slice.is_over:
                    return True
        if len(found) < LOOKED_AT_ONCE:
            self._swept = None
        return False

    # -- changes

    def _begin(self, asking: Asking) -> None:
        self._writer.write_now()  # the rows are now up to date
        gone_from = self._gone.pop(asking.client_id, None)
        if gone_from is not None:
            self._delete_rows(gone_from, asking.client_id)
            self._writer.write_now()
        self._clients[asking.client_id] = _Client(asking.group)
        self._table.stage_synced(self._writer.batch(), asking.group, asking.client_id, self._clock.wall_ms())

    def _said_by(self, client_id: str) -> _Said | None:
        client = self._clients.get(client_id)
        return None if client is None else client.said

    def _is_otherwise(self, client_id: str) -> None:
        """Note that the rows do not, or no longer, match the client's last `replace`."""
        if client_id in self._clients:
            self._clients[client_id].said = None

    def _has(self, asking: Asking, lite_topic: str) -> bool:
        return self._table.is_subscribed(asking.group, asking.client_id, lite_topic)

    def _require_room(self, asking: Asking, count: int) -> None:
        quota = asking.terms.client_quota
        if quota is not None and count > quota + QUOTA_SLACK:
            raise LiteQuotaExceeded(f"{count} lite topics, a client of group {asking.group} may have at most {quota}")

    def _change(
        self,
        asking: Asking,
        *,
        added: Sequence[str] = (),
        removed: Sequence[str] = (),
        start: Start = Start.STANDING,
        done: Done,
    ) -> None:
        group, terms, client_id = asking
        batch = self._writer.batch()
        for name in removed:
            self._table.stage_removed(batch, group, client_id, name)
        moved = [*self._move_back(asking, removed)]
        for name in added:
            taken = terms.model is LiteModel.EXCLUSIVE and self._take_from_others(asking, name)
            self._table.stage_added(batch, group, client_id, name)
            restarts = taken and terms.reset_offset_on_exclusive and start == Start.STANDING
            self._move(asking, name, Start.OLDEST if restarts else start)
        if start.kind not in (StartKind.STANDING, StartKind.NEWEST):
            moved += added
        self._finish(
            asking, moved, lambda: self._delivery.changed(group, client_id, added=added, removed=removed), done
        )

    def _finish(self, asking: Asking, moved: Iterable[str], tell: Callable[[], None], done: Done) -> None:
        """Write the staged rows before anything reads a queue whose offset was moved; then call `tell` and `done`."""

        def written(error: Exception | None) -> None:
            if error is None:
                tell()
                for name in moved:
                    self._delivery.let_go(asking.group, light_queue_name(asking.terms.bind_topic, name))
            else:
                self._is_otherwise(asking.client_id)
            done(error)

        self._writer.when_written(written)
        self._writer.write_now()

    def _take_from_others(self, asking: Asking, lite_topic: str) -> bool:
        """Take the lite topic away from the group's other clients; return whether any of them had it."""
        others = [each for each in self._table.clients_of(asking.group, lite_topic) if each != asking.client_id]
        for other in others:
            self._is_otherwise(other)
            self._table.stage_taken_away(self._writer.batch(), asking.group, other, lite_topic)
            self._delivery.changed(asking.group, other, removed=[lite_topic])
            self._taken_away(other, lite_topic)
        return bool(others)

    def _move(self, asking: Asking, lite_topic: str, start: Start) -> None:
        if lite_topic == ALL_OF_THEM:
            return
        name = light_queue_name(asking.terms.bind_topic, lite_topic)
        offset = self._start_of(QueueId(name, 0), start)
        if offset is not None:
            self._queues.move(asking.group, name, offset)

    def _move_back(self, asking: Asking, removed: Sequence[str]) -> Sequence[str]:
        """Reset the group's offset in removed lite topics if the group is set so; return the names that were reset."""
        if not asking.terms.reset_offset_on_unsubscribe:
            return ()
        for name in removed:
            self._move(asking, name, Start.OLDEST)
        return removed

    def _delete_rows(self, group: str, client_id: str) -> Sequence[str]:
        """Delete a client's rows, and return the lite topics to which it was subscribed."""
        names = self._table.of_client(group, client_id)
        batch = self._writer.batch()
        for name in names:
            self._table.stage_removed(batch, group, client_id, name)
        self._table.stage_client_gone(batch, group, client_id)
        self._delivery.changed(group, client_id, removed=names)
        return names


def make_lite_subscriptions(
    store: OpenStore,
    delivery: Delivery,
    clients: ClientRegistry,
    *,
    taken_away: Callable[[str, str], None],
    clock: Clock,
) -> LiteSubscriptions:
    """Build the lite subscriptions and connect them to lost clients; `taken_away` is as in `LiteSubscriptions`."""
    subscriptions = LiteSubscriptions(
        LiteSubscriptionTable(store.state_engine),
        writer=delivery.writer,
        delivery=delivery.lite,
        queues=delivery.light_queues,
        start_of=lambda queue, start: offset_of(store.messages, queue, start),
        taken_away=taken_away,
        clock=clock,
    )

    def lost(client_id: str) -> None:
        # a client that has only lost its streams may come back, and keeps its subscriptions
        if clients.find(client_id) is None:
            subscriptions.client_gone(client_id)

    clients.on_lost(lost)
    return subscriptions


class WantedLiteTopics:
    """The subscriptions of groups to lite topics, as they are stored."""

    def __init__(
        self, table: LiteSubscriptionTable, *, groups: GroupTable, topics: TopicTable, queues: NamedQueues
    ) -> None:
        self._table = table
        self._groups = groups
        self._topics = topics
        self._queues = queues

    def of(self, group: str) -> Iterator[str]:
        """Yield the names of the light queues to which the group subscribes; one may come twice.

        Costs a lookup for each.
        """
        terms = self._terms(group)
        if terms is None:
            return
        for lite_topic in self._table.wanted(group):
            yield light_queue_name(terms.bind_topic, lite_topic)
        if not self._wants_all(group, terms):
            return
        key: bytes | None = b""
        while key is not None:
            lite_topics, key = lite_topics_from(self._queues, terms.bind_topic, key)
            for lite_topic in lite_topics:
                if lite_topic.startswith(terms.wildcard or ""):
                    yield light_queue_name(terms.bind_topic, lite_topic)

    def has(self, group: str, parent: str, lite_topic: str) -> bool:
        """Return whether the group subscribes to this lite topic of the topic."""
        terms = self._terms(group)
        if terms is None or terms.bind_topic != parent:
            return False
        if self._table.clients_of(group, lite_topic):
            return True
        return self._wants_all(group, terms) and lite_topic.startswith(terms.wildcard or "")

    def _terms(self, group: str) -> LiteGroup | None:
        """Return the group's lite settings; None for a group that reads no lite topics, or no longer does."""
        found = self._groups.get(group)
        terms = None if found is None else LiteGroup.of(found)
        topic = None if terms is None else self._topics.get(terms.bind_topic)
        return terms if topic is not None and topic.type is TopicType.LITE else None

    def _wants_all(self, group: str, terms: LiteGroup) -> bool:
        return terms.wildcard is not None and bool(self._table.clients_of(group, ALL_OF_THEM))
