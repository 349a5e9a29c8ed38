"""Clients of the admin port: topics, consumer groups, and every other call that operators have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, Self, cast

import grpc
from google.protobuf.message import Message

from quarry_mq.client.channel import aio_channel, call_metadata, open_channel
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.errors import AdminCallRefused, BrokerUnreachable
from quarry_mq.protocol.admin_methods import methods_by_short_name, path_of, stub_of
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import clients_pb2, members_pb2, query_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2 import ListGroupFiguresRequest

TIMEOUT_S: Final = 10.0
GROUPS_PER_PAGE: Final = 1_000
_PASSING: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "CANCELLED")
"""Names of codes after which the same call may succeed later."""


class GroupPosition(NamedTuple):
    """The first message of a queue that a group has never received."""

    group: str
    topic: str
    broker: str
    queue: int
    next_offset: int


class AdminClient:
    """Makes the calls of operators. Use it as a context manager; several threads may share it.

    Calls raise grpc.RpcError, whose `code()` and `details()` say what is wrong.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float = TIMEOUT_S, clock: Clock | None = None) -> None:
        self._timeout_s = timeout_s
        self._channel = open_channel(endpoint, clock=clock)
        self._methods = methods_by_short_name()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Message) -> Any:
        """Make any call, named as `Service/Method` (docs/admin-calls.md). Raises KeyError for an unknown one.

        Returns the answer, or an iterator of the answers if the call has several.
        """
        return stub_of(self._channel, self._methods[method])(request, timeout=self._timeout_s)

    def create_topic(
        self,
        name: str,
        *,
        type: pb.TopicType = pb.TOPIC_TYPE_NORMAL,  # noqa: A002 - the name of the field
        queues: int | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> pb.Topic:
        """Make a topic. Without `queues` it has as many as the broker's settings say."""
        answer: pb.Topic = self.call("AdminService/CreateTopic", _new_topic(name, type, queues, attributes))
        return answer

    def topic(self, name: str) -> pb.Topic:
        answer: pb.Topic = self.call("AdminService/GetTopic", pb.GetTopicRequest(name=name))
        return answer

    def topics(self, prefix: str = "") -> Iterator[pb.Topic]:
        """Yield the topics whose names begin with the prefix, in the order of their names."""
        for page in self.call("AdminService/ListTopics", pb.ListTopicsRequest(prefix=prefix)):
            yield from page.topics

    def topic_names(self, address: str) -> list[str]:
        """Return the names of all topics. Raises BrokerUnreachable with the address."""
        try:
            return [topic.name for topic in self.topics()]
        except grpc.RpcError as failed:
            raise BrokerUnreachable(f"{address}: {cast('grpc.Call', failed).details()}") from failed

    def group_positions(self, address: str) -> list[GroupPosition]:
        """Return how far each group is in each queue that it has read. Raises BrokerUnreachable with the address."""
        try:
            return list(self._group_positions())
        except grpc.RpcError as failed:
            raise BrokerUnreachable(f"{address}: {cast('grpc.Call', failed).details()}") from failed

    def _group_positions(self) -> Iterator[GroupPosition]:
        broker = self.call("AdminService/GetBroker", pb.GetBrokerRequest()).name
        request = ListGroupFiguresRequest(limit=GROUPS_PER_PAGE)
        while True:
            page = self.call("OverviewService/ListGroupFigures", request)
            for pair in chain.from_iterable(figures.topics for figures in page.groups):
                unchanged = pb.ResetOffsetRequest(group=pair.group, topic=pair.topic, latest=pb.Latest(), dry_run=True)
                for each in self.call("AdminService/ResetOffset", unchanged).queues:
                    if each.HasField("previous_offset"):
                        yield GroupPosition(pair.group, pair.topic, broker, each.queue, each.previous_offset)
            if not page.has_more:
                return
            request.after = page.groups[-1].group.name

    def consumers(self, group: str, address: str) -> list[str]:
        """Return the client ids of the group's consumers; none if there is no such group.

        Raises BrokerUnreachable with the address.
        """
        wanted = clients_pb2.ListClientsRequest(type=clients_pb2.CLIENT_TYPE_CONSUMER, group=group)
        try:
            return [each.client_id for page in self.call("ClientService/ListClients", wanted) for each in page.clients]
        except grpc.RpcError as failed:
            status = cast("grpc.Call", failed)
            if status.code() == grpc.StatusCode.NOT_FOUND:
                return []
            raise BrokerUnreachable(f"{address}: {status.details()}") from failed

    def known_ids(self, topic: str, ids: Sequence[str], from_ms: int) -> set[str]:
        """Return those of at most 1000 message ids that a topic has at any member, stored at `from_ms` or later.

        Raises BrokerUnreachable if a member cannot tell now, AdminCallRefused if a member refuses to tell.
        """
        wanted = query_pb2.QueryIdsRequest(topic=topic, ids=ids, from_ms=from_ms)
        asked = members_pb2.AskMembersRequest(method="QueryService/QueryIds", request=wanted.SerializeToString())
        found: set[str] = set()
        for each in self.call("AllMembersService/AskMembers", asked):
            # a member without a failure gives its answer, and then tells how its call ended
            if not each.HasField("answer") and each.code != grpc.StatusCode.OK.name:
                problem = f"member {each.member}: {each.code}: {each.problem}"
                raise BrokerUnreachable(problem) if each.code in _PASSING else AdminCallRefused(problem)
            found.update(query_pb2.QueryIdsResponse.FromString(each.answer).ids)
        return found

    def delete_topic(self, name: str) -> None:
        self.call("AdminService/DeleteTopic", pb.DeleteTopicRequest(name=name))

    def create_group(self, name: str, *, fifo: bool = False, max_attempts: int | None = None) -> pb.Group:
        """Make a consumer group. Without `max_attempts` the broker's default is the limit of deliveries."""
        request = pb.CreateGroupRequest(name=name, fifo=fifo, max_attempts=max_attempts)
        answer: pb.Group = self.call("AdminService/CreateGroup", request)
        return answer

    def group(self, name: str) -> pb.Group:
        answer: pb.Group = self.call("AdminService/GetGroup", pb.GetGroupRequest(name=name))
        return answer

    def groups(self, prefix: str = "") -> Iterator[pb.Group]:
        """Yield the consumer groups whose names begin with the prefix, in the order of their names."""
        for page in self.call("AdminService/ListGroups", pb.ListGroupsRequest(prefix=prefix)):
            yield from page.groups

    def delete_group(self, name: str) -> None:
        self.call("AdminService/DeleteGroup", pb.DeleteGroupRequest(name=name))


class AsyncAdminClient:
    """Makes the calls of operators for asyncio, as `AdminClient` does. Use it as a context manager."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float = TIMEOUT_S, clock: Clock | None = None) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._channel = aio_channel(endpoint)
        self._methods = methods_by_short_name()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def call(self, method: str, request: Message) -> Any:
        """Make any call with one answer, named as `Service/Method` (docs/admin-calls.md)."""
        return await self._begun(method, request)

    async def stream(self, method: str, request: Message) -> AsyncIterator[Any]:
        """Make any call with several answers, and yield them."""
        async for answer in self._begun(method, request):
            yield answer

    def _begun(self, name: str, request: Message) -> Any:
        method = self._methods[name]
        metadata = call_metadata(self._endpoint, path_of(method), self._clock)
        return stub_of(self._channel, method)(request, timeout=self._timeout_s, metadata=metadata)

    async def create_topic(
        self,
        name: str,
        *,
        type: pb.TopicType = pb.TOPIC_TYPE_NORMAL,  # noqa: A002 - the name of the field
        queues: int | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> pb.Topic:
        """Make a topic. Without `queues` it has as many as the broker's settings say."""
        answer: pb.Topic = await self.call("AdminService/CreateTopic", _new_topic(name, type, queues, attributes))
        return answer

    async def topic(self, name: str) -> pb.Topic:
        answer: pb.Topic = await self.call("AdminService/GetTopic", pb.GetTopicRequest(name=name))
        return answer

    async def topics(self, prefix: str = "") -> AsyncIterator[pb.Topic]:
        """Yield the topics whose names begin with the prefix, in the order of their names."""
        async for page in self.stream("AdminService/ListTopics", pb.ListTopicsRequest(prefix=prefix)):
            for topic in page.topics:
                yield topic

    async def delete_topic(self, name: str) -> None:
        await self.call("AdminService/DeleteTopic", pb.DeleteTopicRequest(name=name))

    async def create_group(self, name: str, *, fifo: bool = False, max_attempts: int | None = None) -> pb.Group:
        """Make a consumer group. Without `max_attempts` the broker's default is the limit of deliveries."""
        request = pb.CreateGroupRequest(name=name, fifo=fifo, max_attempts=max_attempts)
        answer: pb.Group = await self.call("AdminService/CreateGroup", request)
        return answer

    async def group(self, name: str) -> pb.Group:
        answer: pb.Group = await self.call("AdminService/GetGroup", pb.GetGroupRequest(name=name))
        return answer

    async def groups(self, prefix: str = "") -> AsyncIterator[pb.Group]:
        """Yield the consumer groups whose names begin with the prefix, in the order of their names."""
        async for page in self.stream("AdminService/ListGroups", pb.ListGroupsRequest(prefix=prefix)):
            for group in page.groups:
                yield group

    async def delete_group(self, name: str) -> None:
        await self.call("AdminService/DeleteGroup", pb.DeleteGroupRequest(name=name))


def _new_topic(
    name: str, kind: pb.TopicType, queues: int | None, attributes: Mapping[str, str] | None
) -> pb.CreateTopicRequest:
    return pb.CreateTopicRequest(name=name, type=kind, read_queues=queues, write_queues=queues, attributes=attributes)
