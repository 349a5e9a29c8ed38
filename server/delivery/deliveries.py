"""The messages in flight: how a delivery begins, is kept hidden, comes back and ends.

Each change of a message is a row of this table:

| state     | event        | next      | what it means |
|-----------|--------------|-----------|---------------|
| waiting   | handed out   | hidden    | for the first time |
| waiting   | passed over  | done      | the group's filter does not match it |
| hidden    | acknowledged | done      | |
| hidden    | changed      | hidden    | for another time, under a new handle; a time of zero is over at once |
| hidden    | renewed      | hidden    | the broker keeps it for a client that is alive, or until its copy is appended |
| hidden    | given back   | hidden    | its client is gone, or its answer was interrupted: a second more, or at once |
| hidden    | forwarded    | hidden    | on its way to the dead letters, as the client asked |
| hidden    | buried       | done      | it is among the dead letters |
| hidden    | time is up   | ready     | |
| ready     | handed out   | hidden    | redelivered |
| ready     | forwarded    | hidden    | it was delivered as often as the group allows |
| ready     | gone         | done      | its record expired, or was given up |

Waiting and done messages have no row: the group's next offset tells them apart. Hidden and ready are told apart by the
clock, and by whether the broker would renew the lease. A message that was found hidden counts as hidden until the
operation that found it is over. When a group's offset is reset, all states in the queue are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from quarry_mq.kv import WriteBatch
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.delivery.handles import ReceiptHandle, TimedHandle, encode_all
from quarry_mq.server.delivery.model import Delivered, ReceiveRequest, Timers
from quarry_mq.server.delivery.redelivery_timers import DueWalk, RecentRows, RedeliveryTimers, round_up
from quarry_mq.server.delivery.state.inflight import DueEntry, GroupState, InFlight
from quarry_mq.server.delivery.state.subscription import NEVER_MS, GroupMessage, Lessees, QueueProgress, Subscription
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.server.settings.sections import DeliverySection
from quarry_mq.store.message import QueueOffset
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.state.in_flight_key import group_of


class State(Enum):
    """The state of a message for one group."""

    WAITING = "waiting"
    HIDDEN = "hidden"
    READY = "ready"
    DONE = "done"


class Event(Enum):
    """An event in the life of a message."""

    HANDED_OUT = "handed out"
    PASSED_OVER = "passed over"
    ACKNOWLEDGED = "acknowledged"
    CHANGED = "changed"
    RENEWED = "renewed"
    GIVEN_BACK = "given back"
    FORWARDED = "forwarded"
    DEAD_LETTERED = "buried"
    TIME_UP = "time is up"
    GONE = "gone"


NEXT: Final = {
    (State.WAITING, Event.HANDED_OUT): State.HIDDEN,
    (State.WAITING, Event.PASSED_OVER): State.DONE,
    (State.HIDDEN, Event.ACKNOWLEDGED): State.DONE,
    (State.HIDDEN, Event.CHANGED): State.HIDDEN,
    (State.HIDDEN, Event.RENEWED): State.HIDDEN,
    (State.HIDDEN, Event.GIVEN_BACK): State.HIDDEN,
    (State.HIDDEN, Event.FORWARDED): State.HIDDEN,
    (State.HIDDEN, Event.DEAD_LETTERED): State.DONE,
    (State.HIDDEN, Event.TIME_UP): State.READY,
    (State.READY, Event.HANDED_OUT): State.HIDDEN,
    (State.READY, Event.FORWARDED): State.HIDDEN,
    (State.READY, Event.GONE): State.DONE,
}
"""The next state for a state and an event. Other pairs cannot occur."""


LOST_CLIENT_DELAY_MS: Final = 1_000  # RocketMQ's: what a lost client held or never got is redelivered after a second
FORWARDING_MS: Final = 60_000
"""Milliseconds for which a message on its way to the dead letters is hidden. If that fails, it is tried again."""
SEARCHED_AT_ONCE: Final = 1_000
"""Rows that one step searches for a lost client's messages, before other work gets its turn."""
_make: Final = tuple.__new__
"""`_make(InFlight, fields)` is `InFlight(*fields)` in half the time, for objects that are made for each message."""
TIMES_MAX: Final = 4_096
"""Distinct times that are read when a subscription is opened. Later times are read when these have passed."""


