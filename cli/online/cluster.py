"""`quarry cluster`: who is one cluster with a live broker."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from cli.online.administration import service_port
from cli.online.arguments import ADMIN_DEFAULT, Admin, Json
from cli.online.output import print_object, print_rows
from server._generated.quarry.admin.v1 import members_pb2 as pb
from server._generated.quarry.admin.v1.members_pb2_grpc import MembersServiceStub

CALL_TIMEOUT_S: Final = 30.0
COLUMNS: Final = ("name", "state", "reachable", "silent_s", "waited_for", "address", "admin_address", "version")

commands: Final = typer.Typer(name="cluster", help="Brokers that are one cluster.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@commands.command()
def members(admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the members of the cluster as the broker sees them."""
    with service_port(admin, MembersServiceStub) as broker:
        found = broker.ListMembers(pb.ListMembersRequest(), timeout=CALL_TIMEOUT_S).members
        print_rows(map(_fields, found), COLUMNS, as_json=as_json)


@commands.command()
def drain(name: Name, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Let a member take no new messages; consumers read it to its end."""
    with service_port(admin, MembersServiceStub) as broker:
        request = pb.DrainMemberRequest(name=name)
        print_object(_fields(broker.DrainMember(request, timeout=CALL_TIMEOUT_S)), as_json=as_json)


@commands.command()
def activate(name: Name, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Let a member that was drained take messages again."""
    with service_port(admin, MembersServiceStub) as broker:
        request = pb.ActivateMemberRequest(name=name)
        print_object(_fields(broker.ActivateMember(request, timeout=CALL_TIMEOUT_S)), as_json=as_json)


@commands.command()
def remove(name: Name, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Forget a member that is gone for good. One that can be reached is refused."""
    with service_port(admin, MembersServiceStub) as broker:
        broker.RemoveMember(pb.RemoveMemberRequest(name=name), timeout=CALL_TIMEOUT_S)
        print_object({"removed": name}, as_json=as_json)


def _fields(member: pb.Member) -> dict[str, object]:
    return {
        "name": member.name,
        "state": member.state,
        "self": member.is_self,
        "reachable": member.is_reachable,
        "silent_s": round(member.silent_ms / 1000, 1) if member.HasField("silent_ms") else None,
        "waited_for": member.is_waited_for,
        "address": member.address or None,
        "tls_address": member.tls_address or None,
        "admin_address": member.admin_address,
        "version": member.version,
    }
