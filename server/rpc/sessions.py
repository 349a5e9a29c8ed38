"""The sessions of clients: telemetry streams, heartbeats and goodbyes, commands to clients, and revoked rights.

On its telemetry stream a client sends its settings and gets the broker's commands. A stream is ended only for errors
for which the protocol demands it: some client libraries reopen a lost stream only after minutes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.limits import WireLimits
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.errors import Denied, PermissionDenied
from quarry_mq.server.front import Call, Method
from quarry_mq.server.metadata import Directory
from quarry_mq.server.rpc.access import needs_of, publish, settings_needs
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.security.authorization import Need
from quarry_mq.server.security.credentials import Identity
from quarry_mq.server.security.gate import Gate
from quarry_mq.server.wire.messages import fill_message
from quarry_mq.server.wire.settings import LITE_CONSUMERS, ClientKind, ClientSettings, answer_settings, client_settings
from quarry_mq.server.wire.status import Refused, code_of, fill_ok, status_of
from quarry_mq.server.wire.validate import check_group, check_settings
from quarry_mq.store.record import StoredMessage

UNREAD_ANSWERS_MAX: Final = 64
"""Number of answers that a client may leave unread, beyond what the front buffers, before its stream is ended."""

_NEEDS: Final = needs_of(service.TelemetryCommand)
_SAID_IN_BAND: Final = frozenset({definition.CLIENT_ID_REQUIRED, definition.TOO_MANY_REQUESTS})
"""Codes that a client is sent before its stream ends."""

Subscribed = Callable[[str, ClientSettings], None]
"""Called with the group and the settings of a consumer, so that it misses nothing sent from then on."""

CommandAnswered = Callable[[str, service.TelemetryCommand], None]
"""Called with a client's id and its answer to a command of the broker."""


STRANGERS_MAX: Final = 256
"""Number of unauthenticated streams that may wait for their first message, or for `end_silent_strangers`.

Beyond it the oldest stream is refused at once.
"""


class _Refusal(NamedTuple):
    """The end of a stream after an error: the answer that the client is sent, and the gRPC status.

    It is stored in place of the error, which must not be kept: an
    error refers to its frames, and so to the stream and its call.
    """

    answer: bytes | None
    status: GrpcStatus
    message: str = ""


@dataclass(slots=True)
class _Stream:
    identity: Identity | None = None
    client_id: str | None = None
    unread_answers: int = 0
    stalled: bool = False


