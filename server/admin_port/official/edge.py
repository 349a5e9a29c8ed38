"""The common part of the calls of `apache.rocketmq.v2.Admin`: errors become the status of an ordinary answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import grpc.aio

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.admin_port.calls.edge import ReportsErrors
from quarry_mq.server.wire.status import Refused, fill_ok, fill_status, is_expected
from quarry_mq.server.wire.validate import check_group, check_topic
from quarry_mq.store.errors import GroupNotFound, TopicNotFound
from quarry_mq.store.metadata import Group, GroupTable, Topic, TopicTable

ROWS_MAX: Final = 5_000
"""Rows of one answer: 2 MiB at most unless clients have long names. gRPC's clients take 4 MiB."""

Context = grpc.aio.ServicerContext[Any, Any]


class Answer(Protocol):
    """A response that begins with a status."""

    @property
    def status(self) -> definition.Status: ...

    def HasField(self, name: Any, /) -> bool: ...


_Service = TypeVar("_Service", bound=ReportsErrors)
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer", bound=Answer)


def in_band(
    answer_type: type[_Answer],
) -> Callable[
    [Callable[[_Service, _Request, Context], Awaitable[_Answer]]],
    Callable[[_Service, _Request, Context], Coroutine[Any, Any, _Answer]],
]:
    """Turn errors of a method into the status of an answer; an answer without a status is OK."""

    def decorate(
        method: Callable[[_Service, _Request, Context], Awaitable[_Answer]],
    ) -> Callable[[_Service, _Request, Context], Coroutine[Any, Any, _Answer]]:
        async def call(self: _Service, request: _Request, context: Context) -> _Answer:
            try:
                answer = await method(self, request, context)
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
                if not is_expected(error):
                    self.error_reporter.report(error, port="admin")
                answer = answer_type()
                fill_status(answer.status, error)
                return answer
            if not answer.HasField("status"):
                fill_ok(answer.status)
            return answer

        return call

    return decorate


def cut(answer: Answer, rows: str) -> None:
    """Say in the status that the answer has the maximum number of rows, and that there are more."""
    answer.status.code = definition.OK
    answer.status.message = f"only the first {ROWS_MAX} {rows}; there are more"


class Names:
    """Checks and looks up the topics and groups that requests name."""

    def __init__(self, topics: TopicTable, groups: GroupTable) -> None:
        self._topics = topics
        self._groups = groups

    def topic(self, named: definition.Resource, field: str = "topic") -> Topic:
        """Return the topic. Raises Refused, IllegalTopicName, TopicNotFound."""
        name = _given(named, field, definition.ILLEGAL_TOPIC)
        topic = self._topics.get(name)
        if topic is None:
            check_topic(name)
            raise TopicNotFound(f"{field}: no topic {name}")
        return topic

    def group(self, named: definition.Resource, *, is_connected: bool = False) -> Group:
        """Return the group; it may be unknown if it has consumers. Raises Refused, IllegalGroupName, GroupNotFound."""
        name = _given(named, "group", definition.ILLEGAL_CONSUMER_GROUP)
        group = self._groups.get(name)
        if group is not None:
            return group
        check_group(name)
        if not is_connected:
            raise GroupNotFound(f"group: no group {name}")
        return Group(name)


def _given(named: definition.Resource, field: str, code: definition.Code) -> str:
    if not named.name:
        raise Refused(code, f"{field}: must be given")
    return named.name
