"""`quarry migration` moves a live broker's consume queues step by step from files to RocksDB, and back."""

from __future__ import annotations

import getpass
import socket
import time
from contextlib import AbstractContextManager
from typing import Annotated, Final, cast

import grpc
import typer

from quarry_mq.cli.online.connection.administration import known, service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.text import say, time_text
from quarry_mq.protocol.proto.quarry.admin.v1 import migration_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.migration_pb2_grpc import MigrationServiceStub

CALL_TIMEOUT_S: Final = 300.0
"""Seconds for a call: a step flushes the queues, and may wait for that."""
POLL_S: Final = 0.5
REFUSALS: Final = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE)
STEP_COLUMNS: Final = ("at", "from", "to", "by")
DIFFERENCE_COLUMNS: Final = ("queue", "kind", "offset", "text")

commands: Final = typer.Typer(no_args_is_help=True)


@commands.command()
def status(*, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show the state of the migration: its phase, the next step, the result of the last comparison, and all steps."""
    with migration_port(admin) as broker:
        found = broker.GetMigration(pb.GetMigrationRequest(), timeout=CALL_TIMEOUT_S)
    fields = _fields(found)
    steps = [_step(each) for each in found.steps]
    differences = [_difference(each) for each in (*found.at_start.first, *found.report.first)]
    if as_json:
        print_object({**fields, "steps": steps, "differences": differences}, as_json=True)
        return
    print_object({name: value for name, value in fields.items() if value is not None}, as_json=False)
    for rows, columns in ((differences, DIFFERENCE_COLUMNS), (steps, STEP_COLUMNS)):
        if rows:
            say()
            print_rows(rows, columns, as_json=False)


@commands.command()
def advance(
    *,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait", help="Wait for the work before the step, and for the comparison that it starts."
        ),
    ] = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Take the next step. If the queues have to be compared first, begin that, and take the step when they agree.

    Exit status 1 when the comparison has found differences.
    """
    with migration_port(admin) as broker:
        before = _status(broker)
        while True:
            try:
                answer = broker.AdvanceMigration(pb.AdvanceMigrationRequest(asked_by=who()), timeout=CALL_TIMEOUT_S)
                break
            except grpc.RpcError as error:
                if not wait or cast("grpc.Call", error).code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                _status(broker)  # ends the command where it is the broker that is not there
            time.sleep(POLL_S)
        phase = known(answer, "phase")
        while wait and phase is None:
            time.sleep(POLL_S)
            now = _status(broker)
            if now.phase != before.phase:
                phase = now.phase
            elif not now.HasField("comparing") and now.report != before.report and now.report.differences:
                print_object({"phase": now.phase, "differences": dict(now.report.differences)}, as_json=as_json)
                raise typer.Exit(Exit.FINDING)
            elif now.HasField("problem"):
                end(Exit.COULD_NOT_RUN, now.problem)
    print_object({"phase": phase or before.phase, "comparing": phase is None}, as_json=as_json)


@commands.command()
def rollback(*, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Take one step back. In phase `rocksdb` there is no step back while the broker runs."""
    with migration_port(admin) as broker:
        answer = broker.RollBackMigration(pb.RollBackMigrationRequest(asked_by=who()), timeout=CALL_TIMEOUT_S)
    print_object({"phase": answer.phase}, as_json=as_json)


def migration_port(address: str) -> AbstractContextManager[MigrationServiceStub]:
    """Give the migration service at `host:port`. The broker's reason for refusing a step is shown alone."""
    return service_port(address, MigrationServiceStub, plain=REFUSALS)


def _status(broker: MigrationServiceStub) -> pb.Migration:
    found: pb.Migration = broker.GetMigration(pb.GetMigrationRequest(), timeout=CALL_TIMEOUT_S)
    return found


def who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()


def _fields(found: pb.Migration) -> dict[str, object]:
    fields: dict[str, object] = {
        "phase": found.phase,
        "read": found.read,
        "assign": found.assign,
        "next": known(found, "advance_to"),
        "nextRefused": known(found, "advance_refused"),
        "comparedFirst": known(found, "comparison_first"),
        "back": known(found, "rollback_to"),
        "backRefused": known(found, "rollback_refused"),
        "backfill": None,
        "lagBytes": found.lag_bytes,
        "comparing": None,
        "report": None,
        "removing": found.removing,
        "problem": known(found, "problem"),
        "startDifferences": dict(found.at_start.differences) if found.HasField("at_start") else None,
    }
    if found.HasField("backfill"):
        backfill = found.backfill
        total, done = backfill.end - backfill.log_begin, max(0, backfill.done - backfill.log_begin)
        fields["backfill"] = {
            "doneBytes": min(done, max(0, total)),
            "totalBytes": max(0, total),
            "percent": 100 if total <= 0 else min(100, 100 * done // total),
        }
    if found.HasField("comparing"):
        fields["comparing"] = {"queues": found.comparing.queues, "units": found.comparing.units}
    if found.HasField("report"):
        report = found.report
        fields["report"] = {
            "at": time_text(report.ended_at_ms),
            "by": report.asked_by,
            "queues": report.queues,
            "units": report.units,
            "differences": dict(report.differences),
            "doubt": known(report, "doubt"),
        }
    return fields


def _step(step: pb.MigrationStep) -> dict[str, object]:
    return {"at": time_text(step.at_ms), "from": getattr(step, "from"), "to": step.to, "by": step.asked_by}


def _difference(difference: pb.QueueDifference) -> dict[str, object]:
    return {
        "queue": f"{difference.topic}/{difference.queue}",
        "kind": difference.kind,
        "offset": known(difference, "queue_offset"),
        "text": difference.text,
    }
