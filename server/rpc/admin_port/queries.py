"""`quarry.admin.v1.QueryService`: messages by their keys, on the admin port."""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from server._generated.quarry.admin.v1 import query_pb2 as pb
from server._generated.quarry.admin.v1.query_pb2_grpc import QueryServiceServicer, add_QueryServiceServicer_to_server
from server.faults import FaultLog
from server.key_index import KeyIndex
from server.rpc.admin_port.edge import answered
from store.commitlog import CommitLogReader
from store.index import TIME_MAX_MS

NAME: Final = pb.DESCRIPTOR.services_by_name["QueryService"].full_name
LIMIT_DEFAULT: Final = 32

_Context = grpc.aio.ServicerContext[Any, Any]


class QueryService(QueryServiceServicer):
    """Calls and translates."""

    def __init__(self, index: KeyIndex, log: CommitLogReader, faults: FaultLog) -> None:
        self._index = index
        self._log = log
        self._faults = faults

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve it, too; returns its full name."""
        add_QueryServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        return NAME

    async def QueryMessages(self, request: pb.QueryMessagesRequest, context: _Context) -> pb.QueryMessagesResponse:
        return await answered(context, self._found(request), self._faults)

    async def _found(self, request: pb.QueryMessagesRequest) -> pb.QueryMessagesResponse:
        found = await self._index.find(
            request.topic,
            request.key,
            begin_ms=request.from_ms,
            end_ms=request.to_ms if request.HasField("to_ms") else TIME_MAX_MS,
            limit=request.limit or LIMIT_DEFAULT,
        )
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
