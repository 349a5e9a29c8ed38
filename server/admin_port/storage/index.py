"""Serve `quarry.admin.v1.IndexService` on the admin port: the files of the key indexes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import index_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.index_pb2_grpc import (
    IndexServiceServicer,
    add_IndexServiceServicer_to_server,
)
from quarry_mq.server.admin_port.calls.edge import answered
from quarry_mq.server.maintenance.key_index import KeyIndex, Move
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.store.index.facts import IndexFile

NAME: Final = pb.DESCRIPTOR.services_by_name["IndexService"].full_name

_Context = grpc.aio.ServicerContext[Any, Any]


class IndexService(IndexServiceServicer):
    """Translates requests and answers."""

    def __init__(self, index: KeyIndex, error_reporter: ErrorReporter) -> None:
        self._index = index
        self._error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_IndexServiceServicer_to_server(self, server)
        return NAME

    async def ListIndexFiles(self, _request: pb.ListIndexFilesRequest, context: _Context) -> pb.ListIndexFilesResponse:
        files = await answered(context, self._index.files(), self._error_reporter)
        return pb.ListIndexFilesResponse(files=map(_message, files))

    async def VerifyIndexFiles(
        self, _request: pb.VerifyIndexFilesRequest, context: _Context
    ) -> AsyncIterator[pb.IndexFile]:
        for file in await answered(context, self._index.files(), self._error_reporter):
            yield _message(await answered(context, self._index.verified(file), self._error_reporter))

    async def CompactIndexFiles(self, _request: pb.CompactIndexFilesRequest, context: _Context) -> pb.MovedIndexFiles:
        return pb.MovedIndexFiles(
            count=await answered(context, self._index.move_all(Move.COMPACTION), self._error_reporter)
        )

    async def UploadIndexFiles(self, _request: pb.UploadIndexFilesRequest, context: _Context) -> pb.MovedIndexFiles:
        return pb.MovedIndexFiles(
            count=await answered(context, self._index.move_all(Move.UPLOAD), self._error_reporter)
        )


def _message(file: IndexFile) -> pb.IndexFile:
    fields = file._asdict()
    return pb.IndexFile(**{**fields, "kind": file.kind.value})
