"""Choice of the messages for a receive: redelivered messages first, then new ones; for ordered groups queue by queue.

In an ordered group a queue is blocked as long as one of its messages is hidden. Once all messages that were not
acknowledged are visible again, they are handed out in their order. No new message of the queue is handed out before
they are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from shlex import quote as quoted
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.names import is_light_queue
from quarry_mq.server.append.copies import is_final
from quarry_mq.server.counters import ReceiveStages
from quarry_mq.server.delivery.deliveries import Deliveries, Event, State
from quarry_mq.server.delivery.model import Delivered, ErrorSink, MessageSource, ReceiveRequest
from quarry_mq.server.delivery.open_subscriptions import Positions
from quarry_mq.server.delivery.retry_topics import for_group
from quarry_mq.server.delivery.state.inflight import DueEntry, InFlight
from quarry_mq.server.delivery.state.subscription import GroupMessage, QueueProgress, Subscription
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.settings.sections import LimitsSection
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import MessageGivenUp, StoreDamaged
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.record import StoredMessage

ENTRIES_SCANNED_MAX: Final = 4_096
"""Entries that one receive or pull scans in one go."""
ANSWER_SIZE_MAX: Final = 8 << 20
"""Bytes of records in one receive's answer, which is in memory as a whole until its client has read it.

This is twice the largest message of the default limits: above that more bytes per answer make nothing faster.
"""
LENGTH_PER_ENTRY: Final = 256
"""Characters of a filter expression that take about as long to evaluate as it takes to read a record."""


READ_TOGETHER_SIZE_MAX: Final = 256 * 1024
"""Bytes of records that are read together. Some of them may be read in vain, if not all fit into the answer."""


class Fetched:
    """Collects the messages taken for a receive, and tells how many more it may take.

    It is bounded in messages by the request, in bytes by what an answer may hold of the broker's memory, and in entries
    scanned (`entries_left`), so that a filter which matches nothing does not hold up the loop.
    """

    __slots__ = (
        "_bytes_left",
        "_count",
        "_messages_max",
        "_no_room",
        "_part_max",
        "entries_left",
        "entry_cost",
        "is_over_limit",
        "messages",
        "new_ones_left",
    )

    def __init__(self, request: ReceiveRequest, new_ones_max: int) -> None:
        self.messages: list[Delivered] = []
        self._count = 0
        self.entries_left = ENTRIES_SCANNED_MAX
        self.new_ones_left = new_ones_max
        """Number of messages that may be taken beside those that are in flight already."""
        self.is_over_limit = False
        """True if a new message was found beyond that number."""
        self.entry_cost = 1 + request.filter.length // LENGTH_PER_ENTRY
        """Number that each scanned entry takes from `entries_left`: a long expression takes long to evaluate."""
        self._messages_max = request.batch_size
        self._part_max = request.batch_size
        self._bytes_left = ANSWER_SIZE_MAX
        self._no_room = False

    def begin_part(self, messages_max: int) -> None:
        """Begin a part of the source, of which at most `messages_max` messages may be taken."""
        self._part_max = min(self._messages_max, self._count + messages_max)

    @property
    def is_over(self) -> bool:
        """Return whether no part may add anything any more."""
        return self._no_room or self._count >= self._messages_max or self.entries_left <= 0

    @property
    def is_full(self) -> bool:
        return self._no_room or self._count >= self._part_max

    @property
    def room(self) -> int:
        """Return how many messages the current part may still add."""
        return self._part_max - self._count

    def has_room_for(self, entry: ConsumeQueueEntry) -> bool:
        """Return whether the entry's record may be taken as well. The first one may be of any size.

        After one that does not fit no other does: smaller ones after it would come out of order.
        """
        if self._count and entry.size > self._bytes_left:
            self._no_room = True
        return not (self._no_room or self._count >= self._part_max)

    def may_add_new(self) -> bool:
        """Return whether a message may be taken that is not in flight already."""
        self.is_over_limit = self.new_ones_left <= 0
        return not self.is_over_limit

    def add(self, entry: ConsumeQueueEntry, delivered: Delivered) -> None:
        self.messages.append(delivered)
        self._count += 1
        self._bytes_left -= entry.size

    def expect(self, entry: ConsumeQueueEntry) -> None:
        """Count a new message whose record is added to `messages` later, together with others."""
        self._count += 1
        self._bytes_left -= entry.size
        self.new_ones_left -= 1


ENTRIES_PER_SCAN: Final = 32

Forwarded = Callable[[Exception | None], None]
BarrierOf = Callable[[str, str], int | None]
"""Function of a group and a topic: returns the log position from which on the group gets no messages yet, or None."""


class _Outcome(Enum):
    """Outcome of an attempt to redeliver a message."""

    OVER = "the message is delivered, or done"
    NO_ROOM = "the receive has no space for more messages"
    FORWARDED = "the message is being moved to the dead letters"


DAMAGED_QUEUES_MAX: Final = 256


GIVE_UP_COMMAND: Final = "quarry recover STORE --replace-damaged --dry-run"
"""Shows, on the stopped broker, what it takes to give damaged records up."""


def command_past(queue: QueueId, offset: QueueOffset, group: str | None = None) -> str:
    """Return the command that moves a group behind a damaged record; without a group, GROUP stands for its name."""
    name = "GROUP" if group is None else quoted(group)
    if is_light_queue(queue.topic):  # the offset of a lite topic cannot be set by hand
        return f"quarry group show {name}"
    return f"quarry group reset-offset {name} --topic {quoted(queue.topic)} --queue {queue.number} --to {offset + 1}"


class DamagedQueue(NamedTuple):
    """A damaged record holds up a group in this queue. `at_s` is the monotonic time at which the group met it."""

    group: str
    queue: QueueId
    offset: QueueOffset
    at_s: float

    @property
    def command(self) -> str:
        return command_past(self.queue, self.offset, self.group)


class DamagedQueues:
    """The queues in which groups met damage. A place stays until `blocking` finds that the group is past it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._places: dict[tuple[str, QueueId], DamagedQueue] = {}

    def note(self, group: str, queue: QueueId, offset: QueueOffset) -> None:
        """Note where the group has met a damaged record."""
        known = self._places.get((group, queue))
        if len(self._places) < DAMAGED_QUEUES_MAX if known is None else known.offset != offset:
            self._places[group, queue] = DamagedQueue(group, queue, offset, self._now_s())

    def blocking(self, is_past: Callable[[DamagedQueue], bool]) -> list[DamagedQueue]:
        """Return the places that hold up a group, and drop those that the group `is_past`."""
        self._places = {key: place for key, place in self._places.items() if not is_past(place)}
        return list(self._places.values())


