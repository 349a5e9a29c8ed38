"""The delivery rules of POP consumption (protocol: docs/formats/protocol.md; states: docs/ARCHITECTURE.md).

For one group, a message of a queue is in one of these states:

    waiting     its offset is at or above the group's next offset
    invisible   handed out; an in-flight row holds until when it is hidden and how often it was delivered
    ready       its hidden time has passed without an acknowledgement; the row stays, the next receive takes it
    done        acknowledged, or skipped by the group's filter: no row, below the next offset

Every change is on disk before the client is answered, so a restart loses nothing but the waiting receives. Everything
runs on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from quarry_mq.kv import WriteBatch
from quarry_mq.protocol.clock import Clock, SteadyClock
from quarry_mq.protocol.names import RETRY_PREFIX, is_light_queue
from quarry_mq.server.counters import ReceiveStages
from quarry_mq.server.delivery.deliveries import Changed, Deliveries, Event
from quarry_mq.server.delivery.fetch import BarrierOf, DamagedQueue, DeadLetters, Fetch, Forwarded
from quarry_mq.server.delivery.handles import ReceiptHandle, TimedHandle, topic_of
from quarry_mq.server.delivery.lite import LightQueues, LiteDelivery
from quarry_mq.server.delivery.model import (
    Again,
    ErrorSink,
    MessageSource,
    Received,
    ReceiveRequest,
    Timers,
)
from quarry_mq.server.delivery.open_subscriptions import OpenSubscriptions, Positions
from quarry_mq.server.delivery.pulls import LongPolls
from quarry_mq.server.delivery.retry_topics import queue_of_handle
from quarry_mq.server.delivery.state.inflight import GroupState
from quarry_mq.server.delivery.state.subscription import (
    GroupMessage,
    QueueProgress,
    Subscription,
    WaitingPoll,
    WaitingPolls,
)
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import LimitsSection
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import DispatchRequest, QueueId, QueueOffset
from quarry_mq.store.state.in_flight_key import group_prefix, subscription_prefix

Named = Callable[[str, str, str], tuple[ReceiptHandle, GroupMessage]]
"""Function that decodes a handle of a group and a topic and finds its message. Raises InvalidReceiptHandle."""


class Returning:
    """Gives messages back whose answer was not delivered.

    A hand-out is written before its answer, so the death of the process takes nothing from a client. Therefore a
    hand-out whose answer never left is undone afterwards. If the process dies in between, the hand-out stays as it is
    written.
    """

    def __init__(self, deliveries: Deliveries, named: Named) -> None:
        self._deliveries = deliveries
        self._named = named

    def undeliverable(self, group: str, topic: str, handles: Iterable[str], *, has_begun: bool) -> None:
        """Give back the messages of the handles, after a second if a part of the answer left (`has_begun`).

        Otherwise they are given back at once and uncounted: no client has seen them, so it was no attempt.
        """
        for handle in handles:
            try:
                decoded, message = self._named(group, topic, handle)
                if has_begun:
                    self._deliveries.give_back(message, self._deliveries.valid_row(message, decoded))
                    continue
            except InvalidReceiptHandle:
                continue  # acknowledged by a client that got it after all, or visible already
            row = self._deliveries.row(message)
            if row is not None and row.delivery_id == decoded.delivery_id:
                # also if its time is up meanwhile: it must not count as an attempt
                self._deliveries.give_back(message, row, is_counted=False)


class Acknowledging:
    """Ends deliveries in the clear cases, and reports which they were.

    A case is clear if the group consumes the topic without order and has the subscription in memory, and if the message
    is from one of the topic's own queues and its row is written, unchanged and hidden by its time.
    """

    def __init__(self, subscriptions: OpenSubscriptions, deliveries: Deliveries) -> None:
        self._subscriptions = subscriptions
        self._deliveries = deliveries

    def acknowledge(self, group: str, topic: str, handles: Sequence[ReceiptHandle]) -> list[bool]:
        """Acknowledge the messages of clear cases as `Delivery.acknowledge` does, and return which they are.

        Nothing is done about the others.
        """
        subscription = self._subscriptions.find(group, topic)
        if subscription is None or subscription.is_ordered or subscription.is_retry:
            return [False] * len(handles)
        places: list[tuple[QueueProgress, QueueOffset]] = []
        indexes: list[int] = []
        seen: set[tuple[int, int]] = set()
        for index, (number, offset, _, _) in enumerate(handles):
            progress = subscription.queues.get(number)
            if progress is None or offset in progress.unwritten or (number, offset) in seen:
                continue
            seen.add((number, offset))
            places.append((progress, QueueOffset(offset)))
            indexes.append(index)
        done = [False] * len(handles)
        ids = [handles[index].delivery_id for index in indexes]
        ended = self._deliveries.end_valid(subscription, places, ids)
        for index, is_ended in zip(indexes, ended, strict=True):
            done[index] = is_ended
        return done


class Delivery:
    """Hands out messages, takes acknowledgements, and redelivers what was not acknowledged."""

    def __init__(
        self,
        settings: BrokerSettings,
        source: MessageSource,
        state: GroupState,
        *,
        clock: Clock,
        timers: Timers,
        is_client_alive: Callable[[str], bool],
        error_reporter: ErrorSink,
        dead_letters: DeadLetters,
    ) -> None:
        self._source = source
        self._offsets = state.offsets
        self.writer: Final = state.writer
        """Writes all changes: an answer that depends on one waits for its next write."""
        self._clock = clock = SteadyClock(clock)
        self.handle_key: Final = state.handle_key
        self.stages: Final = ReceiveStages(clock)
        self._positions = Positions(settings.delivery, source, state)
        self._deliveries = Deliveries(
            settings.delivery,
            state,
            clock=clock,
            timers=timers,
            is_client_alive=is_client_alive,
            open_subscription=self._open,
            open_queue=self._positions.open,
            ready=self._serve,
        )
        self._was_reset: Callable[[str, QueueId, QueueOffset], None] = lambda _group, _queue, _offset: None
        self._fetch = self._make_fetch(settings.limits, dead_letters, error_reporter)
        # gives back what was handed out in an answer that was interrupted
        self.undeliverable: Final = Returning(self._deliveries, self._named).undeliverable
        self._polls = WaitingPolls(settings)
        long_polls = partial(
            LongPolls,
            waiting=self._polls,
            writer=state.writer,
            clock=clock,
            timers=timers,
            stages=self.stages,
            undeliverable=self.undeliverable,
        )
        self._long_polls: LongPolls[Subscription] = long_polls(self._fetch.fetch)
        self._subscriptions = OpenSubscriptions(
            settings.limits,
            source=source,
            clock=clock,
            deliveries=self._deliveries,
            positions=self._positions,
            end_poll=self._long_polls.end,
            light_ready=self._light_ready,
        )
        self.light_queues: Final = self._make_light_queues(state)
        self.lite: Final = LiteDelivery(
            self.light_queues, fetch=self._fetch, source=source, state=state, clock=clock, long_polls=long_polls
        )
        # acknowledges the messages of one group and topic that are clear cases
        self.acknowledge_all: Final = Acknowledging(self._subscriptions, self._deliveries).acknowledge
        state.writer.stage_again_with(self._stage_all)

    def _make_fetch(self, limits: LimitsSection, dead_letters: DeadLetters, error_reporter: ErrorSink) -> Fetch:
        return Fetch(
            limits,
            source=self._source,
            positions=self._positions,
            deliveries=self._deliveries,
            dead_letters=dead_letters,
            error_reporter=error_reporter,
            ready=self._serve_after_pass,
            stages=self.stages,
        )

    def _make_light_queues(self, state: GroupState) -> LightQueues:
        return LightQueues(
            subscriptions=self._subscriptions,
            reset_offset=self.reset_offset,
            deliveries=self._deliveries,
            positions=self._positions,
            source=self._source,
            state=state,
            clock=self._clock,
        )

    def configure(self, settings: BrokerSettings) -> None:
        """Apply new settings to what begins from now on; what is under way goes on as it began."""
        self._positions.configure(settings.delivery)
        self._deliveries.configure(settings.delivery)
        self._fetch.configure(settings.limits)
        self._polls.configure(settings)
        self._subscriptions.configure(settings.limits)

    # -- for the parts, which need each other

    def _open(self, group: str, topic: str) -> Subscription:
        return self._subscriptions.open(group, topic)

    def _light_ready(self, subscription: Subscription) -> None:
        self.lite.ready(subscription)

    def _serve(self, subscriptions: Iterable[Subscription]) -> None:
        """Serve the receives of subscriptions that may have messages."""
        for subscription in subscriptions:
            owner = subscription.owner
            if owner.on_ready is None:
                self._long_polls.serve(owner)
            else:
                owner.on_ready(owner)

    def _serve_after_pass(self, subscriptions: Iterable[Subscription]) -> None:
        """Serve at the end of the loop iteration; for callers that may be in the middle of serving one of them."""
        for subscription in subscriptions:
            owner = subscription.owner
            if owner.on_ready is None:
                self._long_polls.serve_after_pass(owner)
            else:
                self.writer.after_pass(partial(owner.on_ready, owner))

    # -- stats

    @property
    def waiting_polls(self) -> int:
        return self._long_polls.waiting_count

    def waiting_on(self, group: str, topic: str) -> int:
        """Return how many receives of the group wait for messages of the topic."""
        subscription = self._subscriptions.find(group, topic)
        return 0 if subscription is None else len(subscription.waiting)

    def now_ms(self) -> int:
        """Return the time of the clock by which messages are hidden. It never jumps, so it may not be that of day."""
        return self._clock.wall_ms()

    @property
    def redeliveries(self) -> int:
        return self._fetch.redeliveries

    @property
    def inflight_count(self) -> int:
        return len(self._deliveries)

    @property
    def subscription_count(self) -> int:
        return len(self._subscriptions)

    def blocked_by_damage(self) -> list[DamagedQueue]:
        """Return the queues in which a damaged record holds up a group: it has met the record and is not past it."""
        return self._fetch.damaged_queues.blocking(self._is_past)

    def _is_past(self, place: DamagedQueue) -> bool:
        group, queue, offset, _ = place
        next_offset = self.next_offset(group, queue)
        if next_offset is None or offset < self._source.bounds(queue).minimum:
            return True
        return next_offset > offset and self.first_in_flight(group, queue, offset) != offset

    def subscriptions(self) -> tuple[Subscription, ...]:
        """Return the subscriptions in memory, including those of retry topics."""
        return tuple(self._subscriptions)

    def rows_in_flight(self, group: str, topic: str) -> Iterator[object] | None:
        """Return an iterator with one item for each message in flight now, read lazily; None while rows are missing."""
        self.writer.write_now()  # from here on the table is read
        return None if self.writer.is_full else self._deliveries.rows(subscription_prefix(group, topic))

    def rows_in_flight_below(self, group: str, queue: QueueId, end: QueueOffset) -> Iterator[object]:
        """Yield one item for each message in flight below an offset of the queue. Unwritten changes are not seen."""
        return self._deliveries.rows_below(subscription_prefix(group, queue.topic), queue.number, end)

    def first_in_flight(self, group: str, queue: QueueId, start: QueueOffset) -> QueueOffset | None:
        """Return the first offset from `start` on that is in flight in a queue. Unwritten changes are not seen."""
        return self._deliveries.first_offset(subscription_prefix(group, queue.topic), queue.number, start)

    # -- start

    def start_group(self, group: str, topic: str, queue_numbers: Iterable[int]) -> None:
        """Fix where a new group starts, so that it gets what is sent from now on. Known groups stay where they are.

        The start is kept in memory as well, like everything that is not written yet: the write may fail.
        """
        if self._subscriptions.find(group, topic) is not None:
            return
        unread = self._positions.never_read(group, topic, queue_numbers)
        if unread:
            subscription = self._subscriptions.open(group, topic)
            subscription.last_used_s = self._clock.monotonic_s()
            self._positions.open_all(subscription, unread)

    # -- receive

    def receive(
        self, request: ReceiveRequest, polling_s: float, received: Received, again: Again | None = None
    ) -> WaitingPoll | None:
        """Hand out messages now, or as soon as there are some within `polling_s` seconds and `again` raises nothing.

        `received` is called exactly once, unless the returned poll is cancelled before. Raises OverLimit if too many
        receives wait, and Invalid for a retry topic, which a group gets with the topic that it belongs to.
        """
        if self._long_polls.is_draining:
            received((), None)
            return None
        subscription = self._subscriptions.open(request.group, request.topic)
        if subscription.is_retry:
            raise Invalid(
                f"group {request.group} receives topic {request.topic} together with topic {subscription.owner.topic}"
            )
        subscription.last_used_s = self._clock.monotonic_s()
        self._positions.open_all(subscription, request.queue_numbers, request.new_group_start)
        return self._long_polls.receive(subscription, request, polling_s, received, again)

    def cancel(self, poll: WaitingPoll) -> None:
        """Cancel a waiting receive whose caller has gone away; it is not answered."""
        self._long_polls.cancel(poll)

    def stop(self) -> None:
        """Stop all activity of its own: the store is about to close."""
        self._deliveries.stop()

    def end_waiting(self, client_id: str | None = None) -> None:
        """Answer the waiting receives of a client that disconnects, or of all clients."""
        self._long_polls.end_waiting(client_id)

    def drain(self) -> None:
        """Answer all waiting receives, and later ones at once, and hand out nothing any more: the broker stops."""
        self._long_polls.drain()
        self.lite.drain()

    # -- acknowledge and change

    def acknowledge(self, group: str, topic: str, handle: str | TimedHandle) -> None:
        """Mark the message as done. Repeating this within the handle's time is allowed.

        Raises InvalidReceiptHandle once the time is over or a later delivery has replaced this one. The caller answers
        after the next `StateWriter` write.
        """
        decoded, message = self._named_by(group, topic, handle)
        row = self._deliveries.row(message)
        if row is None and self._clock.wall_ms() < decoded.expires_at_ms and message.is_handed_out:
            return
        row = self._deliveries.valid_row(message, decoded)
        self._deliveries.end(message, row, Event.ACKNOWLEDGED)
        if message.subscription.is_ordered:
            # the next ones of the queue may be handed out now
            message.subscription.mark(message.progress.queue.number)
            self._serve_after_pass((message.subscription,))

    def dead_letter(self, group: str, topic: str, handle: str, dead_lettered: Forwarded) -> None:
        """Dead-letter the message. `buried` is called when it is in the group's dead letters.

        Raises InvalidReceiptHandle as `acknowledge` does, and the errors of reading the message.
        """
        decoded, message = self._named(group, topic, handle)
        row = self._deliveries.valid_row(message, decoded)
        self._fetch.forward(message, row, dead_lettered)

    def change_invisible(
        self, group: str, topic: str, handle: str | TimedHandle, invisible_ms: int, *, is_counted: bool = True
    ) -> Changed:
        """Hide the message for `invisible_ms` from now (0: visible at once).

        `is_counted` says whether this delivery counts among those that the group allows for one message. Raises
        InvalidReceiptHandle as `acknowledge` does.
        """
        decoded, message = self._named_by(group, topic, handle)
        row = self._deliveries.valid_row(message, decoded)
        return self._deliveries.hide(message, row, invisible_ms, is_counted=is_counted)

    def _named_by(
        self, group: str, topic: str, handle: str | TimedHandle
    ) -> tuple[ReceiptHandle | TimedHandle, GroupMessage]:
        """Return the handle, decoded if it is text, and its message. Raises InvalidReceiptHandle."""
        if isinstance(handle, str):
            return self._named(group, topic, handle)
        return handle, self._delivered_from(group, topic, handle)

    def _named(self, group: str, topic: str, text: str) -> tuple[ReceiptHandle, GroupMessage]:
        """Decode a handle and find its message. Raises InvalidReceiptHandle."""
        topic = topic_of(text, topic)
        handle = ReceiptHandle.decode(text, group, topic, self.handle_key)
        return handle, self._delivered_from(group, topic, handle)

    def _delivered_from(self, group: str, topic: str, handle: ReceiptHandle | TimedHandle) -> GroupMessage:
        """Return the message that a handle names. A forged handle creates no state. Raises InvalidReceiptHandle."""
        queue = QueueId(*queue_of_handle(group, topic, handle.queue_number))
        known = self._subscriptions.find(group, queue.topic)
        if (known is None or queue.number not in known.queues) and self._offsets.get(group, queue) is None:
            raise InvalidReceiptHandle("the receipt handle names a queue that the group has never read")
        for part in self._subscriptions.open(group, topic).parts:
            if part.topic == queue.topic:
                progress = self._positions.open(part, queue.number)
                return GroupMessage(part, progress, QueueOffset(handle.queue_offset))
        raise InvalidReceiptHandle("the receipt handle names a topic that does not exist any more")

    def client_lost(self, client_id: str) -> None:
        """Give back, after a second, what the server kept hidden on this client's behalf."""
        self._deliveries.give_back_of_client(client_id)

    # -- events that wake receives

    def messages_arrived(self, requests: Iterable[DispatchRequest]) -> None:
        """Wake the receives that wait for exactly these queues."""
        woken: dict[Subscription, None] = {}
        light: dict[str, None] = {}
        of_topic = self._subscriptions.of_topic
        for request in requests:
            for name, _ in request.light_queues:
                light[name] = None
            subscriptions = of_topic(request.topic)
            if not subscriptions and request.topic.startswith(RETRY_PREFIX):
                subscriptions = self._subscriptions.attach_to(request.topic)
            for subscription in subscriptions:
                subscription.mark(request.queue_number)
                if subscription.owner.waiting:
                    woken.setdefault(subscription.owner)
        self._serve(woken)
        for name in light:
            for subscription in of_topic(name):
                subscription.mark(LIGHT_QUEUE_NUMBER)
            self.lite.arrived(name)

    def hold_ordered(self, barrier_of: BarrierOf) -> None:
        """Set the function to ask before anything new is handed out in order. Call `let_go` when its answer changes."""
        self._fetch.hold_ordered(barrier_of)

    def let_go(self, group: str, topic: str) -> None:
        """Let the group have the topic's messages that were held back from it."""
        subscription = self._subscriptions.find(group, topic)
        if subscription is not None:
            for number in subscription.queues:
                subscription.mark(number)
            self._serve_after_pass((subscription,))
        elif is_light_queue(topic):
            self.lite.let_go(group, topic)

    # -- administration

    def position(self, group: str, queue: QueueId) -> tuple[QueueOffset | None, int]:
        """Return the group's next offset in the queue (None: never read) and how many of its messages are in flight."""
        self.writer.write_now()  # from here on the table is read
        in_flight = self._deliveries.count_of(subscription_prefix(group, queue.topic), queue.number)
        return self.next_offset(group, queue), in_flight

    def next_offset(self, group: str, queue: QueueId) -> QueueOffset | None:
        """Return the offset of the first message that the group has not got; None in a queue that it has never read."""
        subscription = self._subscriptions.find(group, queue.topic)
        progress = subscription.queues.get(queue.number) if subscription else None
        return self._offsets.get(group, queue) if progress is None else progress.next_offset

    def is_done_before(self, group: str, queue: QueueId, offset: QueueOffset) -> bool:
        """Return whether the group has got everything in the queue below the offset, with nothing of it in flight."""
        next_offset = self.next_offset(group, queue)
        if next_offset is None or next_offset < offset:
            return False
        self.writer.write_now()  # from here on the table is read
        first = self._deliveries.first_offset(subscription_prefix(group, queue.topic), queue.number)
        return not self.writer.is_full and (first is None or first >= offset)

    def commit_offset(self, group: str, queue: QueueId, offset: QueueOffset, *, ends_below: bool = False) -> None:
        """Let the group continue at `offset` from its next receive on.

        What it has in flight below the offset stays in flight, unless `ends_below`: then it is done. Clients that keep
        the group's offset themselves mean that.
        """
        subscription = self._subscriptions.open(group, queue.topic)
        subscription.last_used_s = self._clock.monotonic_s()
        progress = self._positions.open(subscription, queue.number)
        if ends_below:
            self._deliveries.end_below(subscription, progress, offset)
        if offset < progress.next_offset:
            self._deliveries.delete_from(subscription, progress, offset)
        progress.next_offset = offset
        self._positions.store(subscription, progress)
        subscription.mark(queue.number)
        self._serve_after_pass((subscription,))

    def end_below(self, group: str, queue: QueueId, offset: QueueOffset) -> None:
        """Let all below `offset` be done for the group, which goes on where it was if that is later."""
        next_offset = self.next_offset(group, queue)
        if next_offset is None or next_offset < offset:
            self.commit_offset(group, queue, offset, ends_below=True)
        else:
            subscription = self._subscriptions.open(group, queue.topic)
            self._deliveries.end_below(subscription, self._positions.open(subscription, queue.number), offset)

    def attach_retries(self, group: str, topic: str) -> None:
        """Let the group's receives from the topic get what lies in its retry topics for it. Raises OverLimit."""
        self._subscriptions.open(group, topic)

    def on_reset(self, callback: Callable[[str, QueueId, QueueOffset], None]) -> None:
        """Call back each time that an operator has moved a group in a queue, with its next offset."""
        self._was_reset = callback

    def reset_offset(self, group: str, queue: QueueId, offset: QueueOffset) -> None:
        """Let the group continue at `offset`. Everything it had in flight in this queue is deleted."""
        subscription = self._subscriptions.open(group, queue.topic)
        progress = self._positions.open(subscription, queue.number)
        self._deliveries.delete_from(subscription, progress)
        progress.next_offset = offset
        self._positions.store(subscription, progress)
        subscription.mark(queue.number)
        self._was_reset(group, queue, offset)
        self._serve((subscription,))

    # -- deletion of groups and topics

    def delete_group(self, group: str) -> None:
        """Delete the group's progress in all topics, durably: the group itself is deleted next.

        Raises StorePoisoned, kv.EngineFull.
        """
        self.writer.require_room()
        for subscription in [each for each in self._subscriptions if each.group == group]:
            self._subscriptions.drop(subscription)
        self._deliveries.delete_rows(group_prefix(group))
        self._offsets.delete_group(self.writer.batch(), group)
        self.lite.delete_group(group)
        self.store_durably()

    def delete_subscription(self, group: str, topic: str) -> None:
        """Delete the group's progress in the topic, durably: if the group reads the topic again, it is new there.

        Raises StorePoisoned, kv.EngineFull.
        """
        self.writer.require_room()
        subscription = self._subscriptions.find(group, topic)
        if subscription is not None:
            self._subscriptions.drop(subscription)
        self._deliveries.delete_rows(subscription_prefix(group, topic))
        self._offsets.delete_pair(self.writer.batch(), group, topic)
        self.store_durably()

    def delete_topic(self, topic: str) -> None:
        """Delete the progress of all groups in the topic, durably: the topic itself is deleted next.

        Raises StorePoisoned, kv.EngineFull.
        """
        self.writer.require_room()
        self.delete_topics((topic,))

    def delete_topics(self, topics: Iterable[str], *, durably: bool = True) -> None:
        """Delete the progress in several topics or light queues, as `delete_topic`.

        Those that no group has ever read, usually most of them, only cost a look-up. Unless `durably`, the caller has
        to call `store_durably` in the end.
        """
        self.writer.write_now()  # from here on the table is read, and the subscriptions in memory
        found = ((each, self._offsets.groups_of(each), self._subscriptions.of_topic(each)) for each in topics)
        read = [each for each in found if each[1] or each[2]]
        if not read:
            return
        if durably:
            self.writer.require_room()
        for topic, groups, subscriptions in read:
            for group in groups:
                self._deliveries.delete_rows(subscription_prefix(group, topic))
            for subscription in tuple(subscriptions):
                self._subscriptions.drop(subscription)
            self._offsets.delete_topic(self.writer.batch(), topic, groups)
        if durably:
            self.store_durably()
        else:
            self.writer.write_now()

    def require_room(self) -> None:
        """Raise if there is no free space; to be called before `reset_offset`, so that a refused reset changes nothing.

        Raises StorePoisoned, kv.EngineFull.
        """
        self.writer.require_room()

    def store_durably(self) -> None:
        """Make the changes so far durable against a power failure. Raises StorePoisoned, kv.EngineFull."""
        self.writer.write_durably()

    def _stage_all(self, batch: WriteBatch) -> None:
        self._offsets.stage_index_again()
        for subscription in self._subscriptions:
            self._deliveries.stage(batch, subscription)
            self._positions.stage(batch, subscription)

    def drop_idle_subscriptions(self) -> None:
        """Free subscriptions that were not used recently; their rows stay. To be called every few seconds."""
        if self.writer.is_full:
            self.writer.try_again()
        else:
            self._subscriptions.drop_idle()
