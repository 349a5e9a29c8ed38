"""Serve `quarry.admin.v1.DeadLetterService` on the admin port: a group's dead letters.

Stored messages are sent as new ones in the same way as clients' sends: to the owner of their message group, for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Any, Final

import grpc
import grpc.aio

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.messages.property_names import COMPRESSED_BY, LIGHT_QUEUES, RESENT_FROM, RESENT_ID
from quarry_mq.protocol.messages.system_flag import COMPRESSED
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.quarry.admin.v1 import dead_letters_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.browsing_pb2 import DamagedMessage
from quarry_mq.protocol.proto.quarry.admin.v1.dead_letters_pb2_grpc import (
    DeadLetterServiceServicer,
    add_DeadLetterServiceServicer_to_server,
)
from quarry_mq.protocol.times import fill_ms
from quarry_mq.server.admin.dead_letter_box import DeadLetter, DeadLetterBox, DeadLetterList, Resent
from quarry_mq.server.admin.jobs import Outcomes
from quarry_mq.server.admin_port.calls.edge import answered, caller_may_read, given, not_negative, refuse
from quarry_mq.server.delivery import GIVE_UP_COMMAND
from quarry_mq.server.front.contract import MessageHandler
from quarry_mq.server.front.local_call import LocalCall
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.wire.messages import fill_message, is_gzip_of_sender
from quarry_mq.server.wire.status import Refused, without_places
from quarry_mq.store.errors import Unavailable, without_frames
from quarry_mq.store.message import Host, QueueOffset, host_text
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.record import StoredMessage

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
            for each in listed.damaged:
                self._error_reporter.report(each.damage)
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
        done = await self._box.resend(group, offsets, dry_run=request.dry_run)
        for each in done.refused:
            if each.damage is not None:
                self._error_reporter.report(each.damage)
        return resent_message(done)


def _may_see(letter: DeadLetter) -> bool:
    """Return whether the caller may see a dead letter: the caller may read its topic, or it is unknown."""
    return not letter.topic or caller_may_read(letter.topic)


def list_message(listed: DeadLetterList) -> pb.ListDeadLettersResponse:
    return pb.ListDeadLettersResponse(
        dead_letters=map(letter_message, listed.letters),
        minimum_offset=listed.minimum,
        maximum_offset=listed.maximum,
        next_offset=listed.next_offset,
        damaged=[
            DamagedMessage(offset=each.offset, reason=without_places(each.damage.place), command=GIVE_UP_COMMAND)
            for each in listed.damaged
        ],
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


CLIENT_ID: Final = "jobs"
ID_VERSION: Final = "01"
ID_BYTES: Final = 16

KEPT: Final = frozenset(
    {"tag", "keys", "body_encoding", "born_host", "message_group", "trace_context", "lite_topic", "priority"}
)
"""The system properties that the new message has from its original."""


class MessageResender:
    """Sends stored messages. Implements `server.admin.jobs.Resender`. Lives on the event loop's thread."""

    def __init__(
        self,
        handler: MessageHandler,
        until_durable: Callable[[], Awaitable[None]],
        store_host: Callable[[], Host],
        clock: Clock,
    ) -> None:
        """`handler` serves SendMessage for messages that were stored before; `until_durable` waits for the disk."""
        self._handler = handler
        self._until_durable = until_durable
        self._store_host = store_host
        self._clock = clock

    def send(self, records: Sequence[StoredMessage], topic: Topic, job_id: int) -> Outcomes:
        peer, now_ms = host_text(self._store_host()), self._clock.wall_ms()
        calls: list[LocalCall | Exception] = []
        for record in records:
            try:
                message = new_message(record, topic, job_id, now_ms)
            except Refused as error:
                calls.append(without_frames(error))
                continue
            call = LocalCall("SendMessage", peer=peer, headers={"x-mq-client-id": CLIENT_ID}, remaining_s=None)
            self._handler(call, service.SendMessageRequest(messages=[message]).SerializeToString())
            calls.append(call)

        async def outcomes() -> Sequence[Exception | None]:
            await asyncio.gather(*(each.answer for each in calls if isinstance(each, LocalCall)))
            await self._until_durable()  # the job goes on after them
            return [_outcome(each.answer.result()) if isinstance(each, LocalCall) else each for each in calls]

        return outcomes


def new_message(record: StoredMessage, topic: Topic, job_id: int, now_ms: int) -> definition.Message:
    """Return a stored message as a producer would send it. Raises Refused if its body cannot be uncompressed.

    Delays and transactions do not apply again; in a topic for delayed messages it is due at once. Light queues that the
    message names are left out, except its lite topic's, because the user who begins a job has no right to them.
    """
    original = definition.Message()
    fill_message(original, record, topic=record.topic, receipt_handle="", delivery_attempt=0)
    method = original.user_properties.get(COMPRESSED_BY)
    if method is not None and record.system_flag & COMPRESSED and not is_gzip_of_sender(record):
        raise Refused(definition.MESSAGE_CORRUPTED, f"the body is compressed ({method}) and cannot be decompressed")
    message_id = original.system_properties.message_id
    place = f"{record.topic}/{record.queue_number}/{record.queue_offset}"
    message = definition.Message(body=original.body, user_properties=original.user_properties)
    message.user_properties.pop(LIGHT_QUEUES, None)
    message.user_properties[RESENT_FROM] = place
    message.user_properties[RESENT_ID] = message_id
    message.topic.name = topic.name
    system = message.system_properties
    system.CopyFrom(original.system_properties)
    for field, _ in original.system_properties.ListFields():
        if field.name not in KEPT:
            system.ClearField(field.name)
    # the id is the same if the message is sent twice for the same job
    digest = blake2b(f"{job_id}/{place}/{message_id}".encode(), digest_size=ID_BYTES).hexdigest()
    system.message_id = ID_VERSION + digest.upper()
    fill_ms(system.born_timestamp, now_ms)
    if topic.type is TopicType.DELAY:
        fill_ms(system.delivery_timestamp, now_ms)
    return message


def _outcome(answer: bytes) -> Exception | None:
    status = service.SendMessageResponse.FromString(answer).status
    if status.code == definition.OK:
        return None
    if status.code == definition.TOO_MANY_REQUESTS or status.code >= definition.INTERNAL_ERROR:
        return Unavailable(status.message)
    return Refused(status.code, status.message)
