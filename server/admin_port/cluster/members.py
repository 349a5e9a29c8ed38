"""Serve `quarry.admin.v1.MembersService`: the members of this broker's cluster.

`AllMembersService` gives what all of them answer together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import members_pb2 as members_pb
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as overview_pb
from quarry_mq.protocol.proto.quarry.admin.v1.members_pb2_grpc import (
    AllMembersServiceServicer,
    MembersServiceServicer,
    add_AllMembersServiceServicer_to_server,
    add_MembersServiceServicer_to_server,
)
from quarry_mq.server.admin_port.calls.edge import answered, answers, caller_identity, caller_peer, given, refuse
from quarry_mq.server.admin_port.cluster.relay import MemberCalls, Part
from quarry_mq.server.admin_port.cluster.stats import StatsOfMembers
from quarry_mq.server.cluster.membership import Members, MemberState, SeenMember
from quarry_mq.server.cluster.peers import CallEnded, RelayedCall
from quarry_mq.server.cluster.replication import Rejoining
from quarry_mq.server.errors import NoCluster
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.wire.status import without_places
from quarry_mq.store.replication import SharedKind, SharedRow

_Context = grpc.aio.ServicerContext[Any, Any]
_Answer = TypeVar("_Answer")

NAME: Final = members_pb.DESCRIPTOR.services_by_name["MembersService"].full_name


class MembersService(MembersServiceServicer):
    """Translates requests and answers. `members` and `rejoining` are None if the broker is in no cluster."""

    def __init__(
        self,
        members: Members | None,
        rejoining: Rejoining | None,
        error_reporter: ErrorReporter,
        waiting_for: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`waiting_for`: the members that a handover of message groups waits for here."""
        self._members = members
        self._rejoining = rejoining
        self._waiting_for = waiting_for
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_MembersServiceServicer_to_server(self, server)
        return NAME

    @answers
    def ListMembers(self, _request: members_pb.ListMembersRequest) -> members_pb.ListMembersResponse:
        return members_pb.ListMembersResponse(members=map(self._message, self._required().all()))

    @answers
    def DrainMember(self, request: members_pb.DrainMemberRequest) -> members_pb.Member:
        return self._in_state(request.name, MemberState.DRAINING)

    @answers
    def ActivateMember(self, request: members_pb.ActivateMemberRequest) -> members_pb.Member:
        return self._in_state(request.name, MemberState.ACTIVE)

    @answers
    def RemoveMember(self, request: members_pb.RemoveMemberRequest) -> members_pb.RemoveMemberResponse:
        self._required().remove(given("name", request.name))
        return members_pb.RemoveMemberResponse()

    async def Rejoin(self, request: members_pb.RejoinRequest, context: _Context) -> members_pb.RejoinResponse:
        return await answered(context, self._rejoin(request), self.error_reporter)

    async def _rejoin(self, request: members_pb.RejoinRequest) -> members_pb.RejoinResponse:
        self._required()
        assert self._rejoining is not None
        done = await self._rejoining.rejoin(
            given("name", request.name), dry_run=request.dry_run, delete_messages=request.delete_messages
        )
        return members_pb.RejoinResponse(
            taken=done.taken,
            removed=[_row_name(row, done.messages) for row in done.removed],
            told=[_row_name(row, {}) for row in done.told],
        )

    def _in_state(self, name: str, state: MemberState) -> members_pb.Member:
        members = self._required()
        members.set_state(given("name", name), state)
        return self._message(members.seen(name))

    def _required(self) -> Members:
        if self._members is None:
            raise NoCluster("this broker is not in a cluster: set cluster.members or cluster.dns")
        return self._members

    def _message(self, seen: SeenMember) -> members_pb.Member:
        member = seen.member
        return members_pb.Member(
            name=member.name,
            address=member.address or "",
            tls_address=member.tls_address or "",
            admin_address=member.admin_address,
            state=member.state.value,
            is_self=seen.is_self,
            is_reachable=seen.is_reachable,
            silent_ms=seen.silent_ms,
            version=member.version,
            is_waited_for=member.name in self._waiting_for(),
            problem=without_places(seen.problem),
        )


def _row_name(row: SharedRow, messages: Mapping[str, int]) -> members_pb.SharedRowName:
    count = messages.get(row.name, 0) if row.kind is SharedKind.TOPIC else 0
    return members_pb.SharedRowName(kind=row.kind, name=row.name, messages=count)


NAME_OF_ALL: Final = members_pb.DESCRIPTOR.services_by_name["AllMembersService"].full_name


class AllMembersService(AllMembersServiceServicer):
    """Translates requests and answers of several members at a time."""

    def __init__(self, calls: MemberCalls, error_reporter: ErrorReporter) -> None:
        self._calls = calls
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_AllMembersServiceServicer_to_server(self, server)
        return NAME_OF_ALL

    async def AskMembers(self, request: members_pb.AskMembersRequest, context: _Context) -> None:
        async def take(part: Part) -> None:
            await context.write(
                members_pb.MemberAnswer(
                    member=part.member,
                    is_self=part.is_self,
                    answer=part.answer,
                    code=part.code,
                    problem=part.problem,
                )
            )

        try:
            await self._calls.ask(request.members, relayed(request.method, request.request, context), take)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self.error_reporter)

    async def ListTopicFigures(
        self, request: overview_pb.ListTopicFiguresRequest, context: _Context
    ) -> members_pb.TopicFiguresOfMembers:
        return await self._answered(context, self._stats(context).topics(request))

    async def ListGroupFigures(
        self, request: overview_pb.ListGroupFiguresRequest, context: _Context
    ) -> members_pb.GroupFiguresOfMembers:
        return await self._answered(context, self._stats(context).groups(request))

    async def GetHistory(
        self, request: overview_pb.GetHistoryRequest, context: _Context
    ) -> members_pb.HistoryOfMembers:
        return await self._answered(context, self._stats(context).history(request))

    async def _answered(self, context: _Context, result: Awaitable[_Answer]) -> _Answer:
        """Return the result, or end the call as this member's own part of it ended."""
        try:
            return await result
        except CallEnded as failure:
            await context.abort(grpc.StatusCode[failure.code], str(failure))
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self.error_reporter)

    def _stats(self, context: _Context) -> StatsOfMembers:
        def ask(method: str, request: bytes) -> Awaitable[list[Part]]:
            return self._calls.parts(relayed(method, request, context))

        return StatsOfMembers(ask)


def relayed(method: str, request: bytes, context: _Context) -> RelayedCall:
    """Return a call for the user who makes the current one."""
    identity = caller_identity()
    user, how = ("", "") if identity is None else (identity.user, identity.how.value)
    return RelayedCall(method, request, user, how, caller_peer(context))
