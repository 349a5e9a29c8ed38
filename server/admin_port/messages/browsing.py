"""Serve `quarry.admin.v1.BrowsingService` on the admin port: reading through the messages of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.quarry.admin.v1 import browsing_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.browsing_pb2_grpc import (
    BrowsingServiceServicer,
    add_BrowsingServiceServicer_to_server,
)
from quarry_mq.server.admin.browsing import (
    DamagedMessage,
    MessageBrowser,
    MessageWish,
    Rate,
    Selected,
    Tail,
    Tails,
    Wanted,
    pack_cursor,
    parse_cursor,
)
from quarry_mq.server.admin_port.calls.edge import (
    answered,
    as_caller_may_see,
    caller_must,
    given,
    not_negative,
    printable,
)
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.tasks import Pacing
from quarry_mq.server.wire.status import without_places
from quarry_mq.store.commitlog import CommitLogReader
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import Invalid, OffsetOutOfRange, TopicNotFound
from quarry_mq.store.index import TIME_MAX_MS
from quarry_mq.store.message import QueueOffset
from quarry_mq.store.metadata import Topic, TopicTable, TopicType
from quarry_mq.store.metadata.lite import is_lite_topic_name, light_queue_name
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.security.model import Action, ResourceKind

NAME: Final = pb.DESCRIPTOR.services_by_name["BrowsingService"].full_name
LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 500
ANSWER_SIZE_MAX: Final = 3 * 1024 * 1024
"""Bytes of records in an answer, unless one alone is larger: gRPC's clients take 4 MiB."""
LOOKED_AT_MAX: Final = 10_000
READ_MAX: Final = 64 * 1024 * 1024
"""The most messages and bytes that one call looks at: a second or two, at the pace of operators' work."""

RATE_DEFAULT: Final = 50
RATE_MAX: Final = 1_000
CHECK_INTERVAL_S: Final = 1.0
"""Seconds until a tail ends whose caller has lost the right to the topic, or whose topic was deleted."""
GATHER_S: Final = 0.05
"""Seconds in which messages that become visible are gathered into one answer."""

_Context = grpc.aio.ServicerContext[Any, Any]


class Chosen(NamedTuple):
    """The topic, queues and filter of a request."""

    topic: Topic
    selected: Selected
    wish: MessageWish

    @property
    def is_lite(self) -> bool:
        return self.selected.topic != self.topic.name


