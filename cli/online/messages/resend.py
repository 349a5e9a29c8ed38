"""`quarry message resend` sends stored messages once more."""

from __future__ import annotations

from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Topic
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.maintenance.job_progress import Wait, run_job
from quarry_mq.cli.terminal.times import Since, Until, option_ms
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2 as pb


def resend(
    *,
    topic: Topic,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Only messages with this key or id.", show_default=False),
    ] = None,
    queue: Annotated[
        int | None, typer.Option("--queue", metavar="N", min=0, help="Only messages of this queue.", show_default=False)
    ] = None,
    from_offset: Annotated[
        int | None,
        typer.Option(
            "--from-offset", metavar="OFFSET", min=0, help="First offset of the queue to send.", show_default=False
        ),
    ] = None,
    to_offset: Annotated[
        int | None,
        typer.Option(
            "--to-offset", metavar="OFFSET", min=0, help="End offset of the queue, not included.", show_default=False
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    to_topic: Annotated[
        str | None,
        typer.Option(
            "--to-topic",
            metavar="TOPIC",
            help="Topic to send to. Default: the messages' own topic.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")] = False,
    wait: Wait = True,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Send stored messages once more, as new messages with the same body, tag, keys and properties.

    Messages are chosen by a key, which needs an index (index.tiered or index.hash_files), by a queue or a part of it,
    or by a time, which also narrows the other choices. Only messages stored before the command are sent, those of each
    queue in order. The properties `QUARRY_RESENT_FROM` (topic, queue, offset) and `QUARRY_RESENT_ID` say where each
    came from. The topic must accept their type. Delays and transactions are left out, and so are light queues other
    than that of a lite topic.

    A job does it. Each message is sent at least once: if the broker stops meanwhile, it may send some twice, with the
    same id. Exit status 1 when some could not be sent.
    """
    asked = pb.MessagesResend(
        topic=topic,
        to_topic=to_topic or "",
        key=key or "",
        queue=queue,
        from_offset=from_offset,
        to_offset=to_offset,
        from_ms=option_ms(since, "--since"),
        to_ms=option_ms(until, "--until"),
    )
    run_job(admin, pb.BeginJobRequest(dry_run=dry_run, resend_messages=asked), wait=wait, as_json=as_json)
