"""The official calls for messages by id, by key, or by the time at which they were stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.messages.property_names import KEYS, UNIQUE_KEY
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import to_ms
from quarry_mq.server.admin.browsing import DamagedMessage, MessageBrowser, Selected, Wanted
from quarry_mq.server.admin_port.calls.edge import as_caller_may_see, caller_may_see
from quarry_mq.server.admin_port.official.edge import Names
from quarry_mq.server.maintenance.key_index import FOUND_MAX, KeyIndex
from quarry_mq.server.tasks import Pacing
from quarry_mq.server.wire.messages import fill_message
from quarry_mq.server.wire.status import Refused, without_places
from quarry_mq.store.index import TIME_MAX_MS
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.metadata import Topic
from quarry_mq.store.metadata.lite import light_queue_name
from quarry_mq.store.record import StoredMessage

PAGE_DEFAULT: Final = 32
PAGE_MAX: Final = 256
ANSWER_SIZE_MAX: Final = 3 * 1024 * 1024
"""Bytes of records in an answer, unless one alone is larger: gRPC's clients take 4 MiB."""

_SCROLL: Final = re.compile(r"([0-9]{1,15})-([0-9]{1,19})")


class _Page(NamedTuple):
    """The requested part of the messages. `after` is the log position of a scroll id, `number` counts from 1."""

    size: int
    number: int
    after: PhysicalOffset | None


class QueryCalls:
    """Answers queries. By id and key they need the key index, and fail without one; by time they need nothing."""

    def __init__(
        self,
        names: Names,
        index: KeyIndex,
        browser: MessageBrowser,
        pacing: Pacing,
        *,
        broker_name: str,
        clock: Clock,
    ) -> None:
        self._names = names
        self._index = index
        self._browser = browser
        self._pacing = pacing
        self._broker_name = broker_name
        self._clock = clock

    async def query_message(self, request: pb.ListMessageRequest) -> pb.ListMessageResponse:
        """Find messages: by id and key the newest first, by time in the order in which they were stored."""
        topic = self._names.topic(request.topic)
        if request.HasField("broker_name") and request.broker_name != self._broker_name:
            raise Refused(definition.NOT_FOUND, f"broker_name: this broker is {self._broker_name}")
        begin_ms, end_ms = self._times(request)
        page = _page(request)
        match request.WhichOneof("search_key"):
            case "message_id" | "message_key":
                return await self._by_key(topic, request, page, (begin_ms, end_ms))
            case "subscription":
                raise Refused(definition.UNSUPPORTED, "subscription: messages cannot be searched by subscription")
        return await self._by_time(topic, request, page, (begin_ms, end_ms))

    async def with_id(self, topic: Topic, message_id: str) -> StoredMessage | None:
        """Return the newest message of the topic with this id. Raises NoIndex."""
        found = await self._index.find(topic.name, message_id, begin_ms=0, end_ms=TIME_MAX_MS, limit=PAGE_DEFAULT)
        return next(filter(caller_may_see, _with_id(found.messages, message_id)), None)

    async def _by_key(
        self, topic: Topic, request: pb.ListMessageRequest, page: _Page, times_ms: tuple[int, int]
    ) -> pb.ListMessageResponse:
        field = request.WhichOneof("search_key") or ""
        text = str(getattr(request, field))
        if not text:
            raise Refused(definition.BAD_REQUEST, f"{field}: must be given")
        if page.after is not None:
            raise Refused(definition.BAD_REQUEST, f"scroll_id: use page_num to continue if {field} is given")
        wanted = page.size * page.number
        if wanted > FOUND_MAX:
            reason = f"page_num: only the newest {FOUND_MAX} messages are found; use end_timestamp to find older ones"
            raise Refused(definition.BAD_REQUEST, reason)
        begin_ms, end_ms = times_ms
        found = await self._index.find(topic.name, text, begin_ms=begin_ms, end_ms=end_ms, limit=wanted)
        seen = [each for each in found.messages if caller_may_see(each)]
        messages: Iterable[StoredMessage] = seen[wanted - page.size :]
        messages = _with_id(messages, text) if field == "message_id" else _with_key(messages, text)
        answer = pb.ListMessageResponse()
        size = 0
        async with self._pacing.turn() as time_slice:
            for message in messages:
                await time_slice.pause()
                size += message.size
                if answer.messages and size > ANSWER_SIZE_MAX:
                    _note(answer, "the messages are too large: use a smaller page_size")
                    break
                _add(answer, message, topic)
        if found.unread:
            names = ", ".join(each.name for each in found.unread[:3])
            _note(answer, f"messages may be missing, these index files could not be read: {names}")
        elif found.indexed_up_to < found.handed_over:
            _note(answer, "messages may be missing: the index lags behind the log")
        return answer

    async def _by_time(
        self, topic: Topic, request: pb.ListMessageRequest, page: _Page, times_ms: tuple[int, int]
    ) -> pb.ListMessageResponse:
        begin_ms, end_ms = times_ms
        wanted = Wanted(
            page.size,
            ANSWER_SIZE_MAX,
            begin_ms=begin_ms,
            end_ms=end_ms,
            beyond=page.after,
            skip=page.size * (page.number - 1),
        )
        if wanted.skip > FOUND_MAX:
            raise Refused(definition.BAD_REQUEST, f"page_num: after {FOUND_MAX} messages use scroll_id to continue")
        selected = self._selected(topic, request)
        wanted = wanted._replace(wish=as_caller_may_see(wanted.wish, selected.topic))
        async with self._pacing.turn() as time_slice:
            found = await self._browser.find(selected, wanted, time_slice)
            answer = pb.ListMessageResponse()
            for message in found.messages:
                await time_slice.pause()
                _add(answer, message, topic)
        if found.damaged:
            _note(answer, _passed_over(found.damaged))
        if found.next is not None:
            answer.scroll_id = f"{found.looked_up_to_ms or 0}-{found.next}"
        return answer

    def _selected(self, topic: Topic, request: pb.ListMessageRequest) -> Selected:
        """Return the queues to read: all that the topic has or had, a given one, or the light queue of a lite topic."""
        if request.WhichOneof("search_key") == "lite_topic":
            if not request.lite_topic:
                raise Refused(definition.ILLEGAL_LITE_TOPIC, "lite_topic: must be given")
            return Selected(light_queue_name(topic.name, request.lite_topic), 0)
        if not request.HasField("queue_id"):
            return Selected(topic.name)
        if not self._browser.has_queue(topic.name, request.queue_id, topic.queue_count):
            raise Refused(definition.BAD_REQUEST, f"queue_id: topic {topic.name} has no queue {request.queue_id}")
        return Selected(topic.name, request.queue_id)

    def _times(self, request: pb.ListMessageRequest) -> tuple[int, int]:
        begin_ms = to_ms(request.begin_timestamp)
        end_ms = to_ms(request.end_timestamp) if request.HasField("end_timestamp") else self._clock.wall_ms()
        end_ms = min(end_ms, TIME_MAX_MS)
        if begin_ms < 0:
            raise Refused(definition.BAD_REQUEST, f"begin_timestamp: {begin_ms} ms is before 1970")
        if begin_ms > end_ms:
            raise Refused(definition.BAD_REQUEST, "begin_timestamp: later than end_timestamp")
        return begin_ms, end_ms


