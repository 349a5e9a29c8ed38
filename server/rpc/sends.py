"""SendMessage: checks a send, chooses its queue, stores it and answers.

Plain sends take a fast path (`FastSends`): those of a loop iteration are stored together, and native code reads and
answers them where it is installed. A plain request has NORMAL messages of one topic within all limits. Any other
request takes the slow path (`SendService`), which alone refuses messages; so the fast path is not needed for a right
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.limits import WireLimits
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.times import to_ms
from quarry_mq.server.append.group_commit import GroupCommit, QueueChooser, queue_of_group, queue_of_priority
from quarry_mq.server.cluster.message_groups import CLIENTS_SHARE_S, GroupedSend, GroupedSends, Place
from quarry_mq.server.cluster.peers import ForwardedSend
from quarry_mq.server.front import Call, Method
from quarry_mq.server.front.contract import MessageHandler
from quarry_mq.server.lite.counts import LiteBirths
from quarry_mq.server.metadata import Directory
from quarry_mq.server.observability.metrics.instruments import ServerMetrics
from quarry_mq.server.pending import DelayedDelivery, Transactions, half_of, scheduled
from quarry_mq.server.routing import BrokerIdentity
from quarry_mq.server.rpc.access import publish
from quarry_mq.server.rpc.context import (
    DEFAULT_REQUEST_TIMEOUT_MS,
    GATHERED_SIZE_MAX,
    Edge,
    RequestHandler,
    WaitingSizes,
)
from quarry_mq.server.rpc.plain import make_send_reader
from quarry_mq.server.security.credentials import Identity
from quarry_mq.server.settings.sections import LimitsSection
from quarry_mq.server.wire.message_types import ACCEPTED_TYPES, TYPE_WORDS, check_types
from quarry_mq.server.wire.messages import host_from_text, to_message
from quarry_mq.server.wire.parsing import UNCOUNTED_SIZE, parsed, require_few_fields
from quarry_mq.server.wire.status import Refused, fill_ok
from quarry_mq.server.wire.validate import CheckedMessage, CheckedSend, check_send, check_topic
from quarry_mq.store.errors import Forbidden, TopicNotFound
from quarry_mq.store.message import Appended, EncodedMessage, Host, Message
from quarry_mq.store.metadata import Permission, Topic, TopicType


class _Accepted(NamedTuple):
    """A send that has passed all checks, and the functions that answer it."""

    request: service.SendMessageRequest
    checked: CheckedSend
    topic: Topic
    client_id: str
    peer: str
    now_ms: int
    answer: Callable[[bytes], None]
    refuse: Callable[[Exception], None]


class SendStore:
    """Stores checked sends in the log, and has what both paths of a send share."""

    def __init__(
        self,
        commit: GroupCommit,
        delays: DelayedDelivery,
        transactions: Transactions,
        births: LiteBirths,
        limits: LimitsSection,
        *,
        identity: BrokerIdentity,
        clock: Clock,
        metrics: ServerMetrics,
    ) -> None:
        self.commit: Final = commit
        self.delays: Final = delays
        self.transactions: Final = transactions
        self.births: Final = births
        self.identity: Final = identity
        self.clock: Final = clock
        self.metrics: Final = metrics
        self.queues: Final = QueueChooser()
        self.waiting_sizes: Final = WaitingSizes("waiting_sends", **_waiting_sizes(limits))
        """Counts the bodies of sends that are not answered yet."""

    def configure(self, limits: LimitsSection) -> None:
        self.waiting_sizes.configure(**_waiting_sizes(limits))

    def store(self, accepted: _Accepted) -> None:
        """Store all messages of the request in one queue, one after the other. Raises OverLimit."""
        request, checked, topic, client_id, peer, now_ms, _, _ = accepted
        number = self._queue_for(topic, checked)
        messages = [
            to_message(
                each,
                topic=topic.name,
                queue_number=number,
                peer=peer,
                store_host=self.identity.store_host(),
                now_ms=now_ms,
            )
            for each in checked.messages
        ]
        self.births.check_names(messages)
        types = checked.types
        new_lite_topics = self.births.admit(topic.name, _lite_topics_of(checked))
        may_wait = definition.DELAY in types or definition.TRANSACTION in types
        due = [_due_ms(each, now_ms) for each in checked.messages] if may_wait else []
        if may_wait:
            messages = [
                _as_pending(message, kind, due_ms) for message, kind, due_ms in zip(messages, types, due, strict=True)
            ]
        started_s = self.clock.monotonic_s()
        size = sum(len(each.body) for each in messages)
        self.waiting_sizes.take(client_id, size)

        def stored(appended: Sequence[Appended], error: Exception | None) -> None:
            self.waiting_sizes.give(client_id, size)
            if error is not None:
                accepted.refuse(error)
                return
            self.births.born(topic.name, new_lite_topics)
            response = service.SendMessageResponse()
            fill_ok(response.status)
            for message, where in zip(request.messages, appended, strict=True):
                entry = response.entries.add()
                fill_ok(entry.status)
                entry.message_id = message.system_properties.message_id
                entry.offset = where.queue_offset
            if may_wait:
                for entry, where, kind, due_ms in zip(response.entries, appended, types, due, strict=True):
                    if kind == definition.TRANSACTION:
                        entry.transaction_id = self.transactions.began(topic.name, where.queue_offset, client_id)
                    if due_ms is not None:
                        entry.recall_handle = self.delays.recall_handle(
                            topic.name, due_ms, where.physical_offset, entry.message_id
                        )
            self.metrics.sent(len(appended), self.clock.monotonic_s() - started_s)
            self.metrics.traffic.sent(topic.name, TYPE_WORDS.get(types[0], ""), appended)
            accepted.answer(response.SerializeToString())

        self.commit.send(messages, stored)

    def _queue_for(self, topic: Topic, checked: CheckedSend) -> int:
        """Return the queue of the first message, to which all messages of a send go."""
        system = checked.messages[0].message.system_properties
        ordered = system.message_group or system.lite_topic
        if ordered:
            return queue_of_group(ordered, topic.write_queues)
        if topic.type is TopicType.PRIORITY:
            return queue_of_priority(system.priority, topic.write_queues)
        return self.queues.next_queue(topic)


class SendService:
    """Serves the call that sends messages."""

    def __init__(
        self,
        edge: Edge,
        directory: Directory,
        sends: SendStore,
        limits: WireLimits,
        grouped: GroupedSends | None = None,
    ) -> None:
        """`grouped` brings messages of message groups to the member that owns them; None where there is one member."""
        self._edge = edge
        self._directory = directory
        self._sends = sends
        self._limits = limits
        self._clock = sends.clock
        self._grouped = grouped

    def configure(self, limits: WireLimits) -> None:
        self._limits = limits

    def method(self) -> Method:
        send = self._edge.unary(service.SendMessageRequest, service.SendMessageResponse, self._send)
        return replace(send, handler=self._timed(send.handler))

    def admitted(self) -> RequestHandler:
        """Return the part of the call that follows once the caller is let in."""
        return self._edge.unary_admitted(service.SendMessageRequest, service.SendMessageResponse, self._send)

    def resending(self) -> MessageHandler:
        """Return SendMessage for messages that are in the log already; a transaction topic then accepts NORMAL ones."""
        send = partial(self._send, is_again=True)
        return self._edge.unary(service.SendMessageRequest, service.SendMessageResponse, send).handler

    def _timed(self, send: MessageHandler) -> MessageHandler:
        """Return the handler with the time of some of its calls measured."""
        stages = self._sends.commit.stages

        def handler(call: Call, body: bytes) -> None:
            if not stages.is_turn():
                send(call, body)
                return
            began_s = self._clock.monotonic_s()
            send(call, body)
            stages.check.add(self._clock.monotonic_s() - began_s)

        return handler

    def _send(self, call: Call, client_id: str, request: service.SendMessageRequest, *, is_again: bool = False) -> None:
        now_ms = self._clock.wall_ms()
        checked = check_send(request, self._limits, now_ms)
        topic = self._directory.topic_to_send(checked.topic, self._edge.user)
        _check_for(topic, checked, is_again=is_again)

        def refuse(error: Exception) -> None:
            self._edge.refuse_unary(call, service.SendMessageResponse, error)

        accepted = _Accepted(request, checked, topic, client_id, call.peer, now_ms, call.reply, refuse)
        if self._grouped is not None and checked.ordered_group:
            _check_lite_topics(checked)
            self._send_grouped(self._grouped, accepted, call.remaining_s())
        else:
            self._sends.store(accepted)

    # -- of message groups, in a cluster

    def _send_grouped(self, grouped: GroupedSends, accepted: _Accepted, remaining_s: float | None) -> None:
        """Bring a send to the member that owns its message group."""
        client_id, size = accepted.client_id, sum(len(each.message.body) for each in accepted.checked.messages)
        patience_s = (DEFAULT_REQUEST_TIMEOUT_MS / 1000 if remaining_s is None else remaining_s) - CLIENTS_SHARE_S
        self._sends.waiting_sizes.take(client_id, size)

        def answered(answer: bytes) -> None:
            self._sends.waiting_sizes.give(client_id, size)
            accepted.answer(answer)

        def failed(error: Exception) -> None:
            self._sends.waiting_sizes.give(client_id, size)
            accepted.refuse(error)

        def take(place: Place) -> None:
            self._sends.waiting_sizes.give(client_id, size)
            self._store_in(grouped, place, accepted)

        grouped.send(
            GroupedSend(
                topic=accepted.topic.name,
                message_group=accepted.checked.ordered_group,
                deadline_s=self._clock.monotonic_s() + patience_s,
                forwarded=lambda: ForwardedSend(client_id, accepted.peer, accepted.request.SerializeToString()),
                take=take,
                answered=answered,
                failed=failed,
            )
        )

    def take_forwarded(self, send: ForwardedSend, answered: Callable[[bytes | None], None]) -> None:
        """Store a send that another member has forwarded, which has let its client in.

        `answered` is called with None if the send cannot be stored now.
        Errors of the send go to the client, as if it had called here.
        """

        def refuse(error: Exception) -> None:
            if isinstance(error, TopicNotFound):
                answered(None)  # the forwarding member knows the topic, so it will arrive here, too
            else:
                answered(self._edge.refusal(service.SendMessageResponse, error, client=send.client_id))

        try:
            now_ms = self._clock.wall_ms()
            request = parsed(service.SendMessageRequest, send.body)
            checked = check_send(request, self._limits, now_ms)
            topic = self._directory.topic(checked.topic)
            _check_for(topic, checked)
            place = None if self._grouped is None else self._grouped.place(checked.ordered_group)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            refuse(error)
            return
        if place is None or self._grouped is None:
            answered(None)
            return
        accepted = _Accepted(request, checked, topic, send.client_id, send.peer, now_ms, answered, refuse)
        self._store_in(self._grouped, place, accepted)

    def _store_in(self, grouped: GroupedSends, place: Place, accepted: _Accepted) -> None:
        """Store a send on this member, and tell `grouped` when that has begun and ended."""

        def answer(body: bytes) -> None:
            grouped.ended(place)
            accepted.answer(body)

        def refuse(error: Exception) -> None:
            grouped.ended(place)
            accepted.refuse(error)

        grouped.began(place)
        try:
            self._sends.store(accepted._replace(answer=answer, refuse=refuse))
        except Exception as error:  # noqa: BLE001 - as at the edge: the send may have waited, nobody else catches it
            refuse(error)


def _lite_topics_of(checked: CheckedSend) -> Sequence[str]:
    if definition.LITE not in checked.types:
        return ()
    return [each.message.system_properties.lite_topic for each in checked.messages if each.type == definition.LITE]


def _check_lite_topics(checked: CheckedSend) -> None:
    """Check that there is one lite topic: all messages go to the member that has the first. Raises Refused."""
    if len(set(_lite_topics_of(checked))) > 1:
        raise Refused(
            definition.MESSAGE_CORRUPTED, "in a cluster, all messages of one request must have the same lite topic"
        )


def _check_for(topic: Topic, checked: CheckedSend, *, is_again: bool = False) -> None:
    """Check a send against its topic. Raises Refused, Forbidden."""
    was_committed = is_again and topic.type is TopicType.TRANSACTION
    check_types(topic, [each for each in checked.types if not (was_committed and each == definition.NORMAL)])
    if Permission.WRITE not in topic.permission or topic.write_queues < 1:
        raise Forbidden(f"no writable queue: topic {topic.name} may not be written")


def _as_pending(message: Message, kind: definition.MessageType, due_ms: int | None) -> Message:
    """Return the message as it is stored: scheduled and prepared messages lie in the topics of pending messages."""
    if kind == definition.TRANSACTION:
        return half_of(message)
    return message if due_ms is None else scheduled(message, due_ms)


def _due_ms(checked: CheckedMessage, now_ms: int) -> int | None:
    """Return the time at which a scheduled message is to be delivered; None for one that is delivered at once."""
    if checked.type != definition.DELAY:
        return None
    due_ms = to_ms(checked.message.system_properties.delivery_timestamp)
    return due_ms if due_ms > now_ms else None


def _waiting_sizes(limits: LimitsSection) -> dict[str, int]:
    return {"total_max": limits.waiting_sends_size, "client_max": limits.waiting_sends_per_client}


_NORMAL_WORD: Final = TYPE_WORDS[definition.NORMAL]


class _FastSend(NamedTuple):
    """A send that has passed all checks. `size` is that of its bodies."""

    call: Call
    identity: Identity | None
    body: bytes
    client_id: str
    topic: str
    message_ids: list[str]
    size: int


class _Gathered:
    """The topics and sends of one loop iteration. `topics` holds None for topics to which plain messages may not go."""

    __slots__ = ("messages", "now_ms", "sends", "store_host", "topics")

    def __init__(self, now_ms: int, store_host: Host) -> None:
        self.now_ms = now_ms
        self.store_host = store_host
        self.topics: dict[str, Topic | None] = {}
        self.sends: list[_FastSend] = []
        self.messages: list[EncodedMessage] = []


class FastSends:
    """Collects the sends of a loop iteration, and stores them together."""

    def __init__(
        self,
        edge: Edge,
        *,
        ordinary: SendService,
        directory: Directory,
        sends: SendStore,
        limits: WireLimits,
    ) -> None:
        """`ordinary` serves every request that is not plain."""
        self._edge = edge
        self._method = ordinary.method()
        self._ordinary = ordinary.admitted()
        self._directory = directory
        self._commit = sends.commit
        self._queues = sends.queues
        self._identity = sends.identity
        self._clock = sends.clock
        self._metrics = sends.metrics
        self._waiting_sizes = sends.waiting_sizes
        self._gathered: list[tuple[Call, bytes]] = []
        self._since_s = 0.0
        self._reader = make_send_reader(edge.native, limits)

    def method(self) -> Method:
        return replace(self._method, handler=self.take)

    def configure(self, limits: WireLimits) -> None:
        self._reader = make_send_reader(self._edge.native, limits)

    def take(self, call: Call, body: bytes) -> None:
        """Serve the call when the loop iteration ends.

        A large one is served now, with those before it, in the turn of its sender.
        """
        if not self._gathered:
            self._since_s = self._clock.monotonic_s()
            self._commit.after_pass(self._serve)
        self._gathered.append((call, body))
        if len(body) > GATHERED_SIZE_MAX:
            self._serve()

    def _serve(self) -> None:
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        began_s = self._clock.monotonic_s()
        accepted = _Gathered(self._clock.wall_ms(), self._identity.store_host())
        for call, body in gathered:
            try:
                self._check(call, body, accepted)
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the client gets an answer
                self._edge.refuse_unary(call, service.SendMessageResponse, error)
        stages = self._commit.stages
        if stages.is_turn():
            stages.check.add((self._clock.monotonic_s() - began_s) / len(gathered))
        if accepted.sends:
            stored = partial(self._stored, accepted.sends, began_s)
            self._commit.send_encoded(accepted.messages, stored, self._since_s, sends=len(accepted.sends))

    def _check(self, call: Call, body: bytes, accepted: _Gathered) -> None:
        """Accept the send, or pass it to the slow path. Raises the error for which it is to be refused."""
        edge = self._edge
        identity = edge.identify(call)
        client_id = edge.caller(call, identity)
        peer = call.peer
        plain = self._reader.read(body, peer, accepted.now_ms)
        if plain is None:
            self._ordinary(call, identity, client_id, body)
            return
        if len(body) > UNCOUNTED_SIZE:  # the same bound as for requests that Python parses
            require_few_fields(service.SendMessageRequest, body, native=edge.native)
        name, messages = plain
        if identity is not None:
            edge.require(call, identity, [publish(name)])  # before the topic is created
        topics = accepted.topics
        topic = topics[name] if name in topics else self._plain_topic(name, topics)
        if topic is None:
            self._ordinary(call, identity, client_id, body)
            return
        size = sum([len(each[1]) for each in messages])
        self._waiting_sizes.take(client_id, size)
        accepted.sends.append(_FastSend(call, identity, body, client_id, name, [each[0] for each in messages], size))
        number, born_host, store_host = self._queues.next_queue(topic), host_from_text(peer), accepted.store_host
        for _, content, properties, tags_code, born_ms, system_flag in messages:
            accepted.messages.append(
                EncodedMessage(
                    name, number, content, properties, born_ms, born_host, store_host, system_flag, tags_code
                )
            )

    def _plain_topic(self, name: str, topics: dict[str, Topic | None]) -> Topic | None:
        """Return the topic, created now if need be; None when the slow path has to report what is wrong with it."""
        topic = self._directory.stored_topic(name)
        if topic is None or not topic.is_for_clients:
            check_topic(name)
            topic = self._directory.topic_to_send(name, self._edge.user)
        takes_it = (
            definition.NORMAL in ACCEPTED_TYPES[topic.type]
            and Permission.WRITE in topic.permission
            and topic.write_queues > 0
        )
        topics[name] = topic if takes_it else None
        return topics[name]

    def _stored(
        self, sends: list[_FastSend], began_s: float, appended: Sequence[Appended], error: Exception | None
    ) -> None:
        for send in sends:
            self._waiting_sizes.give(send.client_id, send.size)
        if error is not None:
            # none of them is stored, and one of them may be the cause
            for send in sends:
                self._ordinary(send.call, send.identity, send.client_id, send.body)
            return
        answer = self._edge.plain.send_answer
        sizes_by_topic: dict[str, list[int]] = {}
        at = 0
        for send in sends:
            end = at + len(send.message_ids)
            sizes_by_topic.setdefault(send.topic, []).extend([each.size for each in appended[at:end]])
            send.call.reply(answer(send.message_ids, appended[at].queue_offset))
            at = end
        self._metrics.sent_together(len(sends), len(appended), self._clock.monotonic_s() - began_s)
        self._metrics.traffic.sent_together(_NORMAL_WORD, sizes_by_topic)
