"""The common part of all admin calls: errors become gRPC status codes, pages become streams.

Each call knows its caller, the caller's address, and which messages the caller may see. A caller who may read a
message's topic may see the message, wherever copies of it lie.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final, NoReturn, Protocol, TypeVar

import grpc
import grpc.aio

from quarry_mq.kv import EngineCorrupt, EngineFull
from quarry_mq.server.admin.browsing import MessageWish
from quarry_mq.server.admin.message_lookup import has_copies, topics_of
from quarry_mq.server.errors import (
    MemberUnreachable,
    NoCluster,
    NoIndex,
    NoSuchJob,
    NoSuchMember,
    NoSuchMessage,
    NoSuchSetting,
    NotAMember,
    OverLimit,
    PermissionDenied,
    TooManyFailures,
    TooManyTails,
    TooMuchForOneCall,
    Unauthenticated,
)
from quarry_mq.server.front.grpcio import UNIX, peer_text
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.security.authorization import Need
from quarry_mq.server.security.credentials import Access, Identity
from quarry_mq.server.wire.status import INTERNAL_TEXT, without_places
from quarry_mq.store import errors
from quarry_mq.store.errors import Invalid
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.security.model import Action, ResourceKind

NAME_MAX: Final = 255
"""Characters of a name: as many as the longest name of a topic has."""

ASKED_BY_MAX: Final = 128
NOBODY: Final = "unknown"

_SHOWN_MAX: Final = 60


def given(field: str, text: str) -> str:
    """Require a name, or a part of one."""
    if not text:
        raise Invalid(f"{field}: must be given")
    return printable(field, text)


def printable(field: str, text: str, size_max: int = NAME_MAX) -> str:
    """Check a text that may be empty, and is shown or stored as it is."""
    if len(text) > size_max:
        raise Invalid(f"{field}: {len(text)} characters, at most {size_max} are allowed")
    if not text.isprintable():
        raise Invalid(f"{field}: {text[:_SHOWN_MAX]!r} contains characters that are not printable")
    return text


def asked_by(text: str) -> str:
    """Return the requester's name in the form that is stored."""
    return printable("asked_by", text, ASKED_BY_MAX) or NOBODY


def not_negative(field: str, number: int) -> int:
    if number < 0:
        raise Invalid(f"{field}: {number} is negative")
    return number


PAGE_ROWS: Final = 256
TEXT_MAX: Final = 500
"""Characters of an error's text, which travels in a header: clients take 8 KiB, a character is up to 12 bytes."""

STATUS_CODES: Final[dict[type[BaseException], grpc.StatusCode]] = {
    errors.TopicNotFound: grpc.StatusCode.NOT_FOUND,
    errors.GroupNotFound: grpc.StatusCode.NOT_FOUND,
    errors.UserNotFound: grpc.StatusCode.NOT_FOUND,
    errors.RuleNotFound: grpc.StatusCode.NOT_FOUND,
    errors.SecretsUnreadable: grpc.StatusCode.FAILED_PRECONDITION,
    NoSuchMessage: grpc.StatusCode.NOT_FOUND,
    NoSuchSetting: grpc.StatusCode.NOT_FOUND,
    NoSuchJob: grpc.StatusCode.NOT_FOUND,
    TooManyTails: grpc.StatusCode.RESOURCE_EXHAUSTED,
    OverLimit: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooMuchForOneCall: grpc.StatusCode.OUT_OF_RANGE,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    TooManyFailures: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Forbidden: grpc.StatusCode.FAILED_PRECONDITION,
    NoIndex: grpc.StatusCode.FAILED_PRECONDITION,
    NoCluster: grpc.StatusCode.FAILED_PRECONDITION,
    NoSuchMember: grpc.StatusCode.NOT_FOUND,
    NotAMember: grpc.StatusCode.UNAUTHENTICATED,
    MemberUnreachable: grpc.StatusCode.UNAVAILABLE,
    errors.Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DiskRefused: grpc.StatusCode.RESOURCE_EXHAUSTED,
    EngineFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    EngineCorrupt: grpc.StatusCode.DATA_LOSS,
    errors.StoreUnusable: grpc.StatusCode.DATA_LOSS,
    errors.MessageGivenUp: grpc.StatusCode.DATA_LOSS,
    errors.StorePoisoned: grpc.StatusCode.DATA_LOSS,
    Exception: grpc.StatusCode.INTERNAL,
}
"""The status code of each error. The nearest class of an error's ancestry decides."""

_Context = grpc.aio.ServicerContext[Any, Any]
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
_Row = TypeVar("_Row")


class ReportsErrors(Protocol):
    """A service that reports errors which no caller causes."""

    @property
    def error_reporter(self) -> ErrorReporter: ...


_Service = TypeVar("_Service", bound=ReportsErrors)


def answers(
    method: Callable[[_Service, _Request], _Answer],
) -> Callable[[_Service, _Request, _Context], Coroutine[Any, Any, _Answer]]:
    """Turn a plain method into a gRPC one: its errors become status codes."""

    async def call(self: _Service, request: _Request, context: _Context) -> _Answer:
        try:
            return method(self, request)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self.error_reporter)

    return call


