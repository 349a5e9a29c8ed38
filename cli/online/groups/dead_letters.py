"""`quarry dead-letters` lists the messages that a group was given as often as it allows, and sends them again."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.maintenance.job_progress import Wait, run_job, unless_too_much
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.text import say, time_text, word
from quarry_mq.protocol.proto.quarry.admin.v1 import dead_letters_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.dead_letters_pb2_grpc import DeadLetterServiceStub

CALL_TIMEOUT_S: Final = 60.0
COLUMNS: Final = ("offset", "storedAt", "attempts", "resent", "topic", "messageId", "tag")

commands: Final = typer.Typer(no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.", show_default=False)]


@commands.command(name="list")
def list_letters(
    name: Group,
    *,
    start: Annotated[
        int | None,
        typer.Option(
            "--from-offset",
            metavar="OFFSET",
            min=0,
            help="First offset to show. Default: only dead letters that were never sent again.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="Maximum number of rows.")
    ] = 100,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """List the dead letters of a group, oldest first.

    Damaged records are left out, with a note on standard error that has the command with which they are given up. Exit
    code 1 when there are some.
    """
    with service_port(admin, DeadLetterServiceStub) as broker:
        request = pb.ListDeadLettersRequest(group=name, from_offset=start, count=limit)
        found = broker.ListDeadLetters(request, timeout=CALL_TIMEOUT_S)
    print_rows(map(_fields, found.dead_letters), COLUMNS, as_json=as_json, kind="dead letters")
    for each in found.damaged:
        say(f"offset {each.offset} is left out: {word(each.reason, err=True)}", err=True)
        say(f"to give it up, stop the broker: {word(each.command, err=True)}", err=True)
    raise typer.Exit(Exit.FINDING if found.damaged else Exit.FINE)


@commands.command()
def resend(
    name: Group,
    *,
    offset: Annotated[
        list[int] | None,
        typer.Option(
            "--offset",
            metavar="OFFSET",
            min=0,
            help="Offset of a dead letter, even if it was sent again before. Repeatable. Default: all that were never "
            "sent again.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how many would be sent.")] = False,
    wait: Wait = True,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Send dead letters to their group once more.

    No other group gets them. They are delivered with their original topic and a new count of attempts, and remain in
    the list of dead letters. Exit status 1 when some could not be sent, because their topic does not exist or is
    not known, or because their records are damaged. They still count as never sent again, and the next call tries them
    again.

    More than 1,000 are sent by a job, which is then shown.
    """
    request = pb.ResendDeadLettersRequest(group=name, offsets=offset or [], dry_run=dry_run)
    found = None
    if wait:
        with service_port(admin, DeadLetterServiceStub) as broker:
            found = unless_too_much(lambda: broker.ResendDeadLetters(request, timeout=CALL_TIMEOUT_S))
    if found is None:
        letters = jobs_pb2.DeadLettersResend(group=name, offsets=offset or [])
        job = jobs_pb2.BeginJobRequest(dry_run=dry_run, resend_dead_letters=letters)
        run_job(admin, job, wait=wait, as_json=as_json)
    refused = [{"offset": each.offset, "reason": each.reason} for each in found.refused]
    if as_json:
        print_object({"resent": found.resent, "refused": refused}, as_json=True)
    else:
        print_object({"would be sent" if dry_run else "sent": found.resent}, as_json=False)
        for each in refused:
            say(f"offset {each['offset']}: {word(str(each['reason']), err=True)}", err=True)
    raise typer.Exit(Exit.FINDING if refused else Exit.FINE)


def _fields(letter: pb.DeadLetter) -> dict[str, object]:
    return {
        "offset": letter.offset,
        "storedAt": time_text(letter.stored_at_ms),
        "attempts": letter.attempts,
        "resent": letter.was_resent,
        "topic": letter.topic or None,
        "messageId": letter.message_id,
        "tag": letter.tag or None,
        "keys": list(letter.keys),
    }
