"""Serve `quarry.admin.v1.DeadLetterService` on the admin port: a group's dead letters."""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import dead_letters_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.dead_letters_pb2_grpc import (
    DeadLetterServiceServicer,
    add_DeadLetterServiceServicer_to_server,
)
from quarry_mq.server.admin.dead_letter_box import DeadLetter, DeadLetterBox, DeadLetterList, Resent
from quarry_mq.server.admin_port.calls.caller import caller_may_read
from quarry_mq.server.admin_port.calls.edge import answered, given, not_negative, refuse
from quarry_mq.server.error_reporter import ErrorReporter
from quarry_mq.store.offsets import QueueOffset

NAME: Final = pb.DESCRIPTOR.services_by_name["DeadLetterService"].full_name
LISTED_DEFAULT: Final = 100

_Context = grpc.aio.ServicerContext[Any, Any]


class DeadLetterService(DeadLetterServiceServicer):
    """Translates requests and answers."""

    def __init__(self, box: DeadLetterBox, error_reporter: ErrorReporter) -> None:
        self._box = box
        self._error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_DeadLetterServiceServicer_to_server(self, server)
        return NAME

    async def ListDeadLetters(
        self, request: pb.ListDeadLettersRequest, context: _Context
    ) -> pb.ListDeadLettersResponse:
        try:
            start = None
            if request.HasField("from_offset"):
                start = QueueOffset(not_negative("from_offset", request.from_offset))
            group = given("group", request.group)
            listed = self._box.list(group, start, request.count or LISTED_DEFAULT)
            return list_message(listed._replace(letters=[each for each in listed.letters if _may_see(each)]))
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self._error_reporter)

    async def ResendDeadLetters(
        self, request: pb.ResendDeadLettersRequest, context: _Context
    ) -> pb.ResendDeadLettersResponse:
        return await answered(context, self._resend(request), self._error_reporter)

    async def _resend(self, request: pb.ResendDeadLettersRequest) -> pb.ResendDeadLettersResponse:
        group = given("group", request.group)
        self._box.require_few(group, request.offsets)
        offsets = [QueueOffset(not_negative("offsets", offset)) for offset in request.offsets]
        return resent_message(await self._box.resend(group, offsets, dry_run=request.dry_run))


def _may_see(letter: DeadLetter) -> bool:
    """Return whether the caller may see a dead letter: the caller may read its topic, or it is unknown."""
    return not letter.topic or caller_may_read(letter.topic)


def list_message(listed: DeadLetterList) -> pb.ListDeadLettersResponse:
    return pb.ListDeadLettersResponse(
        dead_letters=map(letter_message, listed.letters),
        minimum_offset=listed.minimum,
        maximum_offset=listed.maximum,
        next_offset=listed.next_offset,
    )


def letter_message(letter: DeadLetter) -> pb.DeadLetter:
    return pb.DeadLetter(
        offset=letter.offset,
        message_id=letter.message_id,
        topic=letter.topic or "",
        tag=letter.tag,
        keys=letter.keys,
        attempts=letter.attempts,
        stored_at_ms=letter.stored_at_ms,
        was_resent=letter.was_resent,
    )


def resent_message(resent: Resent) -> pb.ResendDeadLettersResponse:
    return pb.ResendDeadLettersResponse(
        resent=resent.count,
        refused=[pb.RefusedDeadLetter(offset=each.offset, reason=each.reason) for each in resent.refused],
    )
