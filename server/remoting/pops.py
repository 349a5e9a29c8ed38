"""POP by remoting: the broker chooses the messages, and hides them until they are acknowledged.

The rules are those of `server.delivery`, as for gRPC, and a group may go on by either protocol. A client keeps a text
for each message, the extra info, and shows it when it acknowledges the message or changes its invisible time:

| part | extra info     | in Quarry |
|-----:|----------------|-----------|
| 0    | start          | the lowest offset of the queue in the answer; batches of acknowledgements count from it |
| 1    | pop time       | when the message was delivered, ms |
| 2    | invisible time | ms |
| 3    | revive queue   | 999 in order, else 0; or the seconds from the clock of delivery to the time of day |
| 4    | kind of topic  | 0 the topic, 1 and 2 its retry topics with `_` and `+` |
| 5    | broker         | |
| 6    | queue          | |
| 7    | offset         | |

Clients make this text out of an answer's header, so one answer has one pop time. Pop time and invisible time together
name the delivery: a message that was delivered again, or hidden for another time, has another end.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.limits import ENTRIES_MAX
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.delivery import Delivered, Delivery, ReceiveRequest, TimedHandle
from quarry_mq.server.delivery.retry_topics import NUMBERS_EACH, handle_queue_of, retry_topics
from quarry_mq.server.errors import InvalidReceiptHandle, OverLimit
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.metadata import Directory
from quarry_mq.server.observability.metrics.instruments import ServerMetrics
from quarry_mq.server.remoting.clients import NAME_MAX, filter_of
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.pulls import BATCH_SIZE_MAX, SUSPEND_MAX_S, RemotingPulls
from quarry_mq.server.remoting.wire import (
    INT32,
    Json,
    RemotingRefused,
    integer_of,
    invalid,
    is_true,
    json_object,
    member_integer,
    member_objects,
    member_text,
    text_of,
)
from quarry_mq.server.routing import require_readable
from quarry_mq.server.rpc.access import join, read
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import NewGroupStart
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.record import with_reconsume_times

LATE_MS: Final = 500
"""Milliseconds after the end of its wait for which a pop that comes late is still served, as in RocketMQ."""

IN_ORDER: Final = 999
"""The revive queue of ordered pops."""

SKEW_MIN_S: Final = 1
"""Seconds by which the clock of delivery may differ from the time of day without being told apart."""

NOTICE_MS: Final = 10_000
"""Milliseconds for which a notification hides the message that it found, until it gives the message back."""

POLLING: Final = frozenset({"waiting_polls", "waiting_polls_per_client", "waiting_filters"})
"""Limits that keep a receive from waiting."""

_SET_BITS: Final = re.compile(rb"[^\0]")
_INVISIBLE: Final = "invisibleTime"
_EXTRA: Final = "extraInfo"


class _Times(NamedTuple):
    """The times by which a client knows a delivery, as they are in headers."""

    pop_ms: int
    invisible_ms: int
    revive_queue: int

    @classmethod
    def of(cls, handed_out_at_ms: int, invisible_ms: int, now_ms: int, wall_ms: int, *, is_ordered: bool) -> _Times:
        """Return the times of what is delivered now, in the time of day, by which clients see what is over.

        The clock of delivery goes on if that of the machine is set, or stands still while the machine sleeps.
        """
        skew_s = round((wall_ms - now_ms) / 1000)
        if abs(skew_s) <= SKEW_MIN_S:
            return cls(handed_out_at_ms, invisible_ms, IN_ORDER if is_ordered else 0)
        skew_s = min(max(skew_s + (skew_s == IN_ORDER), INT32.start), INT32.stop - 1)
        return cls(handed_out_at_ms + skew_s * 1000, invisible_ms, skew_s)

    @property
    def visible_at_ms(self) -> int:
        """Return until when the message is hidden, on the clock of delivery."""
        skew_s = 0 if self.revive_queue == IN_ORDER else self.revive_queue
        return self.pop_ms - skew_s * 1000 + self.invisible_ms

    @property
    def fields(self) -> dict[str, str]:
        """Return them as they are in an answer."""
        return {
            "popTime": str(self.pop_ms),
            _INVISIBLE: str(self.invisible_ms),
            "reviveQid": str(self.revive_queue),
        }


def _times_in(extra_info: str) -> _Times:
    """Return the times in an extra info. Raises RemotingRefused (INVALID_PARAMETER)."""
    parts = extra_info.split(" ", 8)
    if len(parts) < 8:
        raise invalid(f"the field {_EXTRA} has {len(parts)} parts; 8 are needed")
    return _Times(*(integer_of({_EXTRA: each}, _EXTRA) for each in parts[1:4]))


class _Found(NamedTuple):
    """The messages of one queue in an answer. `kind` is that of the topic, see the module."""

    kind: str
    number: int
    offsets: list[int]

    @property
    def start(self) -> str:
        return f"{self.kind} {self.number} {min(self.offsets)}"

    @property
    def all(self) -> str:
        return f"{self.kind} {self.number} {','.join(map(str, self.offsets))}"


Answer = Callable[[RemotingCall, ReceiveRequest, Sequence[Delivered]], None]
"""Answers a call with the messages of its receive, of which there is at least one."""


class RemotingPops:
    """Serves pops, acknowledgements, and changes of invisible times."""

    def __init__(
        self,
        edge: RemotingEdge,
        directory: Directory,
        *,
        messages: MessageStore,
        delivery: Delivery,
        pulls: RemotingPulls,
        metrics: ServerMetrics,
        clock: Clock,
        settings: BrokerSettings,
    ) -> None:
        """`clock` is that of the machine, by which clients say when they began to wait."""
        self._edge = edge
        self._directory = directory
        self._messages = messages
        self._delivery = delivery
        self._pulls = pulls
        self._metrics = metrics
        self._clock = clock
        self.configure(settings)

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._invisible_range = range(settings.delivery.invisible_time_max_ms + 1)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        handler = self._edge.handler
        return {
            RequestCode.POP_MESSAGE: handler(self._pop),
            RequestCode.PEEK_MESSAGE: handler(self._peek),
            RequestCode.NOTIFICATION: handler(self._notify),
            RequestCode.POLLING_INFO: handler(self._count_waiting),
            RequestCode.ACK_MESSAGE: handler(self._acknowledge),
            RequestCode.BATCH_ACK_MESSAGE: handler(self._acknowledge_batch),
            RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME: handler(self._change_invisible),
        }

    # -- receives

    def _pop(self, call: RemotingCall) -> None:
        invisible_ms = self._invisible_ms(call.fields)
        self._receive(call, _batch_size(call.fields), invisible_ms, self._answer_pop)

    def _peek(self, call: RemotingCall) -> None:
        """Show messages that come next: they are given back at once, and it was no attempt."""
        self._receive(call, _batch_size(call.fields), NOTICE_MS, self._answer_peek)

    def _notify(self, call: RemotingCall) -> None:
        """Say whether there is a message, as soon as there is one."""
        self._receive(call, 1, NOTICE_MS, self._answer_notice)

    def _receive(self, call: RemotingCall, batch_size: int, invisible_ms: int, answer: Answer) -> None:
        fields = call.fields
        group, topic = self._pair(fields)
        self._edge.require(call, join(group), read(topic, group))
        wanted = filter_of(fields.get("exp", ""), fields.get("expType", ""))
        attempt_id, is_ordered = fields.get("attemptId", ""), is_true(fields, "order")
        if len(attempt_id) > NAME_MAX:
            raise invalid(f"the field attemptId has {len(attempt_id)} characters; {NAME_MAX} are allowed")
        new_start = NewGroupStart.EARLIEST if fields.get("initMode") == "0" else None
        number = integer_of(fields, "queueId", -1, within=INT32)
        polling_s, user = self._polling_s(fields), self._edge.user

        def request() -> ReceiveRequest:
            found = self._directory.topic(topic)
            require_readable(found)
            if number >= found.queue_count:
                raise invalid(f"topic {topic} has {found.queue_count} queues, and none of number {number} (queueId)")
            terms = ReceiveRequest.of(
                found,
                self._directory.group_of_whole_topics(group, user),
                wanted=wanted,
                batch_size=batch_size,
                invisible_ms=invisible_ms,
                client_id=call.peer,
                attempt_id=attempt_id,
                is_ordered=is_ordered,
            )
            return terms._replace(handed_out_at_ms=self._delivery.now_ms(), new_group_start=new_start)

        current = request()
        self._pulls.drop_resets(group, topic)
        if polling_s is None:
            self._answer_none(call, current, ResponseCode.POLLING_TIMEOUT, "the time of the pop is over")
            return
        lost = call.connection.lost

        def again() -> ReceiveRequest:
            nonlocal current
            if call.closed:
                raise Invalid("the client is gone")
            current = request()
            return current

        def received(found: Sequence[Delivered], error: Exception | None) -> None:
            lost.pop(call, None)
            try:
                self._received(call, current, found, error, answer)
            except Exception as fault:  # noqa: BLE001 - as at the edge: the pop may have waited, nobody else catches it
                self._give_back(current, found)
                self._edge.refuse(call, fault)

        try:
            poll = self._delivery.receive(current, polling_s, received, again)
        except OverLimit as error:
            self._refuse_receive(call, current, error)
            return
        if poll is not None:
            lost[call] = partial(self._delivery.cancel, poll)

    def _polling_s(self, fields: Mapping[str, str]) -> float | None:
        """Return how long a receive may wait; None if its client has stopped waiting for the answer."""
        polling_ms = min(max(integer_of(fields, "pollTime", 0), 0), round(SUSPEND_MAX_S * 1000))
        born_ms = integer_of(fields, "bornTime", 0)
        if born_ms <= 0:
            return polling_ms / 1000
        left_ms = born_ms + polling_ms - self._clock.wall_ms()
        return None if left_ms < -LATE_MS else min(max(left_ms, 0), polling_ms) / 1000

    def _received(
        self,
        call: RemotingCall,
        request: ReceiveRequest,
        found: Sequence[Delivered],
        error: Exception | None,
        answer: Answer,
    ) -> None:
        if error is not None:
            self._refuse_receive(call, request, error)
        elif call.closed or call.command.is_oneway:
            self._give_back(request, found)
        elif found:
            answer(call, request, found)
        else:
            self._metrics.received(0)
            self._answer_none(call, request, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")

    def _refuse_receive(self, call: RemotingCall, request: ReceiveRequest, error: Exception) -> None:
        if not isinstance(error, OverLimit) or error.limit not in POLLING:
            self._edge.refuse(call, error)
            return
        self._edge.limit_met(error)
        self._answer_none(call, request, ResponseCode.POLLING_FULL, str(error))

    def _answer_none(self, call: RemotingCall, request: ReceiveRequest, code: ResponseCode, remark: str) -> None:
        if call.code == RequestCode.NOTIFICATION:
            is_full = str(code is ResponseCode.POLLING_FULL).lower()
            call.answer(fields={"hasMsg": "false", "pollingFull": is_full}, remark=remark)
            return
        fields = {**self._times(request).fields, "restNum": "0", "startOffsetInfo": "", "msgOffsetInfo": ""}
        call.answer(code, fields, remark=remark)

    def _answer_pop(self, call: RemotingCall, request: ReceiveRequest, found: Sequence[Delivered]) -> None:
        self._answer_found(call, request, found)
        self._metrics.received(len(found))
        self._metrics.traffic.delivered(request.group, request.topic, [each.record for each in found])

    def _answer_peek(self, call: RemotingCall, request: ReceiveRequest, found: Sequence[Delivered]) -> None:
        self._answer_found(call, request, found)
        self._give_back(request, found)

    def _answer_notice(self, call: RemotingCall, request: ReceiveRequest, found: Sequence[Delivered]) -> None:
        self._give_back(request, found)
        call.answer(fields={"hasMsg": "true", "pollingFull": "false"})

    def _answer_found(self, call: RemotingCall, request: ReceiveRequest, found: Sequence[Delivered]) -> None:
        """Answer with records as they lie in the log, except for the number of deliveries before."""
        kinds = {request.topic: "0"}
        for kind, name in zip("12", retry_topics(request.group, request.topic), strict=True):
            kinds[name.name] = kind
        reader, records = self._messages.reader, []
        queues: dict[tuple[str, int], _Found] = {}
        orders = []
        for each in found:
            record, times = each.record, each.attempt - 1
            raw = reader.read(record.physical_offset, record.size)
            is_first = times == record.reconsume_times
            records.append(raw if is_first else with_reconsume_times(bytes(raw), record, times))
            kind = kinds[record.topic]
            queue = queues.setdefault((kind, record.queue_number), _Found(kind, record.queue_number, []))
            queue.offsets.append(record.queue_offset)
            if times and request.is_ordered:
                orders.append(f"{kind} qo{record.queue_number}%{record.queue_offset} {times}")
        fields = {
            **self._times(request).fields,
            "restNum": "0",
            "startOffsetInfo": ";".join([each.start for each in queues.values()]),
            "msgOffsetInfo": ";".join([each.all for each in queues.values()]),
        }
        if request.is_ordered:
            fields["orderCountInfo"] = ";".join(orders)
        call.answer(ResponseCode.SUCCESS, fields, b"".join(records), "FOUND")

    def _times(self, request: ReceiveRequest) -> _Times:
        assert request.handed_out_at_ms is not None
        assert request.invisible_ms is not None
        return self._times_of(request.handed_out_at_ms, request.invisible_ms, is_ordered=request.is_ordered)

    def _times_of(self, handed_out_at_ms: int, invisible_ms: int, *, is_ordered: bool) -> _Times:
        now_ms, wall_ms = self._delivery.now_ms(), self._clock.wall_ms()
        return _Times.of(handed_out_at_ms, invisible_ms, now_ms, wall_ms, is_ordered=is_ordered)

    def _give_back(self, request: ReceiveRequest, found: Sequence[Delivered]) -> None:
        handles = [each.receipt_handle for each in found]
        self._delivery.undeliverable(request.group, request.topic, handles, has_begun=False)

    def _count_waiting(self, call: RemotingCall) -> None:
        group, topic = self._pair(call.fields)
        self._edge.require(call, join(group), read(topic, group))
        self._directory.topic(topic)
        call.answer(fields={"pollingNum": str(self._delivery.waiting_on(group, topic))})

    # -- acknowledgements and changes

    def _acknowledge(self, call: RemotingCall) -> None:
        group, topic = self._pair(call.fields)
        topic, handle, _ = self._named(call, group, topic)
        try:
            self._delivery.acknowledge(group, topic, handle)
        except InvalidReceiptHandle as error:
            raise RemotingRefused(ResponseCode.NO_MESSAGE, str(error)) from error
        self._delivery.writer.when_written(partial(self._acknowledged, call, 1))

    def _acknowledge_batch(self, call: RemotingCall) -> None:
        """Acknowledge messages of several pops. It fails if none of them can be acknowledged any more."""
        entries = list(member_objects(json_object(call.command.body), "acks"))
        wanted = [_batch_in(each) for each in entries[:ENTRIES_MAX]]
        count = max(len(entries), sum(each.size for each in wanted))
        if count > ENTRIES_MAX:
            raise invalid(f"acks in the body name {count} messages; {ENTRIES_MAX} are allowed")
        for group, topic in {(each.group, each.topic) for each in wanted}:
            self._require(call, group, topic)
        done = 0
        for each in wanted:
            for offset in each.offsets():
                handle = TimedHandle(each.number, offset, each.visible_at_ms)
                try:
                    self._delivery.acknowledge(each.group, each.topic, handle)
                except InvalidReceiptHandle:
                    continue
                done += 1
        if not done:
            raise RemotingRefused(ResponseCode.NO_MESSAGE, f"none of the {count} messages is hidden for the group")
        self._delivery.writer.when_written(partial(self._acknowledged, call, done))

    def _acknowledged(self, call: RemotingCall, count: int, error: Exception | None) -> None:
        if error is None:
            self._metrics.acknowledged(count)
        self._edge.ended(call, error)

    def _change_invisible(self, call: RemotingCall) -> None:
        """Hide a message for another time. The client makes its new extra info out of the answer."""
        group, topic = self._pair(call.fields)
        topic, handle, times = self._named(call, group, topic)
        invisible_ms = self._invisible_ms(call.fields)
        is_counted = not is_true(call.fields, "suspend")
        try:
            changed = self._delivery.change_invisible(group, topic, handle, invisible_ms, is_counted=is_counted)
        except InvalidReceiptHandle as error:
            raise RemotingRefused(ResponseCode.NO_MESSAGE, str(error)) from error
        is_ordered = times.revive_queue == IN_ORDER
        now = self._times_of(changed.visible_at_ms - invisible_ms, invisible_ms, is_ordered=is_ordered)
        self._delivery.writer.when_written(partial(self._changed, call, now))

    def _changed(self, call: RemotingCall, now: _Times, error: Exception | None) -> None:
        if error is not None:
            self._edge.refuse(call, error)
        else:
            call.answer(fields=now.fields)

    def _named(self, call: RemotingCall, group: str, topic: str) -> tuple[str, TimedHandle, _Times]:
        """Return the topic and the handle of the delivery that a request names, which may be in a retry topic."""
        fields = call.fields
        number = integer_of(fields, "queueId", within=range(NUMBERS_EACH))
        offset = integer_of(fields, "offset")
        times = _times_in(text_of(fields, _EXTRA))
        topic, number = handle_queue_of(group, topic, number)
        self._require(call, group, topic)
        return topic, TimedHandle(number, offset, times.visible_at_ms), times

    def _require(self, call: RemotingCall, group: str, topic: str) -> None:
        self._edge.require(call, join(group), read(topic, group))
        self._directory.topic(topic)

    # -- common parts

    def _pair(self, fields: Mapping[str, str]) -> tuple[str, str]:
        return text_of(fields, "consumerGroup"), text_of(fields, "topic")

    def _invisible_ms(self, fields: Mapping[str, str]) -> int:
        invisible_ms = integer_of(fields, _INVISIBLE)
        if invisible_ms not in self._invisible_range:
            most = self._invisible_range.stop - 1
            raise invalid(f"the field {_INVISIBLE} is {invisible_ms}; 0 to {most} ms are allowed")
        return invisible_ms


def _batch_size(fields: Mapping[str, str]) -> int:
    batch_size = integer_of(fields, "maxMsgNums", within=INT32)
    if not 1 <= batch_size <= BATCH_SIZE_MAX:
        raise invalid(f"the field maxMsgNums is {batch_size}; 1 to {BATCH_SIZE_MAX} are allowed")
    return batch_size


class _Batch(NamedTuple):
    """Acknowledged messages of one queue. Bit i of `bits`, counted from the first byte, stands for `first` + i."""

    group: str
    topic: str
    number: int
    first: int
    visible_at_ms: int
    bits: bytes

    @property
    def size(self) -> int:
        """Return the number of messages."""
        return int.from_bytes(self.bits).bit_count()

    def offsets(self) -> Iterator[int]:
        """Yield the offsets. Most bits may be 0: messages that come again lie far from new ones."""
        for found in _SET_BITS.finditer(self.bits):
            byte, start = found[0][0], self.first + found.start() * 8
            yield from (start + at for at in range(8) if byte >> at & 1)


def _batch_in(members: Mapping[str, Json]) -> _Batch:
    """Return one entry of a batch of acknowledgements. Raises RemotingRefused (INVALID_PARAMETER)."""
    group, topic, kind = member_text(members, "c"), member_text(members, "t"), member_text(members, "r", "0")
    if not group or not topic:
        raise invalid("an entry of acks in the body has no group (c) or no topic (t)")
    number = member_integer(members, "q")
    if number not in range(NUMBERS_EACH):
        raise invalid(f"q in the body is {number}, which is no number of a queue")
    match kind:
        case "1" | "2":
            topic, number = handle_queue_of(group, retry_topics(group, topic)[int(kind) - 1].name, number)
        case "0":
            pass
        case _:
            raise invalid(f"r in the body is {kind[:8]!r}; 0, 1 and 2 are allowed")
    try:
        bits = b64decode(member_text(members, "b"), validate=True)
    except (Base64Error, ValueError):
        raise invalid("b in the body is no base64") from None
    times = _Times(member_integer(members, "pt"), member_integer(members, "it"), member_integer(members, "rq"))
    return _Batch(group, topic, number, member_integer(members, "so"), times.visible_at_ms, bits)
