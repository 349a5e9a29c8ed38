"""QueryOffset, PullMessage, UpdateOffset, GetOffset: for clients that keep their own offset in each queue.

No official client does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from quarry_mq.protocol.limits import WireLimits
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.times import to_ms
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.delivery.pulls import PullRequest, Pulls
from quarry_mq.server.delivery.retry_topics import for_group
from quarry_mq.server.front import Call, Method
from quarry_mq.server.metadata import Directory
from quarry_mq.server.routing import require_readable
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.wire.messages import fill_message
from quarry_mq.server.wire.status import Refused, fill_ok
from quarry_mq.server.wire.validate import check_filter, check_group, check_topic
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import Forbidden, OffsetOutOfRange
from quarry_mq.store.message import QueueBounds, QueueId, QueueOffset
from quarry_mq.store.record import StoredMessage


class QueriedStore(Protocol):
    """The part of the message store that the call needs. A query creates no queue (rmq#9792)."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset: ...


class OffsetService:
    def __init__(self, edge: Edge, directory: Directory, store: QueriedStore) -> None:
        self._edge = edge
        self._directory = directory
        self._store = store

    def methods(self) -> dict[str, Method]:
        return {
            "QueryOffset": self._edge.unary(
                service.QueryOffsetRequest, service.QueryOffsetResponse, self._query_offset
            ),
        }

    def _query_offset(
        self, _call: Call, _client_id: str, request: service.QueryOffsetRequest
    ) -> service.QueryOffsetResponse:
        response = service.QueryOffsetResponse(
            offset=self._offset(readable_queue(self._directory, request.message_queue), request)
        )
        fill_ok(response.status)
        return response

    def _offset(self, queue: QueueId, request: service.QueryOffsetRequest) -> QueueOffset:
        match request.query_offset_policy:
            case definition.BEGINNING:
                return self._store.bounds(queue).minimum
            case definition.END:
                return self._store.bounds(queue).maximum
            case definition.TIMESTAMP if request.HasField("timestamp"):
                return self._store.offset_at_time(queue, to_ms(request.timestamp), TimeBoundary.LOWER)
            case definition.TIMESTAMP:
                raise Refused(definition.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
            case unknown:
                raise Refused(definition.BAD_REQUEST, f"policy {unknown} is unknown")


def readable_queue(directory: Directory, asked: definition.MessageQueue) -> QueueId:
    """Return the queue that a client names. Raises TopicNotFound, Forbidden, Refused (BAD_REQUEST)."""
    check_topic(asked.topic.name)
    topic = directory.topic(asked.topic.name)
    require_readable(topic)
    if not 0 <= asked.id < topic.queue_count:
        raise Refused(definition.BAD_REQUEST, f"topic {topic.name} has no queue {asked.id}")
    return QueueId(topic.name, asked.id)


FIRST_ATTEMPT: Final = 1


class PullService:
    def __init__(
        self,
        edge: Edge,
        *,
        directory: Directory,
        store: QueriedStore,
        pulls: Pulls,
        delivery: Delivery,
        limits: WireLimits,
    ) -> None:
        self._edge = edge
        self._directory = directory
        self._store = store
        self._pulls = pulls
        self._delivery = delivery
        self._limits = limits

    def configure(self, limits: WireLimits) -> None:
        self._limits = limits

    def methods(self) -> dict[str, Method]:
        unary, stream = self._edge.unary, self._edge.server_stream
        return {
            "PullMessage": stream(service.PullMessageRequest, service.PullMessageResponse, self._pull),
            "UpdateOffset": unary(service.UpdateOffsetRequest, service.UpdateOffsetResponse, self._update_offset),
            "GetOffset": unary(service.GetOffsetRequest, service.GetOffsetResponse, self._get_offset),
        }

    # -- PullMessage

    def _pull(self, call: Call, client_id: str, request: service.PullMessageRequest) -> None:
        """Answer with a status, then the messages, then the next offset.

        The next offset is also sent when the requested offset is out of range.
        """
        queue = self._may_pull(request)
        remaining_s = call.remaining_s()
        polling_ms = min(max(to_ms(request.long_polling_timeout), 0), self._limits.polling_max_ms)
        if remaining_s is not None:
            polling_ms = min(polling_ms, int(remaining_s * 1000) - self._limits.polling_reserve_ms)
        pull = PullRequest(
            queue=queue,
            offset=QueueOffset(request.offset),
            filter=for_group(check_filter(request.filter_expression), request.group.name, queue.topic),
            batch_size=min(max(request.batch_size, 1), self._limits.batch_size_max),
            polling_s=polling_ms / 1000,
            client_id=client_id,
        )

        def pulled(messages: Sequence[StoredMessage], following: QueueOffset, error: Exception | None) -> None:
            self._answer(call, queue, messages, following, error)

        may_still = self._edge.to_ask_again(call, request)

        def check() -> None:
            """Check a pull that has waited, as before its wait."""
            may_still()
            self._may_pull(request)

        try:
            waiting = self._pulls.pull(pull, pulled, check)
        except OffsetOutOfRange as error:
            bounds = self._store.bounds(queue)
            self._answer(call, queue, (), max(bounds.minimum, min(pull.offset, bounds.maximum)), error)
            return
        if waiting is not None:
            call.on_close(lambda: self._pulls.cancel(waiting))

    def _may_pull(self, request: service.PullMessageRequest) -> QueueId:
        """Return the queue of a pull. Raises the error that forbids the pull as its topic and group are now."""
        queue = readable_queue(self._directory, request.message_queue)
        self._check_reader(request.group.name)
        return queue

    def _answer(
        self,
        call: Call,
        queue: QueueId,
        messages: Sequence[StoredMessage],
        following: QueueOffset,
        error: Exception | None,
    ) -> None:
        last = service.PullMessageResponse(next_offset=following).SerializeToString()
        if error is None and not messages:
            error = Refused(definition.MESSAGE_NOT_FOUND, "no new message")
        if error is not None:
            self._edge.refuse_stream(call, service.PullMessageResponse, error, lambda: last)
            return
        first = service.PullMessageResponse()
        fill_ok(first.status)
        call.send(first.SerializeToString())
        for record in messages:
            response = service.PullMessageResponse()
            fill_message(response.message, record, topic=queue.topic, receipt_handle="", delivery_attempt=FIRST_ATTEMPT)
            call.send(response.SerializeToString())
        call.send(last)
        call.finish()

    # -- offsets

    def _update_offset(self, call: Call, _client_id: str, request: service.UpdateOffsetRequest) -> None:
        """Set the group's committed offset; the call is answered once it is as durable as all progress of the group."""
        queue = readable_queue(self._directory, request.message_queue)
        group = self._check_reader(request.group.name)
        bounds = self._store.bounds(queue)
        if not bounds.minimum <= request.offset <= bounds.maximum:
            raise OffsetOutOfRange(
                f"offset {request.offset} is outside of [{bounds.minimum}, {bounds.maximum}] of the queue"
            )
        self._directory.group_to_receive(group, self._edge.user)
        self._delivery.commit_offset(group, queue, QueueOffset(request.offset))
        self._delivery.writer.when_written(self._edge.later(call, service.UpdateOffsetResponse()))

    def _get_offset(self, _call: Call, _client_id: str, request: service.GetOffsetRequest) -> service.GetOffsetResponse:
        queue = readable_queue(self._directory, request.message_queue)
        check_group(request.group.name)
        offset = self._delivery.next_offset(request.group.name, queue)
        if offset is None:
            raise Refused(definition.OFFSET_NOT_FOUND, "the group has no offset in this queue")
        response = service.GetOffsetResponse(offset=offset)
        fill_ok(response.status)
        return response

    def _check_reader(self, name: str) -> str:
        """Return the group's name without creating the group, since nothing of a pull is stored for it."""
        check_group(name)
        group = self._directory.group(name)
        if not group.enabled:
            raise Forbidden(f"subscription group no permission, {group.name}: consumer group {group.name} is disabled")
        return group.name
