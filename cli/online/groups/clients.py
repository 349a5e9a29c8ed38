"""`quarry client` shows the clients that are connected to a live broker."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.connection.members import AllMembers, asked
from quarry_mq.cli.terminal.output import print_rows
from quarry_mq.cli.terminal.text import time_text
from quarry_mq.protocol.proto.quarry.admin.v1 import clients_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.clients_pb2_grpc import ClientServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.members_pb2_grpc import AllMembersServiceStub

commands: Final = typer.Typer(no_args_is_help=True)

CALL_TIMEOUT_S: Final = 60.0
COLUMNS: Final = ("clientId", "kind", "group", "language", "version", "address", "topics")


class TypeName(Enum):
    PRODUCER = "producer"
    CONSUMER = "consumer"


_TYPES: Final = {
    None: pb.CLIENT_TYPE_UNSPECIFIED,
    TypeName.PRODUCER: pb.CLIENT_TYPE_PRODUCER,
    TypeName.CONSUMER: pb.CLIENT_TYPE_CONSUMER,
}


@commands.callback()
def client() -> None:
    """Clients of a live broker."""


@commands.command(name="list")
def list_clients(
    *,
    kind: Annotated[
        TypeName | None,
        typer.Option("--type", metavar="producer|consumer", help="Only clients of this type.", show_default=False),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="GROUP", help="Only consumers of this group.", show_default=False),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Only clients that publish to this topic or subscribe to it.",
            show_default=False,
        ),
    ] = None,
    all_members: AllMembers = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """List the producers and consumers that are connected.

    With --all a client that is connected to several members has one line, with their names.
    """
    request = pb.ListClientsRequest(type=_TYPES[kind], group=group or "", topic=topic or "")
    if all_members:
        with service_port(admin, AllMembersServiceStub) as broker:
            pages = asked(broker, "ClientService/ListClients", request, pb.ListClientsResponse, CALL_TIMEOUT_S)
            print_rows(_of_members(pages), (*COLUMNS, "members"), as_json=as_json, kind="clients")
        return
    with service_port(admin, ClientServiceStub) as broker:
        pages = broker.ListClients(request, timeout=CALL_TIMEOUT_S)
        rows = (_fields(each) for page in pages for each in page.clients)
        print_rows(rows, COLUMNS, as_json=as_json, kind="clients")


def _of_members(pages: Iterable[tuple[str, pb.ListClientsResponse]]) -> Iterable[dict[str, object]]:
    """Return the fields of each client once, with the members that it is connected to."""
    found: dict[str, dict[str, object]] = {}
    members: dict[str, list[str]] = {}
    for member, page in pages:
        for each in page.clients:
            found.setdefault(each.client_id, _fields(each))
            members.setdefault(each.client_id, []).append(member)
    return [{**fields, "members": sorted(members[name])} for name, fields in found.items()]


def _fields(each: pb.Client) -> dict[str, object]:
    return {
        "clientId": each.client_id,
        "kind": each.kind,
        "group": each.group or None,
        "topics": list(each.topics),
        "language": each.language,
        "version": each.version,
        "hostname": each.hostname,
        "address": each.address,
        "isLite": each.kind.startswith("lite "),
        "settingsAt": time_text(each.settings_at_ms),
    }
