"""The common part of all requests of the remoting protocol: who calls, what the caller may do, and errors.

Only here does an error become a response code. The text of an unexpected error stays in the broker's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Final, Protocol

from quarry_mq.kv import EngineFull
from quarry_mq.protocol.remoting.codes import ResponseCode
from quarry_mq.server.addresses import host_of, plain_address
from quarry_mq.server.errors import InvalidRecallHandle, OverLimit, PermissionDenied, TooManyFailures, Unauthenticated
from quarry_mq.server.filters import IllegalExpression
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.metadata import ANYBODY
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.remoting.wire import RemotingRefused
from quarry_mq.server.rpc.context import LimitsMet
from quarry_mq.server.security.authorization import Need
from quarry_mq.server.security.credentials import Identity
from quarry_mq.server.settings.broker_settings import UnknownOperators
from quarry_mq.server.tasks import Pacing, TimeSlice
from quarry_mq.server.wire.status import INTERNAL_TEXT, is_expected, without_places
from quarry_mq.store import errors
from quarry_mq.store.metadata import IllegalGroupName, IllegalTopicName

CODES: Final[dict[type[Exception], ResponseCode]] = {
    IllegalTopicName: ResponseCode.INVALID_PARAMETER,
    IllegalGroupName: ResponseCode.INVALID_PARAMETER,
    IllegalExpression: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    errors.TopicNotFound: ResponseCode.TOPIC_NOT_EXIST,
    errors.GroupNotFound: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    errors.Forbidden: ResponseCode.NO_PERMISSION,
    PermissionDenied: ResponseCode.NO_PERMISSION,
    Unauthenticated: ResponseCode.NO_PERMISSION,
    TooManyFailures: ResponseCode.NO_PERMISSION,
    errors.MessageTooLarge: ResponseCode.MESSAGE_ILLEGAL,
    errors.OffsetOutOfRange: ResponseCode.SYSTEM_ERROR,
    errors.Invalid: ResponseCode.INVALID_PARAMETER,
    InvalidRecallHandle: ResponseCode.ILLEGAL_OPERATION,
    OverLimit: ResponseCode.SYSTEM_BUSY,
    errors.Busy: ResponseCode.SYSTEM_BUSY,
    errors.Unavailable: ResponseCode.SERVICE_NOT_AVAILABLE,
    EngineFull: ResponseCode.SERVICE_NOT_AVAILABLE,
}
"""The response code of each error class; a subclass without a row of its own gets that of its nearest base class."""


class RemotingGate(Protocol):
    """Authenticates and authorizes calls; see `server.security.gate.Gate`."""

    def identify(self, call: RemotingCall) -> Identity: ...

    def authorize(self, call: RemotingCall, identity: Identity, needs: Iterable[Need]) -> None: ...


class RemotingEdge:
    """Makes handlers for the remoting front out of functions that take a call and raise errors."""

    def __init__(
        self,
        error_reporter: ErrorReporter,
        limits_met: LimitsMet,
        pacing: Pacing,
        gate: RemotingGate | None,
        *,
        operators: UnknownOperators,
    ) -> None:
        """A `gate` of None allows every caller everything, but only `operators` may make operators' requests."""
        self._pacing = pacing
        self._operators = operators
        self.error_reporter: Final = error_reporter
        self._limits_met = limits_met
        self._gate = gate
        self.user = ANYBODY
        """The user whose call is being served; valid only while it is, on the one thread there is."""
        self._identity: Identity | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def has_users(self) -> bool:
        """Return whether callers have to prove who they are."""
        return self._gate is not None

    def handler(self, serve: Callable[[RemotingCall], None]) -> Handler:
        """Return a handler that lets the caller in, serves the call, and answers every error."""

        def handle(call: RemotingCall) -> None:
            try:
                if self._gate is not None:
                    self._identity = self._gate.identify(call)
                    self.user = self._identity.user
                serve(call)
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the client gets an answer
                self.refuse(call, error)

        return handle

    def operators_handler(self, serve: Callable[[RemotingCall], None]) -> Handler:
        """Return a handler of requests that only operators may make.

        The messaging port serves them, too, and strangers may reach it: so operators without users need more than to
        reach the broker.
        """

        def serve_operator(call: RemotingCall) -> None:
            if self._gate is None:
                if self._operators is UnknownOperators.NONE:
                    raise errors.Forbidden("operators' requests by remoting need security.authentication here")
                if self._operators is UnknownOperators.OF_THIS_MACHINE and not _is_on_this_machine(call.peer):
                    raise errors.Forbidden(
                        "operators' requests from other machines need users (security.authentication), "
                        "or security.open_admin = true"
                    )
            serve(call)

        return self.handler(serve_operator)

    def require(self, call: RemotingCall, *needs: Need) -> None:
        """Check that the caller of the call that is being served has the rights. Raises PermissionDenied."""
        if self._gate is not None and self._identity is not None:
            self._gate.authorize(call, self._identity, needs)

    def refuse(self, call: RemotingCall, error: Exception) -> None:
        """Answer a call with an error. Faults of the broker are reported."""
        self.limit_met(error)
        if not is_expected(error):
            self.error_reporter.report(error, path=call.path, peer=call.peer)
        call.answer(code_of(error), remark=remark_of(error))

    def limit_met(self, error: Exception) -> None:
        """Count an error that says that a limit is reached; for answers that do not come from `refuse`."""
        self._limits_met.count(error)

    def ended(self, call: RemotingCall, error: Exception | None) -> None:
        """Answer a call whose work has ended: with success, or with the error."""
        if error is None:
            call.answer()
        else:
            self.refuse(call, error)

    def later(self, call: RemotingCall, work: Coroutine[None, None, None]) -> None:
        """Let work answer a call later; an error of the work is the answer."""

        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - as in `handler`: nobody else catches it
                self.refuse(call, error)

        task = asyncio.get_running_loop().create_task(run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def paced(self, call: RemotingCall, work: Callable[[TimeSlice], Awaitable[None]]) -> None:
        """Let work answer a call that takes a time slice after another; few such calls are served at a time."""

        async def run() -> None:
            async with self._pacing.turn() as time_slice:
                await work(time_slice)

        self.later(call, run())

    def not_supported(self, call: RemotingCall) -> None:
        """Answer a request whose code is unknown, or that this broker does not serve."""
        call.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"this broker does not serve request code {call.code}"
        )


def _is_on_this_machine(peer: str) -> bool:
    address = plain_address(host_of(peer))
    return peer == "unix" or (address is not None and address.is_loopback)


def code_of(error: Exception) -> ResponseCode:
    """Return the response code for an error; SYSTEM_ERROR for an unexpected one."""
    if isinstance(error, RemotingRefused):
        return error.code
    return next((CODES[base] for base in type(error).__mro__ if base in CODES), ResponseCode.SYSTEM_ERROR)


def remark_of(error: Exception) -> str:
    """Return the text of an error for a client."""
    return without_places(str(error)) if is_expected(error) or isinstance(error, errors.BrokerError) else INTERNAL_TEXT
