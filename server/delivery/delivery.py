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
from typing import Final

from server.delivery.expiry import Due, ExpiryQueue
from server.delivery.inflight import InFlight, InFlightTable, group_prefix
from server.delivery.model import (
    Delivered,
    DeliverySettings,
    MessageSource,
    NewGroupStart,
    Received,
    ReceiveRequest,
    Timer,
    Timers,
)
from server.delivery.receipt_handle import ReceiptHandle
from server.delivery.registry import Leases, Subscriptions, WaitingPolls
from server.delivery.state_writer import AfterPass, StateWriter
from server.delivery.subscription import QueueProgress, Subscription, WaitingPoll
from server.errors import InvalidReceiptHandle
from store.clock import Clock
from store.errors import Busy
from store.message import DispatchRequest
from store.metadata.offsets import ConsumerOffsetTable
from store.offsets import QueueId, QueueOffset
from store.record import StoredMessage

ENTRIES_PER_SCAN: Final = 32
LOST_CLIENT_DELAY_MS: Final = 1_000  # RocketMQ's: what a lost client held comes back after a second
IDLE_SUBSCRIPTION_S: Final = 300.0


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
    ) -> None:
        self._settings = settings
        self._source = source
        self._offsets = offsets
        self._inflight = inflight
        self._writer = writer
        self._clock = clock
        self._timers = timers
        self._after_pass = after_pass
        self._is_client_alive = is_client_alive
        self._subscriptions = Subscriptions()
        self._leases = Leases()
        self._expiry = ExpiryQueue()
        self._expiry_timer: Timer | None = None
        self._expiry_timer_at_ms = 0
        self._waiting = WaitingPolls()
        # unique over restarts: above what any row holds, and no clock runs a million deliveries per millisecond
        self._delivery_id = clock.wall_ms() * 1_000_000
        self.redeliveries = 0
        self._inflight_count = 0
        self._load()

    # -- figures

    @property
    def waiting_polls(self) -> int:
        return len(self._waiting)

    @property
    def inflight_count(self) -> int:
        return self._inflight_count

    @property
    def subscription_count(self) -> int:
        return len(self._subscriptions)

    # -- start

    def _load(self) -> None:
        now_ms = self._clock.wall_ms()
        for group, queue, offset, row in self._inflight.all_rows():
            subscription = self._subscriptions.of(group, queue.topic)
            progress = self._progress(subscription, queue.number)
            progress.inflight[offset] = row
            self._inflight_count += 1
            self._delivery_id = max(self._delivery_id, row.delivery_id)
            if row.lease_until_ms:
                # its client needs a moment to come back after a restart (rmq#10278)
                row.visible_at_ms = max(row.visible_at_ms, now_ms + self._settings.lease_ms)
            if row.visible_at_ms <= now_ms:
                progress.make_ready(offset)
            else:
                self._watch(subscription, queue.number, offset, row)

    def start_group(self, group: str, topic: str, queue_numbers: Iterable[int]) -> None:
        """Fix where a new group starts, so that it sees what is sent from now on. Known groups stay as they are."""
        if self._subscriptions.find(group, topic) is not None:
            return
        for number in queue_numbers:
            queue = QueueId(topic, number)
            if self._offsets.get(group, queue) is None:
                self._offsets.stage(self._writer.batch(), group, queue, self._start_offset(queue))

    def _start_offset(self, queue: QueueId) -> QueueOffset:
        bounds = self._source.bounds(queue)
        match self._settings.new_group_start:
            case NewGroupStart.EARLIEST:
                return bounds.minimum
            case NewGroupStart.LATEST:
                return bounds.maximum
            case NewGroupStart.AUTO:
                first = self._source.entries(queue, bounds.minimum, 1) if bounds.minimum == 0 else []
                if not first:
                    return bounds.maximum
                distance = self._source.appended_up_to - first[0].physical_offset
                return bounds.minimum if distance <= self._settings.auto_start_max_bytes else bounds.maximum

    # -- receive

    def receive(self, request: ReceiveRequest, polling_s: float, received: Received) -> WaitingPoll | None:
        """Hand out messages now, or as soon as there are some within `polling_s` seconds.

        `received` is called exactly once, unless the returned poll is cancelled before. Raises Busy when too
        many receives wait.
        """
        subscription = self._subscriptions.of(request.group, request.topic)
        subscription.last_used_s = self._clock.monotonic_s()
        for number in request.queue_numbers:
            self._progress(subscription, number)
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
        taken: list[Delivered] = []
        budget = self._settings.entries_scanned_per_pass
        for number in subscription.candidate_numbers():
            progress = self._progress(subscription, number)
            self._take_ready(subscription, progress, request, taken)
            budget, drained = self._take_new(subscription, progress, request, taken, budget)
            subscription.served(number, drained=drained and not progress.has_ready)
            if len(taken) >= request.batch_size or budget <= 0:
                break
        return taken

    def _take_ready(
        self,
        subscription: Subscription,
        progress: QueueProgress,
        request: ReceiveRequest,
        taken: list[Delivered],
    ) -> None:
        while progress.has_ready and len(taken) < request.batch_size:
            offset = progress.take_ready()
            entries = self._source.entries(progress.queue, offset, 1)
            if not entries or entries[0].queue_offset != offset:
                self._end_delivery(subscription, progress, offset)
                continue
            self.redeliveries += 1
            taken.append(self._deliver(subscription, progress, offset, self._source.read(entries[0]), request))

    def _take_new(
        self,
        subscription: Subscription,
        progress: QueueProgress,
        request: ReceiveRequest,
        taken: list[Delivered],
        budget: int,
    ) -> tuple[int, bool]:
        """Take from the next offset on; returns the scan budget left and whether the queue's end was reached."""
        before = progress.next_offset
        wanted, drained = request.filter, False
        while len(taken) < request.batch_size and budget > 0 and not drained:
            limit = min(ENTRIES_PER_SCAN, budget)
            entries = self._source.entries(progress.queue, progress.next_offset, limit)
            drained = len(entries) < limit
            for entry in entries:
                if len(taken) >= request.batch_size:
                    drained = False
                    break
                progress.next_offset = QueueOffset(entry.queue_offset + 1)
                budget -= 1
                if not wanted.may_match(entry.tags_code):
                    continue
                record = self._source.read(entry)
                if wanted.tags and not wanted.matches(record.properties.get("TAGS")):
                    continue
                taken.append(self._deliver(subscription, progress, entry.queue_offset, record, request))
        if progress.next_offset != before:
            self._offsets.stage(self._writer.batch(), subscription.group, progress.queue, progress.next_offset)
        return budget, drained

    def _deliver(
        self,
        subscription: Subscription,
        progress: QueueProgress,
        offset: QueueOffset,
        record: StoredMessage,
        request: ReceiveRequest,
    ) -> Delivered:
        now_ms = self._clock.wall_ms()
        leased = request.invisible_ms is None
        visible_at_ms = now_ms + (self._settings.lease_ms if request.invisible_ms is None else request.invisible_ms)
        lease_until_ms = now_ms + self._settings.lease_total_ms if leased else 0
        previous = progress.inflight.get(offset)
        if previous is not None:
            self._leases.discard(previous.client_id, subscription, progress.queue.number, offset)
        else:
            self._inflight_count += 1
        attempt = 1 if previous is None else previous.attempt + 1
        row = InFlight(visible_at_ms, self._new_delivery_id(), lease_until_ms, attempt, request.client_id)
        progress.inflight[offset] = row
        self._store(subscription, progress, offset, row)
        return Delivered(record, self._handle(subscription, progress, offset, row), attempt, visible_at_ms)

    def _handle(self, subscription: Subscription, progress: QueueProgress, offset: QueueOffset, row: InFlight) -> str:
        expires_at_ms = row.lease_until_ms or row.visible_at_ms
        handle = ReceiptHandle(progress.queue.number, offset, row.delivery_id, expires_at_ms)
        return handle.encode(subscription.group, subscription.topic)

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
        self._require_standing(progress, offset, row, decoded)
        self._end_delivery(subscription, progress, offset)

    def change_invisible(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        """Hide the message for `invisible_ms` from now (0: visible at once); the new handle replaces the old one.

        Raises InvalidReceiptHandle as `acknowledge` does.
        """
        decoded = ReceiptHandle.decode(handle, group, topic)
        subscription, progress = self._delivered_from(group, topic, decoded)
        offset = QueueOffset(decoded.queue_offset)
        row = self._require_standing(progress, offset, progress.inflight.get(offset), decoded)
        self._leases.discard(row.client_id, subscription, progress.queue.number, offset)
        row.visible_at_ms = self._clock.wall_ms() + invisible_ms
        row.lease_until_ms = 0
        row.delivery_id = self._new_delivery_id()
        self._store(subscription, progress, offset, row)
        return self._handle(subscription, progress, offset, row)

    def _delivered_from(self, group: str, topic: str, handle: ReceiptHandle) -> tuple[Subscription, QueueProgress]:
        """Where a handle's delivery was made. A made-up handle creates nothing."""
        queue = QueueId(topic, handle.queue_number)
        known = self._subscriptions.find(group, topic)
        if (known is None or queue.number not in known.queues) and self._offsets.get(group, queue) is None:
            raise InvalidReceiptHandle("the receipt handle names a queue the group has never read")
        subscription = self._subscriptions.of(group, topic)
        return subscription, self._progress(subscription, queue.number)

    def _require_standing(
        self, progress: QueueProgress, offset: QueueOffset, row: InFlight | None, handle: ReceiptHandle
    ) -> InFlight:
        if row is None or row.delivery_id != handle.delivery_id or progress.is_ready(offset):
            raise InvalidReceiptHandle("the receipt handle has expired or was replaced")
        if row.visible_at_ms <= self._clock.wall_ms() and not self._may_renew(row):
            raise InvalidReceiptHandle("the receipt handle has expired")
        return row

    def _end_delivery(self, subscription: Subscription, progress: QueueProgress, offset: QueueOffset) -> None:
        row = progress.inflight.get(offset)
        if row is not None:
            self._inflight_count -= 1
            self._leases.discard(row.client_id, subscription, progress.queue.number, offset)
        progress.forget(offset)
        self._inflight.delete(self._writer.batch(), subscription.prefix, progress.queue.number, offset)

    # -- time and clients

    def tick(self) -> None:
        """Bring back what was hidden until now; renew the leases of living clients."""
        self._expiry_timer = None
        woken: dict[Subscription, None] = {}
        for due in self._expiry.pop_due(self._clock.wall_ms()):
            if self._expire(due):
                woken.setdefault(due.subscription)
        for subscription in woken:
            self._serve(subscription)
        self._arm_expiry_timer()

    def _expire(self, due: Due) -> bool:
        progress = due.subscription.queues.get(due.number)
        row = None if progress is None else progress.inflight.get(due.offset)
        if progress is None or row is None or row.delivery_id != due.delivery_id:
            return False
        if row.visible_at_ms != due.visible_at_ms:
            return False
        if self._may_renew(row):
            row.visible_at_ms = self._clock.wall_ms() + self._settings.lease_ms
            self._store(due.subscription, progress, due.offset, row)
            return False
        self._leases.discard(row.client_id, due.subscription, progress.queue.number, due.offset)
        progress.make_ready(due.offset)
        due.subscription.mark(due.number)
        return True

    def _may_renew(self, row: InFlight) -> bool:
        return self._clock.wall_ms() < row.lease_until_ms and self._is_client_alive(row.client_id)

    def client_lost(self, client_id: str) -> None:
        """Give back, after a second, what the server held hidden on this client's behalf."""
        for subscription, number, offset in self._leases.of_client(client_id):
            progress = subscription.queues[number]
            row = progress.inflight[offset]
            self._leases.discard(row.client_id, subscription, progress.queue.number, offset)
            row.visible_at_ms = self._clock.wall_ms() + LOST_CLIENT_DELAY_MS
            row.lease_until_ms = 0
            self._store(subscription, progress, offset, row)

    def messages_arrived(self, requests: Iterable[DispatchRequest]) -> None:
        """Wake the receives that wait for exactly these queues."""
        woken: dict[Subscription, None] = {}
        of_topic = self._subscriptions.of_topic
        for request in requests:
            for subscription in of_topic(request.topic):
                subscription.mark(request.queue_number)
                if subscription.waiting:
                    woken.setdefault(subscription)
        for subscription in woken:
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
        progress = self._progress(subscription, queue.number)
        for pending in tuple(progress.inflight):
            self._end_delivery(subscription, progress, pending)
        progress.next_offset = offset
        self._offsets.stage(self._writer.batch(), group, queue, offset)
        subscription.mark(queue.number)
        self._serve(subscription)

    def delete_group(self, group: str) -> None:
        """Forget the group's progress in all topics."""
        for subscription in [each for each in self._subscriptions if each.group == group]:
            self._drop(subscription)
        self._inflight.delete_all(self._writer.batch(), group_prefix(group))
        self._offsets.delete_group(self._writer.batch(), group)

    def delete_topic(self, topic: str) -> None:
        """Forget the progress of all groups in the topic."""
        for subscription in tuple(self._subscriptions.of_topic(topic)):
            self._inflight.delete_all(self._writer.batch(), subscription.prefix)
            self._drop(subscription)
        self._offsets.delete_topic(self._writer.batch(), topic)

    def drop_idle_subscriptions(self) -> None:
        """Free what nobody used lately; its rows stay."""
        before_s = self._clock.monotonic_s() - IDLE_SUBSCRIPTION_S
        for subscription in self._subscriptions:
            if subscription.last_used_s < before_s and subscription.is_idle:
                self._drop(subscription)

    def _drop(self, subscription: Subscription) -> None:
        for poll in tuple(subscription.waiting):
            self._end_empty(poll)
        for progress in subscription.queues.values():
            for offset, row in progress.inflight.items():
                self._leases.discard(row.client_id, subscription, progress.queue.number, offset)
            self._inflight_count -= len(progress.inflight)
            progress.inflight.clear()
        self._subscriptions.remove(subscription)

    # -- parts

    def _progress(self, subscription: Subscription, number: int) -> QueueProgress:
        progress = subscription.queues.get(number)
        if progress is None:
            queue = QueueId(subscription.topic, number)
            next_offset = self._offsets.get(subscription.group, queue)
            if next_offset is None:
                next_offset = self._start_offset(queue)
                self._offsets.stage(self._writer.batch(), subscription.group, queue, next_offset)
            # a recovery may have cut the queue's end off
            next_offset = min(next_offset, self._source.bounds(queue).maximum)
            progress = subscription.queues[number] = QueueProgress(queue, next_offset)
            subscription.mark(number)
        return progress

    def _store(self, subscription: Subscription, progress: QueueProgress, offset: QueueOffset, row: InFlight) -> None:
        number = progress.queue.number
        self._inflight.put(self._writer.batch(), subscription.prefix, number, offset, row)
        self._watch(subscription, number, offset, row)

    def _watch(self, subscription: Subscription, number: int, offset: QueueOffset, row: InFlight) -> None:
        if row.lease_until_ms:
            self._leases.add(row.client_id, subscription, number, offset)
        self._expiry.add(row.visible_at_ms, subscription, number, offset, row.delivery_id)
        self._arm_expiry_timer()

    def _arm_expiry_timer(self) -> None:
        next_ms = self._expiry.next_ms()
        if next_ms is None or (self._expiry_timer is not None and self._expiry_timer_at_ms <= next_ms):
            return
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        delay_s = max(0, next_ms - self._clock.wall_ms()) / 1000
        self._expiry_timer_at_ms = next_ms
        self._expiry_timer = self._timers.call_later(delay_s, self.tick)

    def _new_delivery_id(self) -> int:
        self._delivery_id += 1
        return self._delivery_id
