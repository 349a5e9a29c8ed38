"""Fast path for plain acknowledgements: those of a loop iteration are served together, in native code where possible.

A plain request has one entry, with a handle of this broker whose delivery is beyond doubt. Any other request takes the
slow path (`MessageService`), which alone refuses; so nothing here is needed for a right answer.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.delivery.handles import ReceiptHandle
from quarry_mq.server.front import Call
from quarry_mq.server.observability.metrics.instruments import ServerMetrics
from quarry_mq.server.rpc.access import join, read
from quarry_mq.server.rpc.context import GATHERED_SIZE_MAX, Edge, RequestHandler
from quarry_mq.server.security.credentials import Identity
from quarry_mq.server.wire.text_sizes import SHORT_MAX
from quarry_mq.server.wire.validate import check_group, check_topic
from quarry_mq.store.native import Native


class _PlainAck(NamedTuple):
    """An acknowledgement whose request has passed all checks."""

    call: Call
    identity: Identity | None
    client_id: str
    body: bytes
    message_id: str
    receipt_handle: str
    delivery: ReceiptHandle


_Accepted = dict[tuple[str, str], list[_PlainAck]]
"""Accepted acknowledgements by group and topic."""


class PlainAcks:
    """Collects the acknowledgements of a loop iteration, and serves them together."""

    def __init__(
        self,
        native: Native,
        edge: Edge,
        *,
        ordinary: RequestHandler,
        delivery: Delivery,
        metrics: ServerMetrics,
    ) -> None:
        """`ordinary` serves every request that is not plain."""
        self._native = native
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
        done: list[_PlainAck] = []
        for (group, topic), acks in accepted.items():
            done += self._acknowledge(group, topic, acks)
        if done:
            self._writer.when_written(partial(self._written, done))

    def _check(self, call: Call, body: bytes, accepted: _Accepted) -> None:
        """Accept the acknowledgement, or pass it to the slow path. Raises the error for which it is to be refused."""
        edge = self._edge
        identity = edge.identify(call)
        client_id = edge.caller(call, identity)
        plain = self._native.read_ack(body, SHORT_MAX, self._delivery.handle_key.raw)
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
        acks.append(_PlainAck(call, identity, client_id, body, message_id, receipt_handle, ReceiptHandle(*delivery)))

    def _acknowledge(self, group: str, topic: str, acks: list[_PlainAck]) -> list[_PlainAck]:
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

    def _written(self, acks: list[_PlainAck], failure: Exception | None) -> None:
        if failure is not None:
            for ack in acks:
                self._edge.refuse_unary(ack.call, service.AckMessageResponse, failure)
            return
        answer = self._native.ack_answer
        self._metrics.acknowledged(len(acks))
        for ack in acks:
            ack.call.reply(answer(ack.message_id, ack.receipt_handle))
