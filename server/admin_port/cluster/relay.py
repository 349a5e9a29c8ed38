"""Make calls of the admin port on other members, and for other members, by the rights of the user who asked.

A member that is asked by an operator passes a call on with the name of the user, whom it has authenticated. The member
that gets the call checks what this user may do by its own rules, and writes its own audit, as if the user had called.
So an answer of another member never holds more than the user would get there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import isasyncgen
from typing import Any, Final, NamedTuple, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from quarry_mq.protocol.admin_methods import methods_by_short_name, path_of, service_of
from quarry_mq.server.admin_port.calls.access import SUPER_SERVICES
from quarry_mq.server.admin_port.calls.edge import BROWSER, refuse
from quarry_mq.server.admin_port.calls.guard import FIELDS_MAX, AdminGuard
from quarry_mq.server.admin_port.server import MoreService
from quarry_mq.server.cluster.cluster import Cluster
from quarry_mq.server.cluster.membership import SeenMember
from quarry_mq.server.cluster.peers import CallEnded, RelayedCall
from quarry_mq.server.errors import MemberUnreachable, NoSuchMember, NotAMember
from quarry_mq.server.front.grpcio import UNIX
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.security.credentials import How, Identity
from quarry_mq.server.wire.parsing import request_of
from quarry_mq.server.wire.status import Refused, without_places
from quarry_mq.store.errors import Invalid

NOT_FOR_OTHERS: Final = ("quarry.admin.v1.MembersService", "quarry.admin.v1.AllMembersService", *SUPER_SERVICES)
"""Calls of these services are not passed on: what they are about is the same on all members, or is the members."""

FOLLOWING: Final = ("BrowsingService/TailMessages",)
"""The answers of these calls go on for as long as somebody reads them."""

WAIT_S: Final = 15.0
"""Seconds until a page goes on without a member that does not answer."""

ONE_WAIT_S: Final = 120.0
"""Seconds until a call on one member alone is given up: it may be long work."""

OPEN_MAX: Final = 64
"""Calls on other members that are open at a time; further ones wait for their turn."""

UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE.name
OK: Final = grpc.StatusCode.OK.name

Write = Callable[[bytes], Awaitable[None]]
"""Take a serialized answer."""


class HandlerBook:
    """Collect the handlers of services by `Service/Method`, in the place of a server."""

    def __init__(self) -> None:
        self.handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[object]) -> None:
        """Ignore handlers without names; generated code registers those with names, too."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        if service not in NOT_FOR_OTHERS:
            short = service.rpartition(".")[2]
            self.handlers |= {f"{short}/{name}": handler for name, handler in handlers.items()}

    def collect(self, services: Iterable[MoreService]) -> None:
        server: Any = self
        for each in services:
            each.add_to(server)


class _Context:
    """Stands in for gRPC's context, as far as handlers use it, for a call that came by another way."""

    def __init__(self, peer: str, write: Write) -> None:
        self._peer = peer
        self._write = write
        self._code: grpc.StatusCode | None = None

    def peer(self) -> str:
        return UNIX

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((BROWSER, self._peer),)

    def time_remaining(self) -> None:
        return None

    def code(self) -> grpc.StatusCode | None:
        return self._code

    async def abort(self, code: grpc.StatusCode, details: str = "", _trailing_metadata: object = ()) -> NoReturn:
        self._code = code
        raise CallEnded(code.name, details)

    async def write(self, answer: Any) -> None:
        await self._write(answer.SerializeToString())


class OwnCalls:
    """Makes calls on this broker for a user whom this broker, or another member, has authenticated."""

    def __init__(self, guard: AdminGuard, error_reporter: ErrorReporter) -> None:
        self.book: Final = HandlerBook()
        self._guard = guard
        self._error_reporter = error_reporter
        self._paths = {name: path_of(method) for name, method in methods_by_short_name().items()}

    async def run(self, call: RelayedCall, write: Write) -> None:
        """Make a call in a task of its own, and hand out each answer. Raises CallEnded when it fails."""
        await asyncio.create_task(self._run(call, write))

    async def _run(self, call: RelayedCall, write: Write) -> None:
        handler: Any = self.book.handlers.get(call.method)
        if handler is None:
            raise CallEnded(grpc.StatusCode.INVALID_ARGUMENT.name, f"method: members do not make {call.method!r:.200}")
        context: Any = _Context(call.peer, write)
        try:
            request = request_of(handler.request_deserializer.__self__, call.request, fields_most=FIELDS_MAX)
        except (DecodeError, Refused) as error:
            raise CallEnded(grpc.StatusCode.INVALID_ARGUMENT.name, f"request: {error}") from None
        path = self._paths[call.method]
        try:
            subject = self._guard.admit_known(path, request, _identity(call), call.peer)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self._error_reporter)
        behaviour = handler.unary_stream if handler.response_streaming else handler.unary_unary
        answering = _answering(behaviour(request, context), context, is_streaming=handler.response_streaming)
        await self._guard.watched(path, request, subject, context, answering)


