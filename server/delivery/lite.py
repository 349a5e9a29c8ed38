"""Delivery of lite topics: one receive gets messages of all lite topics that the client is subscribed to.

Each lite topic is a light queue, which the group consumes in order like any other queue. The difference is in what
waits for a message: it makes its lite topic ready for the clients that are present and subscribed to it, and for no
others, so the work depends on them and not on the number of lite topics. Nothing is kept in memory for a client that is
away: when it comes back, its rows are scanned for new messages, a part at a time.

There are very many light queues, so little of each is kept in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.delivery.deliveries import Deliveries
from quarry_mq.server.delivery.fetch import Fetch
from quarry_mq.server.delivery.handles import lite_topic_of
from quarry_mq.server.delivery.model import Again, Delivered, MessageSource, Received, ReceiveRequest
from quarry_mq.server.delivery.open_subscriptions import OpenSubscriptions, Positions
from quarry_mq.server.delivery.pulls import FetchCall, LongPolls
from quarry_mq.server.delivery.state.inflight import GroupState
from quarry_mq.server.delivery.state.subscription import Subscription, WaitingPoll
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.consumequeue import LastEntry, LightQueueStep
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata.lite import (
    ALL_OF_THEM,
    LiteGroup,
    light_queue_name,
    light_queue_prefix,
    parse_light_queue_name,
)
from quarry_mq.store.state.in_flight_key import subscription_prefix

ATTEMPTS_KEPT: Final = 16
"""Receives of one client whose messages are remembered, in case the client repeats them."""


class LiteClient:
    """Describe one client of a group, kept while it receives.

    Its subscriptions are rows. This object holds which of its lite topics may have messages, least recently served
    first, and how far its rows were scanned for them. It is a source of `server.delivery.pulls`.
    """

    __slots__ = (
        "_attempts",
        "client_id",
        "events_max",
        "group",
        "last_used_s",
        "looked_key",
        "ready",
        "scanned_to",
        "waiting",
        "wants_all",
    )

    def __init__(self, group: LiteGroupClients, client_id: str) -> None:
        self.group = group
        self.client_id = client_id
        self.events_max = 0
        """Number of lite topics that are kept ready; further ones are scanned for when these are done."""
        self.ready: dict[str, None] = {}
        self.scanned_to: str | None = ""
        """The last lite topic up to which its rows were scanned; None: all were."""
        self.looked_key = b""
        """The key up to which all lite topics were scanned, for a client that is subscribed to all and has no rows of
        them.
        """
        self.wants_all = False
        self.waiting: OrderedDict[WaitingPoll, None] = OrderedDict()
        self.last_used_s = 0.0
        self._attempts: OrderedDict[str, Sequence[str]] = OrderedDict()

    @property
    def may_have_messages(self) -> bool:
        return bool(self.ready) or self.scanned_to is not None

    def want_all(self, *, wants_all: bool) -> None:
        """Note whether the client is subscribed to all lite topics that its group's wildcard covers."""
        self.wants_all = wants_all
        if wants_all:
            self.group.wanting_all[self.client_id] = None
        else:
            self.group.wanting_all.pop(self.client_id, None)

    def mark(self, lite_topic: str) -> None:
        """Note that the lite topic may have messages."""
        if lite_topic in self.ready:
            return
        if len(self.ready) < self.events_max:
            self.ready[lite_topic] = None
        else:
            self.look_again()

    def look_again(self) -> None:
        """Start again to scan all lite topics that the client is subscribed to."""
        self.scanned_to, self.looked_key = "", b""

    def mark_first(self, lite_topics: Iterable[str]) -> None:
        """Put these lite topics first, so that they are served before the others."""
        self.ready = {**dict.fromkeys(lite_topics), **self.ready}

    def served(self, lite_topic: str, *, has_more: bool) -> None:
        """Put the lite topic last, or remove it from the list if it has no more messages."""
        self.ready.pop(lite_topic, None)
        if has_more:
            self.ready[lite_topic] = None

    def got(self, attempt_id: str, lite_topics: Sequence[str]) -> None:
        """Remember of which lite topics a receive with this attempt id got messages."""
        if attempt_id and lite_topics:
            self._attempts[attempt_id] = lite_topics
            if len(self._attempts) > ATTEMPTS_KEPT:
                self._attempts.popitem(last=False)

    def has_given(self, attempt_id: str) -> bool:
        """Return whether a receive with this attempt id got messages (`server.delivery.state.subscription.Source`)."""
        return bool(self.got_by(attempt_id))

    def got_by(self, attempt_id: str) -> Sequence[str]:
        return self._attempts.get(attempt_id, ()) if attempt_id else ()


