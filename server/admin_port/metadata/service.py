"""Serve `quarry.admin.v1.AdminService` on the admin port: topics, groups, queues, expiry and backups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Protocol

import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceServicer
from quarry_mq.server.admin.administration import Administration
from quarry_mq.server.admin_port.calls.edge import answered, answers, pages, refuse, streams
from quarry_mq.server.admin_port.calls.fields import given, printable
from quarry_mq.server.admin_port.metadata.messages import (
    broker_message,
    expiry_message,
    group_change,
    group_message,
    queue_message,
    reset_message,
    reset_target,
    summary_message,
    topic_change,
    topic_message,
)
from quarry_mq.server.faults import FaultLog
from quarry_mq.server.maintenance.backup_points import LEASE_S, BackupLeases
from quarry_mq.server.maintenance.retention import ExpiryReport
from quarry_mq.server.tasks.time_slice import Pacing, TimeSlice
from quarry_mq.store.consumequeue.queue_summary import QueueSummary
from quarry_mq.store.metadata import Topic

SERVICE_NAME: Final = pb.DESCRIPTOR.services_by_name["AdminService"].full_name

_Context = grpc.aio.ServicerContext[Any, Any]


class Expire(Protocol):
    """Lets old segments expire (`server.maintenance.retention`), and cleans up the queues with `rewrite_queues`."""

    def __call__(self, *, dry_run: bool, rewrite_queues: bool) -> Awaitable[ExpiryReport]: ...


Summarize = Callable[[int], Awaitable[QueueSummary]]
"""Count all queues, and name some number of the largest, see `server.maintenance.queue_summaries`."""


class OrderKept(Protocol):
    """The part of `server.cluster.reading_order` that the service uses."""

    async def require_read(self, topic: Topic, time_slice: TimeSlice) -> None: ...


class AdminService(AdminServiceServicer):
    """Checks and translates requests and answers."""

    def __init__(
        self,
        administration: Administration,
        faults: FaultLog,
        backups: BackupLeases,
        expire: Expire,
        summarize: Summarize,
        *,
        order: OrderKept,
        pacing: Pacing,
    ) -> None:
        self._order = order
        self._administration = administration
        self._summarize = summarize
        self._pacing = pacing
        self._backups = backups
        self.faults = faults
        self._expire = expire

    @answers
    def GetBroker(self, _request: pb.GetBrokerRequest) -> pb.Broker:
        return broker_message(self._administration)

    @answers
    def CreateTopic(self, request: pb.CreateTopicRequest) -> pb.Topic:
        return topic_message(self._administration.create_topic(request.name, topic_change(request)))

    async def UpdateTopic(self, request: pb.UpdateTopicRequest, context: _Context) -> pb.Topic:
        return await answered(context, self._update_topic(request), self.faults)

    async def _update_topic(self, request: pb.UpdateTopicRequest) -> pb.Topic:
        change, topic = topic_change(request), self._administration.topic(request.name)
        if request.break_order or change.applied_to(topic).write_queues == topic.write_queues:
            return topic_message(self._administration.update_topic(request.name, change))
        async with self._pacing.turn() as time_slice:
            await self._order.require_read(topic, time_slice)
            return topic_message(self._administration.update_topic(request.name, change))

    @answers
    def DeleteTopic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        self._administration.delete_topic(request.name)
        return pb.DeleteTopicResponse()

    @answers
    def GetTopic(self, request: pb.GetTopicRequest) -> pb.Topic:
        return topic_message(self._administration.topic(request.name))

    @streams
    def ListTopics(self, request: pb.ListTopicsRequest) -> Iterator[pb.ListTopicsResponse]:
        topics = self._administration.topics(printable("prefix", request.prefix))
        shown = (topic for topic in topics if request.include_system or not topic.is_system)
        for page in pages(shown):
            yield pb.ListTopicsResponse(topics=[topic_message(topic) for topic in page])

    @answers
    def CreateGroup(self, request: pb.CreateGroupRequest) -> pb.Group:
        return group_message(self._administration.create_group(request.name, group_change(request)))

    @answers
    def UpdateGroup(self, request: pb.UpdateGroupRequest) -> pb.Group:
        return group_message(self._administration.update_group(request.name, group_change(request)))

    @answers
    def DeleteGroup(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        self._administration.delete_group(request.name)
        return pb.DeleteGroupResponse()

    @answers
    def GetGroup(self, request: pb.GetGroupRequest) -> pb.Group:
        return group_message(self._administration.group(request.name))

    @streams
    def ListGroups(self, request: pb.ListGroupsRequest) -> Iterator[pb.ListGroupsResponse]:
        for page in pages(self._administration.groups(printable("prefix", request.prefix))):
            yield pb.ListGroupsResponse(groups=[group_message(group) for group in page])

    async def ResetOffset(self, request: pb.ResetOffsetRequest, context: _Context) -> pb.ResetOffsetResponse:
        return await answered(context, self._reset_offset(request), self.faults)

    async def _reset_offset(self, request: pb.ResetOffsetRequest) -> pb.ResetOffsetResponse:
        to, queue = reset_target(request), request.queue if request.HasField("queue") else None
        self._administration.require_few(request.group, request.topic, queue)
        async with self._pacing.turn() as time_slice:
            resets = await self._administration.reset_offset(
                request.group, request.topic, to, time_slice, queue_number=queue, dry_run=request.dry_run
            )
        return pb.ResetOffsetResponse(queues=[reset_message(reset) for reset in resets])

    async def ExpireSegments(self, request: pb.ExpireSegmentsRequest, context: _Context) -> pb.ExpireSegmentsResponse:
        expiring = self._expire(dry_run=request.dry_run, rewrite_queues=request.rewrite_queues)
        return expiry_message(await answered(context, expiring, self.faults))

    @answers
    def ListQueues(self, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        return pb.ListQueuesResponse(
            queues=[queue_message(*each) for each in self._administration.queues(request.topic)]
        )

    async def SummarizeQueues(self, request: pb.SummarizeQueuesRequest, context: _Context) -> pb.QueuesSummary:
        return summary_message(await answered(context, self._summarize(request.largest), self.faults))

    async def BeginBackup(self, _request: pb.BeginBackupRequest, context: _Context) -> pb.BackupPoint:
        try:
            point = await self._backups.begin()
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self.faults)
        return pb.BackupPoint(
            name=point.name,
            store_directory=str(point.root),
            log_begin=point.log_begin,
            log_end=point.log_end,
            segment_size=point.segment_size,
            lease_ms=int(LEASE_S * 1000),
        )

    @answers
    def RenewBackup(self, request: pb.RenewBackupRequest) -> pb.RenewBackupResponse:
        self._backups.renew(given("name", request.name))
        return pb.RenewBackupResponse()

    @answers
    def EndBackup(self, request: pb.EndBackupRequest) -> pb.EndBackupResponse:
        self._backups.end(given("name", request.name))
        return pb.EndBackupResponse()