class TelemetryService:
    """Serves telemetry streams.

    `subscribed` is called with every consumer's settings, `command_answered` with the answers to pushed commands.
    """

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
        self._strangers: dict[Call, _Refusal] = {}
        """Unauthenticated streams, the oldest first, and the refusal that each will get."""
        self._is_ending = False

    def configure(self, limits: WireLimits) -> None:
        """Apply changed limits to clients that send their settings from now on."""
        self._limits = limits

    def methods(self) -> dict[str, Method]:
        return {
            "Telemetry": Method(
                self._message,
                streaming_in=True,
                streaming_out=True,
                on_open=self._open,
                admit=self._tell_stranger,
                on_half_close=self._half_close,
            )
        }

    @property
    def open_streams(self) -> int:
        """The number of open streams, unauthenticated ones included."""
        return len(self._streams) + len(self._strangers)

    def end_streams(self) -> None:
        """End all streams with status OK, also those that are opened later: the broker stops."""
        self._is_ending = True
        self.end_silent_strangers()
        for call in tuple(self._streams):
            self._end(call, GrpcStatus.OK)

    def end_silent_strangers(self) -> None:
        """End the unauthenticated streams that have not sent any message so far."""
        for call in tuple(self._strangers):
            self._tell_stranger(call)

    def end_where(self, may_go_on: Callable[[Call, Identity, str | None], None]) -> None:
        """End the streams for which `may_go_on` raises PermissionDenied, and unregister their clients.

        It is called with the stream, the identity that opened it, and its client's id if the client has sent one.
        """
        for call, stream in tuple(self._streams.items()):
            if stream.identity is None:
                continue
            try:
                may_go_on(call, stream.identity, stream.client_id)
            except PermissionDenied as error:
                client_id = stream.client_id
                self._refuse(call, error)
                if client_id is not None and self._clients.owner_of(client_id) == stream.identity.user:
                    self._clients.terminate(client_id)

    def push(self, client_id: str, command: service.TelemetryCommand) -> bool:
        """Send the client a command; False when no stream of it is open, so that another client can be asked."""
        stream = self._clients.push_stream(client_id)
        if stream is None:
            return False
        stream.send(command.SerializeToString())
        return True

    def push_check(self, client_id: str, topic: str, record: StoredMessage, transaction_id: str) -> bool:
        """Ask a producer for the outcome of a transaction; False when it is not connected, or lacks the rights."""
        command = service.TelemetryCommand()
        check = command.recover_orphaned_transaction_command
        check.transaction_id = transaction_id
        fill_message(check.message, record, topic=topic, receipt_handle="", delivery_attempt=1)
        return self.push_if_allowed(client_id, [publish(topic)], command)

    def push_taken_away(self, client_id: str, lite_topic: str) -> None:
        """Tell a consumer of lite topics that another client now has this one.

        Other clients do not know the command.
        """
        settings = self._clients.find(client_id)
        if settings is not None and settings.kind in LITE_CONSUMERS:
            command = service.TelemetryCommand()
            command.notify_unsubscribe_lite_command.lite_topic = lite_topic
            self.push(client_id, command)

    def push_if_allowed(self, client_id: str, needs: Sequence[Need], command: service.TelemetryCommand) -> bool:
        """Send a client a command that reveals something; False when it is not connected, or lacks the rights."""
        return self._may(client_id, needs) and self.push(client_id, command)

    def _may(self, client_id: str, needs: Sequence[Need]) -> bool:
        call, gate = self._clients.push_stream(client_id), self._edge.gate
        stream = None if call is None else self._streams.get(call)
        if gate is None or call is None or stream is None or stream.identity is None:
            return gate is None
        try:
            gate.check(stream.identity, call.peer, needs)
        except PermissionDenied:
            return False
        return True

    def _open(self, call: Call) -> None:
        """Authenticate the opener of a stream now, since its signature is out of date long before the stream ends.

        An unauthenticated stream is refused at its first message:
        libraries fail otherwise when they send to a stream that has ended.
        """
        if self._is_ending:
            # the stream was on its way already, and would delay the stop as long as it stays open
            call.finish()
            return
        try:
            identity = self._edge.identify(call)
        except Exception as error:  # noqa: BLE001 - the edge: the stream ends, the broker goes on
            self._edge.report(call, error)
            self._strangers[call] = _refusal(error)
            call.on_close(partial(self._remove_stranger, call))
            if len(self._strangers) > STRANGERS_MAX:
                self._tell_stranger(next(iter(self._strangers)))
            return
        self._streams[call] = _Stream(identity)
        call.on_close(partial(self._remove, call))

    def _message(self, call: Call, body: bytes) -> None:
        stream = self._streams.get(call)
        if stream is None:  # unauthenticated, or ended by the broker: messages that were already sent still come in
            self._tell_stranger(call)
            return
        try:
            stream.client_id = client_id = self._edge.caller(call, stream.identity)
            command = self._edge.parse(service.TelemetryCommand, body)
            self._edge.authorize(call, stream.identity, _NEEDS, command)
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
        self._clients.register(client_id, known, call, stream.identity and stream.identity.user)
        group = None if known.group is None else self._directory.find_group(known.group)
        if known.group is not None:
            self._subscribed(known.group, known)
        answer = service.TelemetryCommand(
            settings=answer_settings(settings, group, self._limits, is_lite=known.kind in LITE_CONSUMERS)
        )
        fill_ok(answer.status)
        self._answer(call, stream, answer)

    def _answer(self, call: Call, stream: _Stream, answer: service.TelemetryCommand) -> None:
        """Send an answer, but do not pile up answers for a client that only sends and never reads."""
        if stream.stalled:
            stream.unread_answers += 1
            if stream.unread_answers > UNREAD_ANSWERS_MAX:
                self._end(call, GrpcStatus.RESOURCE_EXHAUSTED, "the client does not read its answers")
                return
        if not call.send(answer.SerializeToString()) and not stream.stalled:
            stream.stalled = True
            call.on_drain(lambda: self._drained(stream))

    def _drained(self, stream: _Stream) -> None:
        stream.stalled = False
        stream.unread_answers = 0

    def _half_close(self, call: Call) -> None:
        self._tell_stranger(call)
        if call in self._streams:
            self._end(call, GrpcStatus.OK)

    def _tell_stranger(self, call: Call) -> None:
        """Refuse the stream if it is an unauthenticated one that is open."""
        refusal = self._strangers.pop(call, None)
        if refusal is not None:
            _end_by(call, refusal)

    def _remove_stranger(self, call: Call) -> None:
        self._strangers.pop(call, None)

    def _refuse(self, call: Call, error: Exception) -> None:
        self._edge.report(call, error)
        self._remove(call)
        _end_by(call, _refusal(error))

    def _end(self, call: Call, status: GrpcStatus, message: str = "") -> None:
        self._remove(call)
        call.finish(status, message)

    def _remove(self, call: Call) -> None:
        stream = self._streams.pop(call, None)
        if stream is not None and stream.client_id is not None:
            self._clients.detach(stream.client_id, call)


