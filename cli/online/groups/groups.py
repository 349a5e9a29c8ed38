"""`quarry group` makes, changes, deletes and shows consumer groups, and resets their offsets."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.administration import admin_port, known
from quarry_mq.cli.online.connection.arguments import (
    ADMIN_DEFAULT,
    Admin,
    Attributes,
    DryRun,
    Json,
    Name,
    Prefix,
    pairs,
    with_options,
)
from quarry_mq.cli.online.connection.dry_runs import group_deletion
from quarry_mq.cli.online.maintenance.job_progress import Wait, run_job, unless_too_much
from quarry_mq.cli.terminal.confirmation import Yes, confirm
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.times import DATE, past_ms
from quarry_mq.protocol import lite_attributes
from quarry_mq.protocol.lite_attributes import LiteModel
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2

commands: Final = typer.Typer(no_args_is_help=True)

CALL_TIMEOUT_S: Final = 10.0
RESET_TIMEOUT_S: Final = 60.0
"""Seconds for a reset: thousands of queues are searched for a time in small steps."""
COLUMNS: Final = ("name", "fifo", "maxAttempts", "enabled")
RESET_COLUMNS: Final = ("queueId", "previousOffset", "newOffset")


class LiteModelName(Enum):
    SHARED = "shared"
    EXCLUSIVE = "exclusive"


Fifo = Annotated[
    bool | None,
    typer.Option(
        "--fifo/--no-fifo",
        help="Deliver each queue in order. Default for a new group: --no-fifo.",
        show_default=False,
    ),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        "--max-attempts",
        metavar="N",
        min=1,
        help="Deliveries of a message before it becomes a dead letter. Default for a new group: 17.",
        show_default=False,
    ),
]
Enabled = Annotated[
    bool | None,
    typer.Option(
        "--enable/--disable",
        help="Whether the group may receive anything at all. Default for a new group: --enable.",
        show_default=False,
    ),
]
RetryDelays = Annotated[
    str | None,
    typer.Option(
        "--retry-delays",
        metavar="SECONDS,SECONDS,…",
        help="Delay before each redelivery of a push consumer; the last one repeats. Default for a new group: 18 "
        "delays from 1 s to 2 h, as in RocketMQ.",
        show_default=False,
    ),
]
LiteTopic = Annotated[
    str | None,
    typer.Option(
        "--lite-parent",
        metavar="TOPIC",
        help="The topic whose lite topics the group reads; cannot be changed later. Attribute "
        f"`{lite_attributes.BIND_TOPIC}`.",
        show_default=False,
    ),
]
LiteModelOption = Annotated[
    LiteModelName | None,
    typer.Option(
        "--lite-model",
        metavar="shared|exclusive",
        help="Whether the subscribers of a lite topic share its messages, or only the last subscriber gets them. "
        f"Default: shared. Attribute `{lite_attributes.MODEL}`.",
        show_default=False,
    ),
]
LiteQuota = Annotated[
    int | None,
    typer.Option(
        "--lite-quota",
        metavar="N",
        min=lite_attributes.NO_LIMIT,
        max=lite_attributes.NUMBER_MAX,
        help="How many lite topics one client may subscribe to; -1: no limit. "
        f"Default: {lite_attributes.CLIENT_QUOTA_DEFAULT}. Attribute `{lite_attributes.CLIENT_QUOTA}`.",
        show_default=False,
    ),
]


@commands.command()
def create(
    name: Name,
    *,
    fifo: Fifo = None,
    max_attempts: MaxAttempts = None,
    enabled: Enabled = None,
    retry_delays: RetryDelays = None,
    lite_topic: LiteTopic = None,
    lite_model: LiteModelOption = None,
    lite_quota: LiteQuota = None,
    attribute: Attributes = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a consumer group."""
    request = pb.CreateGroupRequest(
        name=name,
        fifo=fifo,
        max_attempts=max_attempts,
        enabled=enabled,
        customized=_backoff(retry_delays),
        attributes=_attributes(attribute, lite_topic, lite_model, lite_quota),
    )
    with admin_port(admin) as broker:
        group = broker.CreateGroup(request, timeout=CALL_TIMEOUT_S)
    print_object(group_fields(group), as_json=as_json)