class BrowsingService(BrowsingServiceServicer):
    """Translates requests and answers."""

    def __init__(
        self,
        topics: TopicTable,
        browser: MessageBrowser,
        tails: Tails,
        *,
        reader: CommitLogReader,
        clock: Clock,
        pacing: Pacing,
        error_reporter: ErrorReporter,
    ) -> None:
        self._topics = topics
        self._browser = browser
        self._tails = tails
        self._reader = reader
        self._clock = clock
        self._pacing = pacing
        self._error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_BrowsingServiceServicer_to_server(self, server)
        return NAME

    async def BrowseMessages(self, request: pb.BrowseMessagesRequest, context: _Context) -> pb.BrowseMessagesResponse:
        return await answered(context, self._browsed(request), self._error_reporter)

    async def TailMessages(self, request: pb.TailMessagesRequest, context: _Context) -> None:
        await answered(context, self._tail(request, context), self._error_reporter)

    async def _browsed(self, request: pb.BrowseMessagesRequest) -> pb.BrowseMessagesResponse:
        chosen = self._chosen(request)
        wanted = _from(request, chosen.selected, _wanted(request, chosen.wish))
        async with self._pacing.turn() as time_slice:
            found = await self._browser.find(chosen.selected, wanted, time_slice)
        answer = pb.BrowseMessagesResponse(
            messages=self._messages(found.messages, found.entries, chosen),
            looked_at=found.looked_at,
            looked_up_to_ms=found.looked_up_to_ms,
            damaged=map(damaged_message, found.damaged),
        )
        if found.next is not None:
            answer.next = pack_cursor(
                found.next, is_ascending=request.is_ascending, selected=_in_words(chosen.selected)
            )
        return answer

    async def _tail(self, request: pb.TailMessagesRequest, context: _Context) -> None:
        chosen = self._chosen(request)
        rate = Rate(min(request.messages_per_second_max or RATE_DEFAULT, RATE_MAX), self._clock)
        end_s = self._clock.monotonic_s() + request.ends_after_ms / 1000 if request.ends_after_ms else inf
        with self._tails.looking_on(chosen.selected, chosen.wish) as tail:
            await context.write(pb.TailMessagesResponse())
            while not tail.is_over and (left_s := end_s - self._clock.monotonic_s()) > 0:
                await tail.arrival(min(left_s, CHECK_INTERVAL_S))
                self._require(chosen.topic.name)
                if tail.has_some:
                    await self._hand_on(tail, rate, chosen, context)
                    await asyncio.sleep(GATHER_S)

    async def _hand_on(self, tail: Tail, rate: Rate, chosen: Chosen, context: _Context) -> None:
        async with self._pacing.turn() as time_slice:
            seen = await self._tails.look(
                tail, rate, count_max=LIMIT_MAX, size_max=ANSWER_SIZE_MAX // 2, time_slice=time_slice
            )
        messages = self._messages(seen.messages, seen.entries, chosen)
        if messages or seen.left_out or seen.damaged:
            damaged = map(damaged_message, seen.damaged)
            await context.write(pb.TailMessagesResponse(messages=messages, left_out=seen.left_out, damaged=damaged))

    def _require(self, topic: str) -> None:
        """Check that the tail may continue. Raises PermissionDenied, TopicNotFound."""
        caller_must([Access(ResourceKind.TOPIC, topic, Action.GET)])
        if self._topics.get(topic) is None:
            raise TopicNotFound(f"topic: topic {topic} does not exist any more")

    def _chosen(self, request: pb.BrowseMessagesRequest | pb.TailMessagesRequest) -> Chosen:
        """Return what a request selects. Raises Invalid, TopicNotFound."""
        name = given("topic", request.topic)
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(f"topic: no topic {name}")
        wish = MessageWish.of(
            request.filter.expression, is_sql=request.filter.is_sql, contained=request.filter.body_contains
        )
        if request.lite_topic:
            selected = _lite(topic, request)
            return Chosen(topic, selected, as_caller_may_see(wish, selected.topic))
        wish = as_caller_may_see(wish, name)
        if not request.HasField("queue"):
            return Chosen(topic, Selected(name), wish)
        if not self._browser.has_queue(name, request.queue, topic.queue_count):
            raise Invalid(f"queue: topic {name} has no queue {request.queue}")
        return Chosen(topic, Selected(name, request.queue), wish)

    def _messages(
        self, found: Sequence[StoredMessage], entries: Sequence[ConsumeQueueEntry], chosen: Chosen
    ) -> list[pb.BrowsedMessage]:
        messages = []
        for message, entry in zip(found, entries, strict=True):
            try:
                record = bytes(self._reader.read(message.physical_offset, message.size))
            except OffsetOutOfRange:
                continue  # it has expired since it was read
            each = pb.BrowsedMessage(topic=chosen.topic.name, queue=message.queue_number, offset=message.queue_offset)
            each.message.physical_offset, each.message.record = message.physical_offset, record
            if chosen.is_lite:
                each.lite_offset = entry.queue_offset
            messages.append(each)
        return messages


def damaged_message(each: DamagedMessage) -> pb.DamagedMessage:
    return pb.DamagedMessage(
        queue=each.queue.number, offset=each.offset, reason=without_places(each.reason), command=each.command
    )


def _lite(topic: Topic, request: pb.BrowseMessagesRequest | pb.TailMessagesRequest) -> Selected:
    """Return the light queue of a request's lite topic. Raises Invalid."""
    lite_topic = printable("lite_topic", request.lite_topic)
    if topic.type is not TopicType.LITE:
        raise Invalid(f"lite_topic: topic {topic.name} is of type {topic.type.value}, which has no lite topics")
    if not is_lite_topic_name(lite_topic):
        raise Invalid(f"lite_topic: {lite_topic[:60]!r} is not a valid name of a lite topic")
    if request.HasField("queue"):
        raise Invalid("queue: not allowed with lite_topic, because a lite topic has no queues")
    return Selected(light_queue_name(topic.name, lite_topic), 0)


def _wanted(request: pb.BrowseMessagesRequest, wish: MessageWish) -> Wanted:
    return Wanted(
        min(request.limit or LIMIT_DEFAULT, LIMIT_MAX),
        ANSWER_SIZE_MAX,
        is_ascending=request.is_ascending,
        looked_at_max=LOOKED_AT_MAX,
        read_max=READ_MAX,
        wish=wish,
    )


def _from(request: pb.BrowseMessagesRequest, selected: Selected, wanted: Wanted) -> Wanted:
    """Return where a request's page begins. Raises Invalid."""
    match request.WhichOneof("from"):
        case "stored_ms":
            stored_ms = min(not_negative("stored_ms", request.stored_ms), TIME_MAX_MS)
            if request.is_ascending:
                return wanted._replace(begin_ms=stored_ms)
            return wanted._replace(end_ms=stored_ms)
        case "offset":
            if selected.queue is None:
                raise Invalid("offset: queue or lite_topic must be given, too")
            return wanted._replace(offset=QueueOffset(not_negative("offset", request.offset)))
        case "cursor":
            cursor = parse_cursor(request.cursor, is_ascending=request.is_ascending, selected=_in_words(selected))
            return wanted._replace(beyond=cursor)
    return wanted


def _in_words(selected: Selected) -> str:
    return selected.topic if selected.queue is None else f"{selected.topic} {selected.queue}"
