"""Messages in flight: how a delivery begins, is kept hidden, comes back and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from quarry_mq.kv import WriteBatch
from quarry_mq.server.delivery.handle_key import HandleKey
from quarry_mq.server.delivery.life_cycle import NEXT, Event, State
from quarry_mq.server.delivery.model import Delivered, DeliverySettings, ReceiveRequest, Timers
from quarry_mq.server.delivery.receipt_handle import ReceiptHandle, encode_all
from quarry_mq.server.delivery.redelivery.due_walk import DueWalk
from quarry_mq.server.delivery.redelivery.recent_rows import RecentRows
from quarry_mq.server.delivery.redelivery.wakeups import Wakeups, round_up
from quarry_mq.server.delivery.state.inflight import DueEntry, InFlight, InFlightTable
from quarry_mq.server.delivery.state.registry import Lessees
from quarry_mq.server.delivery.state.state_writer import StateWriter
from quarry_mq.server.delivery.state.subscription import NEVER_MS, GroupMessage, QueueProgress, Subscription
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.store.clock import Clock
from quarry_mq.store.offsets import QueueOffset
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.state.in_flight_key import group_of

LOST_CLIENT_DELAY_MS: Final = 1_000  # RocketMQ's: what a lost client held, or never got, comes back after a second
FORWARDING_MS: Final = 60_000
"""How long a message is hidden that is on its way to the dead letters: if that fails, it is tried again."""
SEARCHED_AT_ONCE: Final = 1_000
"""Rows that are looked at for those of a lost client before others get their turn."""
TIMES_MAX: Final = 4_096
"""Distinct times that are looked up when a subscription is opened; of more, the later ones when these have passed."""


class Deliveries:
    """The rows in flight, and when each is due. All changes of their states are here, by the table in `life_cycle`."""

    def __init__(
        self,
        settings: DeliverySettings,
        *,
        table: InFlightTable,
        writer: StateWriter,
        clock: Clock,
        timers: Timers,
        is_client_alive: Callable[[str], bool],
        open_subscription: Callable[[str, str], Subscription],
        open_queue: Callable[[Subscription, int], QueueProgress],
        ready: Callable[[Iterable[Subscription]], None],
        handle_key: HandleKey,
    ) -> None:
        """`open_subscription` finds one by group and topic; `ready` hears which may have messages to hand out again."""
        self._settings = settings
        self._handle_key = handle_key
        self._table = table
        self._writer = writer
        self._clock = clock
        self._timers = timers
        self._is_client_alive = is_client_alive
        self._open = open_subscription
        self._open_queue = open_queue
        self._ready = ready
        self._lessees = Lessees()
        self._wakeups = Wakeups(clock, timers, self._wake)
        self._recent = RecentRows()
        self._unwritten: list[QueueProgress] = []
        self._touched: set[Subscription] = set()
        self._is_write_awaited = False
        now_ms = clock.wall_ms()
        # a client needs a moment to come back after a restart (rmq#10278)
        self._clients_away_until_ms = now_ms + settings.lease_ms
        # unique over restarts: no clock runs a million deliveries per millisecond
        self._counts, highest_id, latest_ms = table.figures()
        self._delivery_id = max(now_ms * 1_000_000, highest_id)
        table.show_beyond(now_ms, latest_ms, settings.hidden_max_ms)

    def configure(self, settings: DeliverySettings) -> None:
        self._settings = settings

    def __len__(self) -> int:
        return self._counts.total()

    def count_of_group(self, group: str) -> int:
        """How many messages the group has in flight, on all topics."""
        return self._counts[group]

    def opened(self, subscription: Subscription) -> None:
        """Know when messages of a subscription come back that were in flight before it was opened."""
        now_ms = self._clock.wall_ms()
        subscription.times_unknown_from_ms = NEVER_MS
        from_ms = 0
        for _ in range(TIMES_MAX):
            found = self._table.first_due_ms(subscription.prefix, from_ms)
            if found is None:
                return
            if found > now_ms:
                self._wakeups.add(found, subscription)
            from_ms = round_up(max(found, now_ms), now_ms) + 1
        subscription.times_unknown_from_ms = from_ms
        self._wakeups.add(from_ms, subscription)

    # -- what is there

    def row(self, message: GroupMessage) -> InFlight | None:
        return message.subscription.row(self._table, message.progress, message.offset)

    def rows_of(self, subscription: Subscription, progress: QueueProgress) -> dict[QueueOffset, InFlight]:
        """All that is in flight of a queue; for ordered groups, which have few at a time."""
        return subscription.rows_of(self._table, progress)

    def state_of(self, row: InFlight) -> State:
        """Of a message with a row: hidden until its time, and after it while its client's lease is renewed."""
        if row.visible_at_ms > self._clock.wall_ms() or self._may_renew(row):
            return State.HIDDEN
        return State.READY

    def due(self, subscription: Subscription) -> DueWalk:
        """A walk over what may have become visible."""
        return DueWalk(self._table, subscription, self._clock.wall_ms())

    def row_of(self, subscription: Subscription, progress: QueueProgress, entry: DueEntry) -> InFlight | None:
        """The delivery that an entry of the index stands for; None, and it is deleted, when there is none."""
        row = self.row(GroupMessage(subscription, progress, entry.offset))
        if row is not None and row.visible_at_ms == entry.visible_at_ms:
            return row
        self._table.delete_entry(self._writer.batch(), subscription.prefix, entry)
        return None

    def count_of(self, prefix: bytes, number: int) -> int:
        """How many messages of a queue are in flight, as far as they are written."""
        return self._table.count(prefix, number)

    def rows(self, prefix: bytes) -> Iterator[object]:
        """One item for each row of all queues, as far as they are written now: later changes are not seen."""
        return self._table.rows(prefix)

    def rows_below(self, prefix: bytes, number: int, end: QueueOffset) -> Iterator[object]:
        """The same of the messages of one queue below an offset."""
        return self._table.rows_below(prefix, number, end)

    def first_offset(self, prefix: bytes, number: int, start: int = 0) -> QueueOffset | None:
        """The lowest offset of a queue, or the lowest from one on, that is in flight, as far as it is written."""
        rows = self._table.of_queue(prefix, number, start, limit=1)
        return rows[0][0] if rows else None

    # -- begin and end

    def begin(
        self,
        message: GroupMessage,
        record: StoredMessage,
        request: ReceiveRequest,
        previous: InFlight | None = None,
    ) -> Delivered:
        """Hand the message out, for the first time or once more."""
        now_ms = self._clock.wall_ms()
        leased = request.invisible_ms is None
        invisible_ms = self._settings.lease_ms if request.invisible_ms is None else request.invisible_ms
        row = InFlight(
            now_ms + invisible_ms,
            self._new_id(),
            now_ms + self._settings.lease_total_ms if leased else 0,
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
        """Hand out messages of a queue that never were, all of them now: what `begin` does, in fewer steps."""
        assert NEXT[State.WAITING, Event.HANDED_OUT] is State.HIDDEN
        now_ms = self._clock.wall_ms()
        leased = request.invisible_ms is None
        invisible_ms = self._settings.lease_ms if request.invisible_ms is None else request.invisible_ms
        visible_at_ms = now_ms + invisible_ms
        lease_until_ms = now_ms + self._settings.lease_total_ms if leased else 0
        client_id, attempt_id = request.client_id, request.attempt_id if request.is_ordered else ""
        is_retry, delivery_id = subscription.is_retry, self._delivery_id
        rows: dict[QueueOffset, InFlight] = {}
        for offset, record in records:
            delivery_id += 1
            attempt = record.reconsume_times + 1 if is_retry else 1
            rows[offset] = InFlight(visible_at_ms, delivery_id, lease_until_ms, attempt, client_id, attempt_id)
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
            Delivered(record, handle, row.attempt, invisible_ms)
            for (_, record), row, handle in zip(records, rows.values(), handles, strict=True)
        ]

    def hand_out_again(
        self,
        message: GroupMessage,
        record: StoredMessage,
        row: InFlight,
    ) -> Delivered:
        """The same delivery once more, to a client that did not get the answer: neither counted nor changed."""
        invisible_ms = max(0, row.visible_at_ms - self._clock.wall_ms())
        return Delivered(record, self._handle(message, row), row.attempt, invisible_ms)

    def end(self, message: GroupMessage, row: InFlight, event: Event) -> None:
        """The message is done."""
        self._change(message, row, event, None)

    def end_standing(
        self,
        subscription: Subscription,
        places: Sequence[tuple[QueueProgress, QueueOffset]],
        delivery_ids: Sequence[int],
    ) -> list[bool]:
        """End those of the deliveries, by acknowledgement, that are hidden by their time under this id.

        The places are different ones, whose rows are as they were written; `end` in fewer steps.
        """
        assert NEXT[State.HIDDEN, Event.ACKNOWLEDGED] is State.DONE
        rows = subscription.written_rows(self._table, places)
        now_ms = self._clock.wall_ms()
        standing = [
            (progress, offset, row)
            if row is not None and row.delivery_id == delivery_id and row.visible_at_ms > now_ms
            else None
            for (progress, offset), delivery_id, row in zip(places, delivery_ids, rows, strict=True)
        ]
        ending = [each for each in standing if each is not None]
        if ending:
            keys = [(progress.queue.number, offset, row.visible_at_ms) for progress, offset, row in ending]
            self._table.delete_each(self._writer.batch(), subscription.prefix, keys)
            self._add(subscription, -len(ending))
        for progress, offset, row in ending:
            self._unwatch(subscription, row)
            self._note_unwritten(progress)
            progress.unwritten[offset] = None
            self._recent.drop(progress, offset)
        return [each is not None for each in standing]

    def forget(self, subscription: Subscription, progress: QueueProgress, start: int = 0) -> None:
        """Forget everything that is in flight of the queue from an offset on."""
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

    def release(self, subscription: Subscription) -> None:
        """Nothing of the subscription is in flight: no time has to be remembered for its sake."""
        self._wakeups.forget(subscription)

    def delete_rows(self, prefix: bytes) -> None:
        """Delete the stored rows of a group, or of a group and topic, of which nothing is in memory."""
        self._count_more(group_of(prefix), -self._table.delete_counted(self._writer.batch(), prefix))

    def stage(self, batch: WriteBatch, subscription: Subscription) -> None:
        """Put what this and earlier passes could not write."""
        self._await_write()
        for number, progress in subscription.queues.items():
            for offset, row in progress.unwritten.items():
                stored = self._table.get(subscription.prefix, number, offset)
                if stored is not None:
                    self._table.delete(batch, subscription.prefix, number, offset, stored)
                if row is not None:
                    self._table.put(batch, subscription.prefix, number, offset, row)

    # -- while it is hidden

    def standing(self, message: GroupMessage, handle: ReceiptHandle) -> InFlight:
        """The delivery that the handle names. Raises InvalidReceiptHandle when it stands no longer."""
        row = self.row(message)
        if row is None or row.delivery_id != handle.delivery_id:
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
    ) -> str:
        """Hide the message for `invisible_ms` from now, without a lease; returns the handle that names it now."""
        hidden = row._replace(
            visible_at_ms=self._clock.wall_ms() + invisible_ms,
            lease_until_ms=0,
            delivery_id=self._new_id(),
            attempt=row.attempt if is_counted else row.attempt - 1,
        )
        self._change(message, row, Event.CHANGED, hidden)
        return self._handle(message, hidden)

    def renew(self, message: GroupMessage, row: InFlight) -> None:
        """Keep the message for its client, which lives, or for its copy, which is still being appended."""
        renewed = row._replace(visible_at_ms=self._clock.wall_ms() + self._settings.lease_ms)
        self._change(message, row, Event.RENEWED, renewed)

    def give_back(self, message: GroupMessage, row: InFlight, *, is_counted: bool = True) -> None:
        """Make the message visible after a second, or at once if nobody can have seen it: then it does not count.

        The handle stays good until then: the client may have got the message and be about to say so.
        """
        back_ms = min(row.visible_at_ms, self._clock.wall_ms() + (LOST_CLIENT_DELAY_MS if is_counted else 0))
        attempt = row.attempt if is_counted else row.attempt - 1
        given = row._replace(visible_at_ms=back_ms, lease_until_ms=0, attempt=attempt)
        self._change(message, row, Event.GIVEN_BACK, given)

    def keep(self, subscription: Subscription, progress: QueueProgress, hidden: dict[QueueOffset, InFlight]) -> None:
        """Renew those whose time is over and whose clients live."""
        for offset, row in hidden.items():
            if row.visible_at_ms <= self._clock.wall_ms():
                self.renew(GroupMessage(subscription, progress, offset), row)

    def forward(self, message: GroupMessage, row: InFlight) -> InFlight:
        """Hide the message while it is on its way to the dead letters; if it does not get there it comes back.

        An append may last longer than this time: whoever waits for the append renews the row until then.
        """
        hidden = row._replace(
            visible_at_ms=self._clock.wall_ms() + FORWARDING_MS,
            lease_until_ms=0,
            delivery_id=self._new_id(),
            attempt_id="",  # nobody gets it again meanwhile
        )
        self._change(message, row, Event.FORWARDED, hidden)
        return hidden

    def give_back_of_client(self, client_id: str) -> None:
        """Give back what is kept hidden on this client's behalf, a part at a time."""
        self._writer.write_now()  # from here on the rows tell
        for group, topic in self._lessees.forget(client_id):
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
        """Look at no time any more: the store is about to close."""
        self._wakeups.stop()

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
        """The one place where a message's state changes."""
        state = State.WAITING if before is None else self.state_of(before)
        following = NEXT.get((state, event))
        if following is None and state is State.READY:
            following = NEXT[State.HIDDEN, event]  # it was hidden when this began
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
        """Some of its rows are about to change."""
        self._await_write()
        if not progress.unwritten:
            self._unwritten.append(progress)

    def _await_write(self) -> None:
        if not self._is_write_awaited:
            self._is_write_awaited = True
            self._writer.when_written(self._written)

    def _add(self, subscription: Subscription, change: int) -> None:
        """So many more are in flight, or fewer."""
        subscription.in_flight_changes += change
        self._count_more(subscription.group, change)

    def _count_more(self, group: str, change: int) -> None:
        count = self._counts[group] + change
        if count:
            self._counts[group] = count
        else:
            self._counts.pop(group, None)

    def _watch(self, subscription: Subscription, row: InFlight, count: int = 1) -> None:
        """`count` rows that differ in nothing that matters here."""
        if row.lease_until_ms:
            self._lessees.add(row.client_id, subscription.group, subscription.owner.topic, count)
        at_ms = row.visible_at_ms
        subscription.due_from = min(subscription.due_from, DueEntry(at_ms, 0, QueueOffset(0)))
        subscription.unwritten_due_ms = min(subscription.unwritten_due_ms, at_ms)
        self._touched.add(subscription)
        if at_ms > self._clock.wall_ms():
            self._wakeups.add(at_ms, subscription)

    def _unwatch(self, subscription: Subscription, row: InFlight) -> None:
        if row.lease_until_ms:
            self._lessees.remove(row.client_id, subscription.group, subscription.owner.topic)

    def _written(self, error: Exception | None) -> None:
        self._is_write_awaited = False
        if error is not None:
            return  # all of it is staged again with the next changes, once there is room
        for progress in self._unwritten:
            progress.unwritten.clear()
        self._unwritten.clear()
        touched, self._touched = self._touched, set()
        now_ms = self._clock.wall_ms()
        # nobody could find these in the index before: not at their time, if that has passed meanwhile
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
    """How often the group was given the message; a record in a retry topic tells of those before it came there."""
    if previous is not None:
        return previous.attempt
    return record.reconsume_times if message.subscription.is_retry else 0
