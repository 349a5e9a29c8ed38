"""`quarry.admin.v1.MembersService`: who is one cluster with this broker, on the admin port."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import grpc.aio

from server._generated.quarry.admin.v1 import members_pb2 as pb
from server._generated.quarry.admin.v1.members_pb2_grpc import (
    MembersServiceServicer,
    add_MembersServiceServicer_to_server,
)
from server.cluster.member import MemberState
from server.cluster.members import Members, SeenMember
from server.errors import NoCluster
from server.faults import FaultLog
from server.rpc.admin_port.edge import answers

NAME: Final = pb.DESCRIPTOR.services_by_name["MembersService"].full_name


class MembersService(MembersServiceServicer):
    """Calls and translates. `members` is None where the broker is in no cluster."""

    def __init__(
        self, members: Members | None, faults: FaultLog, waiting_for: Callable[[], Collection[str]] = tuple
    ) -> None:
        """`waiting_for`: the members that a handover of message groups waits for here."""
        self._members = members
        self._waiting_for = waiting_for
        self.faults = faults

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve it, too; returns its full name."""
        add_MembersServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
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
        self._required().remove(request.name)
        return pb.RemoveMemberResponse()

    def _in_state(self, name: str, state: MemberState) -> pb.Member:
        members = self._required()
        members.set_state(name, state)
        return self._message(members.seen(name))

    def _required(self) -> Members:
        if self._members is None:
            raise NoCluster("this broker is in no cluster: set cluster.members or cluster.dns")
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
