"""The work of each kind of job: reset offsets, resend dead letters, resend messages. `server/jobs` runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.names import is_system_topic
from quarry_mq.server.admin.administration import Administration, QueueReset
from quarry_mq.server.admin.dead_letter_box import DeadLetterBox
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.jobs import OFFSETS_MAX, DeadLetterResend, MessageResend, OffsetReset, Running
from quarry_mq.server.maintenance.key_index import FOUND_MAX, KeyIndex
from quarry_mq.server.metadata import queues_of_topic
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import (
    Forbidden,
    Invalid,
    MessageGivenUp,
    OffsetOutOfRange,
    StoreDamaged,
    TopicNotFound,
    Unavailable,
)
from quarry_mq.store.index import TIME_MAX_MS
from quarry_mq.store.message import PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata import ConsumerOffsetTable, Topic, TopicTable, TopicType
from quarry_mq.store.metadata.lite import parse_light_queue_name
from quarry_mq.store.record import StoredMessage

PAGE: Final = 256
NUMBER, LITE = "queue", "lite"
"""Keys of a job's cursor: the last queue that is done; or, once all queues are, the last light queue that is done."""


class ResetWork:
    """Resets offsets. Doing a queue twice has the same result, unless the group has consumed messages in between."""

    def __init__(self, administration: Administration, delivery: Delivery, offsets: ConsumerOffsetTable) -> None:
        self._administration = administration
        self._delivery = delivery
        self._offsets = offsets

    def check(self, asked: OffsetReset) -> None:
        """Check the parameters. Raises GroupNotFound, TopicNotFound, Invalid."""
        self._administration.group(asked.group)
        self._administration.queues_to_reset(asked.topic, asked.queue)

    async def run(self, asked: OffsetReset, running: Running) -> None:
        queues = self._administration.queues_to_reset(asked.topic, asked.queue)
        has_lite = asked.queue is None and self._administration.topic(asked.topic).type is TopicType.LITE
        if running.job.total is None:
            running.expect(len(queues) + (await self._count_light(asked, running) if has_lite else 0))
        cursor = running.job.cursor
        if LITE not in cursor:
            after = cursor.get(NUMBER, -1)
            for queue in queues:
                if queue.number > after:
                    self._reset(asked, queue, running, {NUMBER: queue.number})
                    await running.rest()
        last: QueueId | None = QueueId(cursor[LITE], 0) if LITE in cursor else None
        while has_lite and (page := self._offsets.page_of(asked.group, last, PAGE)):
            for queue in _of_parent(page, asked.topic):
                self._reset(asked, queue, running, {LITE: queue.topic})
                await running.rest()
            last = page[-1]
            await running.rest()
        self._require_both(asked)  # a deleted group has no pages

    async def _count_light(self, asked: OffsetReset, running: Running) -> int:
        count, last = 0, None
        while page := self._offsets.page_of(asked.group, last, PAGE):
            count += sum(1 for _ in _of_parent(page, asked.topic))
            last = page[-1]
            await running.rest()
        return count

    def _reset(self, asked: OffsetReset, queue: QueueId, running: Running, cursor: dict[str, object]) -> None:
        """Reset one queue. Raises GroupNotFound or TopicNotFound for what was deleted meanwhile, StoreDamaged."""
        self._require_both(asked)
        reset = self._administration.planned(asked.group, queue, asked.target)
        if LITE in cursor and reset.previous is None:
            running.did(1, cursor, {})  # the lite topic has expired
            return
        if not running.job.is_dry_run:
            self._carry_out(asked.group, reset, is_light=LITE in cursor)
        running.did(1, cursor, {"reset": 1, "moved": int(reset.previous != reset.new)})

    def _require_both(self, asked: OffsetReset) -> None:
        self._administration.group(asked.group)
        self._administration.topic(asked.topic)

    def _carry_out(self, group: str, reset: QueueReset, *, is_light: bool) -> None:
        if is_light:
            # none of it needs to be in memory, and there are very many
            self._delivery.lite.move(group, reset.queue.topic, reset.new)
        else:
            self._delivery.reset_offset(group, reset.queue, reset.new)


