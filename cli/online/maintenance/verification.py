"""`quarry verification` runs the checks of `quarry verify` on a store while its broker runs."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Annotated, Final

import grpc
import typer

from quarry_mq.cli.online.connection.administration import known, known_time, service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.maintenance.migration import who
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.text import say, word
from quarry_mq.protocol.proto.quarry.admin.v1 import verification_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.verification_pb2_grpc import VerificationServiceStub

CALL_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.5
COLUMNS: Final = ("id", "state", "percent", "by", "ended")
CHECK_COLUMNS: Final = ("check", "checked", "differences")
RUNNING: Final = "running"

commands: Final = typer.Typer(no_args_is_help=True)

Id = Annotated[
    int | None,
    typer.Argument(metavar="[ID]", help="Number of the verification. Default: the newest that was begun."),
]


@commands.command()
def begin(
    *,
    busy: Annotated[
        int,
        typer.Option(
            "--busy",
            metavar="PERCENT",
            min=1,
            max=100,
            help="Percent of one processor core that the verification may use.",
        ),
    ] = 25,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the verdict.")] = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Begin a verification; with --wait show its verdict.

    It goes on in the broker when the command ends. With --wait the command ends with status 1 when something differs.
    """
    with _port(admin) as broker:
        request = pb.BeginVerificationRequest(asked_by=who(), busy_percent=busy)
        found = broker.BeginVerification(request, timeout=CALL_TIMEOUT_S)
        while wait and found.state == RUNNING:
            time.sleep(POLL_S)
            found = broker.GetVerification(pb.GetVerificationRequest(id=found.id), timeout=CALL_TIMEOUT_S)
    _show(found, as_json=as_json)
    _end_as(found)


@commands.command()
def status(verification_id: Id = None, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show the progress or the result of a verification. Exit status 1 when something differs."""
    with _port(admin) as broker:
        found = broker.GetVerification(pb.GetVerificationRequest(id=verification_id), timeout=CALL_TIMEOUT_S)
    _show(found, as_json=as_json)
    _end_as(found)


@commands.command(name="list")
def list_(*, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the verifications that are kept, and the sweeps of the broker over its log, the newest first."""
    with _port(admin) as broker:
        answer = broker.ListVerifications(pb.ListVerificationsRequest(), timeout=CALL_TIMEOUT_S)
    print_rows(map(_head, answer.verifications), COLUMNS, as_json=as_json, kind="verifications")


@commands.command()
def cancel(verification_id: Id = None, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Cancel a verification that is under way."""
    with _port(admin) as broker:
        found = broker.GetVerification(pb.GetVerificationRequest(id=verification_id), timeout=CALL_TIMEOUT_S)
        broker.CancelVerification(pb.CancelVerificationRequest(id=found.id), timeout=CALL_TIMEOUT_S)
        while found.state == RUNNING:
            found = broker.GetVerification(pb.GetVerificationRequest(id=found.id), timeout=CALL_TIMEOUT_S)
            time.sleep(POLL_S / 5)
    print_object(_head(found), as_json=as_json)


def _port(address: str) -> AbstractContextManager[VerificationServiceStub]:
    return service_port(address, VerificationServiceStub, plain=(grpc.StatusCode.UNAVAILABLE,))


def _head(found: pb.Verification) -> dict[str, object]:
    return {
        "id": found.id,
        "state": found.state,
        "percent": _percent(found),
        "by": found.asked_by,
        "ended": known_time(found, "ended_at_ms"),
        "remark": known(found, "remark"),
    }


def _percent(found: pb.Verification) -> float | None:
    """Return how much of its present phase a verification has done; None unless it is under way."""
    progress = known(found, "progress")
    return None if progress is None or not progress.total else round(100 * progress.done / progress.total, 1)


def _show(found: pb.Verification, *, as_json: bool) -> None:
    progress = known(found, "progress")
    fields = {
        **_head(found),
        "progress": None
        if progress is None
        else {"phase": progress.phase, "done": progress.done, "total": progress.total},
        "logBegin": found.log_begin,
        "logEnd": found.log_end,
    }
    checks = [{"check": each.name, "checked": each.checked, "differences": each.differences} for each in found.checks]
    first = [{"check": each.check, "text": each.text} for each in found.first]
    if as_json:
        print_object({**fields, "checks": checks, "notes": dict(found.notes), "first": first}, as_json=True)
        return
    for each in first:
        say(f"{each['check']}: {word(str(each['text']))}")
    print_object({name: value for name, value in fields.items() if value is not None}, as_json=False)
    if checks:
        say()
        print_rows(checks, CHECK_COLUMNS, as_json=False)


def _end_as(found: pb.Verification) -> None:
    codes = {"differ": Exit.FINDING, "failed": Exit.COULD_NOT_RUN, "cancelled": Exit.COULD_NOT_RUN}
    raise typer.Exit(codes.get(found.state, Exit.FINE))