def _page(request: pb.ListMessageRequest) -> _Page:
    """Return the requested page. Raises Refused."""
    for field in ("page_num", "page_size", "max_message_nums"):
        is_given = request.HasField(field) if field != "max_message_nums" else request.max_message_nums != 0
        if is_given and getattr(request, field) < 1:
            raise Refused(definition.BAD_REQUEST, f"{field}: {getattr(request, field)} is less than 1")
    size = request.page_size or request.max_message_nums or PAGE_DEFAULT
    if request.max_message_nums:
        size = min(size, request.max_message_nums)
    if size > PAGE_MAX:
        field = "page_size" if request.page_size else "max_message_nums"
        raise Refused(definition.BAD_REQUEST, f"{field}: {size}, at most {PAGE_MAX} are allowed")
    after = None
    if request.scroll_id:
        parts = _SCROLL.fullmatch(request.scroll_id)
        if parts is None:
            raise Refused(definition.BAD_REQUEST, "scroll_id: not a scroll_id of this call")
        after = PhysicalOffset(int(parts[2]))
    return _Page(size, request.page_num or 1 if after is None else 1, after)


def _with_id(messages: Iterable[StoredMessage], message_id: str) -> Iterator[StoredMessage]:
    """Keep the messages with this id: the index stores ids and keys under the same name."""
    return (each for each in messages if each.properties.get(UNIQUE_KEY) == message_id)


def _with_key(messages: Iterable[StoredMessage], key: str) -> Iterator[StoredMessage]:
    return (each for each in messages if key in each.properties.get(KEYS, "").split(" "))


def _add(answer: pb.ListMessageResponse, stored: StoredMessage, topic: Topic) -> None:
    target = answer.messages.add()
    fill_message(target, stored, topic=topic.name, receipt_handle="", delivery_attempt=0)
    # the message was looked at, not delivered
    target.system_properties.ClearField("receipt_handle")
    target.system_properties.ClearField("delivery_attempt")


def _passed_over(damaged: Sequence[DamagedMessage]) -> str:
    first, count = damaged[0], len(damaged)
    records = "a damaged record was" if count == 1 else f"{count} damaged records were"
    text = f"{records} passed over: offset {first.offset} of queue {first.queue.number}, {first.reason}"
    return without_places(f"{text}; a group goes on behind the message with: {first.command}")


def _note(answer: pb.ListMessageResponse, text: str) -> None:
    answer.status.code = definition.OK
    answer.status.message = text