def _of_parent(page: list[QueueId], parent: str) -> Iterator[QueueId]:
    """Yield the light queues that belong to the lite topics of a topic."""
    for queue in page:
        found = parse_light_queue_name(queue.topic)
        if found is not None and found[0] == parent:
            yield queue


INDEX, AGAIN, NEXT, END = "index", "again", "next", "end"
"""Keys of a job's cursor.

`index`: how many of the named dead letters are done; `again`: the first one to be done of those refused before;
`next` and `end`: the offsets of the others that are to be done.
"""
COUNTED_MAX: Final = 100_000
"""Refused dead letters that are counted before the job begins."""


class DeadLetterWork:
    """Sends dead letters. A portion that was sent but not recorded before a crash is sent once more."""

    def __init__(self, box: DeadLetterBox, report: Callable[[Exception], None]) -> None:
        """`report` is called with the damage that the work goes past."""
        self._box = box
        self._report = report

    def check(self, asked: DeadLetterResend) -> None:
        """Check the parameters. Raises TopicNotFound, Invalid."""
        self._box.end_of(asked.group)
        if len(asked.offsets) > OFFSETS_MAX:
            raise Invalid(f"offsets: {len(asked.offsets)} are given, at most {OFFSETS_MAX} are allowed")

    async def run(self, asked: DeadLetterResend, running: Running) -> None:
        cursor = running.job.cursor
        done = cursor.get(INDEX, 0)
        offsets = [QueueOffset(each) for each in asked.offsets[done:]]
        if asked.offsets and not offsets:
            return
        start = QueueOffset(max(cursor.get(NEXT, 0), self._box.next_offset(asked.group)))
        end = QueueOffset(cursor.get(END, self._box.end_of(asked.group)))
        again = None if NEXT in cursor else QueueOffset(cursor.get(AGAIN, 0))
        if running.job.total is None:
            running.expect(len(offsets) or self._box.count(asked.group, COUNTED_MAX))
        sending = self._box.portions(
            asked.group, offsets, refused_from=again, start=start, end=end, dry_run=running.job.is_dry_run
        )
        async with aclosing(sending) as portions:
            async for portion in portions:
                done += portion.looked_at
                running.did(
                    portion.looked_at,
                    {INDEX: done} if offsets else {AGAIN if portion.is_again else NEXT: portion.following, END: end},
                    {"sent": portion.sent, "refused": len(portion.refused)},
                    [f"offset {each.offset}: {each.reason}" for each in portion.refused],
                )
                for each in portion.refused:
                    if each.damage is not None:
                        self._report(each.damage)
                running.keep()
                await running.rest()


SENT_AT_ONCE: Final = 16
KEY_MAX: Final = 4_096
"""Characters of a key. It is limited because jobs are stored."""
SIZE_AT_ONCE: Final = 1024 * 1024
"""Bytes of records that are sent together, unless the first alone is larger."""

INTERNAL_PREFIX: Final = "%"
"""The first character of the names of retry and dead letter topics: only the broker sends to them."""

QUEUE, OFFSET, PLACE = "queue", "offset", "place"
"""Keys of a job's cursor: the queue that is being sent and its next offset, or the last log position found by key."""

Outcomes = Callable[[], Awaitable[Sequence[Exception | None]]]
"""Wait for the results of some sends. Each is None or the error."""


