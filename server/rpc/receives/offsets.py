"""QueryOffset: returns a queue's min or max offset, or the offset at a time."""

from __future__ import annotations

from typing import Protocol

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.times import to_ms
from quarry_mq.server.front import Call, Method
from quarry_mq.server.metadata import Directory
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.wire.status import Refused, fill_ok
from quarry_mq.server.wire.validate import check_topic
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import Forbidden
from quarry_mq.store.metadata import Permission
from quarry_mq.store.offsets import QueueBounds, QueueId, QueueOffset


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
    if Permission.READ not in topic.permission:
        raise Forbidden(f"no readable queue: topic {topic.name} may not be read")
    if not 0 <= asked.id < topic.queue_count:
        raise Refused(definition.BAD_REQUEST, f"topic {topic.name} has no queue {asked.id}")
    return QueueId(topic.name, asked.id)
