"""`quarry lag` shows the lag of a group of a live broker."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.connection.official import official_port
from quarry_mq.cli.terminal.output import print_rows
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

CALL_TIMEOUT_S: Final = 60.0
COLUMNS: Final = ("topic", "messages", "inFlight", "ready", "delaySeconds")
ALL: Final = "*"


def lag(
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
    *,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Only in this topic.", show_default=False)
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
    print_rows(rows, COLUMNS, as_json=as_json)


def _row(topic: str, counted: Any) -> dict[str, object]:
    is_known = counted.HasField("deliver_delay_time")
    return {
        "topic": topic,
        "messages": counted.accumulation,
        "inFlight": counted.inflight_messages,
        "ready": counted.ready_messages,
        "delaySeconds": counted.deliver_delay_time.ToMilliseconds() / 1000 if is_known else None,
    }
