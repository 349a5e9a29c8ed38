"""Transactions by remoting: producers end them by the offsets of the half message, and are asked about them.

| request | sent by | says |
|---|---|---|
| END_TRANSACTION | producer | commit or rollback of the half message at these offsets; or that it does not know |
| CHECK_TRANSACTION_STATE | broker, to one producer of the group | the half message, as a record with its real topic |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quarry_mq.protocol.messages.property_names import PRODUCER_GROUP, REAL_QUEUE, REAL_TOPIC, UNIQUE_KEY
from quarry_mq.protocol.names import HALF_TOPIC
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.append.copies import copy_of
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.counters import Traffic
from quarry_mq.server.errors import InvalidTransactionId
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.pending import Transactions
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.sessions import RemotingSessions
from quarry_mq.server.remoting.wire import INT32, RemotingRefused, integer_of, text_of
from quarry_mq.server.rpc.access import publish
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.message import PhysicalOffset, QueueOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.pending import HalfMessage, Resolution
from quarry_mq.store.record import StoredMessage, encode_properties, encode_record, offset_message_id

COMMIT: Final = 8
ROLLBACK: Final = 12
_RESOLUTIONS: Final = {COMMIT: Resolution.COMMITTED, ROLLBACK: Resolution.ROLLED_BACK}


class RemotingTransactions:
    """Serves END_TRANSACTION."""

    def __init__(
        self, edge: RemotingEdge, transactions: Transactions, messages: MessageStore, traffic: Traffic
    ) -> None:
        self._edge = edge
        self._transactions = transactions
        self._messages = messages
        self._traffic = traffic

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.END_TRANSACTION: self._edge.handler(self._end)}

    def _end(self, call: RemotingCall) -> None:
        """End a transaction. A producer that does not know is asked again later."""
        fields = call.fields
        group = text_of(fields, "producerGroup")
        queue_offset = QueueOffset(integer_of(fields, "tranStateTableOffset"))
        physical_offset = PhysicalOffset(integer_of(fields, "commitLogOffset"))
        decision = integer_of(fields, "commitOrRollback", within=INT32)
        resolution = _RESOLUTIONS.get(decision)
        if resolution is None:
            if decision != 0:
                raise RemotingRefused(
                    ResponseCode.SYSTEM_ERROR, f"commitOrRollback is {decision}; 0, 8 and 12 are known"
                )
            call.answer()
            return
        # not the topic that the request names: after a check that is the topic of half messages
        topic = self._topic_of(physical_offset)
        self._edge.require(call, publish(topic))

        def ended(error: Exception | None) -> None:
            if error is None:
                self._traffic.ended(topic, is_commit=resolution is Resolution.COMMITTED)
            self._edge.ended(call, error)

        try:
            self._transactions.end_half(queue_offset, physical_offset, group, resolution, ended)
        except InvalidTransactionId as error:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error

    def _topic_of(self, at: PhysicalOffset) -> str:
        try:
            record = self._messages.existing_record_at(at)
        except OffsetOutOfRange as error:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"no half message lies at offset {at}") from error
        if record.topic != HALF_TOPIC:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"no half message lies at offset {at}")
        return record.properties.get(REAL_TOPIC, "")


class TransactionProducers:
    """The producers that can be asked about a half message; for `server.pending.transactions`."""

    def __init__(self, clients: ClientRegistry, sessions: RemotingSessions) -> None:
        self._clients = clients
        self._sessions = sessions
        self._turn = 0

    def producers_of(self, topic: str) -> Sequence[str]:
        """Return the ids of the producers by gRPC that declared the topic."""
        return self._clients.producers_of(topic)

    def ask_group(self, half: HalfMessage, record: StoredMessage) -> bool:
        """Ask the next producer by remoting of the group that sent the half message; return False without one."""
        connections = list(self._sessions.producers(record.properties.get(PRODUCER_GROUP, "")))
        if not connections:
            return False
        self._turn += 1
        unique_key = record.properties.get(UNIQUE_KEY, "")
        fields = {
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.physical_offset),
            "msgId": unique_key,
            "transactionId": unique_key,
            "offsetMsgId": offset_message_id(record.store_host, record.physical_offset),
            "topic": HALF_TOPIC,
        }
        connections[self._turn % len(connections)].tell(RequestCode.CHECK_TRANSACTION_STATE, fields, _checked(record))
        return True


def _checked(record: StoredMessage) -> bytes:
    """Return the record of a half message with the topic and the queue that it was sent to."""
    properties = dict(record.properties)
    topic, number = properties.pop(REAL_TOPIC, record.topic), properties.pop(REAL_QUEUE, "0")
    message = copy_of(
        record, topic=topic, queue_number=int(number), properties=properties, store_host=record.store_host
    )
    return encode_record(
        message,
        record.queue_offset,
        record.physical_offset,
        record.store_timestamp_ms,
        encode_properties(properties),
    )
