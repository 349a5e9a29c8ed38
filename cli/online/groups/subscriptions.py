"""Commands that show who reads what: a group's consumers, subscriptions and times, and a topic's readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import typer

from quarry_mq.cli.online.connection.administration import official_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, DryRun, Json, Name
from quarry_mq.cli.online.connection.dry_runs import group_deletion
from quarry_mq.cli.terminal.confirmation import Yes, confirm
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.text import time_text
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

CALL_TIMEOUT_S: Final = 60.0
CONSUMER_COLUMNS: Final = ("clientId", "language", "version", "hostname", "address")
SUBSCRIPTION_COLUMNS: Final = ("topic", "isOnline", "isConsistent", "expression", "settingsAt")
READER_COLUMNS: Final = ("group", *SUBSCRIPTION_COLUMNS[1:])
TIME_COLUMNS: Final = ("topic", "queueId", "firstStoredAt", "lastStoredAt", "readUpTo", "delaySeconds")

OnlyTopic = Annotated[
    str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only in this topic.", show_default=False)
]


def consumers(name: Name, *, topic: OnlyTopic = None, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the consumers of a group that are connected."""
    request = pb.ListConsumerConnectionRequest(group=definition.Resource(name=name), topic=resource(topic))
    with official_port(admin) as broker:
        answer = broker.call("ListConsumerConnection", request, timeout_s=CALL_TIMEOUT_S)
    print_rows(map(client_fields, answer.client_info), CONSUMER_COLUMNS, as_json=as_json, kind="connected consumers")


def subscriptions(name: Name, *, topic: OnlyTopic = None, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the topics that a group reads or has read, and the filters of its consumers.

    A subscription is consistent if all connected consumers have the same filter. If none is connected, expression and
    time are not known.
    """
    request = pb.ListSubscriptionRequest(group=definition.Resource(name=name), topic=resource(topic))
    with official_port(admin) as broker:
        answer = broker.call("ListSubscription", request, timeout_s=CALL_TIMEOUT_S)
    print_rows(
        _subscription_rows(answer.subscription_info), SUBSCRIPTION_COLUMNS, as_json=as_json, kind="subscriptions"
    )


def readers(name: Name, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the groups that read a topic or have read it, as `quarry group subscriptions` does for a group."""
    request = pb.ListSubscriptionRequest(topic=definition.Resource(name=name))
    with official_port(admin) as broker:
        answer = broker.call("ListSubscription", request, timeout_s=CALL_TIMEOUT_S)
    print_rows(_subscription_rows(answer.subscription_info), READER_COLUMNS, as_json=as_json, kind="readers")


def forget(
    name: Name,
    *,
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="Topic that the group no longer reads.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Delete a group's offsets in a topic. Refused while the group has connected consumers of the topic.

    Consumers that connect later begin as those of a new group do.
    """
    if dry_run:
        print_object(group_deletion(admin, name, topic), as_json=as_json)
        return
    confirm(f"delete the offsets of {name} in {topic}", yes=yes, told=lambda: group_deletion(admin, name, topic))
    request = pb.DeleteSubscriptionRequest(group=definition.Resource(name=name), topic=definition.Resource(name=topic))
    with official_port(admin) as broker:
        broker.call("DeleteSubscription", request, timeout_s=CALL_TIMEOUT_S)
    print_object({"forgotten": name, "topic": topic}, as_json=as_json)


def times(name: Name, *, topic: OnlyTopic = None, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show when the first and last messages of each queue that a group reads were stored, and how far it has read.

    The delay is the age of the oldest message that the group has not been given; it is unknown if that message cannot
    be read, and standard error has the command that goes on behind it.
    """
    topics = [] if topic is None else [definition.Resource(name=topic)]
    request = pb.QueryTimeSpanRequest(group=definition.Resource(name=name), topics=topics)
    with official_port(admin) as broker:
        answer = broker.call("QueryTimeSpan", request, timeout_s=CALL_TIMEOUT_S)
    print_rows(map(_time_fields, answer.queue_time_span_list), TIME_COLUMNS, as_json=as_json, kind="queues")


def resource(name: str | None) -> definition.Resource | None:
    return None if name is None else definition.Resource(name=name)


def client_fields(info: pb.ClientInfo) -> dict[str, object]:
    return {
        "clientId": info.client_id,
        "language": info.language,
        "version": info.version,
        "hostname": info.hostname,
        "address": info.egress_ip,
    }


def _subscription_rows(infos: Iterable[pb.SubscriptionInfo]) -> Iterator[dict[str, object]]:
    for info in infos:
        is_told = info.HasField("last_update_timestamp")
        yield {
            "group": info.group.name,
            "topic": info.topic.name,
            "isOnline": info.online,
            "isConsistent": info.subscription_consistency,
            "expression": info.expression.expression if info.HasField("expression") else None,
            "settingsAt": time_text(info.last_update_timestamp.ToMilliseconds()) if is_told else None,
        }


def _time_fields(span: Any) -> dict[str, object]:
    return {
        "topic": span.message_queue.topic.name,
        "queueId": span.message_queue.id,
        "firstStoredAt": _time_or_none(span.min_timestamp),
        "lastStoredAt": _time_or_none(span.max_timestamp),
        "readUpTo": _time_or_none(span.consume_timestamp),
        "delaySeconds": None if span.delay_time_ms < 0 else span.delay_time_ms / 1000,
    }


def _time_or_none(milliseconds: int) -> str | None:
    return time_text(milliseconds) if milliseconds else None
