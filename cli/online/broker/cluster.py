"""`quarry cluster` shows and changes the members of a live broker's cluster."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.terminal.confirmation import Yes, confirm
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.protocol.proto.quarry.admin.v1 import members_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.members_pb2_grpc import MembersServiceStub

CALL_TIMEOUT_S: Final = 30.0
COLUMNS: Final = (
    "name",
    "state",
    "reachable",
    "silent_s",
    "waited_for",
    "address",
    "admin_address",
    "version",
    "problem",
)
REJOIN_TIMEOUT_S: Final = 600.0
_ROWS: Final = ("name", "what", "kind", "count")

commands: Final = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the member.", show_default=False)]


@commands.command()
def members(admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the members of the cluster as the broker sees them."""
    with service_port(admin, MembersServiceStub) as broker:
        found = broker.ListMembers(pb.ListMembersRequest(), timeout=CALL_TIMEOUT_S).members
        print_rows(map(_fields, found), COLUMNS, as_json=as_json, kind="members")


@commands.command()
def drain(name: Name, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Drain a member: it takes no new messages, and consumers read those that it has."""
    with service_port(admin, MembersServiceStub) as broker:
        request = pb.DrainMemberRequest(name=name)
        print_object(_fields(broker.DrainMember(request, timeout=CALL_TIMEOUT_S)), as_json=as_json)


@commands.command()
def activate(name: Name, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Let a drained member take messages again."""
    with service_port(admin, MembersServiceStub) as broker:
        request = pb.ActivateMemberRequest(name=name)
        print_object(_fields(broker.ActivateMember(request, timeout=CALL_TIMEOUT_S)), as_json=as_json)


@commands.command()
def remove(name: Name, *, yes: Yes = False, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Remove a member that is gone for good. A member that can be reached is refused."""
    confirm(f"remove the member {name}", yes=yes)
    with service_port(admin, MembersServiceStub) as broker:
        broker.RemoveMember(pb.RemoveMemberRequest(name=name), timeout=CALL_TIMEOUT_S)
        print_object({"removed": name}, as_json=as_json)


@commands.command()
def rejoin(
    name: Name,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be copied, removed and sent.")
    ] = False,
    delete_messages: Annotated[
        bool,
        typer.Option(
            "--delete-messages",
            help="Also delete topics that were deleted on other members and still have messages here.",
        ),
    ] = False,
    yes: Yes = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Let a broker that was away for too long copy the replicated metadata from another member again."""
    confirm(f"replace the replicated metadata by that of {name}", yes=yes or dry_run)
    with service_port(admin, MembersServiceStub) as broker:
        request = pb.RejoinRequest(name=name, dry_run=dry_run, delete_messages=delete_messages)
        done = broker.Rejoin(request, timeout=REJOIN_TIMEOUT_S)
        rows = [_row("removed", row) for row in done.removed] + [_row("told", row) for row in done.told]
        print_rows([*rows, {"what": "taken", "kind": None, "name": name, "count": done.taken}], _ROWS, as_json=as_json)


def _row(what: str, row: pb.SharedRowName) -> dict[str, object]:
    return {"what": what, "kind": row.kind, "name": row.name, "count": row.messages}


def _fields(member: pb.Member) -> dict[str, object]:
    return {
        "name": member.name,
        "state": member.state,
        "self": member.is_self,
        "reachable": member.is_reachable,
        "silent_s": round(member.silent_ms / 1000, 1) if member.HasField("silent_ms") else None,
        "waited_for": member.is_waited_for,
        "problem": member.problem or None,
        "address": member.address or None,
        "tls_address": member.tls_address or None,
        "admin_address": member.admin_address,
        "version": member.version,
    }