async def _answering(answers: Any, context: Any, *, is_streaming: bool) -> Any:
    """Write the answers of a handler; return the one of a call that has one."""
    if isasyncgen(answers):
        async for answer in answers:
            await context.write(answer)
        return None
    answer = await answers
    if not is_streaming:
        await context.write(answer)
    return answer


def _identity(call: RelayedCall) -> Identity | None:
    try:
        return Identity(call.user, How(call.how)) if call.user else None
    except ValueError:
        raise CallEnded(grpc.StatusCode.INVALID_ARGUMENT.name, f"how: {call.how!r:.60} is unknown here") from None


class Part(NamedTuple):
    """An answer of a member; or the end of its call, with gRPC's code, "OK" among them, and the reason."""

    member: str
    is_self: bool
    answer: bytes | None = None
    code: str = ""
    problem: str = ""

    @property
    def is_failed(self) -> bool:
        return self.answer is None and self.code != OK


Take = Callable[[Part], Awaitable[None]]


class _Asked(NamedTuple):
    name: str
    is_self: bool
    away: str = ""
    """The reason why the member is not asked; empty for one that is."""


class MemberCalls:
    """Makes the same call on several members at a time. A broker without a cluster is its only member."""

    def __init__(self, own: OwnCalls, own_name: str, cluster: Cluster | None, *, wait_s: float = WAIT_S) -> None:
        self._own = own
        self._own_name = own_name
        self._cluster = cluster
        self._wait_s = wait_s
        self._turns = asyncio.Semaphore(OPEN_MAX)

    async def ask(self, names: Sequence[str], call: RelayedCall, take: Take) -> None:
        """Make a call on members, all without names, and hand out what they answer as it comes.

        Raises Invalid, NoSuchMember, and what `take` raises; no member is waited for then.
        """
        known = methods_by_short_name().get(call.method)
        if known is None or service_of(path_of(known)) in NOT_FOR_OTHERS:
            raise Invalid(f"method: members do not make {call.method!r:.200} for others")
        asked = self._asked(names)
        wait_s = None if call.method in FOLLOWING else ONE_WAIT_S if len(names) == 1 else self._wait_s
        turn = asyncio.Lock()

        async def in_turn(part: Part) -> None:
            async with turn:
                await take(part)

        try:
            async with asyncio.TaskGroup() as group:
                for each in asked:
                    group.create_task(self._ask_one(each, call, in_turn, wait_s))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def parts(self, call: RelayedCall, names: Sequence[str] = ()) -> list[Part]:
        """Return for each member, by name, the last answer to a call that has one, or the reason why it failed."""
        found: dict[str, Part] = {}

        async def take(part: Part) -> None:
            if part.answer is not None or part.is_failed:
                found[part.member] = part

        await self.ask(names, call, take)
        return [found[name] for name in sorted(found)]

    def _asked(self, names: Sequence[str]) -> list[_Asked]:
        if self._cluster is None:
            there = {self._own_name: _Asked(self._own_name, is_self=True)}
        else:
            there = {
                each.member.name: _Asked(each.member.name, each.is_self, _away(each))
                for each in self._cluster.members.all()
            }
        missing = [name for name in names if name not in there]
        if missing:
            raise NoSuchMember(f"members: no member {missing[0][:80]!r}")
        return [there[name] for name in dict.fromkeys(names)] if names else list(there.values())

    async def _ask_one(self, asked: _Asked, call: RelayedCall, take: Take, wait_s: float | None) -> None:
        async def answered(answer: bytes) -> None:
            await take(Part(asked.name, asked.is_self, answer))

        def ended(code: str, reason: str) -> Part:
            return Part(asked.name, asked.is_self, None, code, reason)

        if asked.away:
            await take(ended(UNAVAILABLE, asked.away))
            return
        try:
            async with asyncio.timeout(wait_s):
                if asked.is_self:
                    await self._own.run(call, answered)
                else:
                    await self._relay(asked.name, call, answered)
        except TimeoutError:
            end = ended(UNAVAILABLE, f"no answer within {wait_s:g} s")
        except CallEnded as failure:
            end = ended(failure.code, str(failure))
        except (MemberUnreachable, NotAMember, Invalid) as error:
            end = ended(UNAVAILABLE, without_places(str(error)))
        else:
            end = ended(OK, "")
        await take(end)

    async def _relay(self, name: str, call: RelayedCall, answered: Write) -> None:
        assert self._cluster is not None
        if call.method in FOLLOWING:
            await self._cluster.peers.relay(name, call, answered)
            return
        async with self._turns:
            await self._cluster.peers.relay(name, call, answered)


def _away(seen: SeenMember) -> str:
    """Return why a member is not asked; one that was never heard of may just have started, and is asked."""
    if seen.is_heard or seen.silent_ms is None:
        return ""
    return f"away: not heard of for {seen.silent_ms // 1000} s"
