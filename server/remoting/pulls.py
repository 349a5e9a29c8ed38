"""Pulls and offsets by remoting: the client names the queue and the offset, and keeps the group's progress itself.

The body of an answer is the records as they lie in the log, one after the other.

One number is stored for a group and a queue. For consumers by remoting it is the offset below which all is done. For
those by gRPC it is the first offset that was never handed out, and messages in flight have rows of their own. So a
remoting client that asks where to go on is told the first message in flight, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from quarry_mq.protocol.names import RETRY_PREFIX
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.counters import Traffic
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.delivery.fetch import ANSWER_SIZE_MAX
from quarry_mq.server.delivery.pulls import PullRequest, Pulls
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.filters import MessageFilter
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.metadata import Directory
from quarry_mq.server.remoting.clients import filter_of
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.sessions import RemotingSessions
from quarry_mq.server.remoting.wire import INT32, RemotingRefused, integer_of, text_of
from quarry_mq.server.routing import require_readable
from quarry_mq.server.rpc.access import join, read
from quarry_mq.server.security.authorization import Need
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections.delivery import NewGroupStart
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import Forbidden, GroupNotFound, Invalid, OffsetOutOfRange
from quarry_mq.store.message import QueueBounds, QueueId, QueueOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.metadata import Topic
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.security.model import Action, ResourceKind

COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2
HAS_SUBSCRIPTION: Final = 4
CLASS_FILTER: Final = 8

BATCH_SIZE_MAX: Final = 32
"""Most messages in the answer to a pull, as in RocketMQ: its clients count on it."""

SUSPEND_MAX_S: Final = 30.0
"""Most seconds that a pull waits. Clients ask for 15 or 20 and give up 10 s later."""

_ALWAYS: Final = {"suggestWhichBrokerId": "0", "topicSysFlag": "0", "groupSysFlag": "0"}


class RemotingPulls:
    """Serves pulls, and the offsets of groups and queues."""

    def __init__(
        self,
        edge: RemotingEdge,
        sessions: RemotingSessions,
        directory: Directory,
        *,
        messages: MessageStore,
        pulls: Pulls,
        delivery: Delivery,
        traffic: Traffic,
        settings: BrokerSettings,
    ) -> None:
        self._edge = edge
        self._sessions = sessions
        self._directory = directory
        self._messages = messages
        self._pulls = pulls
        self._delivery = delivery
        self._traffic = traffic
        self._resets: dict[str, set[QueueId]] = {}
        """The queues in which operators have moved a group, and whose owners have not been told yet, by group."""
        delivery.on_reset(self._was_reset)
        self.configure(settings)

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._settings = settings.delivery

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        handler = self._edge.handler
        pull = handler(self._pull)
        return {
            RequestCode.PULL_MESSAGE: pull,
            RequestCode.LITE_PULL_MESSAGE: pull,
            RequestCode.QUERY_CONSUMER_OFFSET: handler(self._query_offset),
            RequestCode.UPDATE_CONSUMER_OFFSET: handler(self._update_offset),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: handler(self._search_offset),
            RequestCode.GET_MAX_OFFSET: handler(self._maximum),
            RequestCode.GET_MIN_OFFSET: handler(self._minimum),
            RequestCode.GET_EARLIEST_MESSAGE_STORE_TIME: handler(self._earliest_time),
        }

    # -- resets

    def _was_reset(self, group: str, queue: QueueId, _offset: QueueOffset) -> None:
        """Note that an operator has moved a group: the client that owns the queue is told at its next pull.

        Until then what the client commits is not stored: the client still counts from where it was.
        """
        known = self._sessions.consumers(group)
        if known is not None and not known.is_broadcasting and queue.topic in known.heartbeat.subscriptions:
            self._resets.setdefault(group, set()).add(queue)

    def _is_untold(self, group: str, queue: QueueId) -> bool:
        """Return whether an operator has moved the group, and the owner of the queue has not been told.

        There is nothing to tell if the topic or the group was deleted since: then no progress is stored.
        """
        queues = self._resets.get(group)
        if queues is None or queue not in queues:
            return False
        if self._delivery.next_offset(group, queue) is None:
            queues.discard(queue)
            return False
        return True

    def _is_reset(self, call: RemotingCall, group: str, queue: QueueId) -> bool:
        """Answer a pull with the offset where the group goes on, if an operator has moved it since the last pull."""
        offset = self._progress(group, queue) if self._is_untold(group, queue) else None
        if offset is None:
            return False
        self._resets[group].discard(queue)
        self._answer(call, queue, ResponseCode.PULL_OFFSET_MOVED, offset, remark="OFFSET_RESET")
        return True

    def drop_resets(self, group: str, topic: str) -> None:
        """Drop what owners of the topic's queues were to hear of resets: the group lets the broker choose now."""
        for queue in [each for each in self._resets.get(group, ()) if each.topic == topic]:
            self._resets[group].discard(queue)

    def sweep(self) -> None:
        """Forget resets of groups without consumers, which begin at the stored offset; to be called now and then."""
        for group, queues in list(self._resets.items()):
            if not queues or self._sessions.consumers(group) is None:
                del self._resets[group]

    # -- pulls

    def _pull(self, call: RemotingCall) -> None:
        fields = call.fields
        group, queue = self._may_pull(call)
        flags = integer_of(fields, "sysFlag", within=INT32)
        offset = integer_of(fields, "queueOffset")
        batch_size = integer_of(fields, "maxMsgNums", within=INT32)
        wanted = self._filter(fields, group, queue.topic, flags)
        commit_offset = integer_of(fields, "commitOffset", 0)
        if self._is_reset(call, group, queue):
            return
        if flags & COMMIT_OFFSET and commit_offset > 0:
            self._commit(group, queue, commit_offset)
        waits_ms = integer_of(fields, "suspendTimeoutMillis", 0) if flags & SUSPEND else 0
        request = PullRequest(
            queue=queue,
            offset=QueueOffset(offset),
            filter=wanted,
            batch_size=min(max(batch_size, 1), BATCH_SIZE_MAX),
            polling_s=min(max(waits_ms, 0) / 1000, SUSPEND_MAX_S),
            client_id=call.peer,
        )

        if wanted.wants_all and self._answer_at_once(call, request):
            return
        lost = call.connection.lost

        def pulled(found: Sequence[StoredMessage], following: QueueOffset, error: Exception | None) -> None:
            lost.pop(call, None)
            try:
                if self._is_reset(call, group, queue):
                    return
                if isinstance(error, OffsetOutOfRange):  # the topic was replaced meanwhile
                    self._answer(call, queue, ResponseCode.PULL_OFFSET_MOVED, self._messages.bounds(queue).minimum)
                elif error is not None:
                    self._edge.refuse(call, error)
                else:
                    self._found(call, request, found, following)
            except Exception as fault:  # noqa: BLE001 - as at the edge: the pull may have waited, nobody else catches it
                self._edge.refuse(call, fault)

        try:
            waiting = self._pulls.pull(request, pulled, lambda: self._check_again(call))
        except OverLimit as error:
            # a client that is told of flow control pulls again after 20 ms, else after 3 s
            raise RemotingRefused(ResponseCode.SYSTEM_BUSY, str(error)) from error
        except OffsetOutOfRange:
            bounds = self._messages.bounds(queue)
            is_beyond = offset > bounds.maximum
            corrected = bounds.maximum if is_beyond else bounds.minimum
            reason = "OFFSET_OVERFLOW_BADLY" if is_beyond else "OFFSET_TOO_SMALL"
            self._answer(call, queue, ResponseCode.PULL_OFFSET_MOVED, corrected, remark=reason)
            return
        if waiting is not None:
            lost[call] = lambda: self._pulls.cancel(waiting)

    def _check_again(self, call: RemotingCall) -> None:
        """Check a pull that has waited, as before its wait."""
        if call.closed:
            raise Invalid("the client is gone")
        self._queue(call, text_of(call.fields, "consumerGroup"))

    def _may_pull(self, call: RemotingCall) -> tuple[str, QueueId]:
        """Return group and queue of a pull. Raises the error that forbids it, in RocketMQ's order."""
        name, topic = text_of(call.fields, "consumerGroup"), text_of(call.fields, "topic")
        self._edge.require(call, *_reading(name, topic))
        return name, self._queue(call, name)

    def _queue(self, call: RemotingCall, group_name: str) -> QueueId:
        group = self._directory.group(group_name)
        if not group.enabled:
            raise Forbidden(f"subscription group no permission, {group_name}")
        topic = self._directory.topic(text_of(call.fields, "topic"))
        require_readable(topic)
        return _queue_of(topic, integer_of(call.fields, "queueId", within=INT32))

    def _filter(self, fields: Mapping[str, str], group: str, topic: str, flags: int) -> MessageFilter:
        """Return the filter of a pull: the one that it brings, or the one that its group has registered."""
        if flags & CLASS_FILTER:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, "filters by class are not supported")
        if flags & HAS_SUBSCRIPTION:
            try:
                return filter_of(fields.get("subscription", ""), fields.get("expressionType", ""))
            except RemotingRefused:
                raise
            except Invalid as error:
                raise RemotingRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        known = self._sessions.consumers(group)
        subscription = None if known is None else known.heartbeat.subscriptions.get(topic)
        if subscription is None:
            raise RemotingRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {group}, topic {topic}",
            )
        if subscription.version < integer_of(fields, "subVersion", 0):
            raise RemotingRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return filter_of(subscription.expression, subscription.expression_type)

    def _found(
        self,
        call: RemotingCall,
        request: PullRequest,
        found: Sequence[StoredMessage],
        following: QueueOffset,
    ) -> None:
        queue = request.queue
        if found:
            reader = self._messages.reader
            body = b"".join([reader.read(each.physical_offset, each.size) for each in found])
            self._count(call, queue, len(found), len(body))
            call.answer(fields=_fields(self._messages.bounds(queue), following), body=body, remark="FOUND")
        elif following > request.offset:
            self._answer(call, queue, ResponseCode.PULL_RETRY_IMMEDIATELY, following, remark="NO_MATCHED_MESSAGE")
        else:
            self._answer(call, queue, ResponseCode.PULL_NOT_FOUND, following, remark="OFFSET_OVERFLOW_ONE")

    def _answer_at_once(self, call: RemotingCall, request: PullRequest) -> bool:
        """Answer a pull of all messages with the records as they lie in the log; return whether that was possible.

        Otherwise none is there yet, or they have to be read one by one.
        """
        queue, offset = request.queue, request.offset
        bounds = self._messages.bounds(queue)
        if not bounds.minimum <= offset < bounds.maximum:
            return False
        entries = self._messages.entries(queue, offset, request.batch_size)
        if sum([each.size for each in entries]) > ANSWER_SIZE_MAX:
            return False
        body = self._messages.raw_records(entries)
        if body is None:
            return False
        self._count(call, queue, len(entries), len(body))
        following = QueueOffset(entries[-1].queue_offset + 1)
        call.answer(fields=_fields(bounds, following), body=body, remark="FOUND")
        return True

    def _count(self, call: RemotingCall, queue: QueueId, messages: int, size: int) -> None:
        """Count the messages that a pull returns."""
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        self._traffic.received(call.fields["consumerGroup"], queue.topic, messages, size, is_retry=is_retry)

    def _answer(
        self,
        call: RemotingCall,
        queue: QueueId,
        code: ResponseCode,
        following: QueueOffset,
        *,
        remark: str = "",
    ) -> None:
        call.answer(code, _fields(self._messages.bounds(queue), following), remark=remark)

    # -- offsets of groups

    def _query_offset(self, call: RemotingCall) -> None:
        """Answer with the offset where the group goes on. Without one, the client decides by itself where to begin.

        `delivery.new_group_start` = `auto` answers 0 as RocketMQ does: if the queue's first message is near the end of
        the log.
        """
        fields = call.fields
        group = text_of(fields, "consumerGroup")
        topic = text_of(fields, "topic")
        self._edge.require(call, *_reading(group, topic))
        queue = QueueId(topic, integer_of(fields, "queueId", within=INT32))
        offset = self._progress(group, queue)
        if offset is None and fields.get("setZeroIfNotFound", "").lower() != "false":
            offset = self._first_offset(queue)
        if offset is None:
            raise RemotingRefused(
                ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            )
        call.answer(fields={"offset": str(offset)})

    def _progress(self, group: str, queue: QueueId) -> QueueOffset | None:
        """Return the offset below which the group has done everything; None in a queue that it has never read."""
        next_offset = self._delivery.next_offset(group, queue)
        if next_offset is None:
            return None
        self._delivery.writer.write_now()  # from here on the table of messages in flight is read
        first = self._delivery.first_in_flight(group, queue, QueueOffset(0))
        return next_offset if first is None else min(first, next_offset)

    def _first_offset(self, queue: QueueId) -> QueueOffset | None:
        """Return where a new group begins, if the broker says it and not the client."""
        extent = self._messages.extents_of_all([queue])[0]
        match self._settings.new_group_start:
            case NewGroupStart.EARLIEST:
                return extent.minimum
            case NewGroupStart.LATEST:
                return None
        if extent.minimum > 0:
            return None
        is_near = (
            extent.begins_at is None
            or self._messages.appended_up_to - extent.begins_at <= self._settings.auto_start_size
        )
        return QueueOffset(0) if is_near else None

    def _update_offset(self, call: RemotingCall) -> None:
        """Store where the group goes on, also lower than before. The answer follows the write."""
        fields = call.fields
        name = text_of(fields, "consumerGroup")
        topic = self._directory.topic(text_of(fields, "topic"))
        self._edge.require(call, *_reading(name, topic.name))
        if self._directory.find_group(name) is None:
            raise GroupNotFound(f"subscription group [{name}] does not exist")
        queue = _queue_of(topic, integer_of(fields, "queueId", within=INT32))
        self._commit(name, queue, integer_of(fields, "commitOffset"))
        if call.command.is_oneway:
            call.answer()
        else:
            self._delivery.writer.when_written(partial(self._edge.ended, call))

    def _commit(self, group: str, queue: QueueId, offset: int) -> None:
        """Store an offset; one beyond the queue's end would hide what comes later, and is brought back to the end."""
        if self._is_untold(group, queue):
            return
        maximum = self._messages.maximum(queue)
        self._delivery.commit_offset(group, queue, QueueOffset(max(0, min(offset, maximum))), ends_below=True)

    # -- offsets of queues

    def _maximum(self, call: RemotingCall) -> None:
        call.answer(fields={"offset": str(self._messages.bounds(self._asked(call)).maximum)})

    def _minimum(self, call: RemotingCall) -> None:
        call.answer(fields={"offset": str(self._messages.bounds(self._asked(call)).minimum)})

    def _search_offset(self, call: RemotingCall) -> None:
        queue = self._asked(call)
        boundary = TimeBoundary.UPPER if call.fields.get("boundaryType", "").lower() == "upper" else TimeBoundary.LOWER
        offset = self._messages.offset_at_time(queue, integer_of(call.fields, "timestamp"), boundary)
        call.answer(fields={"offset": str(offset)})

    def _earliest_time(self, call: RemotingCall) -> None:
        queue = self._asked(call)
        entries = self._messages.entries(queue, self._messages.bounds(queue).minimum, 1)
        time_ms = self._messages.read(entries[0]).store_timestamp_ms if entries else -1
        call.answer(fields={"timestamp": str(time_ms)})

    def _asked(self, call: RemotingCall) -> QueueId:
        """Return the queue that a request names; it need not exist."""
        topic = text_of(call.fields, "topic")
        may = (*read(topic), Access(ResourceKind.TOPIC, topic, Action.GET))
        if not topic.startswith(RETRY_PREFIX):
            self._edge.require(call, may)
        return QueueId(topic, integer_of(call.fields, "queueId", within=INT32))


def _reading(group: str, topic: str) -> list[Need]:
    """Return what a group needs to read a topic; its own retry topics need nothing more than the group."""
    return [join(group), *([] if topic.startswith(RETRY_PREFIX) else [read(topic, group)])]


def _queue_of(topic: Topic, number: int) -> QueueId:
    """Return a queue of a topic. Raises RemotingRefused (INVALID_PARAMETER)."""
    if not 0 <= number < topic.queue_count:
        raise RemotingRefused(
            ResponseCode.INVALID_PARAMETER,
            f"topic {topic.name} has {topic.queue_count} queues, and none of number {number}",
        )
    return QueueId(topic.name, number)


def _fields(bounds: QueueBounds, following: QueueOffset) -> dict[str, str]:
    """Return the custom header of the answer to a pull."""
    return {
        "nextBeginOffset": str(following),
        "minOffset": str(bounds.minimum),
        "maxOffset": str(bounds.maximum),
        **_ALWAYS,
    }
