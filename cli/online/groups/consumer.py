"""`quarry client show`, `stack` and `verify-message`, about one connected consumer, and `quarry lag`.

`quarry lag` shows the lag of a group of a live broker.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from quarry_mq.cli.online.connection.administration import official_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.groups.subscriptions import client_fields
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.text import say, time_text
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.remoting.codes import CONSUME_PASSIVELY

CALL_TIMEOUT_S: Final = 60.0

Id = Annotated[
    str, typer.Argument(metavar="ID", help="Client id, as `quarry client list` shows it.", show_default=False)
]
Group = Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="Group of the consumer.")]


def show(client_id: Id, *, group: Group, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show a consumer: where it runs, how it consumes, and what it is subscribed to."""
    named = definition.Resource(name=group)
    with official_port(admin) as broker:
        request = pb.GetConsumerRunningInfoRequest(group=named, client_id=client_id)
        info = broker.call("GetConsumerRunningInfo", request, timeout_s=CALL_TIMEOUT_S).consumer_running_info
        all_of_group = pb.DescribeSubscriptionRequest(group=named)
        described = broker.call("DescribeSubscription", all_of_group, timeout_s=CALL_TIMEOUT_S)
    rows = [each for each in described.client_subscription_info if each.client_info.client_id == client_id]
    fields: dict[str, object] = {"clientId": client_id, "group": group}
    if rows:  # none: it has gone between the two calls
        settings_ms = rows[0].subscription_info.last_update_timestamp.ToMilliseconds()
        fields |= client_fields(rows[0].client_info) | {"settingsAt": time_text(settings_ms)}
    fields |= {
        "isPushed": info.properties["PROP_CONSUME_TYPE"] == CONSUME_PASSIVELY,
        "isOrdered": info.properties["PROP_CONSUMEORDERLY"] == "true",
        "subscriptions": {topic: each.expression for topic, each in sorted(info.subscriptions.items())},
    }
    print_object(fields, as_json=as_json)


def stack(client_id: Id, *, group: Group, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Ask a consumer for the stack traces of its threads. Not every client supports it."""
    request = pb.PrintThreadStackTraceRequest(group=definition.Resource(name=group), client_id=client_id)
    with official_port(admin) as broker:
        answer = broker.call("PrintThreadStackTrace", request, timeout_s=CALL_TIMEOUT_S)
    if as_json:
        print_object({"clientId": client_id, "stack": answer.thread_stack_trace}, as_json=True)
    else:
        say(answer.thread_stack_trace)


def verify_message(
    client_id: Id,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="The message's id.", show_default=False)],
    *,
    group: Group,
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic of the message.")],
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Have a consumer consume a stored message once more, and show whether it could.

    The broker has to keep an index (index.tiered or index.hash_files). Exit status 1 when the consumer failed.
    Other consumers and the group's progress are not affected.
    """
    request = pb.VerifyMessageRequest(
        client_id=client_id,
        group=definition.Resource(name=group),
        topic=definition.Resource(name=topic),
        message_id=message_id,
    )
    failed = definition.FAILED_TO_CONSUME_MESSAGE
    with official_port(admin) as broker:
        answer = broker.call("VerifyMessage", request, timeout_s=CALL_TIMEOUT_S, accepted=(definition.OK, failed))
    is_consumed = answer.status.code == definition.OK
    fields = {"clientId": client_id, "messageId": message_id, "isConsumed": is_consumed}
    print_object(fields, as_json=as_json)
    raise typer.Exit(Exit.FINE if is_consumed else Exit.FINDING)


COLUMNS: Final = ("topic", "messages", "inFlight", "ready", "delaySeconds")
ALL: Final = "*"


def lag(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.", show_default=False)],
    *,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only in this topic.", show_default=False)
    ] = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the lag of a group in each topic that it reads, and in all of them (`*`).

    In flight are messages that were delivered and are not acknowledged, including those that wait for redelivery. Ready
    are messages that were never delivered, including those that the group's filter will skip. The delay is the age of
    the oldest ready message; `-` if it is not known.
    """
    topics = [] if topic is None else [definition.Resource(name=topic)]
    request = pb.DescribeGroupAccumulationRequest(group=definition.Resource(name=group), topics=topics)
    with official_port(admin) as broker:
        answer = broker.call("DescribeGroupAccumulation", request, timeout_s=CALL_TIMEOUT_S)
    rows = [_row(name, counted) for name, counted in sorted(answer.topic_accumulation.items())]
    if topic is None:
        rows.append(_row(ALL, answer.accumulation))
    print_rows(rows, COLUMNS, as_json=as_json, kind="topics")


def _row(topic: str, counted: Any) -> dict[str, object]:
    is_known = counted.HasField("deliver_delay_time")
    return {
        "topic": topic,
        "messages": counted.accumulation,
        "inFlight": counted.inflight_messages,
        "ready": counted.ready_messages,
        "delaySeconds": counted.deliver_delay_time.ToMilliseconds() / 1000 if is_known else None,
    }
