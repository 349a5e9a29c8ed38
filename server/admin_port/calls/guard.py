"""Authenticate the caller of each call of the admin port, check its rights, and audit each change.

The first step of a call is its slot: the number of open calls is limited, and the guard chooses the call that gives
way. Callers who are authenticated have slots that no stranger takes: members of the cluster have theirs, other callers
have theirs, of which each caller gets a half at most. A call begins as a stranger's. It stays one until its request has
arrived and its caller is known; a probe stays one until it ends. Among strangers a new call never waits: when there are
too many, the oldest call of the address with the most calls ends. So a flood from one address ends its own calls, and a
call that comes with its request, as members' calls do, leaves the strangers long before it would give way.

Then the bytes of the call become a request. Requests are read here and not by gRPC, so that a call that sends none
ends, and so that bytes that are no valid request end their call with a fitting status code.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import isasyncgen, isawaitable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from quarry_mq.protocol.admin_methods import service_of, short_name
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.signature import ADMIN_DATE, ADMIN_NONCE, AUTHORIZATION
from quarry_mq.server.addresses import Address, network_of, plain_address
from quarry_mq.server.admin_port.calls.access import (
    JOB_SERVICE,
    OPEN_SERVICES,
    READERS_SERVICES,
    STRANGERS_SERVICES,
    SUPER_SERVICES,
    admin_needs,
    is_change,
)
from quarry_mq.server.admin_port.calls.edge import (
    KINDS,
    caller_is,
    caller_is_known_as,
    caller_peer,
    kind_of,
    refuse,
    status_code,
)
from quarry_mq.server.errors import Outcome, OverLimit, PermissionDenied, TooManyFailures, Unauthenticated
from quarry_mq.server.front.grpcio import UNIX, peer_text
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.rpc.context import LimitsMet
from quarry_mq.server.security.admin_authentication import AdminAuthenticator, AdminCall
from quarry_mq.server.security.audit import CLAIMED, NOBODY, Audit, Subject
from quarry_mq.server.security.authorization import Authorizer, Need
from quarry_mq.server.security.build import Security
from quarry_mq.server.security.credentials import Identity, source_of
from quarry_mq.server.security.metrics import SecurityMetrics
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.wire.parsing import request_of
from quarry_mq.server.wire.status import Refused

STRANGERS_SHARE: Final = 4
"""Slots of known callers for each slot of strangers, and slots of strangers for each slot of one address."""

REQUEST_WAIT_S: Final = 10.0
"""Seconds that a call may take to send its request."""

STRANGER_S: Final = 60.0
"""Seconds that a stranger's call may take in all: probes ask again, and no client may watch for ever."""

STRANGERS_LIMIT: Final = "admin_strangers"
CALLS_LIMIT: Final = "admin_calls"


class Slot:
    """The slot of one call."""

    def __init__(self, slots: CallSlots, peer: str, end: Callable[[str], None]) -> None:
        source = source_of(peer)
        self.address: Final = peer if source is None else str(network_of(source))
        self.end: Final = end
        self._slots = slots
        self._leave: Callable[[], None] = lambda: None

    def taken(self, leave: Callable[[], None]) -> None:
        """Release the slot that the call had, and note `leave` as what releases the new one."""
        self.close()
        self._leave = leave

    def admit(self, caller: str) -> None:
        """Move the call out of the strangers, as its caller is known now. Raises OverLimit."""
        self._slots.admit(self, caller)

    def admit_member(self) -> None:
        """Move the call out of the strangers, as its caller is a member of the cluster. Raises OverLimit."""
        self._slots.admit_member(self)

    def close(self) -> None:
        """Release the slot at the end of the call."""
        leave, self._leave = self._leave, lambda: None
        leave()


