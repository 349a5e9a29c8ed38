"""Delivery of lite topics: one receive gets messages of all lite topics that the client is subscribed to.

Each lite topic is a light queue, which the group consumes in order like any other queue. The difference is in what
waits for a message: it makes its lite topic ready for the clients that are present and subscribed to it, and for no
others, so the work depends on them and not on the number of lite topics. Nothing is kept in memory for a client that is
away: when it comes back, its rows are scanned for new messages, a part at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.delivery.fetch.fetch import Taking
from quarry_mq.server.delivery.lite.light_queues import LightQueues, lite_topics_from
from quarry_mq.server.delivery.lite.lite_clients import LiteClient, LiteClients, LiteGroupClients
from quarry_mq.server.delivery.long_poll import Serving, Take
from quarry_mq.server.delivery.model import Again, Delivered, MessageSource, Received, ReceiveRequest
from quarry_mq.server.delivery.receipt_handle import lite_topic_of
from quarry_mq.server.delivery.state.state_writer import GroupState
from quarry_mq.server.delivery.state.subscription import Subscription, WaitingPoll
from quarry_mq.server.tasks.time_slice import TimeSlice
from quarry_mq.store.metadata.lite import LiteGroup, light_queue_name, parse_light_queue_name
from quarry_mq.store.metadata.lite_subscriptions import ALL_OF_THEM
from quarry_mq.store.offsets import QueueOffset

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
        taking: Taking,
        source: MessageSource,
        state: GroupState,
        clock: Clock,
        serving: Callable[[Take[LiteClient]], Serving[LiteClient]],
    ) -> None:
        """`serving` makes what serves the receives of all clients."""
        self._queues = queues
        self._taking = taking
        self._source = source
        self._table = state.lite_subscriptions
        self._writer = state.writer
        self._clock = clock
        self._serving = serving(self.take)
        self._clients = LiteClients()

    def drain(self) -> None:
        self._serving.drain()

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
        if self._serving.is_draining:
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
        return self._serving.receive(client, request, polling_s, received, again)

    # -- fetching

    def take(self, client: LiteClient, request: ReceiveRequest) -> Sequence[Delivered]:
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
            delivered = self._taking.take_each(each(), request, max(1, request.batch_size // len(client.ready)))
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
        behind = client.looked_behind
        if behind is None or len(client.ready) > client.events_max // 2:
            return
        time_slice = TimeSlice(self._clock, work_s=LOOKING_S)
        while client.looked_behind is not None and not time_slice.is_over:
            if client.wants_all:
                self._look_at_some_of_all(client)
            else:
                self._look_at_some(client, client.looked_behind)
            if len(client.ready) >= client.events_max:
                return

    def _look_at_some(self, client: LiteClient, behind: str) -> None:
        """Check the next lite topics of the client's own rows, those after `behind`."""
        names = self._table.of_client(client.group.name, client.client_id, behind or None, LOOKED_AT_ONCE)
        for name in names:
            if len(client.ready) >= client.events_max:
                return
            client.looked_behind = name
            self._mark_if_ready(client, name)
        if len(names) < LOOKED_AT_ONCE:
            client.looked_behind = None

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
            client.looked_behind = None if key is None else ""

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
                self._serving.serve(client)
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
            self._serving.serve(client)

    # -- removal of clients

    def client_gone(self, client_id: str) -> None:
        """Drop a client that disconnected or timed out. Its pending receives are answered."""
        client = self._clients.remove(client_id)
        if client is not None:
            for poll in tuple(client.waiting):
                self._serving.end(poll)

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
