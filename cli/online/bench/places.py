"""Creates the topic and the group of a load, and removes them when it is over."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

import grpc
import typer

from quarry_mq.cli.online.connection.administration import admin_port, refusal
from quarry_mq.cli.online.groups.groups import CALL_TIMEOUT_S, RESET_TIMEOUT_S, reset_request
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub

TAKES_NORMAL: Final = (pb.TOPIC_TYPE_UNSPECIFIED, pb.TOPIC_TYPE_NORMAL, pb.TOPIC_TYPE_MIXED)


class Wanted(NamedTuple):
    """The request.

    `topic` None: a new topic with the name of the run. `queues` None: as many as the broker's default.
    """

    run: str
    topic: str | None
    queues: int | None
    has_consumers: bool
    may_write: bool
    """Set when the user has agreed to write messages into an existing topic."""


class Place(NamedTuple):
    topic: str
    group: str
    queues: int
    is_temporary: bool
    """Set when the topic is to be removed when the load is over."""


@contextmanager
def place_of(admin: str, wanted: Wanted) -> Iterator[Place]:
    """Give the topic and the group of the load.

    What was created for it is removed at the end; failures to remove are reported.
    """
    with admin_port(admin) as broker:
        name = wanted.topic or wanted.run
        found = None if wanted.topic is None else _found(broker, name)
        if found is not None:
            _require(found, wanted)
        made: list[str] = []
        try:
            if found is None:
                made.append("topic")
                found = broker.CreateTopic(
                    pb.CreateTopicRequest(name=name, write_queues=wanted.queues, read_queues=wanted.queues),
                    timeout=CALL_TIMEOUT_S,
                )
            if wanted.has_consumers:
                made.append("group")
                broker.CreateGroup(pb.CreateGroupRequest(name=wanted.run), timeout=CALL_TIMEOUT_S)
                broker.ResetOffset(reset_request(wanted.run, name, "latest"), timeout=RESET_TIMEOUT_S)
            yield Place(name, wanted.run, found.write_queues, "topic" in made)
        finally:
            # the group first: it reads the topic
            if "group" in made:
                _remove(broker, admin, "group", wanted.run)
            if "topic" in made:
                _remove(broker, admin, "topic", name)


def _found(broker: AdminServiceStub, name: str) -> pb.Topic | None:
    try:
        topic: pb.Topic = broker.GetTopic(pb.GetTopicRequest(name=name), timeout=CALL_TIMEOUT_S)
    except grpc.RpcError as error:
        if cast("grpc.Call", error).code() is grpc.StatusCode.NOT_FOUND:
            return None
        raise
    return topic


def _require(topic: pb.Topic, wanted: Wanted) -> None:
    """End the command unless the load may use the topic."""
    if wanted.queues is not None and wanted.queues != topic.write_queues:
        raise typer.BadParameter(
            f"topic {topic.name} exists and has {topic.write_queues} queues", param_hint="--queues"
        )
    if topic.type not in TAKES_NORMAL:
        kind = pb.TopicType.Name(topic.type).removeprefix("TOPIC_TYPE_").lower()
        end(Exit.COULD_NOT_RUN, f"topic {topic.name} is of type {kind} and takes no NORMAL messages")
    if wanted.may_write:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            f"topic {topic.name} exists: messages written into it stay, and its consumers receive them",
            param_hint="--yes",
        )
    typer.confirm(
        f"Write into topic {topic.name}? The messages stay, and its consumers receive them.", abort=True, err=True
    )


def _remove(broker: AdminServiceStub, admin: str, kind: str, name: str) -> None:
    try:
        if kind == "group":
            broker.DeleteGroup(pb.DeleteGroupRequest(name=name), timeout=CALL_TIMEOUT_S)
        else:
            broker.DeleteTopic(pb.DeleteTopicRequest(name=name), timeout=CALL_TIMEOUT_S)
    except grpc.RpcError as error:
        if cast("grpc.Call", error).code() is not grpc.StatusCode.NOT_FOUND:
            say(
                f"{kind} {name} was not removed; `quarry {kind} delete {name}` removes it: {refusal(error, admin)}",
                err=True,
            )
