"""`quarry.admin.v1.QueryService`: messages by their keys, on the admin port."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from server._generated.quarry.admin.v1 import query_pb2 as pb
from server._generated.quarry.admin.v1.query_pb2_grpc import QueryServiceServicer, add_QueryServiceServicer_to_server
from server.faults import FaultLog
from server.key_index import KeyIndex
from server.message_trace import GroupTrace, MessageState, MessageTracer, QueueTrace
from server.rpc.admin_port.edge import answered
from store.commitlog import CommitLogReader
from store.errors import Invalid
from store.index import TIME_MAX_MS, FoundMessages

NAME: Final = pb.DESCRIPTOR.services_by_name["QueryService"].full_name
LIMIT_DEFAULT: Final = 32
TRACED_MAX: Final = 100
_STATES: Final = {
    MessageState.WAITING: pb.MESSAGE_STATE_WAITING,
    MessageState.IN_FLIGHT: pb.MESSAGE_STATE_IN_FLIGHT,
    MessageState.RETRYING: pb.MESSAGE_STATE_RETRYING,
    MessageState.DONE: pb.MESSAGE_STATE_DONE,
}

_Context = grpc.aio.ServicerContext[Any, Any]


class QueryService(QueryServiceServicer):
    """Calls and translates."""

    def __init__(self, index: KeyIndex, log: CommitLogReader, tracer: MessageTracer, faults: FaultLog) -> None:
        self._index = index
        self._log = log
        self._tracer = tracer
        self._faults = faults

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve it, too; returns its full name."""
        add_QueryServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        return NAME

    async def QueryMessages(self, request: pb.QueryMessagesRequest, context: _Context) -> pb.QueryMessagesResponse:
        return await answered(context, self._found(request), self._faults)

    async def TraceMessages(self, request: pb.QueryMessagesRequest, context: _Context) -> pb.TraceMessagesResponse:
        return await answered(context, self._traced(request), self._faults)

    async def _find(self, request: pb.QueryMessagesRequest) -> FoundMessages:
        return await self._index.find(
            request.topic,
            request.key,
            begin_ms=request.from_ms,
            end_ms=request.to_ms if request.HasField("to_ms") else TIME_MAX_MS,
            limit=request.limit or LIMIT_DEFAULT,
        )

    async def _traced(self, request: pb.QueryMessagesRequest) -> pb.TraceMessagesResponse:
        if request.limit > TRACED_MAX:
            raise Invalid(f"limit {request.limit}: must be 1 to {TRACED_MAX}")
        found = await self._find(request)
        answer = pb.TraceMessagesResponse(
            unread=[pb.UnreadFile(name=each.name, reason=each.reason) for each in found.unread]
        )
        for each in found.messages:
            traced = answer.messages.add(
                physical_offset=each.physical_offset, record=bytes(self._log.read(each.physical_offset, each.size))
            )
            traced.queues.extend(map(_queue_trace, self._tracer.trace(each)))
            await asyncio.sleep(0)
        return answer

    async def _found(self, request: pb.QueryMessagesRequest) -> pb.QueryMessagesResponse:
        found = await self._find(request)
        return pb.QueryMessagesResponse(
            messages=[
                pb.FoundMessage(
                    physical_offset=each.physical_offset,
                    record=bytes(self._log.read(each.physical_offset, each.size)),
                )
                for each in found.messages
            ],
            indexed_offset=found.indexed_up_to,
            dispatched_offset=found.handed_over,
            unread=[pb.UnreadFile(name=each.name, reason=each.reason) for each in found.unread],
        )


def _queue_trace(each: QueueTrace) -> pb.QueueTrace:
    return pb.QueueTrace(
        topic=each.queue.topic,
        queue=each.queue.number,
        offset=each.offset,
        is_there=each.is_there,
        groups=[_group_trace(group) for group in each.groups],
    )


def _group_trace(each: GroupTrace) -> pb.GroupTrace:
    traced = pb.GroupTrace(group=each.group, state=_STATES[each.state], attempts=each.attempts)
    if each.attempts:
        traced.visible_at_ms, traced.client_id = each.visible_at_ms, each.client_id
    return traced
