"""Serve `quarry.admin.v1.StorageService` on the admin port: files, queues, and pending messages."""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import storage_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.storage_pb2_grpc import (
    StorageServiceServicer,
    add_StorageServiceServicer_to_server,
)
from quarry_mq.server.admin.pending import PendingLook, TimerView, TransactionView
from quarry_mq.server.admin.storage import SegmentView, SpanView, StorageLook, StorageView
from quarry_mq.server.admin_port.calls.edge import answered, caller_may_see_if_known, given, not_negative
from quarry_mq.server.lag.group_progress import GroupProgress
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.tasks import Pacing
from quarry_mq.store.errors import TopicNotFound
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import TopicTable

NAME: Final = pb.DESCRIPTOR.services_by_name["StorageService"].full_name
SPANS_DEFAULT: Final = 100
SPANS_MAX: Final = 1_000
PENDING_DEFAULT: Final = 50
PENDING_MAX: Final = 500

_Context = grpc.aio.ServicerContext[Any, Any]


class StorageService(StorageServiceServicer):
    """Translates requests and answers."""

    def __init__(
        self,
        look: StorageLook,
        pending: PendingLook,
        topics: TopicTable,
        *,
        progress: GroupProgress,
        pacing: Pacing,
        error_reporter: ErrorReporter,
    ) -> None:
        self._look = look
        self._pending = pending
        self._topics = topics
        self._progress = progress
        self._pacing = pacing
        self._error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_StorageServiceServicer_to_server(self, server)
        return NAME

    async def GetStorage(self, _request: pb.GetStorageRequest, context: _Context) -> pb.Storage:
        return _storage(await answered(context, self._look.storage(), self._error_reporter))

    async def ListQueueSpans(self, request: pb.ListQueueSpansRequest, context: _Context) -> pb.ListQueueSpansResponse:
        return await answered(context, self._spans(request), self._error_reporter)

    async def ListPending(self, request: pb.ListPendingRequest, context: _Context) -> pb.ListPendingResponse:
        return await answered(context, self._listed(request), self._error_reporter)

    async def _spans(self, request: pb.ListQueueSpansRequest) -> pb.ListQueueSpansResponse:
        name = given("topic", request.topic)
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(f"topic: no topic {name}")
        after = not_negative("after", request.after) if request.HasField("after") else -1
        limit = min(request.limit or SPANS_DEFAULT, SPANS_MAX)
        async with self._pacing.turn() as time_slice:
            spans, has_more = await self._look.spans(topic, after, limit, time_slice)
        answer = pb.ListQueueSpansResponse(queues=map(_span, spans), has_more=has_more)
        if request.group and self._progress.reads(request.group, name):
            for each in answer.queues:
                each.next_offset = self._progress.position(request.group, QueueId(name, each.queue)).next_offset
        return answer

    async def _listed(self, request: pb.ListPendingRequest) -> pb.ListPendingResponse:
        found = await self._pending.pending(min(request.limit or PENDING_DEFAULT, PENDING_MAX))
        return pb.ListPendingResponse(
            timers=found.timers,
            transactions=found.transactions,
            first_timers=[_timer(each) for each in found.first_timers if _may_see(each)],
            first_transactions=[_transaction(each) for each in found.first_transactions if _may_see(each)],
            due=[pb.DueWithin(within_ms=within_ms, timers=count) for within_ms, count in found.due.items()],
            due_looked_at=found.due_looked_at,
            late_ms=found.late_ms,
        )


def _may_see(pending: TimerView | TransactionView) -> bool:
    return caller_may_see_if_known(pending.record)


def _storage(found: StorageView) -> pb.Storage:
    settings, space, expiry = found.settings, found.space, found.expiry
    answer = pb.Storage(
        force_percent=settings.force_percent,
        refuse_percent=settings.refuse_percent,
        retention_ms=settings.retention_ms,
        delete_hours=sorted(settings.delete_when),
        segments=map(_segment, found.segments),
        segment_count=found.segment_count,
        log_begin=found.log_begin,
        log_end=found.log_end,
        oldest_stored_at_ms=found.oldest_ms,
        newest_stored_at_ms=found.newest_ms,
        expires_next=None if expiry is None else expiry.name,
        expires_next_at_ms=None if expiry is None else expiry.at_ms,
        parts=[pb.Part(name=name, bytes=size) for name, size in found.parts.items()],
        families=[pb.RocksFamily(database=each[0], family=each[1], figures=each[2]) for each in found.families],
    )
    if space is not None:
        answer.disk_total, answer.disk_free = space.total_bytes, space.available_bytes
        if space.total_bytes:
            answer.disk_used_percent = 100 * space.used_bytes / space.total_bytes
    return answer


def _segment(each: SegmentView) -> pb.Segment:
    return pb.Segment(
        name=each.name,
        begin=each.begin,
        size=each.size,
        first_stored_at_ms=each.first_ms,
        last_stored_at_ms=each.last_ms,
    )


def _span(each: SpanView) -> pb.QueueSpan:
    return pb.QueueSpan(
        queue=each.queue,
        minimum_offset=each.bounds.minimum,
        maximum_offset=each.bounds.maximum,
        first_stored_at_ms=each.first_ms,
        last_stored_at_ms=each.last_ms,
        expires_next=each.expires_next,
    )


def _timer(each: TimerView) -> pb.PendingTimer:
    return pb.PendingTimer(
        topic=each.topic,
        message_id=each.message_id,
        due_at_ms=each.due.due_ms,
        physical_offset=each.due.physical_offset,
    )


def _transaction(each: TransactionView) -> pb.PendingTransaction:
    check = each.check
    return pb.PendingTransaction(
        topic=each.topic,
        message_id=each.half.message_id,
        stored_at_ms=None if each.record is None else each.record.store_timestamp_ms,
        checks=None if check is None else check.checks,
        next_check_at_ms=None if check is None else check.at_ms,
        physical_offset=each.half.physical_offset,
    )
