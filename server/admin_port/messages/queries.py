"""Serve `quarry.admin.v1.QueryService` on the admin port: messages by key, by id, and by queue and offset."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

import grpc
import grpc.aio

from quarry_mq.protocol.messages.property_names import UNIQUE_KEY
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import (
    QueryServiceServicer,
    add_QueryServiceServicer_to_server,
)
from quarry_mq.server.admin.message_lookup import (
    NO_SUCH_ID,
    DeadLetterSearch,
    GroupTrace,
    LookedUp,
    MessageLookup,
    MessageState,
    MessageTracer,
    QueueTrace,
)
from quarry_mq.server.admin_port.calls.edge import answered, caller_may, caller_may_see, not_negative, printable
from quarry_mq.server.errors import NoSuchMessage
from quarry_mq.server.maintenance.key_index import FOUND_MAX, KeyIndex
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.rpc.messaging import Components
from quarry_mq.server.wire.status import without_places
from quarry_mq.store.errors import Invalid, TopicNotFound, Unavailable
from quarry_mq.store.index import TIME_MAX_MS, FoundMessages, Unread
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import TopicTable
from quarry_mq.store.record import StoredMessage

NAME: Final = pb.DESCRIPTOR.services_by_name["QueryService"].full_name
LIMIT_DEFAULT: Final = 32
TRACED_MAX: Final = 100
IDS_MAX: Final = 1_000
VISIBLE_TIMEOUT_S: Final = 5.0
"""Seconds for which QueryIds waits for sends that have come in: their flush, or space for their queue entries."""
ANSWER_SIZE_MAX: Final = 3 * 1024 * 1024
"""Bytes of records in an answer, unless one alone is larger: gRPC's clients take 4 MiB."""
_STATES: Final = {
    MessageState.WAITING: pb.MESSAGE_STATE_WAITING,
    MessageState.IN_FLIGHT: pb.MESSAGE_STATE_IN_FLIGHT,
    MessageState.RETRYING: pb.MESSAGE_STATE_RETRYING,
    MessageState.DONE: pb.MESSAGE_STATE_DONE,
    MessageState.DEAD_LETTERED: pb.MESSAGE_STATE_DEAD_LETTERED,
    MessageState.DONE_OR_DEAD_LETTERED: pb.MESSAGE_STATE_DONE_OR_DEAD_LETTERED,
}

_Context = grpc.aio.ServicerContext[Any, Any]


def query_service(components: Components, index: KeyIndex) -> QueryService:
    its = components
    dead_letters = DeadLetterSearch(its.store.messages, index, its.clock)
    return QueryService(
        its.store.topics,
        index,
        MessageLookup(its.store.messages, index),
        MessageTracer(its.store, its.delivery, its.delivery.writer, its.clock, dead_letters),
        until_visible=its.sends.commit.until_visible,
        error_reporter=its.edge.error_reporter,
    )