class DeadLetters(Protocol):
    """Stores messages that were delivered as often as the group allows."""

    def forward(self, group: str, topic: str, record: StoredMessage, attempts: int, forwarded: Forwarded) -> None:
        """Store a copy in the group's dead letters; `forwarded` is called when it is stored, or with the error."""


class Fetch:
    """Fetches the messages for one receive at a time."""

    def __init__(
        self,
        limits: LimitsSection,
        *,
        source: MessageSource,
        positions: Positions,
        deliveries: Deliveries,
        dead_letters: DeadLetters,
        error_reporter: ErrorSink,
        ready: Callable[[Iterable[Subscription]], None],
        stages: ReceiveStages,
    ) -> None:
        self._limits = limits
        self._source = source
        self._positions = positions
        self._deliveries = deliveries
        self._dead_letters = dead_letters
        self._error_reporter = error_reporter
        self._ready = ready
        self._stages = stages
        self.damaged_queues: Final = DamagedQueues(stages.now_s)
        self.redeliveries = 0
        self._forwarding: set[int] = set()
        """Ids of deliveries whose copies are being appended to the dead letters; their outcome is not known yet."""
        self._barrier_of: BarrierOf = _no_barrier

    def configure(self, limits: LimitsSection) -> None:
        self._limits = limits

    def hold_ordered(self, barrier_of: BarrierOf) -> None:
        """Set the function that returns from which log position on an ordered group gets no messages yet."""
        self._barrier_of = barrier_of

    def fetch(self, subscription: Subscription, request: ReceiveRequest) -> list[Delivered]:
        """Return messages for the receive, the oldest candidates first.

        A message that cannot be read is put after the others and tried again; none is skipped. Its error is raised if
        there was nothing else, and reported otherwise. A group with as many messages in flight as it may have gets
        redelivered messages, but no new ones; if there are only new ones, OverLimit is raised.
        """
        return self.fetch_each(subscription.parts_in_turn(), request, request.batch_size)

    def fetch_each(self, parts: Iterable[Subscription], request: ReceiveRequest, part_max: int) -> list[Delivered]:
        """Return messages of each part, at most `part_max` of one part, until there are enough. Otherwise as `take`."""
        if not self._stages.is_turn():
            return self._fetch_each(parts, request, part_max)
        self._stages.is_timed, self._stages.reading_s = True, 0.0
        began_s = self._stages.now_s()
        try:
            messages = self._fetch_each(parts, request, part_max)
        finally:
            self._stages.is_timed = False
        if messages:
            self._stages.take.add(self._stages.now_s() - began_s)
            self._stages.read.add(self._stages.reading_s)
        return messages

    def _fetch_each(self, parts: Iterable[Subscription], request: ReceiveRequest, part_max: int) -> list[Delivered]:
        most = self._limits.in_flight_per_group
        fetched = Fetched(request, most - self._deliveries.count_of_group(request.group))
        failures: list[tuple[Exception, Subscription]] = []
        for part in parts:
            fetched.begin_part(part_max)
            failures += [(failure, part) for failure in self._fetch_part(part, request, fetched)]
            if fetched.is_over:
                break
        if failures and not fetched.messages:
            last, _ = failures.pop()
            for failure, part in failures:
                self._report(failure, part)
            failures.clear()
            try:
                raise last
            finally:
                del last  # the exception refers to this frame
        for failure, part in failures:
            self._report(failure, part)
        if fetched.is_over_limit and not fetched.messages:
            raise OverLimit("in_flight_per_group", f"group {request.group} has {most} messages in flight")
        return fetched.messages

    def _fetch_part(self, part: Subscription, request: ReceiveRequest, fetched: Fetched) -> list[Exception]:
        part.is_ordered = request.is_ordered
        if request.is_ordered:
            self._mark_due(part)
            for number in [number for number, attempt in part.blocked.items() if attempt == request.attempt_id]:
                part.mark(number)
            return list(self._failures(part, request, fetched, self._fetch_ordered))
        failures = list(self._fetch_due(part, request, fetched))
        return failures + list(self._failures(part, request, fetched, self._fetch_new))

    def forward(self, message: GroupMessage, row: InFlight, done: Forwarded) -> None:
        """Dead-letter the message; `done` is called when its copy is stored. Raises the errors of reading the message.

        A message that can never be stored as a dead letter is done, too: it must not be in flight for ever, nor block
        those after it.
        """
        record = self._record(message)
        if record is None:
            self._deliveries.end(message, row, Event.DEAD_LETTERED)
            done(None)
            return
        subscription, hidden = message.subscription, self._deliveries.forward(message, row)
        subscription.forwarding += 1
        self._forwarding.add(hidden.delivery_id)

        def over() -> None:
            subscription.forwarding -= 1
            self._forwarding.discard(hidden.delivery_id)

        def forwarded(error: Exception | None) -> None:
            over()
            if error is None or is_final(error):
                now = self._deliveries.row(message)
                if now is not None and now.delivery_id == hidden.delivery_id:
                    self._deliveries.end(message, now, Event.DEAD_LETTERED)
                    subscription.mark(message.progress.queue.number)
                    self._ready((subscription,))
            done(error)

        try:
            self._dead_letters.forward(subscription.group, subscription.owner.topic, record, row.attempt, forwarded)
        except Exception:
            over()
            raise

    # -- redelivery

    def _fetch_due(self, subscription: Subscription, request: ReceiveRequest, fetched: Fetched) -> Iterator[Exception]:
        """Hand out the messages that have become visible, the earliest first. Yields the errors that kept some back."""
        again_from: DueEntry | None = None
        with self._deliveries.due(subscription) as walk:
            for entry in walk.entries():
                try:
                    if not self._fetch_one(subscription, entry, request, fetched):
                        again_from = again_from or entry
                        break
                except Exception as error:  # noqa: BLE001 - one damaged record does not stop the others
                    again_from = again_from or entry
                    yield error
            if again_from is not None:
                walk.begin_again_at(again_from)
        subscription.is_due = again_from is not None

    def _fetch_one(
        self, subscription: Subscription, entry: DueEntry, request: ReceiveRequest, fetched: Fetched
    ) -> bool:
        """Hand out the message of an entry of the due index, if possible; return False if the receive is full."""
        if fetched.is_full:
            return False
        progress = self._positions.open(subscription, entry.number)
        row = self._deliveries.row_of(subscription, progress, entry)
        if row is None:
            return True
        message = GroupMessage(subscription, progress, entry.offset)
        if self._deliveries.state_of(row) is State.HIDDEN:
            self._deliveries.renew(message, row)
            return True
        return self._redeliver(message, row, request, fetched) is not _Outcome.NO_ROOM

    def _redeliver(
        self,
        message: GroupMessage,
        row: InFlight,
        request: ReceiveRequest,
        fetched: Fetched,
    ) -> _Outcome:
        progress, offset = message.progress, message.offset
        entries = self._source.entries(progress.queue, offset, 1)
        # at or above the next offset: its message was lost with the end of the log in a power failure
        if offset >= progress.next_offset or not entries or entries[0].queue_offset != offset:
            self._deliveries.end(message, row, Event.GONE)
            return _Outcome.OVER
        if row.delivery_id in self._forwarding:  # a second copy would be a second dead letter
            self._deliveries.renew(message, row)
            return _Outcome.FORWARDED
        if request.attempts_max is not None and row.attempt >= request.attempts_max:
            self.forward(message, row, lambda _: None)
            return _Outcome.FORWARDED
        if not fetched.has_room_for(entries[0]):
            return _Outcome.NO_ROOM
        record = self._read(entries[0], message.subscription, message.progress.queue)
        if record is None:
            self._deliveries.end(message, row, Event.GONE)
            return _Outcome.OVER
        self.redeliveries += 1
        fetched.add(entries[0], self._deliveries.begin(message, record, request, row))
        return _Outcome.OVER

    # -- ordered groups

    def _mark_due(self, subscription: Subscription) -> None:
        """Mark the queues in which something has become visible."""
        with self._deliveries.due(subscription) as walk:
            for entry in walk.entries():
                progress = self._positions.open(subscription, entry.number)
                if self._deliveries.row_of(subscription, progress, entry) is not None:
                    subscription.mark(entry.number)
        subscription.is_due = False

    def _fetch_ordered(
        self, subscription: Subscription, progress: QueueProgress, request: ReceiveRequest, fetched: Fetched
    ) -> bool:
        """Take messages from one queue, unless it is blocked; return whether it has no more to hand out for now."""
        rows = self._deliveries.rows_of(subscription, progress)
        hidden = {offset: row for offset, row in rows.items() if self._deliveries.state_of(row) is State.HIDDEN}
        if hidden:
            if request.attempt_id and all(row.attempt_id == request.attempt_id for row in hidden.values()):
                self._fetch_again(subscription, progress, request, rows, fetched)
            self._deliveries.keep(subscription, progress, hidden)
            return _block(subscription, progress, next(iter(hidden.values())).attempt_id)
        for offset, row in rows.items():
            if not self._redeliver_in_order(GroupMessage(subscription, progress, offset), row, request, fetched):
                return _block(subscription, progress, request.attempt_id)
        if rows and self._deliveries.rows_of(subscription, progress):
            return _block(subscription, progress, request.attempt_id)
        drained = self._fetch_new(subscription, progress, request, fetched)
        if not self._deliveries.rows_of(subscription, progress):
            return drained
        return _block(subscription, progress, request.attempt_id)

    def _redeliver_in_order(
        self, message: GroupMessage, row: InFlight, request: ReceiveRequest, fetched: Fetched
    ) -> bool:
        """Redeliver the message; return whether the messages after it may follow."""
        outcome = self._redeliver(message, row, request, fetched)
        return outcome is _Outcome.OVER or (outcome is _Outcome.FORWARDED and self._deliveries.row(message) is None)

    def _fetch_again(
        self,
        subscription: Subscription,
        progress: QueueProgress,
        request: ReceiveRequest,
        rows: dict[QueueOffset, InFlight],
        fetched: Fetched,
    ) -> None:
        """Repeat the messages of a receive whose answer its client did not get, in their order, so that none is left
        out.

        One of them may have been given back meanwhile. It is then redelivered before those after it.
        """
        for offset, row in rows.items():
            message = GroupMessage(subscription, progress, offset)
            if self._deliveries.state_of(row) is not State.HIDDEN:
                if not self._redeliver_in_order(message, row, request, fetched):
                    return
                continue
            entries = self._source.entries(progress.queue, offset, 1)
            if not entries or entries[0].queue_offset != offset:
                continue
            if not fetched.has_room_for(entries[0]):
                return
            record = self._read(entries[0], subscription, progress.queue)
            if record is not None:
                fetched.add(entries[0], self._deliveries.hand_out_again(message, record, row, request))

    # -- new messages

    def _failures(
        self,
        subscription: Subscription,
        request: ReceiveRequest,
        fetched: Fetched,
        fetch: Callable[[Subscription, QueueProgress, ReceiveRequest, Fetched], bool],
    ) -> Iterator[Exception]:
        """Call `take` for the candidate queues until there is enough. Yields the errors of unreadable queues."""
        numbers = subscription.candidate_numbers()
        for number in sorted(numbers, reverse=True) if request.highest_queue_first else numbers:
            if fetched.is_full or fetched.entries_left <= 0:
                return
            drained = False
            try:
                drained = fetch(subscription, self._positions.open(subscription, number), request, fetched)
            except Exception as error:  # noqa: BLE001 - one queue's damage does not stop the others
                yield error
            subscription.served(number, drained=drained)

    def _fetch_new(
        self, subscription: Subscription, progress: QueueProgress, request: ReceiveRequest, fetched: Fetched
    ) -> bool:
        """Take new messages from the next offset on; return whether the queue has no more, or only held-back ones."""
        before = progress.next_offset
        has_barrier = request.is_ordered and not subscription.is_retry
        barrier = self._barrier_of(subscription.group, subscription.topic) if has_barrier else None
        wanted, drained = for_group(request.filter, subscription.group, subscription.topic), False
        wants_all = wanted.wants_all
        found: list[tuple[QueueOffset, StoredMessage]] = []
        try:
            while not fetched.is_full and fetched.entries_left > 0 and not drained and not fetched.is_over_limit:
                limit = min(fetched.room if wants_all else ENTRIES_PER_SCAN, ENTRIES_PER_SCAN, fetched.entries_left)
                entries = self._source.entries(progress.queue, progress.next_offset, limit)
                drained = len(entries) < limit
                records = self._read_together(entries) if wants_all else None
                for index, entry in enumerate(entries):
                    if barrier is not None and entry.physical_offset >= barrier:
                        return True
                    may_match = wants_all or wanted.may_match(entry.tags_code)
                    if may_match and not (fetched.has_room_for(entry) and fetched.may_add_new()):
                        drained = False
                        break
                    fetched.entries_left -= fetched.entry_cost
                    record = None if records is None else records[index]
                    if record is None and may_match:
                        record = self._read(entry, subscription, progress.queue)
                    if record is not None and (wants_all or wanted.matches(record.properties)):
                        found.append((entry.queue_offset, record))
                        fetched.expect(entry)
                    progress.next_offset = QueueOffset(entry.queue_offset + 1)
        finally:
            if found:
                fetched.messages += self._deliveries.begin_new(subscription, progress, found, request)
            # together with the rows of what was handed out: a message below the next offset without a row is done
            if progress.next_offset != before:
                self._positions.store(subscription, progress)
        return drained

    # -- reading

    def _record(self, message: GroupMessage) -> StoredMessage | None:
        entries = self._source.entries(message.progress.queue, message.offset, 1)
        if not entries or entries[0].queue_offset != message.offset:
            return None
        return self._read(entries[0], message.subscription, message.progress.queue)

    def _read_together(self, entries: list[ConsumeQueueEntry]) -> list[StoredMessage] | None:
        """Return the records if they are small and nothing is wrong with one of them; others are read one by one."""
        if sum([entry.size for entry in entries]) > READ_TOGETHER_SIZE_MAX:
            return None
        if not self._stages.is_timed:
            return self._source.read_all(entries)
        began_s = self._stages.now_s()
        records = self._source.read_all(entries)
        self._stages.reading_s += self._stages.now_s() - began_s
        return records

    def _read(self, entry: ConsumeQueueEntry, subscription: Subscription, queue: QueueId) -> StoredMessage | None:
        """Return the record, or None if the message was given up: then the operator has accepted its loss."""
        try:
            if not self._stages.is_timed:
                return self._source.read(entry)
            began_s = self._stages.now_s()
            record = self._source.read(entry)
            self._stages.reading_s += self._stages.now_s() - began_s
            return record
        except MessageGivenUp as gone:
            self._report(gone, subscription)
            return None
        except StoreDamaged as damage:
            self.damaged_queues.note(subscription.group, queue, entry.queue_offset)
            if not is_light_queue(queue.topic):
                command = command_past(queue, entry.queue_offset, subscription.group)
                damage.remedy = f"the group goes on behind the message with: {command}"
            raise

    def _report(self, failure: Exception, subscription: Subscription) -> None:
        self._error_reporter.report(failure, group=subscription.group, topic=subscription.owner.topic)


def _no_barrier(_group: str, _topic: str) -> None:
    return None


def _block(subscription: Subscription, progress: QueueProgress, attempt_id: str) -> bool:
    """Block the queue: one of its messages is hidden or on its way to the dead letters, so nothing is handed out for
    now.
    """
    subscription.blocked[progress.queue.number] = attempt_id
    return True