def _refusal(error: Exception) -> _Refusal:
    status = status_of(error)
    if status.code in _SAID_IN_BAND or isinstance(error, Denied):
        return _Refusal(service.TelemetryCommand(status=status).SerializeToString(), GrpcStatus.OK)
    return _Refusal(None, _grpc_status(error), status.message)


def _end_by(call: Call, refusal: _Refusal) -> None:
    if refusal.answer is not None:
        call.send(refusal.answer)
    call.finish(refusal.status, refusal.message)


def _grpc_status(error: Exception) -> GrpcStatus:
    """Return the gRPC code for a business error.

    It is the only place that does so: clients expect it of this stream alone.
    """
    is_request_at_fault = isinstance(error, Refused | DecodeError) or code_of(error) < definition.INTERNAL_ERROR
    return GrpcStatus.INVALID_ARGUMENT if is_request_at_fault else GrpcStatus.INTERNAL


_WITHOUT_HEARTBEAT: Final = frozenset({ClientKind.PULL_CONSUMER})


class SessionService:
    def __init__(self, edge: Edge, clients: ClientRegistry) -> None:
        self._edge = edge
        self._clients = clients

    def methods(self) -> dict[str, Method]:
        unary = self._edge.unary
        return {
            "Heartbeat": unary(service.HeartbeatRequest, service.HeartbeatResponse, self._heartbeat),
            "NotifyClientTermination": unary(
                service.NotifyClientTerminationRequest,
                service.NotifyClientTerminationResponse,
                self._notify_client_termination,
            ),
        }

    def _heartbeat(self, _call: Call, client_id: str, request: service.HeartbeatRequest) -> service.HeartbeatResponse:
        """Tell a client whether the broker knows it. Like every call, a heartbeat is a sign of life."""
        settings = self._settings(client_id)
        if settings.kind in _WITHOUT_HEARTBEAT:
            raise Refused(
                definition.UNRECOGNIZED_CLIENT_TYPE, f"{settings.kind.value}: clients of this type send no heartbeats"
            )
        if settings.kind is not ClientKind.PRODUCER:
            check_group(request.group.name)
        response = service.HeartbeatResponse()
        fill_ok(response.status)
        return response

    def _notify_client_termination(
        self, _call: Call, client_id: str, request: service.NotifyClientTerminationRequest
    ) -> service.NotifyClientTerminationResponse:
        if self._settings(client_id).kind is not ClientKind.PRODUCER:
            check_group(request.group.name)
        self._clients.terminate(client_id)
        response = service.NotifyClientTerminationResponse()
        fill_ok(response.status)
        return response

    def _settings(self, client_id: str) -> ClientSettings:
        settings = self._clients.find(client_id)
        if settings is None:
            raise Refused(definition.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        return settings


WAIT_MAX_S: Final = 5.0
WAITING_MAX: Final = 256
NONCE_BYTES: Final = 16


def random_nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


class Pushing(Protocol):
    """The service that pushes commands on telemetry streams."""

    def push_if_allowed(self, client_id: str, needs: Sequence[Need], command: service.TelemetryCommand) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    client_id: str
    answer: asyncio.Future[service.TelemetryCommand]


class ClientCommands:
    """The commands that wait for answers. An answer counts once, from the client that was asked.

    Lives on the event loop's thread.
    """

    def __init__(self, new_nonce: Callable[[], str] = random_nonce) -> None:
        self._new_nonce = new_nonce
        self._waiting: dict[str, _Waiting] = {}

    async def ask(
        self,
        pushing: Pushing,
        client_id: str,
        needs: Sequence[Need],
        command: Callable[[str], service.TelemetryCommand],
        wait_s: float | None,
    ) -> service.TelemetryCommand:
        """Return the client's answer to a command with a nonce; it must arrive within `wait_s`, at most `WAIT_MAX_S`.

        Raises Refused: TOO_MANY_REQUESTS, NOT_FOUND without a stream to a client that may know of it, PROXY_TIMEOUT.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise Refused(definition.TOO_MANY_REQUESTS, f"{WAITING_MAX} commands are already waiting for clients")
        nonce = self._new_nonce()
        waiting = _Waiting(client_id, asyncio.get_running_loop().create_future())
        self._waiting[nonce] = waiting
        patience_s = WAIT_MAX_S if wait_s is None else min(wait_s, WAIT_MAX_S)
        try:
            if not pushing.push_if_allowed(client_id, needs, command(nonce)):
                raise Refused(
                    definition.NOT_FOUND, "client_id: the client has no telemetry stream, or cannot receive commands"
                )
            return await asyncio.wait_for(waiting.answer, patience_s)
        except TimeoutError:
            raise Refused(definition.PROXY_TIMEOUT, f"the client has not answered within {patience_s:g} s") from None
        finally:
            del self._waiting[nonce]

    def answered(self, client_id: str, command: service.TelemetryCommand) -> None:
        """Hand a client's answer to the caller that waits for it; an answer that no caller waits for is dropped."""
        kind = command.WhichOneof("command")
        nonce = "" if kind is None else getattr(command, kind).nonce
        waiting = self._waiting.get(nonce)
        if waiting is not None and waiting.client_id == client_id and not waiting.answer.done():
            waiting.answer.set_result(command)


class Revocation:
    """Ends streams and waiting receives of clients that may not continue, when users or rules have changed.

    All waiting receives end as if no message had come: their clients ask again, and their rights are checked again.
    """

    def __init__(
        self,
        gate: Gate[Call],
        telemetry: TelemetryService,
        clients: ClientRegistry,
        *,
        end_waiting: Sequence[Callable[[], None]],
    ) -> None:
        self._gate = gate
        self._telemetry = telemetry
        self._clients = clients
        self._end_waiting = end_waiting
        self._generation = gate.generation

    def sweep(self) -> None:
        """End what is no longer allowed; to be called every few seconds."""
        self._telemetry.end_silent_strangers()
        generation = self._gate.generation
        if generation == self._generation:
            return
        self._generation = generation
        self._telemetry.end_where(self._check)
        for end in self._end_waiting:
            end()

    def _check(self, call: Call, identity: Identity, client_id: str | None) -> None:
        """Check that a client could register again as it did. Raises PermissionDenied."""
        settings = None if client_id is None else self._clients.find(client_id)
        needs = [] if settings is None else settings_needs(settings.group, settings.topics)
        self._gate.check(identity, call.peer, needs)
