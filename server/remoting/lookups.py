"""Finding messages by remoting: by their place in the log, by key, and by the id that their producer gave them."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.errors import NoIndex
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.maintenance.key_index import FOUND_MAX, KeyIndex
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.wire import INT32, RemotingRefused, integer_of, is_true, text_of
from quarry_mq.server.rpc.access import read
from quarry_mq.server.security.credentials import Access
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.index import TIME_MAX_MS
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.security.model import Action, ResourceKind

ANSWER_SIZE_MAX: Final = 8 * 1024 * 1024
"""Bytes of the records in one answer; more of them are left out."""

UNIQUE_FOUND_MIN: Final = 32
"""Messages that are looked for with a unique key, however few are asked for, as in RocketMQ."""


class RemotingLookups:
    """Serves queries for messages."""

    def __init__(self, edge: RemotingEdge, messages: MessageStore, index: KeyIndex) -> None:
        self._edge = edge
        self._messages = messages
        self._index = index

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.QUERY_MESSAGE: self._edge.handler(self._query),
            RequestCode.VIEW_MESSAGE_BY_ID: self._edge.handler(self._view),
        }

    def _view(self, call: RemotingCall) -> None:
        """Answer with the record at an offset of the log."""
        at = PhysicalOffset(integer_of(call.fields, "offset"))
        try:
            record = self._messages.existing_record_at(at)
        except OffsetOutOfRange as error:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {at}") from error
        self._edge.require(call, (*read(record.topic), Access(ResourceKind.TOPIC, record.topic, Action.GET)))
        call.answer(body=self._bytes_of(record))

    def _query(self, call: RemotingCall) -> None:
        fields = call.fields
        topic, key = text_of(fields, "topic"), text_of(fields, "key")
        self._edge.require(call, (*read(topic), Access(ResourceKind.TOPIC, topic, Action.GET)))
        most = integer_of(fields, "maxNum", within=INT32)
        if is_true(fields, "_UNIQUE_KEY_QUERY") or fields.get("indexType") == "U":
            most = max(most, UNIQUE_FOUND_MIN)
        begin_ms, end_ms = integer_of(fields, "beginTimestamp"), integer_of(fields, "endTimestamp")
        begin_ms, end_ms = max(begin_ms, 0), min(end_ms, TIME_MAX_MS)
        limit = min(max(most, 1), FOUND_MAX)
        self._edge.later(call, self._find(call, topic, key, times_ms=(begin_ms, end_ms), limit=limit))

    async def _find(self, call: RemotingCall, topic: str, key: str, *, times_ms: tuple[int, int], limit: int) -> None:
        begin_ms, end_ms = times_ms
        try:
            found = await self._index.find(topic, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit)
            if not found.messages:
                raise RemotingRefused(
                    ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
                )
            body: list[bytes] = []
            size = 0
            for record in found.messages:
                size += record.size
                if body and size > ANSWER_SIZE_MAX:
                    break
                body.append(self._bytes_of(record))
            newest_ms = max(each.store_timestamp_ms for each in found.messages)
            call.answer(
                fields={
                    "indexLastUpdateTimestamp": str(newest_ms),
                    "indexLastUpdatePhyoffset": str(found.indexed_up_to),
                },
                body=b"".join(body),
            )
        except NoIndex as error:
            call.answer(ResponseCode.QUERY_NOT_FOUND, remark=str(error))

    def _bytes_of(self, record: StoredMessage) -> bytes:
        return bytes(self._messages.reader.read(record.physical_offset, record.size))
