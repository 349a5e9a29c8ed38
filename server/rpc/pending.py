"""EndTransaction and RecallMessage: end the wait of pending messages."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.counters.traffic import Traffic
from quarry_mq.server.filters.java_text import is_blank
from quarry_mq.server.front import Call, Method
from quarry_mq.server.metadata import Directory
from quarry_mq.server.pending import DelayedDelivery, Transactions
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.wire.message_types import ACCEPTED_TYPES, type_fault
from quarry_mq.server.wire.status import Refused, fill_ok
from quarry_mq.server.wire.validate import check_topic
from quarry_mq.store.pending import Resolution

_RESOLUTIONS: Final = {
    definition.COMMIT: Resolution.COMMITTED,
    definition.ROLLBACK: Resolution.ROLLED_BACK,
}


class PendingMessageService:
    def __init__(
        self,
        edge: Edge,
        *,
        directory: Directory,
        delays: DelayedDelivery,
        transactions: Transactions,
        traffic: Traffic,
    ) -> None:
        self._edge = edge
        self._directory = directory
        self._delays = delays
        self._transactions = transactions
        self._traffic = traffic

    def methods(self) -> dict[str, Method]:
        unary = self._edge.unary
        return {
            "EndTransaction": unary(
                service.EndTransactionRequest, service.EndTransactionResponse, self._end_transaction
            ),
            "RecallMessage": unary(service.RecallMessageRequest, service.RecallMessageResponse, self._recall),
        }

    def _end_transaction(
        self, call: Call, _client_id: str, request: service.EndTransactionRequest
    ) -> service.EndTransactionResponse | None:
        """End a transaction.

        The source of the request is ignored: the producer itself, or its answer to a check; some clients leave it out.
        """
        check_topic(request.topic.name)
        if is_blank(request.transaction_id):
            raise Refused(definition.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            answer = service.EndTransactionResponse()
            fill_ok(answer.status)
            return answer
        answered = self._edge.later(call, service.EndTransactionResponse())

        def ended(error: Exception | None) -> None:
            if error is None:
                self._traffic.ended(request.topic.name, is_commit=resolution is Resolution.COMMITTED)
            answered(error)

        self._transactions.end(request.topic.name, request.message_id, request.transaction_id, resolution, ended)
        return None

    def _recall(self, call: Call, _client_id: str, request: service.RecallMessageRequest) -> None:
        """Recall a scheduled message: it will not be delivered once the call is answered with OK."""
        check_topic(request.topic.name)
        topic = self._directory.topic(request.topic.name)
        if definition.DELAY not in ACCEPTED_TYPES[topic.type]:
            raise Refused(
                definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"{type_fault(topic, 'DELAY')}: topic {topic.name} is of type {topic.type.value} and has no delayed "
                "messages",
            )
        answer = service.RecallMessageResponse()
        recalled = self._edge.later(call, answer)
        answer.message_id = self._delays.recall(topic.name, request.recall_handle, recalled)