@commands.command()
def update(
    name: Name,
    *,
    fifo: Fifo = None,
    max_attempts: MaxAttempts = None,
    enabled: Enabled = None,
    retry_delays: RetryDelays = None,
    lite_topic: LiteTopic = None,
    lite_model: LiteModelOption = None,
    lite_quota: LiteQuota = None,
    attribute: Attributes = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Change the given options, and leave the rest of the group as it is."""
    request = pb.UpdateGroupRequest(
        name=name,
        fifo=fifo,
        max_attempts=max_attempts,
        enabled=enabled,
        customized=_backoff(retry_delays),
        attributes=_attributes(attribute, lite_topic, lite_model, lite_quota),
    )
    with admin_port(admin) as broker:
        group = broker.UpdateGroup(request, timeout=CALL_TIMEOUT_S)
    print_object(group_fields(group), as_json=as_json)


@commands.command()
def delete(
    name: Name, *, dry_run: DryRun = False, yes: Yes = False, admin: Admin = ADMIN_DEFAULT, as_json: Json = False
) -> None:
    """Delete a group and its progress in all topics."""
    if dry_run:
        print_object(group_deletion(admin, name), as_json=as_json)
        return
    confirm(f"delete the group {name}", yes=yes, told=lambda: group_deletion(admin, name))
    with admin_port(admin) as broker:
        broker.DeleteGroup(pb.DeleteGroupRequest(name=name), timeout=CALL_TIMEOUT_S)
    print_object({"deleted": name}, as_json=as_json)


@commands.command(name="list")
def list_groups(*, prefix: Prefix = "", admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List groups by name."""
    with admin_port(admin) as broker:
        answer = broker.ListGroups(pb.ListGroupsRequest(prefix=prefix))
        print_rows(
            (group_fields(group) for page in answer for group in page.groups), COLUMNS, as_json=as_json, kind="groups"
        )


@commands.command()
def show(name: Name, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show a group."""
    with admin_port(admin) as broker:
        group = broker.GetGroup(pb.GetGroupRequest(name=name), timeout=CALL_TIMEOUT_S)
    print_object(group_fields(group), as_json=as_json)


@commands.command(name="reset-offset")
def reset_offset(
    name: Name,
    *,
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="Topic in which to move the group.")],
    to: Annotated[str, typer.Option("--to", metavar="latest|earliest|OFFSET|TIME", help="Where to move the group.")],
    queue: Annotated[
        int | None,
        typer.Option("--queue", metavar="N", min=0, help="Only this queue. Default: all queues.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    wait: Wait = True,
    yes: Yes = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Move where a group reads next in a topic. An offset is clamped to what each queue holds.

    A time is a date like `2026-11-21T14:30:00+01:00`, local time if it names no zone, or an age such as `2h`: the group
    goes on at the first message that was stored then or later. With --dry-run the offsets are only shown.

    A group that reads lite topics of the topic is moved in all of them in which it has an offset. A job does that, as
    it does resets of more than 8,192 queues; then the job is shown instead of the queues.
    """
    request = reset_request(name, topic, to, queue=queue, dry_run=dry_run)
    of_queue = "" if queue is None else f", queue {queue},"
    confirm(f"move the group {name} in {topic}{of_queue} to {to}", yes=yes or dry_run)
    answer = None
    if wait:
        with admin_port(admin) as broker:
            answer = unless_too_much(lambda: broker.ResetOffset(request, timeout=RESET_TIMEOUT_S))
    if answer is None:
        run_job(admin, _reset_job(request), wait=wait, as_json=as_json)
    rows = [
        {
            "queueId": reset.queue,
            "previousOffset": known(reset, "previous_offset"),
            "newOffset": reset.new_offset,
        }
        for reset in answer.queues
    ]
    print_rows(rows, RESET_COLUMNS, as_json=as_json, kind="queues")


def reset_request(
    group: str, topic: str, to: str, *, queue: int | None = None, dry_run: bool = False
) -> pb.ResetOffsetRequest:
    """Return the request of a reset. Raises typer.BadParameter for an invalid position."""
    request = pb.ResetOffsetRequest(group=group, topic=topic, queue=queue, dry_run=dry_run)
    if to == "earliest":
        request.earliest.SetInParent()
    elif to == "latest":
        request.latest.SetInParent()
    elif to.isdecimal():
        request.offset = int(to)
    else:
        time_ms = past_ms(to)
        if time_ms is None:
            reason = f"{to!r} is neither latest, earliest, an offset, a date like {DATE}, nor an age such as 2h"
            raise typer.BadParameter(reason, param_hint="--to")
        request.stored_since_ms = time_ms
    return request


def _reset_job(request: pb.ResetOffsetRequest) -> jobs_pb2.BeginJobRequest:
    job = jobs_pb2.BeginJobRequest(dry_run=request.dry_run)
    for field, value in request.ListFields():
        if field.name == "dry_run":
            continue
        if field.message_type is None:
            setattr(job.reset_offset, field.name, value)
        else:
            getattr(job.reset_offset, field.name).CopyFrom(value)
    return job


def group_fields(group: pb.Group) -> dict[str, object]:
    if group.WhichOneof("backoff") == "exponential":
        backoff: dict[str, object] = {
            "initialMs": group.exponential.initial_ms,
            "maximumMs": group.exponential.maximum_ms,
            "multiplier": group.exponential.multiplier,
        }
    else:
        backoff = {"delaysMs": list(group.customized.delays_ms)}
    return {
        "name": group.name,
        "fifo": group.fifo,
        "maxAttempts": group.max_attempts,
        "enabled": group.enabled,
        "backoff": backoff,
        "attributes": dict(group.attributes),
    }


def _attributes(
    texts: list[str] | None, topic: str | None, model: LiteModelName | None, quota: int | None
) -> dict[str, str]:
    options = {
        lite_attributes.BIND_TOPIC: ("--lite-parent", topic),
        lite_attributes.MODEL: ("--lite-model", None if model is None else LiteModel[model.name].value),
        lite_attributes.CLIENT_QUOTA: ("--lite-quota", quota),
    }
    return with_options(pairs(texts, "--attribute"), options)


def _backoff(seconds: str | None) -> pb.CustomizedBackoff | None:
    """Parse a list of delays in whole seconds: some clients ignore fractions."""
    if seconds is None:
        return None
    texts = [text.strip() for text in seconds.split(",")]
    if not all(text.isdecimal() for text in texts):
        raise typer.BadParameter(f"{seconds!r} is not a list of whole seconds", param_hint="--retry-delays")
    return pb.CustomizedBackoff(delays_ms=[int(text) * 1000 for text in texts])
