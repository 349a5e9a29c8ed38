"""Serve `quarry.admin.v1.MembersService` on the admin port: the members of this broker's cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import members_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.members_pb2_grpc import (
    MembersServiceServicer,
    add_MembersServiceServicer_to_server,
)
from quarry_mq.server.admin_port.calls.edge import answered, answers, given
from quarry_mq.server.cluster.membership.member import MemberState
from quarry_mq.server.cluster.membership.members import Members, SeenMember
from quarry_mq.server.cluster.replication.rejoin import Rejoining
from quarry_mq.server.error_reporter import ErrorReporter
from quarry_mq.server.errors import NoCluster
from quarry_mq.store.replication import SharedKind, SharedRow

NAME: Final = pb.DESCRIPTOR.services_by_name["MembersService"].full_name


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
    def ListMembers(self, _request: pb.ListMembersRequest) -> pb.ListMembersResponse:
        return pb.ListMembersResponse(members=map(self._message, self._required().all()))

    @answers
    def DrainMember(self, request: pb.DrainMemberRequest) -> pb.Member:
        return self._in_state(request.name, MemberState.DRAINING)

    @answers
    def ActivateMember(self, request: pb.ActivateMemberRequest) -> pb.Member:
        return self._in_state(request.name, MemberState.ACTIVE)

    @answers
    def RemoveMember(self, request: pb.RemoveMemberRequest) -> pb.RemoveMemberResponse:
        self._required().remove(given("name", request.name))
        return pb.RemoveMemberResponse()

    async def Rejoin(self, request: pb.RejoinRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.RejoinResponse:
        return await answered(context, self._rejoin(request), self.error_reporter)

    async def _rejoin(self, request: pb.RejoinRequest) -> pb.RejoinResponse:
        self._required()
        assert self._rejoining is not None
        done = await self._rejoining.rejoin(
            given("name", request.name), dry_run=request.dry_run, delete_messages=request.delete_messages
        )
        return pb.RejoinResponse(
            taken=done.taken,
            removed=[_row_name(row, done.messages) for row in done.removed],
            told=[_row_name(row, {}) for row in done.told],
        )

    def _in_state(self, name: str, state: MemberState) -> pb.Member:
        members = self._required()
        members.set_state(given("name", name), state)
        return self._message(members.seen(name))

    def _required(self) -> Members:
        if self._members is None:
            raise NoCluster("this broker is not in a cluster: set cluster.members or cluster.dns")
        return self._members

    def _message(self, seen: SeenMember) -> pb.Member:
        member = seen.member
        return pb.Member(
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
        )


def _row_name(row: SharedRow, messages: Mapping[str, int]) -> pb.SharedRowName:
    count = messages.get(row.name, 0) if row.kind is SharedKind.TOPIC else 0
    return pb.SharedRowName(kind=row.kind, name=row.name, messages=count)
