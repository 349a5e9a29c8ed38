"""Messages in flight: how a delivery begins, is kept hidden, expires and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kv import WriteBatch
from server.delivery.expiry import Due, ExpiryQueue
from server.delivery.inflight import InFlight, InFlightTable
from server.delivery.model import Delivered, DeliverySettings, ReceiveRequest, Timer, Timers
from server.delivery.receipt_handle import ReceiptHandle
from server.delivery.registry import Leases
from server.delivery.state_writer import StateWriter
from server.delivery.subscription import QueueProgress, Subscription
from server.errors import InvalidReceiptHandle
from store.clock import Clock
from store.offsets import QueueOffset
from store.record import StoredMessage

LOST_CLIENT_DELAY_MS: Final = 1_000  # RocketMQ's: what a lost client held, or never got, comes back after a second

Ready = Callable[[Iterable[Subscription]], None]
"""Told the subscriptions that have messages to hand out again."""


class Deliveries:
    """The rows in flight, in memory and on disk, and when each is due."""

    def __init__(
        self,
        settings: DeliverySettings,
        *,
        table: InFlightTable,
        writer: StateWriter,
        clock: Clock,
        timers: Timers,
        is_client_alive: Callable[[str], bool],
        ready: Ready,
    ) -> None:
        self._settings = settings
        self._table = table
        self._writer = writer
        self._clock = clock
        self._timers = timers
        self._is_client_alive = is_client_alive
        self._ready = ready
        self._leases = Leases()
        self._expiry = ExpiryQueue(_is_current)
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        # unique over restarts: above what any row holds, and no clock runs a million deliveries per millisecond
        self._delivery_id = clock.wall_ms() * 1_000_000
        self._count = 0

    def __len__(self) -> int:
        return self._count

    # -- begin and end

    def resume(self, subscription: Subscription, progress: QueueProgress, offset: QueueOffset, row: InFlight) -> None:
        """Take up a stored row after a start of the broker."""
        now_ms = self._clock.wall_ms()
        progress.inflight[offset] = row
        self._count += 1
        self._delivery_id = max(self._delivery_id, row.delivery_id)
        if row.lease_until_ms:
            # its client needs a moment to come back after a restart (rmq#10278)
            row.visible_at_ms = max(row.visible_at_ms, now_ms + self._settings.lease_ms)
        if row.visible_at_ms <= now_ms:
            progress.make_ready(offset)
        else:
            self._watch(subscription, progress.queue.number, offset, row)

    def begin(
        self,
        subscription: Subscription,
        progress: QueueProgress,
        offset: QueueOffset,
        record: StoredMessage,
        request: ReceiveRequest,
    ) -> Delivered:
        """Hand the message out, for the first time or again."""
        now_ms = self._clock.wall_ms()
        leased = request.invisible_ms is None
        invisible_ms = self._settings.lease_ms if request.invisible_ms is None else request.invisible_ms
        lease_until_ms = now_ms + self._settings.lease_total_ms if leased else 0
        previous = progress.inflight.get(offset)
        if previous is not None:
            self._leases.discard(previous.client_id, subscription, progress.queue.number, offset)
        else:
            self._count += 1
        attempt = 1 if previous is None else previous.attempt + 1
        row = InFlight(now_ms + invisible_ms, self._new_id(), lease_until_ms, attempt, request.client_id)
        progress.inflight[offset] = row
        self._store(subscription, progress, offset, row)
        return Delivered(record, _handle(subscription, progress, offset, row), attempt, invisible_ms)

    def end(self, subscription: Subscription, progress: QueueProgress, offset: QueueOffset) -> None:
        """The message is done: acknowledged, or gone from the store."""
        row = progress.inflight.get(offset)
        if row is not None:
            self._count -= 1
            self._leases.discard(row.client_id, subscription, progress.queue.number, offset)
        progress.forget(offset)
        self._table.delete(self._writer.batch(), subscription.prefix, progress.queue.number, offset)

    def let_go(self, subscription: Subscription) -> None:
        """Forget what the subscription has in flight, in memory only."""
        for progress in subscription.queues.values():
            for offset, row in progress.inflight.items():
                self._leases.discard(row.client_id, subscription, progress.queue.number, offset)
            self._count -= len(progress.inflight)
            progress.inflight.clear()

    def stage(self, batch: WriteBatch, subscription: Subscription) -> None:
        """Put all rows of the subscription as they are in memory in place of the stored ones."""
        self._table.delete_all(batch, subscription.prefix)
        for number, progress in subscription.queues.items():
            for offset, row in progress.inflight.items():
                self._table.put(batch, subscription.prefix, number, offset, row)

    def delete_rows(self, prefix: bytes) -> None:
        """Delete the stored rows of a group, or of a group and topic."""
        self._table.delete_all(self._writer.batch(), prefix)

    # -- while it is hidden

    def standing(self, progress: QueueProgress, offset: QueueOffset, handle: ReceiptHandle) -> InFlight:
        """The row of the delivery that the handle names. Raises InvalidReceiptHandle when it stands no longer."""
        row = progress.inflight.get(offset)
        if row is None or row.delivery_id != handle.delivery_id or progress.is_ready(offset):
            raise InvalidReceiptHandle("the receipt handle has expired or was replaced")
        if row.visible_at_ms <= self._clock.wall_ms() and not self._may_renew(row):
            raise InvalidReceiptHandle("the receipt handle has expired")
        return row

    def hide(
        self,
        subscription: Subscription,
        progress: QueueProgress,
        offset: QueueOffset,
        row: InFlight,
        invisible_ms: int,
    ) -> str:
        """Hide the message for `invisible_ms` from now, without a lease; returns the handle that names it now."""
        self._leases.discard(row.client_id, subscription, progress.queue.number, offset)
        row.visible_at_ms = self._clock.wall_ms() + invisible_ms
        row.lease_until_ms = 0
        row.delivery_id = self._new_id()
        self._store(subscription, progress, offset, row)
        return _handle(subscription, progress, offset, row)

    def give_back(
        self, subscription: Subscription, progress: QueueProgress, offset: QueueOffset, row: InFlight
    ) -> None:
        """Make the message visible after a second.

        The handle stays good until then: the client may have got the message and be about to say so.
        """
        self._leases.discard(row.client_id, subscription, progress.queue.number, offset)
        row.visible_at_ms = min(row.visible_at_ms, self._clock.wall_ms() + LOST_CLIENT_DELAY_MS)
        row.lease_until_ms = 0
        self._store(subscription, progress, offset, row)

    def give_back_of_client(self, client_id: str) -> None:
        """Give back what is kept hidden on this client's behalf."""
        for subscription, number, offset in self._leases.of_client(client_id):
            progress = subscription.queues[number]
            self.give_back(subscription, progress, offset, progress.inflight[offset])

    # -- time

    def tick(self) -> None:
        """Bring back what was hidden until now; renew the leases of living clients."""
        self._timer = None
        woken: dict[Subscription, None] = {}
        for due in self._expiry.pop_due(self._clock.wall_ms()):
            if self._expire(due):
                woken.setdefault(due.subscription)
        self._ready(woken)
        self._arm_timer()

    def stop(self) -> None:
        """Look at no time any more: the store is about to close."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._expiry.clear()

    def _expire(self, due: Due) -> bool:
        if not _is_current(due):
            return False
        progress = due.subscription.queues[due.number]
        row = progress.inflight[due.offset]
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

    def _store(self, subscription: Subscription, progress: QueueProgress, offset: QueueOffset, row: InFlight) -> None:
        number = progress.queue.number
        self._table.put(self._writer.batch(), subscription.prefix, number, offset, row)
        self._watch(subscription, number, offset, row)

    def _watch(self, subscription: Subscription, number: int, offset: QueueOffset, row: InFlight) -> None:
        if row.lease_until_ms:
            self._leases.add(row.client_id, subscription, number, offset)
        self._expiry.add(row.visible_at_ms, subscription, number, offset, row.delivery_id)
        self._arm_timer()

    def _arm_timer(self) -> None:
        next_ms = self._expiry.next_ms()
        if next_ms is None or (self._timer is not None and self._timer_at_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, next_ms - self._clock.wall_ms()) / 1000
        self._timer_at_ms = next_ms
        self._timer = self._timers.call_later(delay_s, self.tick)

    def _new_id(self) -> int:
        self._delivery_id += 1
        return self._delivery_id


def _handle(subscription: Subscription, progress: QueueProgress, offset: QueueOffset, row: InFlight) -> str:
    expires_at_ms = row.lease_until_ms or row.visible_at_ms
    handle = ReceiptHandle(progress.queue.number, offset, row.delivery_id, expires_at_ms)
    return handle.encode(subscription.group, subscription.topic)


def _is_current(due: Due) -> bool:
    """Whether the delivery still stands and is due at that time: not acknowledged, changed or handed out again."""
    progress = due.subscription.queues.get(due.number)
    row = None if progress is None else progress.inflight.get(due.offset)
    return row is not None and row.delivery_id == due.delivery_id and row.visible_at_ms == due.visible_at_ms