class LiteGroupClients:
    """The clients of one group that receive."""

    __slots__ = ("_turn", "clients", "name", "parent", "wanting_all", "wildcard")

    def __init__(self, name: str, parent: str) -> None:
        self.name = name
        self.parent = parent
        self.wildcard = ""
        """Prefix of the lite topics that a client gets which is subscribed to all."""
        self.clients: dict[str, LiteClient] = {}
        self.wanting_all: dict[str, None] = {}
        """Ids of the clients that are subscribed to all lite topics, kept apart since each message needs them."""
        self._turn = 0

    def of(self, client_ids: Iterable[str]) -> Sequence[LiteClient]:
        """Return the present ones of these clients, rotated, so that each call begins with another one."""
        found = [client for each in client_ids if (client := self.clients.get(each)) is not None]
        if len(found) < 2:
            return found
        self._turn += 1
        first = self._turn % len(found)
        return found[first:] + found[:first]


class LiteClients:
    """The receiving clients of all groups, by client and by the topic that their groups are bound to."""

    def __init__(self) -> None:
        self._groups: dict[str, LiteGroupClients] = {}
        self._of_parent: dict[str, dict[str, LiteGroupClients]] = {}
        self._by_client: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[LiteClient]:
        return iter([client for group in self._groups.values() for client in group.clients.values()])

    def find(self, group: str, client_id: str) -> LiteClient | None:
        found = self._groups.get(group)
        return None if found is None else found.clients.get(client_id)

    def group(self, name: str) -> LiteGroupClients | None:
        return self._groups.get(name)

    def groups_of(self, parent: str) -> Sequence[LiteGroupClients]:
        return tuple(self._of_parent.get(parent, {}).values())

    def of(self, group: str, parent: str, client_id: str) -> LiteClient:
        """Return the client, created if necessary. A client has one group at a time."""
        client = self.find(group, client_id)
        if client is not None and client.group.parent == parent:
            return client
        self.remove(client_id)
        clients = self._groups.get(group)
        if clients is None:
            clients = self._groups[group] = LiteGroupClients(group, parent)
            self._of_parent.setdefault(parent, {})[group] = clients
        client = clients.clients[client_id] = LiteClient(clients, client_id)
        self._by_client[client_id] = group
        return client

    def remove(self, client_id: str) -> LiteClient | None:
        """Remove a client and return it, or None if it was not there."""
        name = self._by_client.pop(client_id, None)
        if name is None:
            return None
        group = self._groups[name]
        client = group.clients.pop(client_id)
        group.wanting_all.pop(client_id, None)
        if not group.clients:
            del self._groups[name]
            of_parent = self._of_parent[group.parent]
            del of_parent[name]
            if not of_parent:
                del self._of_parent[group.parent]
        return client


EVERYWHERE: Final = PhysicalOffset((1 << 63) - 1)
"""A position after every record, so that all queues end below it."""


class NamedQueues(Protocol):
    """The part of the message store that listing names needs."""

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = ...) -> LightQueueStep: ...


def lite_topics_from(queues: NamedQueues, parent: str, key: bytes) -> tuple[Sequence[str], bytes | None]:
    """Return some lite topics of a topic from a key on (`b""`: the first), and the key of the next ones or None."""
    step = queues.light_queues_ended(EVERYWHERE, key, light_queue_prefix(parent))
    prefix = light_queue_prefix(parent)
    return [each.queue.topic.removeprefix(prefix) for each in of_parent(parent, step.ended)], step.next_key


