"""The official calls that ask a client over its telemetry stream: for its threads' stacks, or to consume a message."""

from __future__ import annotations

from typing import Any, Final

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.admin_port.official.clients import ClientCalls
from quarry_mq.server.admin_port.official.edge import Context, Names
from quarry_mq.server.admin_port.official.queries import QueryCalls
from quarry_mq.server.rpc.access import join, read
from quarry_mq.server.rpc.sessions import ClientCommands, Pushing
from quarry_mq.server.wire.messages import fill_message
from quarry_mq.server.wire.status import Refused

TRACE_SIZE_MAX: Final = 1024 * 1024
MESSAGE_SIZE_MAX: Final = 1024
"""Characters of a client's status message."""

ANSWERING_RESERVE_S: Final = 0.5
"""Seconds of the caller's time that remain when the client's time is over, so that the caller gets the answer."""


class CommandCalls:
    def __init__(
        self, names: Names, clients: ClientCalls, queries: QueryCalls, commands: ClientCommands, pushing: Pushing
    ) -> None:
        self._names = names
        self._clients = clients
        self._queries = queries
        self._commands = commands
        self._pushing = pushing

    async def print_thread_stack_trace(
        self, request: pb.PrintThreadStackTraceRequest, context: Context
    ) -> pb.PrintThreadStackTraceResponse:
        group = self._names.group(request.group, is_connected=True).name
        self._clients.consumer(request.client_id, group)

        def command(nonce: str) -> service.TelemetryCommand:
            asked = service.PrintThreadStackTraceCommand(nonce=nonce)
            return service.TelemetryCommand(print_thread_stack_trace_command=asked)

        said = await self._commands.ask(self._pushing, request.client_id, (), command, _patience_s(context))
        answer = pb.PrintThreadStackTraceResponse()
        _fill_status(answer.status, said)
        if said.thread_stack_trace.HasField("thread_stack_trace"):
            trace = said.thread_stack_trace.thread_stack_trace
            answer.thread_stack_trace = trace[:TRACE_SIZE_MAX]
            if len(trace) > TRACE_SIZE_MAX:
                answer.status.message = f"the first {TRACE_SIZE_MAX} of {len(trace)} characters"
        return answer

    async def verify_message(self, request: pb.VerifyMessageRequest, context: Context) -> pb.VerifyMessageResponse:
        """Let the client consume the message as it was stored, once more, and return its result."""
        group = self._names.group(request.group, is_connected=True).name
        client = self._clients.consumer(request.client_id, group)
        topic = self._names.topic(request.topic)
        if topic.name not in client.settings.topics:
            raise Refused(definition.BAD_REQUEST, f"topic: the client is not subscribed to {topic.name}")
        if not request.message_id:
            raise Refused(definition.ILLEGAL_MESSAGE_ID, "message_id: must be given")
        stored = await self._queries.with_id(topic, request.message_id)
        if stored is None:
            raise Refused(definition.MESSAGE_NOT_FOUND, f"message_id: topic {topic.name} has no such message")

        def command(nonce: str) -> service.TelemetryCommand:
            asked = service.VerifyMessageCommand(nonce=nonce)
            fill_message(asked.message, stored, topic=topic.name, receipt_handle="", delivery_attempt=1)
            return service.TelemetryCommand(verify_message_command=asked)

        needs = [join(group), read(topic.name, group)]
        said = await self._commands.ask(self._pushing, request.client_id, needs, command, _patience_s(context))
        answer = pb.VerifyMessageResponse()
        _fill_status(answer.status, said)
        return answer


def _patience_s(context: Context) -> float | None:
    remaining_s: Any = context.time_remaining()  # None without a deadline, whatever its type says
    return None if remaining_s is None else max(0.0, remaining_s - ANSWERING_RESERVE_S)


def _fill_status(status: definition.Status, said: service.TelemetryCommand) -> None:
    """Copy the client's status; a client without a status has succeeded."""
    status.code = said.status.code if said.HasField("status") else definition.OK
    status.message = said.status.message[:MESSAGE_SIZE_MAX] or "OK"