class QueryService(QueryServiceServicer):
    """Translates requests and answers."""

    def __init__(
        self,
        topics: TopicTable,
        index: KeyIndex,
        lookup: MessageLookup,
        tracer: MessageTracer,
        *,
        until_visible: Callable[[], Awaitable[None]],
        error_reporter: ErrorReporter,
    ) -> None:
        """`until_visible` waits for the sends that have come in by now."""
        self._until_visible = until_visible
        self._topics = topics
        self._index = index
        self._lookup = lookup
        self._tracer = tracer
        self._error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_QueryServiceServicer_to_server(self, server)
        return NAME

    async def QueryMessages(self, request: pb.QueryMessagesRequest, context: _Context) -> pb.QueryMessagesResponse:
        return await answered(context, self._found(request), self._error_reporter)

    async def TraceMessages(self, request: pb.QueryMessagesRequest, context: _Context) -> pb.TraceMessagesResponse:
        return await answered(context, self._traced(request), self._error_reporter)

    async def GetMessage(self, request: pb.GetMessageRequest, context: _Context) -> pb.GetMessageResponse:
        return await answered(context, self._got(request), self._error_reporter)

    async def QueryIds(self, request: pb.QueryIdsRequest, context: _Context) -> pb.QueryIdsResponse:
        return await answered(context, self._known(request), self._error_reporter)

    async def _known(self, request: pb.QueryIdsRequest) -> pb.QueryIdsResponse:
        topic, begin_ms = printable("topic", request.topic), not_negative("from_ms", request.from_ms)
        if not topic:
            raise Invalid("topic: must be given")
        if len(request.ids) > IDS_MAX:
            raise Invalid(f"ids: {len(request.ids)} are more than {IDS_MAX}")
        ids = [printable("ids", each) for each in request.ids]
        self._index.require()
        try:
            async with asyncio.timeout(VISIBLE_TIMEOUT_S):
                await self._until_visible()
        except TimeoutError:
            raise Unavailable(f"messages that are being stored are not visible after {VISIBLE_TIMEOUT_S:g} s") from None
        found = await self._index.find_ids(topic, ids, begin_ms=begin_ms, up_to=self._lookup.visible_up_to)
        # a message that waits for its delivery belongs to this topic alone
        seen = [each for each in found if each.topic != topic or caller_may_see(each)]
        return pb.QueryIdsResponse(ids=[each.properties[UNIQUE_KEY] for each in seen])

    async def _find(self, request: pb.QueryMessagesRequest) -> FoundMessages:
        """Find the messages of a request that the caller may see, without the first `skip`."""
        skip, limit = request.skip, request.limit or LIMIT_DEFAULT
        if not 0 < limit <= FOUND_MAX:
            raise Invalid(f"limit {limit}: must be 1 to {FOUND_MAX}")
        if not 0 <= skip <= FOUND_MAX - limit:
            raise Invalid(
                f"skip {skip}: must be 0 to {FOUND_MAX - limit} with limit {limit}; use to_ms to go further back"
            )
        begin_ms = not_negative("from_ms", request.from_ms)
        end_ms = min(request.to_ms, TIME_MAX_MS) if request.HasField("to_ms") else TIME_MAX_MS
        if end_ms < begin_ms:
            raise Invalid(f"to_ms: {end_ms} is earlier than from_ms")
        found = await self._index.find(
            printable("topic", request.topic),
            request.key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            limit=skip + limit,
        )
        return found._replace(messages=[each for each in found.messages if caller_may_see(each)][skip:])

    async def _found(self, request: pb.QueryMessagesRequest) -> pb.QueryMessagesResponse:
        found = await self._find(request)
        fitting = list(_fitting(found.messages))
        return pb.QueryMessagesResponse(
            messages=[
                pb.FoundMessage(physical_offset=each.physical_offset, record=self._lookup.raw(each)) for each in fitting
            ],
            indexed_offset=found.indexed_up_to,
            dispatched_offset=found.handed_over,
            unread=_unread(found.unread),
            has_more=len(fitting) < len(found.messages),
        )

    async def _traced(self, request: pb.QueryMessagesRequest) -> pb.TraceMessagesResponse:
        if request.limit > TRACED_MAX:
            raise Invalid(f"limit {request.limit}: must be 1 to {TRACED_MAX}")
        found = await self._find(request)
        answer = pb.TraceMessagesResponse(unread=_unread(found.unread))
        for each in _fitting(found.messages):
            answer.messages.append(await self._trace(each))
            await asyncio.sleep(0)
        answer.has_more = len(answer.messages) < len(found.messages)
        return answer

    async def _got(self, request: pb.GetMessageRequest) -> pb.GetMessageResponse:
        match request.WhichOneof("which"):
            case "id" if request.id:
                looked_up = await self._with_id(printable("topic", request.topic) or None, printable("id", request.id))
            case "place":
                looked_up = LookedUp(
                    self._lookup.by_place(self._queue(request), QueueOffset(request.place.offset), caller_may_see)
                )
            case _:
                raise Invalid("id, place: one of the two must be given")
        traced = await self._trace(looked_up.message)
        return pb.GetMessageResponse(message=traced, same_id=looked_up.same_id, unread=_unread(looked_up.unread))

    async def _with_id(self, topic: str | None, message_id: str) -> LookedUp:
        """Find a message by id. Only super users are told what lies at the position of an id without a message."""
        try:
            return await self._lookup.by_id(topic, message_id, caller_may_see)
        except NoSuchMessage as error:
            if str(error).startswith(NO_SUCH_ID) and not caller_may([]):
                raise NoSuchMessage(NO_SUCH_ID) from None
            raise

    def _queue(self, request: pb.GetMessageRequest) -> QueueId:
        """Return the queue of a request. Raises Invalid, TopicNotFound."""
        if not request.topic:
            raise Invalid("topic: must be given together with a place")
        topic = self._topics.get(printable("topic", request.topic))
        if topic is None:
            raise TopicNotFound(f"topic: no topic {request.topic}")
        return QueueId(topic.name, request.place.queue)

    async def _trace(self, message: StoredMessage) -> pb.MessageTrace:
        traced = pb.MessageTrace(physical_offset=message.physical_offset, record=self._lookup.raw(message))
        traced.queues.extend(map(_queue_trace, await self._tracer.trace(message)))
        return traced


def _fitting(messages: Iterable[StoredMessage]) -> Iterator[StoredMessage]:
    """Yield as many of the messages as fit into an answer."""
    size = 0
    for each in messages:
        if size and size + each.size > ANSWER_SIZE_MAX:
            return
        size += each.size
        yield each


def _unread(files: Iterable[Unread]) -> list[pb.UnreadFile]:
    return [pb.UnreadFile(name=each.name, reason=without_places(each.reason)) for each in files]


def _queue_trace(each: QueueTrace) -> pb.QueueTrace:
    return pb.QueueTrace(
        topic=each.queue.topic,
        queue=each.queue.number,
        offset=each.offset,
        is_there=each.is_there,
        groups=[_group_trace(group) for group in each.groups],
    )


def _group_trace(each: GroupTrace) -> pb.GroupTrace:
    traced = pb.GroupTrace(
        group=each.group,
        state=_STATES[each.state],
        attempts=each.attempts,
        dead_letter_offset=each.dead_letter_offset,
    )
    if each.last_delivery is not None:
        traced.client_id, traced.visible_at_ms = each.last_delivery
    return traced