def of_parent(parent: str, found: Sequence[LastEntry]) -> list[LastEntry]:
    """Return the light queues of this topic alone.

    The queues found may include those of a topic whose name is this one's, the separator and more.
    """
    return [each for each in found if (parse_light_queue_name(each.queue.topic) or ("",))[0] == parent]


class LightQueues:
    """The operations of delivery on a light queue, given by name, for one group."""

    def __init__(
        self,
        *,
        subscriptions: OpenSubscriptions,
        reset_offset: Callable[[str, QueueId, QueueOffset], None],
        deliveries: Deliveries,
        positions: Positions,
        source: MessageSource,
        state: GroupState,
        clock: Clock,
    ) -> None:
        self._subscriptions = subscriptions
        self._reset_offset = reset_offset
        self._deliveries = deliveries
        self._positions = positions
        self._source = source
        self._offsets = state.offsets
        self._writer = state.writer
        self._clock = clock

    def open(self, group: str, name: str) -> Subscription:
        """Return the group's subscription with its queue, opened if necessary. Raises OverLimit."""
        subscription = self._subscriptions.open(group, name)
        subscription.last_used_s = self._clock.monotonic_s()
        self._positions.open(subscription, LIGHT_QUEUE_NUMBER)
        return subscription

    def may_have_messages(self, group: str, name: str) -> bool:
        """Return whether the group may get messages now, or when what it has in flight becomes visible."""
        subscription = self._subscriptions.find(group, name)
        if subscription is not None:
            return subscription.may_have_messages
        queue = QueueId(name, LIGHT_QUEUE_NUMBER)
        next_offset = self._offsets.get(group, queue)
        if self._source.maximum(queue) > (QueueOffset(0) if next_offset is None else next_offset):
            return True
        return self._has_in_flight(group, subscription_prefix(group, name))

    def is_done(self, subscription: Subscription) -> bool:
        """Return whether the group has got and acknowledged everything; if so, the queue is marked as served."""
        progress = subscription.queues.get(LIGHT_QUEUE_NUMBER)
        if progress is None or subscription.is_due or self._source.maximum(progress.queue) > progress.next_offset:
            return False
        if self._deliveries.rows_of(subscription, progress):
            return False
        subscription.served(LIGHT_QUEUE_NUMBER, drained=True)
        return True

    def release(self, group: str, name: str) -> None:
        """Drop the subscription from memory if the group has nothing left. The changes so far must be written."""
        subscription = self._subscriptions.find(group, name)
        if subscription is None or subscription.may_have_messages or not subscription.is_idle:
            return
        if not self._writer.is_full and not self._has_in_flight(group, subscription.prefix):
            self._deliveries.release(subscription)
            self._subscriptions.drop(subscription)

    def move(self, group: str, name: str, offset: QueueOffset) -> None:
        """Let the group continue at an offset; what it has in flight is deleted.

        The change has to be written before anything else reads the queue's state: a client moves thousands of queues,
        and none of them is opened.
        """
        queue = QueueId(name, LIGHT_QUEUE_NUMBER)
        is_open = self._subscriptions.find(group, name) is not None
        if not is_open and not self._has_in_flight(group, subscription_prefix(group, name)):
            self._offsets.stage(self._writer.batch(), group, queue, offset)
        else:
            self._reset_offset(group, queue, offset)

    def _has_in_flight(self, group: str, prefix: bytes) -> bool:
        if not self._deliveries.count_of_group(group):
            return False  # saves looking into each of a million queues
        return self._deliveries.first_offset(prefix, LIGHT_QUEUE_NUMBER) is not None


LOOKED_AT_ONCE: Final = 64
"""Lite topics of a client that are checked for messages in one step."""
LOOKING_S: Final = 0.005
IDLE_CLIENT_S: Final = 60.0


class LiteDepth(NamedTuple):
    """The number of lite topics that may have messages for a client."""

    ready: int
    client_id: str


