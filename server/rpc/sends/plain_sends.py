"""Fast path for plain sends: those of a loop iteration are stored together, with the work per message in native code.

A plain request has NORMAL messages of one topic within all limits. Any other request takes the slow path
(`SendService`), which alone refuses messages; so nothing here is needed for a right answer, and a broker without the
native part works the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from quarry_mq.protocol.limits import BORN_HOST_SIZE_MAX, ENTRIES_MAX, MESSAGE_ID_SIZE_MAX, NAME_SIZE_MAX, WireLimits
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES, RESERVED_PREFIX, RESERVED_PROPERTIES
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.front import Call, Method
from quarry_mq.server.metadata import Directory
from quarry_mq.server.rpc.access import publish
from quarry_mq.server.rpc.context import GATHERED_SIZE_MAX, Edge
from quarry_mq.server.rpc.sends.sends import SendService, SendStore
from quarry_mq.server.security.credentials import Identity
from quarry_mq.server.wire.message_types import ACCEPTED_TYPES, TYPE_WORDS
from quarry_mq.server.wire.messages import host_from_text
from quarry_mq.server.wire.parsing import UNCOUNTED_SIZE, require_few_fields
from quarry_mq.server.wire.property_room import MARKS
from quarry_mq.server.wire.validate import check_topic
from quarry_mq.store.message import Appended, EncodedMessage, Host
from quarry_mq.store.metadata import Permission, Topic
from quarry_mq.store.native import Native, SendReader

_UNUSUAL_NAMES: Final = RESERVED_PROPERTIES | {LIGHT_QUEUES, *MARKS}
_NORMAL_WORD: Final = TYPE_WORDS[definition.NORMAL]


def make_reader(native: Native, limits: WireLimits) -> SendReader:
    return native.SendReader(
        messages_max=ENTRIES_MAX,
        body_size_max=limits.body_size_max,
        properties_max=limits.user_properties_max,
        properties_size_max=limits.user_properties_size_max,
        keys_max=ENTRIES_MAX,
        topic_size_max=NAME_SIZE_MAX,
        message_id_size_max=MESSAGE_ID_SIZE_MAX,
        born_host_size_max=BORN_HOST_SIZE_MAX,
        unusual_names=_UNUSUAL_NAMES,
        unusual_prefix=RESERVED_PREFIX,
    )


class _PlainSend(NamedTuple):
    """A send that has passed all checks. `size` is that of its bodies."""

    call: Call
    identity: Identity | None
    body: bytes
    client_id: str
    topic: str
    message_ids: list[str]
    size: int


class _Accepted:
    """The topics and sends of one loop iteration. `topics` holds None for topics to which plain messages may not go."""

    __slots__ = ("messages", "now_ms", "sends", "store_host", "topics")

    def __init__(self, now_ms: int, store_host: Host) -> None:
        self.now_ms = now_ms
        self.store_host = store_host
        self.topics: dict[str, Topic | None] = {}
        self.sends: list[_PlainSend] = []
        self.messages: list[EncodedMessage] = []


class PlainSends:
    """Collects the sends of a loop iteration, and stores them together."""

    def __init__(
        self,
        native: Native,
        edge: Edge,
        *,
        ordinary: SendService,
        directory: Directory,
        sends: SendStore,
        limits: WireLimits,
    ) -> None:
        """`ordinary` serves every request that is not plain."""
        self._native = native
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
        self._reader = make_reader(native, limits)

    def method(self) -> Method:
        return replace(self._method, handler=self.take)

    def configure(self, limits: WireLimits) -> None:
        self._reader = make_reader(self._native, limits)

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
        accepted = _Accepted(self._clock.wall_ms(), self._identity.store_host())
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

    def _check(self, call: Call, body: bytes, accepted: _Accepted) -> None:
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
            require_few_fields(service.SendMessageRequest, body, native=self._native)
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
        accepted.sends.append(_PlainSend(call, identity, body, client_id, name, [each[0] for each in messages], size))
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
        self, sends: list[_PlainSend], began_s: float, appended: Sequence[Appended], error: Exception | None
    ) -> None:
        for send in sends:
            self._waiting_sizes.give(send.client_id, send.size)
        if error is not None:
            # none of them is stored, and one of them may be the cause
            for send in sends:
                self._ordinary(send.call, send.identity, send.client_id, send.body)
            return
        answer = self._native.send_answer
        sizes_by_topic: dict[str, list[int]] = {}
        at = 0
        for send in sends:
            end = at + len(send.message_ids)
            sizes_by_topic.setdefault(send.topic, []).extend([each.size for each in appended[at:end]])
            send.call.reply(answer(send.message_ids, appended[at].queue_offset))
            at = end
        self._metrics.sent_together(len(sends), len(appended), self._clock.monotonic_s() - began_s)
        self._metrics.traffic.sent_together(_NORMAL_WORD, sizes_by_topic)
