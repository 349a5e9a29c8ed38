"""Telemetry: the stream on which clients send their settings and the broker its commands.

Streams are ended only for what the protocol demands: some client libraries reopen a lost one after minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server._generated.apache.rocketmq.v2 import service_pb2 as service
from server.clients import ClientRegistry
from server.front import Call, GrpcStatus, Method
from server.metadata import Directory
from server.rpc.context import Edge
from server.wire.limits import WireLimits
from server.wire.messages import fill_message
from server.wire.settings import answer_settings, client_settings
from server.wire.status import Refused, code_of, fill_ok, status_of
from server.wire.validate import check_settings
from store.record import StoredMessage

UNREAD_ANSWERS_MAX: Final = 64
"""Answers a client may leave unread, beyond what the front buffers, before its stream is ended."""

_SAID_IN_BAND: Final = frozenset({definition.CLIENT_ID_REQUIRED, definition.TOO_MANY_REQUESTS})
"""Codes that a client is sent before its stream ends."""

Subscribed = Callable[[str, Sequence[str]], None]
"""Told the group and topics of a consumer's settings, so that it misses nothing sent from now on."""

CommandAnswered = Callable[[str, service.TelemetryCommand], None]
"""Told the client's id and its answer to a command of the broker."""


@dataclass(slots=True)
class _Stream:
    client_id: str | None = None
    unread_answers: int = 0
    stalled: bool = False


class TelemetryService:
    """`subscribed` hears of every consumer's settings, `command_answered` of the answers to pushed commands."""

    def __init__(
        self,
        edge: Edge,
        clients: ClientRegistry,
        directory: Directory,
        limits: WireLimits,
        *,
        subscribed: Subscribed,
        command_answered: CommandAnswered | None = None,
    ) -> None:
        self._edge = edge
        self._clients = clients
        self._directory = directory
        self._limits = limits
        self._subscribed = subscribed
        self._command_answered = command_answered
        self._streams: dict[Call, _Stream] = {}

    def configure(self, limits: WireLimits) -> None:
        """For clients that send their settings from now on."""
        self._limits = limits

    def methods(self) -> dict[str, Method]:
        return {
            "Telemetry": Method(
                self._message,
                streaming_in=True,
                streaming_out=True,
                on_open=self._open,
                on_half_close=self._half_close,
            )
        }

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def end_streams(self) -> None:
        """End all streams in good order: the broker stops."""
        for call in tuple(self._streams):
            self._end(call, GrpcStatus.OK)

    def push(self, client_id: str, command: service.TelemetryCommand) -> bool:
        """Send the client a command; False when no stream of it is open, so that another client can be asked."""
        stream = self._clients.push_stream(client_id)
        if stream is None:
            return False
        stream.send(command.SerializeToString())
        return True

    def push_check(self, client_id: str, topic: str, record: StoredMessage, transaction_id: str) -> bool:
        """Ask a producer what has become of a transaction; False when it is not there."""
        command = service.TelemetryCommand()
        check = command.recover_orphaned_transaction_command
        check.transaction_id = transaction_id
        fill_message(check.message, record, topic=topic, receipt_handle="", delivery_attempt=1)
        return self.push(client_id, command)

    def _open(self, call: Call) -> None:
        self._streams[call] = _Stream()
        call.on_close(lambda: self._forget(call))

    def _message(self, call: Call, body: bytes) -> None:
        stream = self._streams.get(call)
        if stream is None:  # ended by the broker; what the client had already sent still comes in
            return
        try:
            stream.client_id = client_id = self._edge.caller(call)
            command = service.TelemetryCommand.FromString(body)
            kind = command.WhichOneof("command")
            if kind == "settings":
                self._settings(call, stream, client_id, command.settings)
            elif kind in {"thread_stack_trace", "verify_message_result"} and self._command_answered is not None:
                self._command_answered(client_id, command)
        except Exception as error:  # noqa: BLE001 - the edge: the stream ends, the broker goes on
            self._refuse(call, error)

    def _settings(self, call: Call, stream: _Stream, client_id: str, settings: definition.Settings) -> None:
        check_settings(settings)
        known = client_settings(settings)
        self._clients.register(client_id, known, call)
        group = None if known.group is None else self._directory.find_group(known.group)
        if known.group is not None:
            self._subscribed(known.group, known.topics)
        answer = service.TelemetryCommand(settings=answer_settings(settings, group, self._limits))
        fill_ok(answer.status)
        self._answer(call, stream, answer)

    def _answer(self, call: Call, stream: _Stream, answer: service.TelemetryCommand) -> None:
        """Send, but do not pile up answers for a client that only sends and never reads."""
        if stream.stalled:
            stream.unread_answers += 1
            if stream.unread_answers > UNREAD_ANSWERS_MAX:
                self._end(call, GrpcStatus.RESOURCE_EXHAUSTED, "too many answers are unread")
                return
        if not call.send(answer.SerializeToString()) and not stream.stalled:
            stream.stalled = True
            call.on_drain(lambda: self._drained(stream))

    def _drained(self, stream: _Stream) -> None:
        stream.stalled = False
        stream.unread_answers = 0

    def _half_close(self, call: Call) -> None:
        if call in self._streams:
            self._end(call, GrpcStatus.OK)

    def _refuse(self, call: Call, error: Exception) -> None:
        self._edge.report(call, error)
        status = status_of(error)
        if status.code in _SAID_IN_BAND:
            call.send(service.TelemetryCommand(status=status).SerializeToString())
            self._end(call, GrpcStatus.OK)
        else:
            self._end(call, _grpc_status(error), status.message)

    def _end(self, call: Call, status: GrpcStatus, message: str = "") -> None:
        self._forget(call)
        call.finish(status, message)

    def _forget(self, call: Call) -> None:
        stream = self._streams.pop(call, None)
        if stream is not None and stream.client_id is not None:
            self._clients.detach(stream.client_id, call)


def _grpc_status(error: Exception) -> GrpcStatus:
    """The one place where business errors become gRPC codes, as clients expect of this stream alone."""
    is_request_at_fault = isinstance(error, Refused | DecodeError) or code_of(error) < definition.INTERNAL_ERROR
    return GrpcStatus.INVALID_ARGUMENT if is_request_at_fault else GrpcStatus.INTERNAL