class LiteDelivery:
    """Serves receives of lite topics."""

    def __init__(
        self,
        queues: LightQueues,
        *,
        fetch: Fetch,
        source: MessageSource,
        state: GroupState,
        clock: Clock,
        long_polls: Callable[[FetchCall[LiteClient]], LongPolls[LiteClient]],
    ) -> None:
        """`serving` makes what serves the receives of all clients."""
        self._queues = queues
        self._fetch = fetch
        self._source = source
        self._table = state.lite_subscriptions
        self._writer = state.writer
        self._clock = clock
        self._long_polls = long_polls(self.fetch)
        self._clients = LiteClients()

    def drain(self) -> None:
        self._long_polls.drain()

    def depths(self, group: str) -> list[LiteDepth]:
        """Return the depth of each receiving client of a group."""
        found = self._clients.group(group)
        return [] if found is None else [LiteDepth(len(each.ready), each.client_id) for each in found.clients.values()]

    def receive(
        self,
        request: ReceiveRequest,
        group: LiteGroup,
        polling_s: float,
        received: Received,
        again: Again | None = None,
    ) -> WaitingPoll | None:
        """Receive as `Delivery.receive`, from all lite topics of the topic that the client is subscribed to."""
        if self._long_polls.is_draining:
            received((), None)
            return None
        client = self._clients.of(request.group, group.bind_topic, request.client_id)
        client.events_max = group.client_events_max
        client.group.wildcard = group.wildcard or ""
        client.want_all(
            wants_all=group.wildcard is not None
            and self._table.is_subscribed(request.group, request.client_id, ALL_OF_THEM)
        )
        client.last_used_s = self._clock.monotonic_s()
        return self._long_polls.receive(client, request, polling_s, received, again)

    # -- fetching

    def fetch(self, client: LiteClient, request: ReceiveRequest) -> Sequence[Delivered]:
        """Return messages of the ready lite topics, some of each. Raises the error that prevented it."""
        request = request._replace(is_ordered=True)
        client.mark_first(client.got_by(request.attempt_id))
        self._look_further(client)
        if not client.ready:
            return ()
        group, parent = client.group.name, client.group.parent
        served: list[tuple[str, Subscription]] = []

        def each() -> Iterator[Subscription]:
            for lite_topic in tuple(client.ready):
                subscription = self._queues.open(group, light_queue_name(parent, lite_topic))
                served.append((lite_topic, subscription))
                yield subscription

        try:
            delivered = self._fetch.fetch_each(each(), request, max(1, request.batch_size // len(client.ready)))
        finally:
            for lite_topic, subscription in served:
                client.served(lite_topic, has_more=subscription.may_have_messages)
            self._writer.when_written(lambda _: self._release(group, [each.topic for _, each in served]))
        client.got(request.attempt_id, tuple(dict.fromkeys(lite_topic_of(each.receipt_handle) for each in delivered)))
        return delivered

    def _release(self, group: str, names: Iterable[str]) -> None:
        for name in names:
            self._queues.release(group, name)

    def _look_further(self, client: LiteClient) -> None:
        """Scan more of the lite topics that the client is subscribed to for messages, within the time limit."""
        after = client.scanned_to
        if after is None or len(client.ready) > client.events_max // 2:
            return
        time_slice = TimeSlice(self._clock, work_s=LOOKING_S)
        while client.scanned_to is not None and not time_slice.is_over:
            if client.wants_all:
                self._look_at_some_of_all(client)
            else:
                self._look_at_some(client, client.scanned_to)
            if len(client.ready) >= client.events_max:
                return

    def _look_at_some(self, client: LiteClient, after: str) -> None:
        """Check the next lite topics of the client's own rows, those after `behind`."""
        names = self._table.of_client(client.group.name, client.client_id, after or None, LOOKED_AT_ONCE)
        for name in names:
            if len(client.ready) >= client.events_max:
                return
            client.scanned_to = name
            self._mark_if_ready(client, name)
        if len(names) < LOOKED_AT_ONCE:
            client.scanned_to = None

    def _look_at_some_of_all(self, client: LiteClient) -> None:
        """Check the next of all lite topics. If there is no space for all that are ready, the same ones come again
        later.
        """
        names, key = lite_topics_from(self._source, client.group.parent, client.looked_key)
        for name in names:
            if name.startswith(client.group.wildcard):
                self._mark_if_ready(client, name)
        if len(client.ready) < client.events_max:
            client.looked_key = key or b""
            client.scanned_to = None if key is None else ""

    def _mark_if_ready(self, client: LiteClient, name: str) -> None:
        group = client.group
        if self._queues.may_have_messages(group.name, light_queue_name(group.parent, name)):
            client.mark(name)

    # -- events that wake receives

    def arrived(self, name: str) -> None:
        """Wake the clients that wait for a message in this light queue."""
        found = parse_light_queue_name(name)
        if found is not None:
            parent, lite_topic = found
            for group in self._clients.groups_of(parent):
                self._ready(group, lite_topic)

    def ready(self, subscription: Subscription) -> None:
        """Serve a group whose light queue may have messages again, or drop the queue if its last message was
        acknowledged.
        """
        if self._queues.is_done(subscription):
            self._writer.when_written(lambda _: self._release(subscription.group, (subscription.topic,)))
        else:
            self.let_go(subscription.group, subscription.topic)

    def let_go(self, group: str, name: str) -> None:
        """Serve a group whose light queue may have messages again, given by name; nothing of it need be in memory."""
        found = parse_light_queue_name(name)
        clients = self._clients.group(group)
        if found is not None and clients is not None and clients.parent == found[0]:
            self._ready(clients, found[1])

    def move(self, group: str, name: str, offset: QueueOffset) -> None:
        """Let the group continue at an offset of a light queue, and wake its clients once that is written.

        The change has to be written before anything else reads the queue's state. What the group has in flight there is
        deleted.
        """
        self._queues.move(group, name, offset)
        self._writer.when_written(lambda error: None if error else self.let_go(group, name))

    def _ready(self, group: LiteGroupClients, lite_topic: str) -> None:
        """Serve the present clients subscribed to the lite topic. Busy ones see it marked when they are done."""
        wanted_by = dict.fromkeys(self._table.clients_of(group.name, lite_topic))
        if lite_topic.startswith(group.wildcard):
            wanted_by.update(group.wanting_all)
        clients = group.of(wanted_by)
        for client in clients:
            client.mark(lite_topic)
        name = light_queue_name(group.parent, lite_topic)
        for client in clients:
            if client.waiting:
                self._long_polls.serve(client)
                if not self._queues.may_have_messages(group.name, name):
                    return

    def changed(self, group: str, client_id: str, *, added: Iterable[str] = (), removed: Iterable[str] = ()) -> None:
        """Apply a change of the client's subscriptions that was written."""
        client = self._clients.find(group, client_id)
        if client is None:
            return
        for lite_topic in removed:
            client.ready.pop(lite_topic, None)
            if lite_topic == ALL_OF_THEM:
                client.want_all(wants_all=False)
        for lite_topic in added:
            if lite_topic == ALL_OF_THEM:
                client.want_all(wants_all=True)
                client.look_again()
            elif self._queues.may_have_messages(group, light_queue_name(client.group.parent, lite_topic)):
                client.mark(lite_topic)
        if client.waiting and client.may_have_messages:
            self._long_polls.serve(client)

    # -- removal of clients

    def client_gone(self, client_id: str) -> None:
        """Drop a client that disconnected or timed out. Its pending receives are answered."""
        client = self._clients.remove(client_id)
        if client is not None:
            for poll in tuple(client.waiting):
                self._long_polls.end(poll)

    def delete_group(self, group: str) -> None:
        """Delete the subscriptions of the group's clients, with the writer's next write."""
        self._table.stage_group_gone(self._writer.batch(), group)
        found = self._clients.group(group)
        for client_id in tuple(found.clients) if found is not None else ():
            self.client_gone(client_id)

    def drop_idle_clients(self) -> None:
        """Drop clients that have not received recently from memory; their rows are scanned again when they do."""
        before_s = self._clock.monotonic_s() - IDLE_CLIENT_S
        for client in self._clients:
            if not client.waiting and client.last_used_s < before_s:
                self._clients.remove(client.client_id)