class ReadStore(Protocol):
    """The part of the message store that resending uses."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset: ...

    def iterate_queues(self, topic: str) -> list[QueueId]: ...

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def read(self, entry: ConsumeQueueEntry) -> StoredMessage: ...

    def record_at(self, at: PhysicalOffset) -> StoredMessage: ...


class Resender(Protocol):
    """Sends messages by the rules for all senders."""

    def send(self, records: Sequence[StoredMessage], topic: Topic, job_id: int) -> Outcomes:
        """Send the messages now, in their order."""


class _Range(NamedTuple):
    """The offsets [start, end) of a queue."""

    queue: QueueId
    start: QueueOffset
    end: QueueOffset


class _Item(NamedTuple):
    """A message, the cursor after it, and the number of offsets it accounts for. `missing`: why it has no record."""

    cursor: dict[str, int]
    looked_at: int
    record: StoredMessage | None
    missing: str = ""


class MessageResendWork:
    """Sends messages. A portion that was sent but not recorded before a crash is sent again, with the same ids."""

    def __init__(self, store: ReadStore, topics: TopicTable, index: KeyIndex, resender: Resender) -> None:
        self._store = store
        self._topics = topics
        self._index = index
        self._resender = resender

    def check(self, asked: MessageResend) -> None:
        """Check the parameters. Raises TopicNotFound, Forbidden, NoIndex, Invalid."""
        source = self._topic(asked.topic, "topic")
        target = self._topic(asked.to_topic, "to_topic")
        for topic in (source, target):
            if is_system_topic(topic.name):
                raise Forbidden(f"topic {topic.name} is reserved for the broker")
        if target.name.startswith(INTERNAL_PREFIX):
            raise Forbidden(f"to_topic: only the broker may send to topic {target.name}")
        has_offsets = asked.from_offset is not None or asked.to_offset is not None
        has_times = asked.from_ms is not None or asked.to_ms is not None
        if len(asked.key) > KEY_MAX:
            raise Invalid(f"key: {len(asked.key)} characters, at most {KEY_MAX} are allowed")
        if asked.key:
            if asked.queue is not None or has_offsets:
                raise Invalid("key: all queues are searched for it, so queue and offsets are not allowed")
            self._index.require()
        elif has_offsets and asked.queue is None:
            raise Invalid("queue: must be given together with offsets")
        elif asked.queue is None and not has_times:
            raise Invalid("key, queue or a time must be given")
        if asked.queue is not None and QueueId(source.name, asked.queue) not in self._queues(source):
            raise Invalid(f"queue: topic {source.name} has no queue {asked.queue}")
        for name, begin, end in (
            ("from_offset", asked.from_offset, asked.to_offset),
            ("from_ms", asked.from_ms, asked.to_ms),
        ):
            if (begin or 0) < 0 or (end is not None and end < (begin or 0)):
                raise Invalid(f"{name}: {begin} to {end} is not a range")

    async def run(self, asked: MessageResend, running: Running) -> None:
        if asked.key:
            await self._run_key(asked, running)
            return
        ranges = await self._ranges(asked, running)
        if running.job.total is None:
            running.expect(sum(each.end - each.start for each in ranges))
        for wanted in _left(ranges, running.job.cursor):
            await self._run_range(asked, wanted, running)

    # -- what to send

    def _topic(self, name: str, field: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(f"{field}: no topic {name}")
        return topic

    def _queues(self, topic: Topic) -> list[QueueId]:
        return queues_of_topic(self._store, topic.name, topic.queue_count)

    async def _ranges(self, asked: MessageResend, running: Running) -> list[_Range]:
        if asked.queue is None:
            queues = self._queues(self._topic(asked.topic, "topic"))
        else:
            queues = [QueueId(asked.topic, asked.queue)]
        ranges = []
        for queue in queues:
            await running.rest()
            bounds = self._store.bounds(queue)
            start = max(bounds.minimum, asked.from_offset or 0)
            end = bounds.maximum if asked.to_offset is None else min(bounds.maximum, asked.to_offset)
            if asked.from_ms is not None:
                start = max(start, self._store.offset_at_time(queue, asked.from_ms, TimeBoundary.LOWER))
            if asked.to_ms is not None:
                end = min(end, self._store.offset_at_time(queue, asked.to_ms + 1, TimeBoundary.LOWER))
            if start < end:
                ranges.append(_Range(queue, QueueOffset(start), QueueOffset(end)))
        return ranges

    async def _run_range(self, asked: MessageResend, wanted: _Range, running: Running) -> None:
        queue, at, end = wanted
        while at < end:
            at = max(at, self._store.bounds(queue).minimum)  # messages expire meanwhile
            entries = self._store.entries(queue, at, min(SENT_AT_ONCE, end - at))
            entries = [each for each in entries if each.queue_offset < end and each.physical_offset < asked.log_end]
            if not entries:
                break
            items = self._read(queue, at, entries, reads=not running.job.is_dry_run)
            await self._send(asked, items, running)
            at = QueueOffset(items[-1].cursor[OFFSET])
        if at < end:
            # the rest was stored after the job was requested
            running.did(end - at, {QUEUE: queue.number, OFFSET: end}, {})

    def _read(
        self, queue: QueueId, at: QueueOffset, entries: Sequence[ConsumeQueueEntry], *, reads: bool
    ) -> list[_Item]:
        """Return the first entries, with their records if `reads`. Raises StoreDamaged if the first is damaged."""
        items: list[_Item] = []
        size = 0
        for entry in entries:
            size += entry.size
            if items and size > SIZE_AT_ONCE:
                break
            following = QueueOffset(entry.queue_offset + 1)
            cursor, looked_at = {QUEUE: queue.number, OFFSET: following}, following - at
            at = following
            try:
                items.append(_Item(cursor, looked_at, self._store.read(entry) if reads else None))
            except MessageGivenUp as error:
                items.append(_Item(cursor, looked_at, None, str(error)))
            except StoreDamaged:
                if not items:
                    raise
                break
        return items

    async def _run_key(self, asked: MessageResend, running: Running) -> None:
        """Send the messages with a key, the oldest first."""
        end_ms = TIME_MAX_MS if asked.to_ms is None else asked.to_ms
        found = await self._index.find(
            asked.topic, asked.key, begin_ms=asked.from_ms or 0, end_ms=end_ms, limit=FOUND_MAX
        )
        running.restart_slice()
        if len(found.messages) == FOUND_MAX:
            raise Invalid(f"key: {FOUND_MAX} or more messages have this key, which is too many: also give a time")
        places = sorted(each.physical_offset for each in found.messages if each.physical_offset < asked.log_end)
        unread = [f"messages may be missing, {each.name} could not be read: {each.reason}" for each in found.unread]
        if running.job.total is None:
            running.expect(len(places))
            running.did(0, {}, {}, unread)
        after = running.job.cursor.get(PLACE, -1)
        left = [place for place in places if place > after]
        for first in range(0, len(left), SENT_AT_ONCE):
            items = [self._read_at(place) for place in left[first : first + SENT_AT_ONCE]]
            await self._send(asked, items, running)

    def _read_at(self, place: PhysicalOffset) -> _Item:
        """Read the message at a log position. Raises StoreDamaged."""
        try:
            return _Item({PLACE: place}, 1, self._store.record_at(place))
        except (MessageGivenUp, OffsetOutOfRange) as error:
            return _Item({PLACE: place}, 1, None, str(error))

    # -- sending

    async def _send(self, asked: MessageResend, items: Sequence[_Item], running: Running) -> None:
        """Send messages. Raises Unavailable if one is refused for now: it and later ones are sent again, in order."""
        outcomes = await self._outcomes(asked, [each.record for each in items if each.record is not None], running)
        answers = iter(outcomes)
        for item in items:
            error = None if item.missing else next(answers, None)
            if isinstance(error, Unavailable):
                running.keep()
                raise Unavailable(str(error))
            reason = item.missing or error
            if item.record is not None:
                reason = reason and f"offset {item.record.queue_offset} of queue {item.record.queue_number}: {reason}"
            counts = {"refused": 1} if reason else {"sent": 1}
            running.did(item.looked_at, item.cursor, counts, [str(reason)] if reason else [])
        running.keep()
        await running.rest()

    async def _outcomes(
        self, asked: MessageResend, records: Sequence[StoredMessage], running: Running
    ) -> Sequence[Exception | None]:
        """Send the records and wait for the results. A dry run sends nothing and has none."""
        target = self._topic(asked.to_topic, "to_topic")
        if running.job.is_dry_run:
            return ()
        outcomes = self._resender.send(records, target, running.job.id)
        await running.pause()
        found = await outcomes()
        running.restart_slice()
        return found


def _left(ranges: Sequence[_Range], cursor: Mapping[str, int]) -> Iterator[_Range]:
    """Return the parts of the ranges after a cursor."""
    number = cursor.get(QUEUE, -1)
    for each in ranges:
        if each.queue.number == number:
            yield each._replace(start=QueueOffset(max(each.start, cursor[OFFSET])))
        elif each.queue.number > number:
            yield each