class CallSlots:
    """The slots of all calls. Lives on the event loop's thread."""

    def __init__(self, calls_max: int, met: LimitsMet) -> None:
        """`calls_max`: slots for members, and as many for other known callers."""
        self._calls_max = calls_max
        self._caller_max = max(1, calls_max // 2)
        self._strangers_max = max(2, calls_max // STRANGERS_SHARE)
        self._address_max = max(1, self._strangers_max // STRANGERS_SHARE)
        self._met = met
        self._members = 0
        self._callers: Counter[str] = Counter()
        self._strangers: dict[str, dict[Slot, None]] = {}
        """The slots of strangers by address, the oldest first."""
        self._strangers_count = 0

    @property
    def strangers(self) -> int:
        return self._strangers_count

    @property
    def known(self) -> int:
        return self._members + self._callers.total()

    def open(self, peer: str, end: Callable[[str], None]) -> Slot:
        """Give a slot to a new call from `ip:port`. `end` is called with a reason when the call has to give way."""
        slot = Slot(self, peer, end)
        here = self._strangers.get(slot.address, {})
        if len(here) >= self._address_max:
            self._give_way(here)
        elif self._strangers_count >= self._strangers_max:
            self._give_way(max(self._strangers.values(), key=len))
        self._strangers.setdefault(slot.address, {})[slot] = None
        self._strangers_count += 1
        slot.taken(lambda: self._leave_strangers(slot))
        return slot

    def admit(self, slot: Slot, caller: str) -> None:
        """Give the call one of the slots of known callers. Raises OverLimit."""
        if self._callers[caller] >= self._caller_max or self._callers.total() >= self._calls_max:
            raise OverLimit(CALLS_LIMIT, f"{self._callers[caller]} calls of {caller} are already open")
        self._callers[caller] += 1
        slot.taken(lambda: self._leave_callers(caller))

    def admit_member(self, slot: Slot) -> None:
        """Give the call one of the slots of members. Raises OverLimit."""
        if self._members >= self._calls_max:
            raise OverLimit(CALLS_LIMIT, f"{self._members} calls of members of the cluster are already open")
        self._members += 1
        slot.taken(self._leave_members)

    def _give_way(self, calls: dict[Slot, None]) -> None:
        self._met[STRANGERS_LIMIT] += 1
        oldest = next(iter(calls))
        oldest.close()
        oldest.end("too many unauthenticated calls are open: this call was dropped")

    def _leave_strangers(self, slot: Slot) -> None:
        here = self._strangers[slot.address]
        del here[slot]
        if not here:
            del self._strangers[slot.address]
        self._strangers_count -= 1

    def _leave_callers(self, caller: str) -> None:
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]

    def _leave_members(self) -> None:
        self._members -= 1


_OWN: Final[ContextVar[Slot | None]] = ContextVar("slot", default=None)
"""The slot of the current call, each of which is a task of its own."""


def call_has(slot: Slot) -> None:
    """Set the slot of the current call. To be called when a call begins."""
    _OWN.set(slot)


def caller_known(caller: str) -> None:
    """Note that the caller of the current call is authenticated. Raises OverLimit."""
    slot = _OWN.get()
    if slot is not None:
        slot.admit(caller)


def member_known() -> None:
    """Note that the caller of the current call is a member. Raises OverLimit."""
    slot = _OWN.get()
    if slot is not None:
        slot.admit_member()


PORT: Final = "admin"

_Context = grpc.aio.ServicerContext[Any, Any]
_Behaviour = Callable[[Any, _Context], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdminAccess:
    """The checks of callers. Without `is_authorizing` every user may do all that is not for super users alone."""

    authenticator: AdminAuthenticator
    authorizer: Authorizer
    is_authorizing: bool
    cluster: str

    def needs(self, method: str, request: Any) -> list[Need]:
        service = service_of(method)
        if service in READERS_SERVICES or (not self.is_authorizing and service not in SUPER_SERVICES):
            return []
        return admin_needs(method, request, self.cluster)


class AdminGuard(grpc.aio.ServerInterceptor):
    """Checks callers and audits changes. Without `access` every caller is admitted, and only changes are audited.

    With `own_address`, which is that of the port, callers on other machines are denied.
    """

    def __init__(
        self,
        access: AdminAccess | None,
        *,
        audit: Audit,
        metrics: SecurityMetrics,
        error_reporter: ErrorReporter,
        own_address: str | None = None,
    ) -> None:
        self._access = access
        self._own_host = None if own_address is None else Address.parse(own_address).host
        self._audit = audit
        self._metrics = metrics
        self._error_reporter = error_reporter

    @property
    def asks(self) -> bool:
        """Return whether callers may be denied."""
        return self._access is not None or self._own_host is not None

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or service_of(method) in OPEN_SERVICES or not (self.asks or is_change(method)):
            return handler
        kind = kind_of(handler)
        guard = self._many_answers if handler.response_streaming else self._one_answer
        return KINDS[kind](
            guard(method, getattr(handler, kind)),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _one_answer(self, method: str, behaviour: _Behaviour) -> Callable[[Any, _Context], Coroutine[Any, Any, Any]]:
        async def call(request: Any, context: _Context) -> Any:
            subject = await self._admit(method, request, context)
            return await self.watched(method, request, subject, context, behaviour(request, context))

        return call

    def _many_answers(self, method: str, behaviour: _Behaviour) -> Callable[[Any, _Context], Coroutine[Any, Any, None]]:
        async def call(request: Any, context: _Context) -> None:
            subject = await self._admit(method, request, context)
            answers = behaviour(request, context)
            written = _write_all(answers, context) if isasyncgen(answers) else answers
            await self.watched(method, request, subject, context, written)

        return call

    async def _admit(self, method: str, request: Any, context: _Context) -> Subject:
        """Return the caller for the audit. Ends the call if the caller is not allowed to make it."""
        subject = Subject(PORT, short_name(method), caller_peer(context))
        access = self._access
        try:
            if self._own_host is not None and not _is_of_this_machine(context.peer(), self._own_host):
                raise PermissionDenied(
                    'operators on other machines are not served (security.admin_callers = "this-machine")'
                )
            if access is None:
                if self.asks:
                    caller_known("this machine")
                return subject
            shown = _shown(method, context)
            identity = access.authenticator.identify(shown)
            subject = subject.of(identity)
            source = source_of(subject.peer)
            access.authorizer.require(identity, source, access.needs(method, request))
            caller_is_known_as(identity)
            if access.is_authorizing:
                caller_is(lambda needs: access.authorizer.require(identity, source, needs))
            caller_known(f"user {identity.user}")
            access.authenticator.admit(shown, identity)
        except (Unauthenticated, TooManyFailures) as error:
            claimed = subject._replace(user=error.claimed, how=CLAIMED) if error.claimed else subject
            await self._deny(claimed, error.outcome.value, error, context)
        except PermissionDenied as error:
            await self._deny(subject, str(error), error, context)
        except OverLimit as error:
            await refuse(context, error, self._error_reporter)
        return subject

    def admit_known(self, method: str, request: Any, identity: Identity | None, peer: str) -> Subject:
        """Return the caller for the audit, whom this broker or another member of the cluster has authenticated.

        `identity` is None where that one lets everybody in. Raises Unauthenticated, PermissionDenied.
        """
        subject = Subject(PORT, short_name(method), peer).of(identity)
        access = self._access
        if access is None:
            return subject
        try:
            if identity is None:
                raise Unauthenticated(
                    "this member asks for users, the one that passed the call on does not", Outcome.ABSENT
                )
            source = source_of(peer)
            access.authorizer.require(identity, source, access.needs(method, request))
            caller_is_known_as(identity)
            if access.is_authorizing:
                caller_is(lambda needs: access.authorizer.require(identity, source, needs))
        except (Unauthenticated, PermissionDenied) as error:
            self._metrics.denied(PORT)
            self._audit.denied(subject, str(error), str(error))
            raise
        return subject

    async def _deny(self, subject: Subject, outcome: str, error: Exception, context: _Context) -> None:
        self._metrics.denied(PORT)
        self._audit.denied(subject, outcome, str(error))
        await refuse(context, error, self._error_reporter)

    async def watched(
        self, method: str, request: Any, subject: Subject, context: _Context, answering: Awaitable[Any]
    ) -> Any:
        """Return the call's answer. A change is written to the audit log when it is over."""
        if not is_change(method):
            return await answering
        outcome = "cancelled"
        try:
            answer = await answering
            outcome = _outcome(answer)
        except Exception:
            outcome = _code_name(context)
            raise
        finally:
            self._audit.changed(subject, _changed_by(method, request), outcome)
        return answer


async def _write_all(answers: AsyncIterator[Any], context: _Context) -> None:
    async for answer in answers:
        await context.write(answer)


def _is_of_this_machine(peer: str, own_host: str) -> bool:
    """Return whether a peer, as gRPC names it, is on the machine whose port listens at a host."""
    source = source_of(peer_text(peer))
    return peer.startswith(UNIX) or (source is not None and (source.is_loopback or source == plain_address(own_host)))


def _shown(method: str, context: _Context) -> AdminCall:
    headers = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
    pem = next(iter(context.auth_context().get("x509_pem_cert", ())), None)
    return AdminCall(
        method=method,
        authorization=headers.get(AUTHORIZATION),
        date=headers.get(ADMIN_DATE, ""),
        nonce=headers.get(ADMIN_NONCE, ""),
        certificate=None if pem is None else ssl.PEM_cert_to_DER_cert(pem.decode()),
        source=source_of(caller_peer(context)),
    )


def _code_name(context: _Context) -> str:
    """Return the name of the status code that a call was ended with."""
    code: Any = context.code()
    names = {each.value[0]: each.name for each in grpc.StatusCode}
    return str(code.name if isinstance(code, grpc.StatusCode) else names.get(code, code)).lower()


def _outcome(answer: Any) -> str:
    """Return the outcome of a call. Answers of the official service hold a status that says what went wrong."""
    status = getattr(answer, "status", None)
    if isinstance(status, definition.Status) and status.code != definition.OK:
        return definition.Code.Name(status.code).lower()
    return "done"


def _changed_by(method: str, request: Any) -> str:
    """Return what a change applies to, if the request names it."""
    needs = admin_needs(method, request, "*")
    named = [f"{access.kind.value}:{access.name}" for need in needs for access in need]
    if named:
        return ", ".join(named)
    if service_of(method) == JOB_SERVICE:
        job_id = getattr(request, "id", 0)
        return f"job:{job_id}" if job_id else NOBODY
    user = getattr(request, "user", "") or getattr(request, "name", "")
    return f"user:{user}" if user else NOBODY


def make_guard(security: Security, settings: BrokerSettings, error_reporter: ErrorReporter) -> AdminGuard:
    """Make the guard of a broker with these settings."""
    access = None
    if security.admin_authenticator is not None:
        access = AdminAccess(
            authenticator=security.admin_authenticator,
            authorizer=security.authorizer,
            is_authorizing=security.is_authorizing,
            cluster=settings.broker.cluster,
        )
    is_for_this_machine = settings.security.admin_callers == "this-machine"
    return AdminGuard(
        access,
        audit=security.audit,
        metrics=security.metrics,
        error_reporter=error_reporter,
        own_address=settings.network.admin if is_for_this_machine else None,
    )


_Read = Callable[[_Context], Awaitable[Any]]
_Serve = Callable[[_Context, Slot], Awaitable[Any]]

NO_REQUEST: Final = f"no request came within {REQUEST_WAIT_S:.0f} s"
FIELDS_MAX: Final = 16_384
"""Fields and entries of a request above 16 KiB. Counting them takes some milliseconds; no valid request has more."""
TOO_LONG: Final = f"an unauthenticated call ends after {STRANGER_S:.0f} s: repeat the call"


class RequestReader(grpc.aio.ServerInterceptor):
    """The first interceptor, before all others, which get messages. gRPC alone would wait for a request for ever."""

    def __init__(self, slots: CallSlots, *, asks_who_calls: bool) -> None:
        """`asks_who_calls`: a later interceptor authenticates the caller and admits the call's slot."""
        self._slots = slots
        self._asks = asks_who_calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return handler
        service = service_of(handler_call_details.method)
        is_for_strangers = service in STRANGERS_SERVICES and (service in OPEN_SERVICES or not self._asks)
        is_known_by_address = not (self._asks or is_for_strangers or service in OPEN_SERVICES)
        behaviour = getattr(handler, kind_of(handler))
        read = _reader(handler)

        async def serve(context: _Context, slot: Slot) -> Any:
            late = asyncio.get_running_loop().call_later(REQUEST_WAIT_S, slot.end, NO_REQUEST)
            try:
                request = await read(context)
            finally:
                late.cancel()
            if is_known_by_address:
                try:
                    slot.admit(f"address {slot.address}")
                except OverLimit as error:
                    await context.abort(status_code(error), str(error))
            answers = behaviour(request, context)
            if isasyncgen(answers):
                async for answer in answers:
                    await context.write(answer)
                return None
            return await answers if isawaitable(answers) else answers

        async def call(_requests: object, context: _Context) -> Any:
            return await self._in_slot(context, serve, is_for_strangers=is_for_strangers)

        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(call, response_serializer=handler.response_serializer)

    async def _in_slot(self, context: _Context, serve: _Serve, *, is_for_strangers: bool) -> Any:
        """Serve a call. It keeps its slot until its whole answer is sent."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        reasons: list[str] = []

        def end(reason: str) -> None:
            reasons.append(reason)
            task.cancel()

        slot = self._slots.open(caller_peer(context), end)
        too_long = loop.call_later(STRANGER_S, end, TOO_LONG) if is_for_strangers else None

        def over(servicer_context: object) -> None:  # noqa: ARG001 - gRPC hands it over
            slot.close()
            if too_long is not None:
                too_long.cancel()

        context.add_done_callback(over)  # type: ignore[arg-type]  # the types want a class of their own
        call_has(slot)
        try:
            return await serve(context, slot)
        except grpc.aio.InternalError:
            # the caller left under a write; gRPC cancels the call too, but only later
            raise asyncio.CancelledError from None
        except asyncio.CancelledError:
            if not reasons or context.done():
                raise
            task.uncancel()
            try:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reasons[0])
            except grpc.aio.InternalError:
                # an answer is still being written, so no status can follow: gRPC closes the call when its task ends
                raise asyncio.CancelledError from None


def _reader(handler: Any) -> _Read:
    """Return a reader of the call's one request, or of a stream of them once the first has arrived."""
    deserialize = handler.request_deserializer

    async def parsed(request: bytes, context: _Context) -> Any:
        if deserialize is None:
            return request
        try:
            return request_of(deserialize.__self__, request, fields_most=FIELDS_MAX)
        except Refused as error:
            await context.abort(status_code(error), str(error))
        except DecodeError:
            message_type = deserialize.__self__.DESCRIPTOR.full_name
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {message_type}")

    async def read_one(context: _Context) -> Any:
        request = await context.read()
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        return await parsed(request, context)

    async def read_many(context: _Context) -> AsyncIterator[Any]:
        first = await read_one(context)

        async def requests() -> AsyncIterator[Any]:
            yield first
            while (request := await context.read()) is not grpc.aio.EOF:
                yield await parsed(request, context)

        return requests()

    return read_many if handler.request_streaming else read_one
