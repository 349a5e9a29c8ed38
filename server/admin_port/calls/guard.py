"""Authenticate the caller of each call of the admin port, check its rights, and audit each change."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from inspect import isasyncgen
from typing import Any, Final

import grpc
import grpc.aio

from quarry_mq.protocol.admin_methods import service_of, short_name
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.signature import ADMIN_DATE, ADMIN_NONCE, AUTHORIZATION
from quarry_mq.server.admin_port.calls.access import (
    JOB_SERVICE,
    OPEN_SERVICES,
    READERS_SERVICES,
    SUPER_SERVICES,
    admin_needs,
    is_change,
)
from quarry_mq.server.admin_port.calls.caller import caller_is, caller_peer
from quarry_mq.server.admin_port.calls.edge import KINDS, kind_of, refuse
from quarry_mq.server.admin_port.calls.slots import caller_known
from quarry_mq.server.error_reporter import ErrorReporter
from quarry_mq.server.errors import OverLimit, PermissionDenied, TooManyFailures, Unauthenticated
from quarry_mq.server.security.admin_authentication import AdminAuthenticator, AdminCall
from quarry_mq.server.security.audit import CLAIMED, NOBODY, Audit, Subject
from quarry_mq.server.security.authorization import Authorizer, Need
from quarry_mq.server.security.build import Security
from quarry_mq.server.security.metrics import SecurityMetrics
from quarry_mq.server.security.terms import source_of

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
    """Checks callers and audits changes. Without `access` every caller is admitted, and only changes are audited."""

    def __init__(
        self, access: AdminAccess | None, *, audit: Audit, metrics: SecurityMetrics, error_reporter: ErrorReporter
    ) -> None:
        self._access = access
        self._audit = audit
        self._metrics = metrics
        self._error_reporter = error_reporter

    @property
    def asks(self) -> bool:
        """Return whether callers are authenticated."""
        return self._access is not None

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or service_of(method) in OPEN_SERVICES or (self._access is None and not is_change(method)):
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
            return await self._watched(method, request, subject, context, behaviour(request, context))

        return call

    def _many_answers(self, method: str, behaviour: _Behaviour) -> Callable[[Any, _Context], Coroutine[Any, Any, None]]:
        async def call(request: Any, context: _Context) -> None:
            subject = await self._admit(method, request, context)
            answers = behaviour(request, context)
            written = _write_all(answers, context) if isasyncgen(answers) else answers
            await self._watched(method, request, subject, context, written)

        return call

    async def _admit(self, method: str, request: Any, context: _Context) -> Subject:
        """Return the caller for the audit. Ends the call if the caller is not allowed to make it."""
        subject = Subject(PORT, short_name(method), caller_peer(context))
        access = self._access
        if access is None:
            return subject
        try:
            shown = _shown(method, context)
            identity = access.authenticator.identify(shown)
            subject = subject.of(identity)
            source = source_of(subject.peer)
            access.authorizer.require(identity, source, access.needs(method, request))
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

    async def _deny(self, subject: Subject, outcome: str, error: Exception, context: _Context) -> None:
        self._metrics.denied(PORT)
        self._audit.denied(subject, outcome, str(error))
        await refuse(context, error, self._error_reporter)

    async def _watched(
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


def make_guard(security: Security, cluster: str, error_reporter: ErrorReporter) -> AdminGuard:
    """Make the guard of a broker in a cluster of this name."""
    access = None
    if security.admin_authenticator is not None:
        access = AdminAccess(
            authenticator=security.admin_authenticator,
            authorizer=security.authorizer,
            is_authorizing=security.is_authorizing,
            cluster=cluster,
        )
    return AdminGuard(access, audit=security.audit, metrics=security.metrics, error_reporter=error_reporter)
