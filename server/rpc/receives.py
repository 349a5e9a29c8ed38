"""Serves the calls of consumers for receives, acknowledgements, invisible durations and dead letters.

Plain acknowledgements take a fast path (`FastAcks`): those of a loop iteration are served together, and native code
reads and answers them where it is installed. A plain request has one entry, with a handle of this broker whose delivery
is beyond doubt. Any other request takes the slow path (`MessageService`), which alone refuses; so the fast path is not
needed for a right answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.limits import WireLimits
from quarry_mq.protocol.messages.property_names import RESERVED_PROPERTIES
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.signature import LANGUAGE
from quarry_mq.protocol.times import fill_ms
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.delivery import Delivered, Delivery, ReceiveRequest
from quarry_mq.server.delivery.handles import ReceiptHandle, lite_topic_of
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.server.front import Call, Method
from quarry_mq.server.metadata import Directory
from quarry_mq.server.observability.metrics.instruments import ServerMetrics
from quarry_mq.server.routing import require_readable
from quarry_mq.server.rpc.access import join, read
from quarry_mq.server.rpc.context import (
    DEFAULT_REQUEST_TIMEOUT_MS,
    GATHERED_SIZE_MAX,
    Edge,
    RequestHandler,
)
from quarry_mq.server.rpc.plain import PlainReceiveWriter
from quarry_mq.server.security.credentials import Identity
from quarry_mq.server.wire.message_types import SPECIAL_PROPERTIES
from quarry_mq.server.wire.messages import RARE_PROPERTIES, digest_for, fill_message
from quarry_mq.server.wire.parsing import SHORT_MAX
from quarry_mq.server.wire.settings import LITE_CONSUMERS
from quarry_mq.server.wire.status import Refused, fill_ok, fill_overall, fill_status
from quarry_mq.server.wire.validate import (
    ReceiveTerms,
    check_ack,
    check_change,
    check_group,
    check_receive,
    check_topic,
)
from quarry_mq.store.errors import BrokerError, without_frames
from quarry_mq.store.metadata import Group, IllegalGroupName
from quarry_mq.store.metadata.lite import LiteGroup
from quarry_mq.store.native import Native, ReceiveWriterMaker

_make: Final = tuple.__new__
"""`_make(_FastAck, fields)` is `_FastAck(*fields)` in half the time, for objects that are made for each message."""


class _FastAck(NamedTuple):
    """An acknowledgement whose request has passed all checks."""

    call: Call
    identity: Identity | None
    client_id: str
    body: bytes
    message_id: str
    receipt_handle: str
    delivery: ReceiptHandle


_Accepted = dict[tuple[str, str], list[_FastAck]]
"""Accepted acknowledgements by group and topic."""


class FastAcks:
    """Collects the acknowledgements of a loop iteration, and serves them together."""

    def __init__(
        self,
        edge: Edge,
        *,
        ordinary: RequestHandler,
        delivery: Delivery,
        metrics: ServerMetrics,
    ) -> None:
        """`ordinary` serves every request that is not plain."""
        self._edge = edge
        self._ordinary = ordinary
        self._delivery = delivery
        self._writer = delivery.writer
        self._metrics = metrics
        self._gathered: list[tuple[Call, bytes]] = []

    def take(self, call: Call, body: bytes) -> None:
        """Serve the call when the loop iteration ends.

        A large one is served now, with those before it, in the turn of its sender.
        """
        if not self._gathered:
            self._writer.before_write(self._serve)
        self._gathered.append((call, body))
        if len(body) > GATHERED_SIZE_MAX:
            self._serve()

    def _serve(self) -> None:
        gathered, self._gathered = self._gathered, []
        accepted: _Accepted = {}
        for call, body in gathered:
            try:
                self._check(call, body, accepted)
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the client gets an answer
                self._edge.refuse_unary(call, service.AckMessageResponse, error)
        done: list[_FastAck] = []
        for (group, topic), acks in accepted.items():
            done += self._acknowledge(group, topic, acks)
        if done:
            self._writer.when_written(partial(self._written, done))

    def _check(self, call: Call, body: bytes, accepted: _Accepted) -> None:
        """Accept the acknowledgement, or pass it to the slow path. Raises the error for which it is to be refused."""
        edge = self._edge
        identity = edge.identify(call)
        client_id = edge.caller(call, identity)
        plain = edge.plain.read_ack(body, SHORT_MAX, self._delivery.handle_key.raw)
        if plain is None:
            self._ordinary(call, identity, client_id, body)
            return
        group, topic, message_id, receipt_handle, *delivery = plain
        if identity is not None:
            edge.require(call, identity, [read(topic, group), join(group)])
        acks = accepted.get((group, topic))
        if acks is None:
            check_topic(topic)
            check_group(group)
            acks = accepted[group, topic] = []
        named = _make(ReceiptHandle, delivery)
        acks.append(_make(_FastAck, (call, identity, client_id, body, message_id, receipt_handle, named)))

    def _acknowledge(self, group: str, topic: str, acks: list[_FastAck]) -> list[_FastAck]:
        """Return the acknowledgements whose messages are done. The others go to the slow path one by one."""
        try:
            outcomes = self._delivery.acknowledge_all(group, topic, [each.delivery for each in acks])
        except Exception:  # noqa: BLE001 - the slow path meets the error again, and reports it
            outcomes = [False] * len(acks)
        done = []
        for ack, is_done in zip(acks, outcomes, strict=True):
            if is_done:
                done.append(ack)
            else:
                self._ordinary(ack.call, ack.identity, ack.client_id, ack.body)
        return done

    def _written(self, acks: list[_FastAck], failure: Exception | None) -> None:
        if failure is not None:
            for ack in acks:
                self._edge.refuse_unary(ack.call, service.AckMessageResponse, failure)
            return
        answer = self._edge.plain.ack_answer
        self._metrics.acknowledged(len(acks))
        for ack in acks:
            ack.call.reply(answer(ack.message_id, ack.receipt_handle))


MessageItems = Callable[[str, Sequence[Delivered], definition.DigestType], list[bytes]]
"""Returns the items of messages, given the topic as the client named it, and the type of digest for their bodies."""

UNUSUAL_PROPERTIES: Final = RARE_PROPERTIES | SPECIAL_PROPERTIES
"""A message with one of these properties is not plain."""


def message_items(native: Native | None) -> MessageItems:
    """Return the function that writes items: plain ones by the native writer or `PlainReceiveWriter`."""
    maker: ReceiveWriterMaker = PlainReceiveWriter if native is None else native.ReceiveWriter
    write = maker(RESERVED_PROPERTIES, UNUSUAL_PROPERTIES).write

    def items(topic: str, messages: Sequence[Delivered], digest: definition.DigestType) -> list[bytes]:
        written = zip(write(topic, messages, digest), messages, strict=True)
        return [_item(topic, each, digest) if item is None else item for item, each in written]

    return items


def _item(topic: str, delivered: Delivered, digest: definition.DigestType) -> bytes:
    response = service.ReceiveMessageResponse()
    fill_message(
        response.message,
        delivered.record,
        topic=topic,
        receipt_handle=delivered.receipt_handle,
        delivery_attempt=delivered.attempt,
        invisible_ms=delivered.invisible_ms,
        digest=digest,
    )
    return response.SerializeToString()


class MessageService:
    """Serves the calls of consumers."""

    def __init__(
        self,
        edge: Edge,
        *,
        directory: Directory,
        clients: ClientRegistry,
        delivery: Delivery,
        limits: WireLimits,
        clock: Clock,
        metrics: ServerMetrics,
    ) -> None:
        self._edge = edge
        self._directory = directory
        self._clients = clients
        self._delivery = delivery
        self._limits = limits
        self._clock = clock
        self._metrics = metrics
        self._items = message_items(edge.native)
        self._fast_acks = FastAcks(
            edge,
            ordinary=edge.unary_admitted(service.AckMessageRequest, service.AckMessageResponse, self._acknowledge),
            delivery=delivery,
            metrics=metrics,
        )

    def configure(self, limits: WireLimits) -> None:
        self._limits = limits

    def methods(self) -> dict[str, Method]:
        unary, stream = self._edge.unary, self._edge.server_stream
        acknowledge = unary(service.AckMessageRequest, service.AckMessageResponse, self._acknowledge)
        return {
            "ReceiveMessage": stream(
                service.ReceiveMessageRequest, service.ReceiveMessageResponse, self._receive, self._last_item
            ),
            "AckMessage": replace(acknowledge, handler=self._fast_acks.take),
            "ForwardMessageToDeadLetterQueue": unary(
                service.ForwardMessageToDeadLetterQueueRequest,
                service.ForwardMessageToDeadLetterQueueResponse,
                self._dead_letter,
            ),
            "ChangeInvisibleDuration": unary(
                service.ChangeInvisibleDurationRequest, service.ChangeInvisibleDurationResponse, self._change_invisible
            ),
        }

    # -- ReceiveMessage

    def _receive(self, call: Call, client_id: str, request: service.ReceiveMessageRequest) -> None:
        """Answer with a status, then the messages, then the time of delivery: clients rely on the order."""
        settings = self._clients.find(client_id)
        terms = check_receive(
            request,
            self._limits,
            remaining_s=call.remaining_s(),
            request_timeout_ms=settings.request_timeout_ms if settings else DEFAULT_REQUEST_TIMEOUT_MS,
            client_version=settings.version if settings else "",
        )
        is_lite = None if settings is None else settings.kind in LITE_CONSUMERS
        user, may_still = self._edge.user, self._edge.to_ask_again(call, request)
        wanted, lite = self._wanted(terms, client_id, user, is_lite=is_lite)

        def again() -> ReceiveRequest:
            may_still()
            wanted_now, lite_now = self._wanted(terms, client_id, user, is_lite=is_lite)
            if (lite_now is None) != (lite is None):
                raise IllegalGroupName(
                    f"consumer group {terms.group} now receives something else than this call waited for"
                )
            return wanted_now

        received = partial(self._answer_receive, call, wanted.group, wanted.topic)
        polling_s = terms.polling_ms / 1000
        if lite is None:
            poll = self._delivery.receive(wanted, polling_s, received, again)
        else:
            poll = self._delivery.lite.receive(wanted, lite, polling_s, received, again)
        if poll is not None:
            call.on_close(partial(self._delivery.cancel, poll))

    def _wanted(
        self, terms: ReceiveTerms, client_id: str, user: str, *, is_lite: bool | None
    ) -> tuple[ReceiveRequest, LiteGroup | None]:
        """Return the request for delivery as its topic and group are now. Raises the error that forbids the receive.

        Called when a receive arrives, and again when it has waited: topic and group may have changed by then.
        """
        topic = self._directory.topic(terms.topic)
        require_readable(topic)
        group, lite = self._group_of(terms.group, topic.name, user, is_lite=is_lite)
        wanted = ReceiveRequest.of(
            topic,
            group,
            wanted=terms.filter,
            batch_size=terms.batch_size,
            invisible_ms=terms.invisible_ms,
            client_id=client_id,
            attempt_id=terms.attempt_id or "",
        )
        return wanted, lite

    def _group_of(self, name: str, topic: str, user: str, *, is_lite: bool | None) -> tuple[Group, LiteGroup | None]:
        """Return the group, and its lite settings if it gets lite topics: it gets either those or whole topics.

        If a client has sent no settings, the group tells of which kind the client is: after a restart some libraries
        send settings again only minutes later.
        """
        if is_lite is None:
            known = self._directory.find_group(name)
            is_lite = known is not None and LiteGroup.of(known) is not None
        if is_lite:
            return self._directory.lite_group(name, topic, user)
        return self._directory.group_of_whole_topics(name, user), None

    def _answer_receive(
        self, call: Call, group: str, topic: str, messages: Sequence[Delivered], error: Exception | None
    ) -> None:
        if error is not None:
            self._edge.refuse_stream(call, service.ReceiveMessageResponse, error, self._last_item)
            return
        handles = [delivered.receipt_handle for delivered in messages]
        if call.closed:
            self._delivery.undeliverable(group, topic, handles, has_begun=False)
            return
        self._metrics.received(len(messages))
        self._metrics.traffic.delivered(group, topic, [each.record for each in messages])
        if not messages:
            nothing = Refused(definition.MESSAGE_NOT_FOUND, "no new message")
            self._edge.refuse_stream(call, service.ReceiveMessageResponse, nothing, self._last_item)
            return
        stages = self._delivery.stages
        is_timed = stages.is_turn()
        began_s = self._clock.monotonic_s() if is_timed else 0.0
        try:
            items = self._items(topic, messages, digest_for(call.header(LANGUAGE)))
        except Exception as unusual:  # noqa: BLE001 - the edge: whatever it is, the client gets an answer
            self._edge.refuse_stream(call, service.ReceiveMessageResponse, unusual, self._last_item)
            return
        call.on_close(partial(self._broke_off, call, group, topic, handles))
        call.send_all([_FIRST_ITEM, *items, self._last_item()])
        call.finish()
        if is_timed:
            stages.answer.add(self._clock.monotonic_s() - began_s)

    def _broke_off(self, call: Call, group: str, topic: str, handles: Sequence[str]) -> None:
        """Report the messages of an answer that was cut off.

        An attempt counts once the first byte of its answer was written.
        """
        self._delivery.undeliverable(group, topic, handles, has_begun=call.has_begun)

    def _last_item(self) -> bytes:
        response = service.ReceiveMessageResponse()
        fill_ms(response.delivery_timestamp, self._clock.wall_ms())
        return response.SerializeToString()

    # -- AckMessage

    def _acknowledge(self, call: Call, _client_id: str, request: service.AckMessageRequest) -> None:
        """Acknowledge messages. Each entry has its own result; the call is answered when all of them are stored."""
        terms = check_ack(request)
        results: list[Exception | None] = []
        for entry in request.entries:
            try:
                _check_lite_topic(entry)
                self._delivery.acknowledge(terms.group, terms.topic, entry.receipt_handle)
            except InvalidReceiptHandle as error:
                results.append(without_frames(error))
            else:
                results.append(None)
        self._delivery.writer.when_written(partial(self._acknowledged, call, request, results))

    def _acknowledged(
        self,
        call: Call,
        request: service.AckMessageRequest,
        results: list[Exception | None],
        failure: Exception | None,
    ) -> None:
        if failure is not None:
            self._edge.refuse_unary(call, service.AckMessageResponse, failure)
            return
        response = service.AckMessageResponse()
        for entry, outcome in zip(request.entries, results, strict=True):
            result = response.entries.add()
            result.message_id = entry.message_id
            result.receipt_handle = entry.receipt_handle
            fill_status(result.status, outcome)
        fill_overall(response.status, results)
        self._metrics.acknowledged(results.count(None))
        call.reply(response.SerializeToString())

    # -- ForwardMessageToDeadLetterQueue

    def _dead_letter(
        self, call: Call, _client_id: str, request: service.ForwardMessageToDeadLetterQueueRequest
    ) -> None:
        """Move a message to the dead letter queue.

        The call is answered when the copy is stored, and the message's acknowledgement, too.
        """
        check_topic(request.topic.name)
        check_group(request.group.name)
        _check_lite_topic(request)
        answer = self._edge.later(call, service.ForwardMessageToDeadLetterQueueResponse())
        dead_lettered = partial(self._dead_lettered, answer)
        self._delivery.dead_letter(request.group.name, request.topic.name, request.receipt_handle, dead_lettered)

    def _dead_lettered(self, answer: Callable[[Exception | None], None], error: Exception | None) -> None:
        if error is not None:
            answer(error)
        else:
            self._delivery.writer.when_written(answer)

    # -- ChangeInvisibleDuration

    def _change_invisible(
        self, call: Call, _client_id: str, request: service.ChangeInvisibleDurationRequest
    ) -> service.ChangeInvisibleDurationResponse | None:
        """Change the invisible duration. The new handle replaces the old one; a failing answer repeats the old one.

        Clients keep the handle that they get.
        """
        try:
            terms = check_change(request, self._limits)
            _check_lite_topic(request)
            changed = self._delivery.change_invisible(
                terms.group, terms.topic, terms.receipt_handle, terms.invisible_ms, is_counted=not request.suspend
            )
        except BrokerError as error:
            return _changed(error, request.receipt_handle)
        self._delivery.writer.when_written(partial(_answer_change, call, terms.receipt_handle, changed.receipt_handle))
        return None


def _first_item() -> bytes:
    response = service.ReceiveMessageResponse()
    fill_ok(response.status)
    return response.SerializeToString()


_FIRST_ITEM: Final = _first_item()
"""The first item of a receive that brings messages."""


class _NamesDelivery(Protocol):
    """A request that names a delivery by its handle, and perhaps the lite topic of its message."""

    @property
    def receipt_handle(self) -> str: ...

    @property
    def lite_topic(self) -> str: ...


def _check_lite_topic(request: _NamesDelivery) -> None:
    """Check that a request's lite topic is that of its handle; some clients leave it out.

    Raises InvalidReceiptHandle.
    """
    if request.lite_topic and request.lite_topic != lite_topic_of(request.receipt_handle):
        raise InvalidReceiptHandle("the receipt handle belongs to another lite topic")


def _answer_change(call: Call, replaced: str, handle: str, failure: Exception | None) -> None:
    call.reply(_changed(failure, replaced if failure else handle).SerializeToString())


def _changed(error: Exception | None, receipt_handle: str) -> service.ChangeInvisibleDurationResponse:
    response = service.ChangeInvisibleDurationResponse(receipt_handle=receipt_handle)
    fill_status(response.status, error)
    return response
