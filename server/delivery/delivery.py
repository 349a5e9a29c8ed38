"""The delivery rules of POP consumption (protocol: docs/formats/protocol.md; states: docs/ARCHITECTURE.md).

A message of a queue is, for one group:

    waiting     its offset is at or above the group's next offset
    invisible   handed out; an in-flight row holds until when it is hidden and how often it was delivered
    ready       its hidden time has passed without an acknowledgement; the row stays, the next receive takes it
    done        acknowledged, or passed over by the group's filter: no row, below the next offset

All of it is on disk before the client hears of it, so a restart changes nothing but the waiting receives.
Everything runs on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final

from kv import WriteBatch
from server.delivery.deliveries import Deliveries
from server.delivery.inflight import InFlightTable
from server.delivery.model import (
    Delivered,
    DeliverySettings,
    Faults,
    MessageSource,
    Received,
    ReceiveRequest,
    Timers,
)
from server.delivery.positions import Positions
from server.delivery.receipt_handle import ReceiptHandle
from server.delivery.registry import Subscriptions, WaitingPolls
from server.delivery.state_writer import AfterPass, StateWriter
from server.delivery.subscription import QueueProgress, Subscription, WaitingPoll
from server.delivery.taken import Taken
from server.errors import InvalidReceiptHandle
from store.clock import Clock, SteadyClock
from store.consumequeue import ConsumeQueueEntry
from store.errors import Busy, MessageGivenUp
from store.in_flight_key import group_prefix
from store.message import DispatchRequest
from store.metadata.offsets import ConsumerOffsetTable
from store.offsets import QueueId, QueueOffset
from store.record import StoredMessage

ENTRIES_PER_SCAN: Final = 32
IDLE_SUBSCRIPTION_S: Final = 300.0
QUEUES_KEPT_MAX: Final = 65_536
"""Of all subscriptions together, about 36 MB; beyond it those that were not used lately go sooner."""


class Delivery:
    """Hands out messages, takes acknowledgements, brings back what was not acknowledged."""

    def __init__(
        self,
        settings: DeliverySettings,
        *,
        source: MessageSource,
        offsets: ConsumerOffsetTable,
        inflight: InFlightTable,
        writer: StateWriter,
        clock: Clock,
        timers: Timers,
        after_pass: AfterPass,
        is_client_alive: Callable[[str], bool],
        faults: Faults,
    ) -> None:
        self._settings = settings
        self._faults = faults
        self._source = source
        self._offsets = offsets
        self._writer = writer
        self._clock = clock = SteadyClock(clock)
        self._timers = timers
        self._after_pass = after_pass
        self._positions = Positions(settings, source=source, offsets=offsets, writer=writer)
        self._deliveries = Deliveries(
            settings,
            table=inflight,
            writer=writer,
            clock=clock,
            timers=timers,
            is_client_alive=is_client_alive,
            ready=self._serve_all,
        )
        self._subscriptions = Subscriptions()
        self._waiting = WaitingPolls()
        self.redeliveries = 0
        self._resume(inflight)
        writer.stage_all = self._stage_all

    def _resume(self, inflight: InFlightTable) -> None:
        stale = []
        for group, queue, offset, row in inflight.all_rows():
            subscription = self._subscriptions.of(group, queue.topic)
            progress = self._positions.open(subscription, queue.number)
            if offset < progress.next_offset:
                self._deliveries.resume(subscription, progress, offset, row)
            else:
                # its message went with the end of the log in a power cut; another one may have taken the place
                stale.append((subscription.prefix, queue.number, offset))
        if stale:
            inflight.forget(stale)

    # -- figures

    @property
    def waiting_polls(self) -> int:
        return len(self._waiting)

    @property
    def inflight_count(self) -> int:
        return len(self._deliveries)

    @property
    def subscription_count(self) -> int:
        return len(self._subscriptions)

    # -- start

    def start_group(self, group: str, topic: str, queue_numbers: Iterable[int]) -> None:
        """Fix where a new group starts, so that it sees what is sent from now on. Known groups stay as they are.

        The start is kept in memory, too, as is everything that is not written yet: the write may fail.
        """
        if self._subscriptions.find(group, topic) is not None:
            return
        unread = self._positions.never_read(group, topic, queue_numbers)
        if unread:
            subscription = self._subscriptions.of(group, topic)
            subscription.last_used_s = self._clock.monotonic_s()
            self._positions.open_each(subscription, unread)

    # -- receive

    def receive(self, request: ReceiveRequest, polling_s: float, received: Received) -> WaitingPoll | None:
        """Hand out messages now, or as soon as there are some within `polling_s` seconds.

        `received` is called exactly once, unless the returned poll is cancelled before. Raises Busy when too
        many receives wait.
        """
        subscription = self._subscriptions.of(request.group, request.topic)
        subscription.last_used_s = self._clock.monotonic_s()
        self._positions.open_all(subscription, request.queue_numbers)
        if not subscription.waiting:
            delivered = self._take(subscription, request)
            if delivered:
                self._hand_over(delivered, received)
                return None
        if polling_s <= 0 and not subscription.candidates:
            received((), None)
            return None
        if len(self._waiting) >= self._settings.waiting_polls_max:
            raise Busy(f"{len(self._waiting)} receives are waiting already")
        poll = WaitingPoll(subscription, request, received)
        poll.timer = self._timers.call_later(max(polling_s, 0.0), lambda: self._end_empty(poll))
        self._waiting.add(poll)
        if subscription.candidates:
            self._after_pass(lambda: self._serve(subscription))
        return poll

    def cancel(self, poll: WaitingPoll) -> None:
        """The receive is gone, nobody waits for its end."""
        if not poll.done:
            self._waiting.remove(poll)

    def stop(self) -> None:
        """Do nothing more of its own accord: the store is about to close."""
        self._deliveries.stop()

    def end_waiting(self, client_id: str | None = None) -> None:
        """Answer the waiting receives of a client that says goodbye, or all of them: the broker stops."""
        for poll in tuple(self._waiting) if client_id is None else self._waiting.of_client(client_id):
            self._end_empty(poll)

    def _end_empty(self, poll: WaitingPoll) -> None:
        if not poll.done:
            self._waiting.remove(poll)
            poll.received((), None)

    def _serve(self, subscription: Subscription) -> None:
        """Give what the candidates hold to the waiting receives, oldest first."""
        waiting = subscription.waiting
        for _ in range(len(waiting)):
            if not waiting or not subscription.candidates:
                return
            poll = next(iter(waiting))
            try:
                delivered = self._take(subscription, poll.request)
            except Exception as error:  # noqa: BLE001 - the receive ends with it; the others go on
                self._waiting.remove(poll)
                poll.received((), error)
                continue
            if not delivered:
                break
            self._waiting.remove(poll)
            self._hand_over(delivered, poll.received)
        if waiting and subscription.candidates:
            self._after_pass(lambda: self._serve(subscription))

    def _hand_over(self, delivered: Sequence[Delivered], received: Received) -> None:
        self._writer.when_written(lambda error: received(() if error else delivered, error))

    def _take(self, subscription: Subscription, request: ReceiveRequest) -> list[Delivered]:
        """What the candidates hold, oldest candidate first.

        A queue that cannot be read stands back behind the others and is tried again: nothing of it is passed
        over. Raises its error when no other queue had anything, and reports it otherwise.
        """
        taken = Taken(request, self._settings)
        failure: Exception | None = None
        for number in subscription.candidate_numbers():
            drained = False
            try:
                progress = self._positions.open(subscription, number)
                self._take_ready(subscription, progress, request, taken)
                drained = self._take_new(subscription, progress, request, taken) and not progress.has_ready
            except Exception as error:  # noqa: BLE001 - one queue's damage does not stop the others
                if failure is not None:
                    self._report(failure, subscription)
                failure = error
            subscription.served(number, drained=drained)
            if taken.is_full or taken.entries_left <= 0:
                break
        if failure is not None:
            if not taken.messages:
                raise failure
            self._report(failure, subscription)
        return taken.messages

    def _report(self, failure: Exception, subscription: Subscription) -> None:
        self._faults.report(failure, group=subscription.group, topic=subscription.topic)

    def _take_ready(
        self, subscription: Subscription, progress: QueueProgress, request: ReceiveRequest, taken: Taken
    ) -> None:
        while progress.has_ready and not taken.is_full:
            offset = progress.take_ready()
            try:
                entries = self._source.entries(progress.queue, offset, 1)
                if not entries or entries[0].queue_offset != offset:
                    self._deliveries.end(subscription, progress, offset)
                    continue
                if not taken.has_room_for(entries[0]):
                    progress.make_ready(offset)
                    return
                record = self._read(entries[0], subscription)
            except Exception:
                progress.make_ready(offset)
                raise
            if record is None:
                self._deliveries.end(subscription, progress, offset)
                continue
            self.redeliveries += 1
            taken.add(entries[0], self._deliveries.begin(subscription, progress, offset, record, request))

    def _take_new(
        self, subscription: Subscription, progress: QueueProgress, request: ReceiveRequest, taken: Taken
    ) -> bool:
        """Take from the next offset on; returns whether the queue's end was reached."""
        before = progress.next_offset
        wanted, drained = request.filter, False
        try:
            while not taken.is_full and taken.entries_left > 0 and not drained:
                limit = min(ENTRIES_PER_SCAN, taken.entries_left)
                entries = self._source.entries(progress.queue, progress.next_offset, limit)
                drained = len(entries) < limit
                for entry in entries:
                    may_match = wanted.may_match(entry.tags_code)
                    if may_match and not taken.has_room_for(entry):
                        drained = False
                        break
                    taken.entries_left -= 1
                    record = self._read(entry, subscription) if may_match else None
                    if record is not None and (not wanted.tags or wanted.matches(record.properties.get("TAGS"))):
                        delivered = self._deliveries.begin(subscription, progress, entry.queue_offset, record, request)
                        taken.add(entry, delivered)
                    progress.next_offset = QueueOffset(entry.queue_offset + 1)
        finally:
            # with the rows of what was handed out: a message below the next offset without a row is done
            if progress.next_offset != before:
                self._positions.store(subscription, progress)
        return drained

    def _read(self, entry: ConsumeQueueEntry, subscription: Subscription) -> StoredMessage | None:
        """The record; None for one that was given up: whoever did has accepted that nobody gets it."""
        try:
            return self._source.read(entry)
        except MessageGivenUp as gone:
            self._report(gone, subscription)
            return None

    # -- acknowledge and change

    def acknowledge(self, group: str, topic: str, handle: str) -> None:
        """The message is done. Repeating it within the handle's time is fine.

        Raises InvalidReceiptHandle once the time is over or a later delivery has taken its place. The caller
        answers after the next `StateWriter` write.
        """
        decoded = ReceiptHandle.decode(handle, group, topic)
        subscription, progress = self._delivered_from(group, topic, decoded)
        offset = QueueOffset(decoded.queue_offset)
        row = progress.inflight.get(offset)
        if row is None and self._clock.wall_ms() < decoded.expires_at_ms and offset < progress.next_offset:
            return
        self._deliveries.standing(progress, offset, decoded)
        self._deliveries.end(subscription, progress, offset)

    def change_invisible(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        """Hide the message for `invisible_ms` from now (0: visible at once); the new handle replaces the old one.

        Raises InvalidReceiptHandle as `acknowledge` does.
        """
        decoded = ReceiptHandle.decode(handle, group, topic)
        subscription, progress = self._delivered_from(group, topic, decoded)
        offset = QueueOffset(decoded.queue_offset)
        row = self._deliveries.standing(progress, offset, decoded)
        return self._deliveries.hide(subscription, progress, offset, row, invisible_ms)

    def _delivered_from(self, group: str, topic: str, handle: ReceiptHandle) -> tuple[Subscription, QueueProgress]:
        """Where a handle's delivery was made. A made-up handle creates nothing."""
        queue = QueueId(topic, handle.queue_number)
        known = self._subscriptions.find(group, topic)
        if (known is None or queue.number not in known.queues) and self._offsets.get(group, queue) is None:
            raise InvalidReceiptHandle("the receipt handle names a queue the group has never read")
        subscription = self._subscriptions.of(group, topic)
        return subscription, self._positions.open(subscription, queue.number)

    def client_lost(self, client_id: str) -> None:
        """Give back, after a second, what the server held hidden on this client's behalf."""
        self._deliveries.give_back_of_client(client_id)

    def undeliverable(self, group: str, topic: str, handles: Iterable[str]) -> None:
        """Give back, after a second, what was handed out in a call that broke off before it had left."""
        for handle in handles:
            decoded = ReceiptHandle.decode(handle, group, topic)
            offset = QueueOffset(decoded.queue_offset)
            try:
                subscription, progress = self._delivered_from(group, topic, decoded)
                row = self._deliveries.standing(progress, offset, decoded)
            except InvalidReceiptHandle:
                continue  # acknowledged by a client that got it after all, or visible already
            self._deliveries.give_back(subscription, progress, offset, row)

    # -- what makes receives go on

    def messages_arrived(self, requests: Iterable[DispatchRequest]) -> None:
        """Wake the receives that wait for exactly these queues."""
        woken: dict[Subscription, None] = {}
        of_topic = self._subscriptions.of_topic
        for request in requests:
            for subscription in of_topic(request.topic):
                subscription.mark(request.queue_number)
                if subscription.waiting:
                    woken.setdefault(subscription)
        self._serve_all(woken)

    def _serve_all(self, subscriptions: Iterable[Subscription]) -> None:
        for subscription in subscriptions:
            self._serve(subscription)

    # -- administration

    def position(self, group: str, queue: QueueId) -> tuple[QueueOffset | None, int]:
        """The group's next offset in the queue (None: never read) and how many of its messages are in flight."""
        subscription = self._subscriptions.find(group, queue.topic)
        progress = subscription.queues.get(queue.number) if subscription else None
        if progress is None:
            return self._offsets.get(group, queue), 0
        return progress.next_offset, len(progress.inflight)

    def reset_offset(self, group: str, queue: QueueId, offset: QueueOffset) -> None:
        """Go on at `offset`; everything the group had in flight in this queue is forgotten."""
        subscription = self._subscriptions.of(group, queue.topic)
        progress = self._positions.open(subscription, queue.number)
        for pending in tuple(progress.inflight):
            self._deliveries.end(subscription, progress, pending)
        progress.next_offset = offset
        self._positions.store(subscription, progress)
        subscription.mark(queue.number)
        self._serve(subscription)

    def delete_group(self, group: str) -> None:
        """Forget the group's progress in all topics, durably: the group itself goes next.

        Raises StorePoisoned, kv.EngineFull.
        """
        self._writer.require_room()
        for subscription in [each for each in self._subscriptions if each.group == group]:
            self._drop(subscription)
        self._deliveries.delete_rows(group_prefix(group))
        self._offsets.delete_group(self._writer.batch(), group)
        self.store_durably()

    def delete_topic(self, topic: str) -> None:
        """Forget the progress of all groups in the topic, durably: the topic itself goes next.

        Raises StorePoisoned, kv.EngineFull.
        """
        self._writer.require_room()
        self.delete_topics((topic,))

    def delete_topics(self, topics: Iterable[str]) -> None:
        """`delete_topic` for topics or light queues, most of which no group has ever read: those cost a look."""
        self._writer.write_now()  # from here on the rows tell, or the subscriptions that could not be written
        read = [each for each in topics if self._subscriptions.of_topic(each) or self._offsets.is_read(each)]
        if not read:
            return
        self._writer.require_room()
        for topic in read:
            for subscription in tuple(self._subscriptions.of_topic(topic)):
                self._deliveries.delete_rows(subscription.prefix)
                self._drop(subscription)
            self._offsets.delete_topic(self._writer.batch(), topic)
        self.store_durably()

    def require_room(self) -> None:
        """To be called before `reset_offset`, so that what is refused is not done.

        Raises StorePoisoned, kv.EngineFull.
        """
        self._writer.require_room()

    def store_durably(self) -> None:
        """Let what was changed so far survive a power cut. Raises StorePoisoned, kv.EngineFull."""
        self._writer.write_durably()

    def _stage_all(self, batch: WriteBatch) -> None:
        self._offsets.stage_index_again()
        for subscription in self._subscriptions:
            self._deliveries.stage(batch, subscription)
            self._positions.stage(batch, subscription)

    def drop_idle_subscriptions(self) -> None:
        """Free what nobody used lately; its rows stay."""
        if self._writer.is_behind:
            return
        before_s = self._clock.monotonic_s() - IDLE_SUBSCRIPTION_S
        kept = sum(len(subscription.queues) for subscription in self._subscriptions)
        for subscription in sorted(self._subscriptions, key=attrgetter("last_used_s")):
            if subscription.last_used_s >= before_s and kept <= QUEUES_KEPT_MAX:
                return
            if subscription.is_idle:
                kept -= len(subscription.queues)
                self._drop(subscription)

    def _drop(self, subscription: Subscription) -> None:
        for poll in tuple(subscription.waiting):
            self._end_empty(poll)
        self._deliveries.let_go(subscription)
        self._subscriptions.remove(subscription)
