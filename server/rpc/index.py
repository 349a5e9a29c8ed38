"""`quarry.admin.v1.IndexService`: the files of the key indexes, on the admin port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from server._generated.quarry.admin.v1 import index_pb2 as pb
from server._generated.quarry.admin.v1.index_pb2_grpc import IndexServiceServicer, add_IndexServiceServicer_to_server
from server.faults import FaultLog
from server.key_index import KeyIndex, Move
from server.rpc.admin import refuse
from store.index.facts import IndexFile

NAME: Final = pb.DESCRIPTOR.services_by_name["IndexService"].full_name

_Context = grpc.aio.ServicerContext[Any, Any]
_Result = TypeVar("_Result")


class IndexService(IndexServiceServicer):
    """Calls and translates."""

    def __init__(self, index: KeyIndex, faults: FaultLog) -> None:
        self._index = index
        self._faults = faults

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve it, too; returns its full name."""
        add_IndexServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        return NAME

    async def ListIndexFiles(self, _request: pb.ListIndexFilesRequest, context: _Context) -> pb.ListIndexFilesResponse:
        files = await self._answer(context, self._index.files())
        return pb.ListIndexFilesResponse(files=map(_message, files))

    async def VerifyIndexFiles(
        self, _request: pb.VerifyIndexFilesRequest, context: _Context
    ) -> AsyncIterator[pb.IndexFile]:
        for file in await self._answer(context, self._index.files()):
            yield _message(await self._answer(context, self._index.verified(file)))

    async def CompactIndexFiles(self, _request: pb.CompactIndexFilesRequest, context: _Context) -> pb.MovedIndexFiles:
        return pb.MovedIndexFiles(count=await self._answer(context, self._index.move_all(Move.COMPACTION)))

    async def UploadIndexFiles(self, _request: pb.UploadIndexFilesRequest, context: _Context) -> pb.MovedIndexFiles:
        return pb.MovedIndexFiles(count=await self._answer(context, self._index.move_all(Move.UPLOAD)))

    async def _answer(self, context: _Context, result: Awaitable[_Result]) -> _Result:
        try:
            return await result
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self._faults)


def _message(file: IndexFile) -> pb.IndexFile:
    fields = file._asdict()
    return pb.IndexFile(**{**fields, "kind": file.kind.value})
