"""Readers of old history: from any place of it they get exactly what was stored there, in order, without a gap."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any, Final

import grpc

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from tests.e2e.broker import Broker
from tests.e2e.clients import ClientError, SimpleConsumer
from tests.e2e.ledger import Ledger
from tests.hostile.caller import Client
from tests.migration.live.history import QUEUES_PER_TOPIC, History, body_at
from tests.migration.live.walk import PATIENCE_S, admin_channel

RECEIVES_PER_PLACE: Final = 4
BATCH: Final = 32
PAUSE_S: Final = 0.2
CALL_TIMEOUT_S: Final = 10.0
ARCHIVIST: Final = "archivist"
ARCHIVED: Final = 64


class HistoryReader:
    """Goes to a place by chance, reads on from there in all queues of the topic, and goes to the next."""

    def __init__(self, broker: Broker, history: History, chance: random.Random, ledger: Ledger) -> None:
        self._broker = broker
        self._history = history
        self._chance = chance
        self._ledger = ledger
        self._groups = 0
        self.read: Counter[str] = Counter()
        """How many messages were read in each phase."""
        self.phase = "file"

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            began_s = time.monotonic()
            # a group that was interrupted may have been given messages that it knows nothing of
            self._groups += 1
            try:
                self._read_on(f"historians-{self._groups}", stop)
            except grpc.RpcError as error:
                self._ledger.note_refused("history", type(error).__name__, began_s, _details(error))
            except AssertionError as error:
                self._ledger.note_fault(f"history in {self.phase}: {error}")
                return
            stop.wait(PAUSE_S)

    def _read_on(self, group: str, stop: threading.Event) -> None:
        with Client(self._broker.endpoint) as client, admin_channel(self._broker) as channel:
            admin: Any = AdminServiceStub(channel)
            admin.CreateGroup(pb.CreateGroupRequest(name=group), timeout=CALL_TIMEOUT_S)
            while not stop.is_set():
                topic = self._chance.choice(self._history.topics)
                start = self._chance.randrange(self._history.per_queue - 1)
                client.subscribe(group, topic)
                reset(admin, group, topic, start)
                self._read_from(client, group, topic, start)
                stop.wait(PAUSE_S)

    def _read_from(self, client: Client, group: str, topic: str, start: int) -> None:
        following = dict.fromkeys(range(QUEUES_PER_TOPIC), start)
        for _ in range(RECEIVES_PER_PLACE):
            for queue, offset, body in receive(client, group, topic):
                assert offset == following[queue], f"{topic}/{queue} goes on at {offset}, not at {following[queue]}"
                following[queue] += 1
                if offset < self._history.per_queue:
                    assert body == body_at(topic, queue, offset), f"{topic}/{queue}/{offset} is {body!r}"
                self.read[self.phase] += 1
        assert sum(following.values()) > QUEUES_PER_TOPIC * start, f"nothing is read from {topic} at {start}"


def receive(client: Client, group: str, topic: str) -> list[tuple[int, int, str]]:
    """Some messages as (queue, offset, body), acknowledged."""
    request = service.ReceiveMessageRequest(batch_size=BATCH)
    request.group.name = group
    request.message_queue.topic.name = topic
    request.invisible_duration.seconds = 300
    request.long_polling_timeout.FromMilliseconds(10)
    first, *others = client.call("ReceiveMessage", request.SerializeToString())
    assert first.status.code in {definition.OK, definition.MESSAGE_NOT_FOUND}, first.status
    messages = [each.message for each in others if each.HasField("message")]
    acknowledge = service.AckMessageRequest(group=request.group, topic=request.message_queue.topic)
    for each in messages:
        system = each.system_properties
        acknowledge.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
    if messages:
        (answer,) = client.call("AckMessage", acknowledge.SerializeToString())
        assert answer.status.code == definition.OK, answer.status
    return [
        (each.system_properties.queue_id, each.system_properties.queue_offset, each.body.decode()) for each in messages
    ]


def read_with_official_client(broker: Broker, consumer: SimpleConsumer, topic: str) -> None:
    """From the beginning. The client subscribes to this topic alone; a restart just before may cost it a few calls."""
    with admin_channel(broker) as channel:
        reset(AdminServiceStub(channel), ARCHIVIST, topic, 0)
    deadline_s = time.monotonic() + PATIENCE_S
    found: list[str] = []
    while len(found) < ARCHIVED:
        assert time.monotonic() < deadline_s, f"{len(found)} messages in {PATIENCE_S} s"
        try:
            deliveries = consumer.receive()
            consumer.ack(deliveries)
        except ClientError:
            continue
        found += [each.body.decode() for each in deliveries if each.attempt == 1]
    last: dict[str, int] = {}
    for body in found:
        topic_of, queue, offset, _ = body.split("/")
        assert topic_of == topic
        assert body == body_at(topic, int(queue), int(offset))
        assert int(offset) > last.get(queue, -1), f"{body} comes after {last[queue]}"
        last[queue] = int(offset)


def reset(admin: AdminServiceStub, group: str, topic: str, offset: int | None) -> None:
    """Let the group read on there in all queues; None: behind the last message."""
    request = pb.ResetOffsetRequest(group=group, topic=topic)
    if offset is None:
        request.latest.SetInParent()
    else:
        request.offset = offset
    admin.ResetOffset(request, timeout=CALL_TIMEOUT_S)


def _details(error: grpc.RpcError) -> str:
    code = getattr(error, "code", None)
    return f" {code()}" if callable(code) else ""