class Changed(NamedTuple):
    """A delivery after its invisible time was changed."""

    receipt_handle: str
    """The handle that replaces the one that the client had before."""
    visible_at_ms: int


class Deliveries:
    """Keeps the rows in flight, and the times at which they are due.

    All changes of message states are made here, by the table above.
    """

    def __init__(
        self,
        settings: DeliverySection,
        state: GroupState,
        *,
        clock: Clock,
        timers: Timers,
        is_client_alive: Callable[[str], bool],
        open_subscription: Callable[[str, str], Subscription],
        open_queue: Callable[[Subscription, int], QueueProgress],
        ready: Callable[[Iterable[Subscription]], None],
    ) -> None:
        """`open_subscription` opens a subscription by group and topic. `ready` gets those that may have messages to
        redeliver.
        """
        self._settings = settings
        self._handle_key = state.handle_key
        self._table = table = state.in_flight
        self._writer = state.writer
        self._clock = clock
        self._timers = timers
        self._is_client_alive = is_client_alive
        self._open = open_subscription
        self._open_queue = open_queue
        self._ready = ready
        self._lessees = Lessees()
        self._redelivery_timers = RedeliveryTimers(clock, timers, self._wake)
        self._recent = RecentRows()
        self._unwritten: list[QueueProgress] = []
        self._touched: set[Subscription] = set()
        self._is_write_awaited = False
        now_ms = clock.wall_ms()
        # after a restart a client needs a moment to come back (rmq#10278)
        self._clients_away_until_ms = now_ms + settings.lease_ms
        # unique over restarts: no clock runs a million deliveries per millisecond
        self._counts, highest_id, latest_ms = table.stats()
        self._delivery_id = max(now_ms * 1_000_000, highest_id)
        table.show_beyond(now_ms, latest_ms, settings.invisible_time_max_ms)

    def configure(self, settings: DeliverySection) -> None:
        self._settings = settings

    def __len__(self) -> int:
        return self._counts.total()

    def count_of_group(self, group: str) -> int:
        """Return how many messages the group has in flight, on all topics."""
        return self._counts[group]

    def opened(self, subscription: Subscription) -> None:
        """Set timers for the messages that were in flight before the subscription was opened."""
        now_ms = self._clock.wall_ms()
        subscription.times_unknown_from_ms = NEVER_MS
        from_ms = 0
        for _ in range(TIMES_MAX):
            found = self._table.first_due_ms(subscription.prefix, from_ms)
            if found is None:
                return
            if found > now_ms:
                self._redelivery_timers.add(found, subscription)
            from_ms = round_up(max(found, now_ms), now_ms) + 1
        subscription.times_unknown_from_ms = from_ms
        self._redelivery_timers.add(from_ms, subscription)

    # -- queries

    def row(self, message: GroupMessage) -> InFlight | None:
        return message.subscription.row(self._table, message.progress, message.offset)

    def rows_of(self, subscription: Subscription, progress: QueueProgress) -> dict[QueueOffset, InFlight]:
        """Return all rows in flight of a queue; for ordered groups, which have few at a time."""
        return subscription.rows_of(self._table, progress)

    def state_of(self, row: InFlight) -> State:
        """Return the state of a message with a row.

        It is hidden until its time, and after that while its client's lease can be renewed.
        """
        if row.visible_at_ms > self._clock.wall_ms() or self._may_renew(row):
            return State.HIDDEN
        return State.READY

    def due(self, subscription: Subscription) -> DueWalk:
        """Return a walk over the entries that may have become visible."""
        return DueWalk(self._table, subscription, self._clock.wall_ms())

    def row_of(self, subscription: Subscription, progress: QueueProgress, entry: DueEntry) -> InFlight | None:
        """Return the delivery that an entry of the due index stands for; delete the entry and return None if there is
        none.
        """
        row = self.row(GroupMessage(subscription, progress, entry.offset))
        if row is not None and row.visible_at_ms == entry.visible_at_ms:
            return row
        self._table.delete_entry(self._writer.batch(), subscription.prefix, entry)
        return None

    def count_of(self, prefix: bytes, number: int) -> int:
        """Return how many messages of a queue are in flight. Unwritten changes are not seen."""
        return self._table.count(prefix, number)

    def rows(self, prefix: bytes) -> Iterator[object]:
        """Yield one item for each row of all queues. Changes that are not written by now are not seen."""
        return self._table.rows(prefix)

    def rows_below(self, prefix: bytes, number: int, end: QueueOffset) -> Iterator[object]:
        """Yield one item for each row of one queue below an offset, as `rows` does."""
        return self._table.rows_below(prefix, number, end)

    def first_offset(self, prefix: bytes, number: int, start: int = 0) -> QueueOffset | None:
        """Return the lowest offset from `start` on that is in flight in a queue. Unwritten changes are not seen."""
        rows = self._table.of_queue(prefix, number, start, limit=1)
        return rows[0][0] if rows else None

    # -- begin and end of deliveries

    def begin(
        self,
        message: GroupMessage,
        record: StoredMessage,
        request: ReceiveRequest,
        previous: InFlight | None = None,
    ) -> Delivered:
        """Hand the message out, for the first time or again."""
        invisible_ms, visible_at_ms, lease_until_ms = self._hidden_times(request)
        row = InFlight(
            visible_at_ms,
            self._new_id(),
            lease_until_ms,
            _attempts_before(message, record, previous) + 1,
            request.client_id,
            request.attempt_id if request.is_ordered else "",
        )
        self._change(message, previous, Event.HANDED_OUT, row)
        return Delivered(record, self._handle(message, row), row.attempt, invisible_ms)

    def begin_new(
        self,
        subscription: Subscription,
        progress: QueueProgress,
        records: Sequence[tuple[QueueOffset, StoredMessage]],
        request: ReceiveRequest,
    ) -> list[Delivered]:
        """Hand out new messages of a queue, all of them now. This does what `begin` does, in fewer steps."""
        assert NEXT[State.WAITING, Event.HANDED_OUT] is State.HIDDEN
        invisible_ms, visible_at_ms, lease_until_ms = self._hidden_times(request)
        client_id, attempt_id = request.client_id, request.attempt_id if request.is_ordered else ""
        is_retry, delivery_id = subscription.is_retry, self._delivery_id
        rows: dict[QueueOffset, InFlight] = {}
        for offset, record in records:
            delivery_id += 1
            attempt = record.reconsume_times + 1 if is_retry else 1
            fields = visible_at_ms, delivery_id, lease_until_ms, attempt, client_id, attempt_id
            rows[offset] = _make(InFlight, fields)
        self._delivery_id = delivery_id
        self._table.put_all(self._writer.batch(), subscription.prefix, progress.queue.number, rows)
        self._add(subscription, len(rows))
        self._watch(subscription, rows[offset], len(rows))
        self._note_unwritten(progress)
        progress.unwritten.update(rows)
        self._recent.add(progress, rows)
        handles = encode_all(
            subscription.first_number + progress.queue.number,
            [(offset, row.delivery_id) for offset, row in rows.items()],
            lease_until_ms or visible_at_ms,
            group=subscription.group,
            topic=subscription.owner.topic,
            key=self._handle_key,
        )
        return [
            _make(Delivered, (record, handle, row.attempt, invisible_ms))
            for (_, record), row, handle in zip(records, rows.values(), handles, strict=True)
        ]

    def _hidden_times(self, request: ReceiveRequest) -> tuple[int, int, int]:
        """Return how long and until when a receive hides its messages, and until when their leases last (0: none)."""
        now_ms = self._clock.wall_ms() if request.handed_out_at_ms is None else request.handed_out_at_ms
        if request.invisible_ms is not None:
            return request.invisible_ms, now_ms + request.invisible_ms, 0
        return self._settings.lease_ms, now_ms + self._settings.lease_ms, now_ms + self._settings.lease_total_ms

    def hand_out_again(
        self, message: GroupMessage, record: StoredMessage, row: InFlight, request: ReceiveRequest
    ) -> Delivered:
        """Repeat the same delivery for a client that did not get the answer: it is not counted.

        It is hidden until the same time as before, unless the receive names a time at which it begins.
        """
        if request.handed_out_at_ms is not None:
            _, visible_at_ms, _ = self._hidden_times(request)
            before, row = row, row._replace(visible_at_ms=visible_at_ms)
            self._change(message, before, Event.RENEWED, row)
        invisible_ms = max(0, row.visible_at_ms - self._clock.wall_ms())
        return Delivered(record, self._handle(message, row), row.attempt, invisible_ms)

    def end(self, message: GroupMessage, row: InFlight, event: Event) -> None:
        """Mark the message as done by deleting its row."""
        self._change(message, row, event, None)

    def end_valid(
        self,
        subscription: Subscription,
        places: Sequence[tuple[QueueProgress, QueueOffset]],
        delivery_ids: Sequence[int],
    ) -> list[bool]:
        """End, as acknowledged, the deliveries that are still hidden by their time under the given ids. Return which
        ended.

        The positions must be distinct, and their rows as they were written. This does what `end` does, in fewer steps.
        """
        assert NEXT[State.HIDDEN, Event.ACKNOWLEDGED] is State.DONE
        rows = subscription.written_rows(self._table, places)
        now_ms = self._clock.wall_ms()
        valid_rows = [
            (progress, offset, row)
            if row is not None and row.delivery_id == delivery_id and row.visible_at_ms > now_ms
            else None
            for (progress, offset), delivery_id, row in zip(places, delivery_ids, rows, strict=True)
        ]
        ending = [each for each in valid_rows if each is not None]
        if ending:
            keys = [(progress.queue.number, offset, row.visible_at_ms) for progress, offset, row in ending]
            self._table.delete_each(self._writer.batch(), subscription.prefix, keys)
            self._add(subscription, -len(ending))
        for progress, offset, row in ending:
            self._unwatch(subscription, row)
            self._note_unwritten(progress)
            progress.unwritten[offset] = None
            self._recent.drop(progress, offset)
        return [each is not None for each in valid_rows]

    def delete_from(self, subscription: Subscription, progress: QueueProgress, start: int = 0) -> None:
        """Delete the rows of everything in flight in the queue from an offset on."""
        rows = {offset: row for offset, row in self.rows_of(subscription, progress).items() if offset >= start}
        if not rows:
            return
        self._add(subscription, -len(rows))
        for row in rows.values():
            self._unwatch(subscription, row)
        self._table.delete_queue(self._writer.batch(), subscription.prefix, progress.queue.number, start)
        self._note_unwritten(progress)
        progress.unwritten.update(dict.fromkeys(rows))
        self._recent.drop_from(progress, start)

    def end_below(self, subscription: Subscription, progress: QueueProgress, end: QueueOffset) -> None:
        """Mark everything in flight in the queue below an offset as done."""
        if not self._counts[subscription.group]:
            return
        rows = self.rows_of(subscription, progress)
        for offset in [each for each in rows if each < end]:
            self.end(GroupMessage(subscription, progress, offset), rows[offset], Event.ACKNOWLEDGED)

    def release(self, subscription: Subscription) -> None:
        """Drop the timers of a subscription that has nothing in flight any more."""
        self._redelivery_timers.cancel_all(subscription)

    def delete_rows(self, prefix: bytes) -> None:
        """Delete the stored rows of a group, or of a group and topic, which has no subscription in memory."""
        self._count_more(group_of(prefix), -self._table.delete_counted(self._writer.batch(), prefix))

    def stage(self, batch: WriteBatch, subscription: Subscription) -> None:
        """Add to the batch everything that this loop iteration and earlier ones could not write."""
        self._await_write()
        for number, progress in subscription.queues.items():
            for offset, row in progress.unwritten.items():
                stored = self._table.get(subscription.prefix, number, offset)
                if stored is not None:
                    self._table.delete(batch, subscription.prefix, number, offset, stored)
                if row is not None:
                    self._table.put(batch, subscription.prefix, number, offset, row)

    # -- while a message is hidden

    def valid_row(self, message: GroupMessage, handle: ReceiptHandle | TimedHandle) -> InFlight:
        """Return the delivery that the handle names. Raises InvalidReceiptHandle if it is not valid any more."""
        row = self.row(message)
        if row is None or not handle.names(row.delivery_id, row.visible_at_ms):
            raise InvalidReceiptHandle("receipt handle is expired, or was replaced")
        if self.state_of(row) is not State.HIDDEN:
            raise InvalidReceiptHandle("receipt handle is expired")
        return row

    def hide(
        self,
        message: GroupMessage,
        row: InFlight,
        invisible_ms: int,
        *,
        is_counted: bool,
    ) -> Changed:
        """Hide the message for `invisible_ms` from now, without a lease."""
        hidden = row._replace(
            visible_at_ms=self._clock.wall_ms() + invisible_ms,
            lease_until_ms=0,
            delivery_id=self._new_id(),
            attempt=row.attempt if is_counted else row.attempt - 1,
        )
        self._change(message, row, Event.CHANGED, hidden)
        return Changed(self._handle(message, hidden), hidden.visible_at_ms)

    def renew(self, message: GroupMessage, row: InFlight) -> None:
        """Keep the message hidden for its client, which is alive, or for its dead-letter copy, which is still being
        appended.
        """
        renewed = row._replace(visible_at_ms=self._clock.wall_ms() + self._settings.lease_ms)
        self._change(message, row, Event.RENEWED, renewed)

    def give_back(self, message: GroupMessage, row: InFlight, *, is_counted: bool = True) -> None:
        """Make the message visible after a second, or at once and uncounted if no client can have seen it.

        The handle stays valid until then: the client may have got the message and be about to acknowledge it.
        """
        back_ms = min(row.visible_at_ms, self._clock.wall_ms() + (LOST_CLIENT_DELAY_MS if is_counted else 0))
        attempt = row.attempt if is_counted else row.attempt - 1
        given = row._replace(visible_at_ms=back_ms, lease_until_ms=0, attempt=attempt)
        self._change(message, row, Event.GIVEN_BACK, given)

    def keep(self, subscription: Subscription, progress: QueueProgress, hidden: dict[QueueOffset, InFlight]) -> None:
        """Renew the rows whose time is over and whose clients are alive."""
        for offset, row in hidden.items():
            if row.visible_at_ms <= self._clock.wall_ms():
                self.renew(GroupMessage(subscription, progress, offset), row)

    def forward(self, message: GroupMessage, row: InFlight) -> InFlight:
        """Hide the message while it is being moved to the dead letters; if that fails, it is redelivered.

        An append may last longer than this time, so the caller that waits for the append renews the row until it ends.
        """
        hidden = row._replace(
            visible_at_ms=self._clock.wall_ms() + FORWARDING_MS,
            lease_until_ms=0,
            delivery_id=self._new_id(),
            attempt_id="",  # it is not repeated for a receive meanwhile
        )
        self._change(message, row, Event.FORWARDED, hidden)
        return hidden

    def give_back_of_client(self, client_id: str) -> None:
        """Give back the messages that are kept hidden on this client's behalf, a part at a time."""
        self._writer.write_now()  # from here on the table is read
        for group, topic in self._lessees.remove_client(client_id):
            for index in range(len(self._open(group, topic).parts)):
                self._search(client_id, group, topic, index, DueEntry(self._clock.wall_ms(), 0, QueueOffset(0)))

    def _search(self, client_id: str, group: str, topic: str, part: int, start: DueEntry) -> None:
        """Give back the client's messages among those that become visible from a time on."""
        if self._is_client_alive(client_id):
            return  # it has come back
        subscription = self._open(group, topic).parts[part]
        until_ms = self._clock.wall_ms() + self._settings.lease_ms + LOST_CLIENT_DELAY_MS
        entries = self._table.due(subscription.prefix, start, until_ms, SEARCHED_AT_ONCE)
        for entry in entries:
            progress = self._open_queue(subscription, entry.number)
            row = self.row(GroupMessage(subscription, progress, entry.offset))
            if row is not None and row.lease_until_ms and row.client_id == client_id:
                self.give_back(GroupMessage(subscription, progress, entry.offset), row)
        if len(entries) == SEARCHED_AT_ONCE:
            following = entries[-1].following
            self._timers.call_later(0, lambda: self._search(client_id, group, topic, part, following))

    # -- time

    def stop(self) -> None:
        """Stop all timers: the store is about to close."""
        self._redelivery_timers.stop()

    def _wake(self, subscriptions: Iterable[Subscription]) -> None:
        woken = list(subscriptions)
        now_ms = self._clock.wall_ms()
        for subscription in woken:
            subscription.is_due = True
            if subscription.times_unknown_from_ms <= now_ms:
                self.opened(subscription)
        self._ready(woken)

    def _may_renew(self, row: InFlight) -> bool:
        now_ms = self._clock.wall_ms()
        if now_ms >= row.lease_until_ms:
            return False
        return now_ms < self._clients_away_until_ms or self._is_client_alive(row.client_id)

    # -- changes

    def _change(
        self,
        message: GroupMessage,
        before: InFlight | None,
        event: Event,
        after: InFlight | None,
    ) -> None:
        """Change the state of a message. No other method but the batch methods here may do that."""
        state = State.WAITING if before is None else self.state_of(before)
        following = NEXT.get((state, event))
        if following is None and state is State.READY:
            following = NEXT[State.HIDDEN, event]  # it was hidden when this operation began
        assert following is not None, (state, event)
        assert (following is State.DONE) == (after is None), event
        subscription, progress, offset = message
        batch, number = self._writer.batch(), progress.queue.number
        if before is None:
            self._add(subscription, 1)
        else:
            self._table.delete(batch, subscription.prefix, number, offset, before)
            self._unwatch(subscription, before)
        if after is None:
            self._add(subscription, -1)
        else:
            self._table.put(batch, subscription.prefix, number, offset, after)
            self._watch(subscription, after)
        self._note_unwritten(progress)
        progress.unwritten[offset] = after
        self._recent.drop(progress, offset)

    def _note_unwritten(self, progress: QueueProgress) -> None:
        """Note that rows of the queue are about to change, and ask to be called after the next state write."""
        self._await_write()
        if not progress.unwritten:
            self._unwritten.append(progress)

    def _await_write(self) -> None:
        if not self._is_write_awaited:
            self._is_write_awaited = True
            self._writer.when_written(self._written)

    def _add(self, subscription: Subscription, change: int) -> None:
        """Add to the number of messages in flight, or subtract from it."""
        subscription.in_flight_changes += change
        self._count_more(subscription.group, change)

    def _count_more(self, group: str, change: int) -> None:
        count = self._counts[group] + change
        if count:
            self._counts[group] = count
        else:
            self._counts.pop(group, None)

    def _watch(self, subscription: Subscription, row: InFlight, count: int = 1) -> None:
        """Watch `count` rows that have the same times and client."""
        if row.lease_until_ms:
            self._lessees.add(row.client_id, subscription.group, subscription.owner.topic, count)
        at_ms = row.visible_at_ms
        subscription.due_from = min(subscription.due_from, DueEntry(at_ms, 0, QueueOffset(0)))
        subscription.unwritten_due_ms = min(subscription.unwritten_due_ms, at_ms)
        self._touched.add(subscription)
        if at_ms > self._clock.wall_ms():
            self._redelivery_timers.add(at_ms, subscription)

    def _unwatch(self, subscription: Subscription, row: InFlight) -> None:
        if row.lease_until_ms:
            self._lessees.remove(row.client_id, subscription.group, subscription.owner.topic)

    def _written(self, error: Exception | None) -> None:
        self._is_write_awaited = False
        if error is not None:
            return  # all changes are staged again with the next ones, once there is free space
        for progress in self._unwritten:
            progress.unwritten.clear()
        self._unwritten.clear()
        touched, self._touched = self._touched, set()
        now_ms = self._clock.wall_ms()
        # before this write the index did not have these rows, even if their time has passed meanwhile
        visible = [subscription for subscription in touched if subscription.unwritten_due_ms <= now_ms]
        for subscription in touched:
            subscription.unwritten_due_ms = NEVER_MS
        if visible:
            self._wake(visible)

    def _handle(self, message: GroupMessage, row: InFlight) -> str:
        subscription, progress, offset = message
        expires_at_ms = row.lease_until_ms or row.visible_at_ms
        number = subscription.first_number + progress.queue.number
        handle = ReceiptHandle(number, offset, row.delivery_id, expires_at_ms)
        return handle.encode(subscription.group, subscription.owner.topic, self._handle_key)

    def _new_id(self) -> int:
        self._delivery_id += 1
        return self._delivery_id


def _attempts_before(message: GroupMessage, record: StoredMessage, previous: InFlight | None) -> int:
    """Return how often the message was delivered to the group, including deliveries before it came to a retry topic."""
    if previous is not None:
        return previous.attempt
    return record.reconsume_times if message.subscription.is_retry else 0