def streams(
    method: Callable[[_Service, _Request], Iterator[_Answer]],
) -> Callable[[_Service, _Request, _Context], Coroutine[Any, Any, None]]:
    """Turn a generator of pages into a streaming gRPC method. The event loop is free between two pages."""

    async def call(self: _Service, request: _Request, context: _Context) -> None:
        pages = method(self, request)
        while True:
            try:
                page = next(pages, None)
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
                await refuse(context, error, self.error_reporter)
            if page is None:
                return
            await context.write(page)

    return call


async def answered(context: _Context, result: Awaitable[_Answer], error_reporter: ErrorReporter) -> _Answer:
    """Return the result, or end the call as `refuse` does."""
    try:
        return await result
    except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
        await refuse(context, error, error_reporter)


async def refuse(context: _Context, error: Exception, error_reporter: ErrorReporter) -> NoReturn:
    """End the call with the error's code and text; the text of an unexpected error stays in the log.

    An error of gRPC itself is raised again: the caller has left, and nothing can be answered.
    """
    if isinstance(error, grpc.aio.InternalError):
        raise error
    error_reporter.report(error, port="admin")
    await context.abort(status_code(error), _fit_for_a_header(status_text(error)))


def status_code(error: Exception) -> grpc.StatusCode:
    return next(STATUS_CODES[ancestor] for ancestor in type(error).__mro__ if ancestor in STATUS_CODES)


def status_text(error: Exception) -> str:
    match error:
        case EngineFull():
            return without_places(f"{error.shortage}: {error}")
        case errors.BrokerError() | EngineCorrupt():
            return without_places(str(error))
        case _:
            return INTERNAL_TEXT


def _fit_for_a_header(text: str) -> str:
    """Cut the text, and replace unprintable characters: it may contain names that callers gave."""
    cut = text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
    return "".join(each if each.isprintable() else "�" for each in cut)


def pages(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    iterator = iter(rows)
    while page := list(islice(iterator, PAGE_ROWS)):
        yield page


KINDS: Final[dict[str, Callable[..., grpc.RpcMethodHandler[Any, Any]]]] = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}
"""The constructors of handlers, by the attribute of the handler that holds the behaviour."""


def kind_of(handler: Any) -> str:
    """Return the key of `KINDS` for a handler."""
    return next(each for each in KINDS if getattr(handler, each) is not None)


BROWSER: Final = "x-quarry-browser"
"""Metadata with the browser's `ip:port`. It is believed on the Unix socket alone.

Only the broker's own process, and users who may do anything with that process, can open the socket.
"""

_PEER_SIZE_MAX: Final = 64


def caller_peer(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return `ip:port`; `unix` for a call on the Unix socket that does not name a browser."""
    peer = context.peer()
    if peer.startswith(UNIX):
        for name, value in context.invocation_metadata() or ():
            if name == BROWSER and isinstance(value, str) and value and len(value) <= _PEER_SIZE_MAX:
                return value
    return peer_text(peer)


Require = Callable[[Sequence[Need]], None]
"""Check that the caller has rights. Raises PermissionDenied, which names what is missing."""


def _nothing(_needs: Sequence[Need]) -> None:
    """Require nothing: there is no authentication, or every user may do everything."""


_REQUIRE: Final[ContextVar[Require]] = ContextVar("require", default=_nothing)
"""The check of the current call, each of which is a task of its own."""


def caller_is(require: Require) -> None:
    """Set the check for the current call, once its caller is known."""
    _REQUIRE.set(require)


_IDENTITY: Final[ContextVar[Identity | None]] = ContextVar("identity", default=None)
"""The user of the current call; None where nobody has to say who calls."""


def caller_is_known_as(identity: Identity) -> None:
    """Set the user of the current call, who has been authenticated."""
    _IDENTITY.set(identity)


def caller_identity() -> Identity | None:
    """Return the user of the current call; None where nobody has to say who calls."""
    return _IDENTITY.get()


def is_anybody_asked() -> bool:
    """Return whether some callers may not do everything."""
    return _REQUIRE.get() is not _nothing


def caller_must(accesses: Sequence[Access]) -> None:
    """Check the caller's rights again during a long call, since they may be revoked. Raises PermissionDenied."""
    _REQUIRE.get()([(each,) for each in accesses])


def caller_may(accesses: Sequence[Access]) -> bool:
    """Return whether the caller is allowed all of this. Without accesses, only super users are."""
    try:
        _REQUIRE.get()([(each,) for each in accesses] or [()])
    except PermissionDenied:
        return False
    return True


def caller_may_read(topic: str) -> bool:
    """Return whether the caller may look at the messages of a topic; "" for an unknown one."""
    return caller_may([Access(ResourceKind.TOPIC, topic, Action.GET)] if topic else [])


def caller_may_see(record: StoredMessage) -> bool:
    """Return whether the caller may read all topics of a message. If they are unknown, only super users may."""
    if not is_anybody_asked():
        return True
    topics = topics_of(record)
    return caller_may([Access(ResourceKind.TOPIC, each, Action.GET) for each in topics or ()])


def caller_may_see_if_known(record: StoredMessage | None) -> bool:
    """Return whether the caller may see a record. None, one that cannot be read, is for super users only."""
    return caller_may([]) if record is None else caller_may_see(record)


def as_caller_may_see(wish: MessageWish, topic: str) -> MessageWish:
    """Restrict a filter to what the caller may see, if this topic may hold copies of other topics' messages."""
    return wish._replace(may_see=caller_may_see) if has_copies(topic) and is_anybody_asked() else wish
