"""Makes calls of the admin port for reconcilers, and tells refusals from a broker that is away."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeVar, cast

import grpc
import structlog
from google.protobuf.message import Message

from quarry_mq.client.admin import AsyncAdminClient
from quarry_mq.protocol.proto.quarry.admin.v1 import members_pb2

log = structlog.get_logger(__name__)

OK: Final = grpc.StatusCode.OK.name
NOT_FOUND: Final = grpc.StatusCode.NOT_FOUND.name

_AWAY: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE.name,
        grpc.StatusCode.DEADLINE_EXCEEDED.name,
        grpc.StatusCode.CANCELLED.name,
    }
)
"""Codes after which the same call may succeed later."""

_Answer = TypeVar("_Answer", bound=Message)


class BrokerAway(Exception):
    """The broker, or another member of its cluster, does not answer now. The text says which, and why."""


class CallRefused(Exception):
    """The broker refuses a call, in its own words."""


class NotThere(CallRefused):
    """The thing that a call names does not exist."""


class FromMember(NamedTuple):
    """The answer of one member of the cluster."""

    member: str
    answer: Any


class Broker:
    """The broker of a release, or any member of its cluster: what is declared is the same on all of them.

    Calls raise BrokerAway, CallRefused, and NotThere.
    """

    def __init__(self, client: AsyncAdminClient) -> None:
        self._client = client
        self._is_away = False

    async def call(self, method: str, request: Message) -> Any:
        """Make a call with one answer, named as `Service/Method`."""
        try:
            answer = await self._client.call(method, request)
        except grpc.RpcError as error:
            raise self._refusal(error) from error
        self._note_away(None)
        return answer

    async def found(self, method: str, request: Message) -> Any:
        """Make a call that reads something by its name; return None if that does not exist."""
        try:
            return await self.call(method, request)
        except NotThere:
            return None

    async def of_member(self, member: str, method: str, request: Message, answer: type[_Answer]) -> _Answer:
        """Make a call on one member of the cluster, and return its answer."""
        async with aclosing(self.of_members(method, request, answer, members=[member])) as answers:
            async for each in answers:
                found: _Answer = each.answer
                return found
        raise BrokerAway(f"{member} did not answer")

    async def of_members(
        self, method: str, request: Message, answer: type[_Answer], *, members: Sequence[str] = ()
    ) -> AsyncGenerator[FromMember]:
        """Make a call on members of the cluster, on all without `members`, and yield their answers.

        All of them have to answer.
        """
        asking = members_pb2.AskMembersRequest(members=members, method=method, request=request.SerializeToString())
        try:
            async for each in self._client.stream("AllMembersService/AskMembers", asking):
                if each.HasField("answer"):
                    yield FromMember(each.member, answer.FromString(each.answer))
                elif each.code != OK:
                    raise _error(each.code, f"{each.member}: {each.problem}")
        except grpc.RpcError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: grpc.RpcError) -> Exception:
        # every error of a call is also that call; the type does not say so
        call = cast("grpc.Call", error)
        refusal = _error(call.code().name, call.details() or call.code().name)
        self._note_away(refusal if isinstance(refusal, BrokerAway) else None)
        return refusal

    def _note_away(self, error: BrokerAway | None) -> None:
        """Log that the broker is away, or is there again: once, and not for each resource."""
        if error is not None and not self._is_away:
            log.warning("the broker does not answer the operator", error=str(error))
        elif error is None and self._is_away:
            log.info("the broker answers the operator again")
        self._is_away = error is not None


def _error(code: str, text: str) -> Exception:
    if code == NOT_FOUND:
        return NotThere(text)
    if code in _AWAY:
        return BrokerAway(f"the broker cannot be asked now: {text}")
    return CallRefused(text)
