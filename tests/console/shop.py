"""A broker with something to look at on each page: topics of all types, lag, dead letters, timers, lite topics."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import dead_letters_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.dead_letters_pb2_grpc import DeadLetterServiceStub
from tests.e2e import languages
from tests.e2e.broker import Broker, until
from tests.e2e.clients import Clients, Outgoing, SimpleConsumer

ORDERS: Final = 60
DEAD: Final = 3
WAITING: Final = 4
"""Messages of a lite topic that its client does not ask for."""
HOSTILE: Final = '<img src=x onerror="document.title=1">'
"""A body that would be markup if it were put in as such."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a test message has besides its body."""

    key: str | None = None
    tag: str | None = None
    lite_topic: str | None = None
    message_group: str | None = None
    deliver_at_ms: int | None = None


class Shop:
    """Calls the broker's admin port."""

    def __init__(self, broker: Broker) -> None:
        self._channel = grpc.insecure_channel(broker.admin)
        self._topics = AdminServiceStub(self._channel)
        self._messages = AdminStub(self._channel)
        self._dead_letters = DeadLetterServiceStub(self._channel)
        self._endpoint = broker.endpoint

    def close(self) -> None:
        self._channel.close()

    def open(self, home: Path) -> None:
        """Make and send everything."""
        self._make_topics()
        for number in range(ORDERS):
            body = {"order": number, "paid": number % 2 == 0, "lines": [{"sku": "A-1", "count": 2**60 + number}]}
            self.send("orders", json.dumps(body), Sent(key=f"order-{number}", tag="paid" if number % 2 == 0 else "new"))
        self.send("orders", HOSTILE, Sent(key="hostile"))
        now_ms = int(time.time() * 1000)
        for number in range(5):
            self.send("settled", f"settled {number}", Sent(message_group="account-1"))
            self.send("reminders", "later", Sent(deliver_at_ms=now_ms + (number + 1) * 600_000))
            self.send("sessions", "hello", Sent(lite_topic=f"device-{number}"))
        self._consume(home)

    def _make_topics(self) -> None:
        types = {
            "orders": pb.TOPIC_TYPE_NORMAL,
            "settled": pb.TOPIC_TYPE_FIFO,
            "reminders": pb.TOPIC_TYPE_DELAY,
            "ledger": pb.TOPIC_TYPE_TRANSACTION,
            "sessions": pb.TOPIC_TYPE_LITE,
        }
        for name, kind in types.items():
            attributes = {"lite.topic.expiration": "1440"} if name == "sessions" else {}
            request = pb.CreateTopicRequest(name=name, type=kind, read_queues=2, write_queues=2, attributes=attributes)
            self._topics.CreateTopic(request)
        self._topics.CreateGroup(pb.CreateGroupRequest(name="billing", max_attempts=1))
        self._topics.CreateGroup(pb.CreateGroupRequest(name="audit"))
        self._topics.CreateGroup(pb.CreateGroupRequest(name="reports", enabled=False))
        self._topics.CreateGroup(pb.CreateGroupRequest(name="devices", attributes={"lite.bind.topic": "sessions"}))

    def send(self, topic: str, body: str, sent: Sent) -> str:
        """Returns the message's id."""
        request = official.AdminSendMessageRequest(
            topic=definition.Resource(name=topic), body=body.encode(), key=sent.key, tag=sent.tag
        )
        system = request.system_properties
        if sent.lite_topic is not None:
            system.lite_topic = sent.lite_topic
        if sent.message_group is not None:
            system.message_group = sent.message_group
        if sent.deliver_at_ms is not None:
            system.delivery_timestamp.FromMilliseconds(sent.deliver_at_ms)
        answer = self._messages.AdminSendMessage(request)
        assert answer.status.code == definition.OK, answer.status
        return str(answer.message_id)

    def _consume(self, home: Path) -> None:
        """Billing loses some messages to its dead letters, audit is given some and has most before it."""
        clients = Clients(languages.LANGUAGES["python"](), self._endpoint, home)
        try:
            billing = clients.simple_consumer("orders", group="billing")
            taken = 0
            while taken < DEAD:
                taken += len(billing.receive(count=DEAD - taken, invisible_s=1))
            audit = clients.simple_consumer("orders", group="audit")
            received = audit.receive(count=5, invisible_s=600)
            assert received, "audit was given nothing"
            until(lambda: self._dies_out(billing), "dead letters of billing")
        finally:
            clients.close()

    def visit(self, clients: Clients) -> None:
        """Clients that stay until they are closed: of orders, of lite topics, and one that ends no transaction."""
        clients.simple_consumer("orders", group="audit")
        devices = clients.lite_simple_consumer("sessions", group="devices")
        devices.subscribe("device-1", "device-2")
        devices.ack(devices.receive_until(2))
        clients.lite_push_consumer("sessions", group="devices").subscribe("device-3", "device-4")
        for number in range(WAITING):
            self.send("sessions", f"waits {number}", Sent(lite_topic="device-1"))
        producer = clients.producer("ledger", checker="unknown")
        for number in range(2):
            producer.send_in_transaction(Outgoing("ledger", f"entry {number}".encode()), "none")

    def _dies_out(self, billing: SimpleConsumer) -> bool:
        """What came back too often is put away when the group is given messages."""
        billing.ack(billing.receive(count=1))
        return self.dead_letters("billing") == DEAD

    def dead_letters(self, group: str) -> int:
        """Those that were never sent again."""
        try:
            answer = self._dead_letters.ListDeadLetters(dead_letters_pb2.ListDeadLettersRequest(group=group))
        except grpc.RpcError:
            return 0
        return int(answer.maximum_offset - answer.next_offset)

    def messages(self, topic: str) -> int:
        queues = self._topics.ListQueues(pb.ListQueuesRequest(topic=topic)).queues
        return sum(queue.maximum_offset - queue.minimum_offset for queue in queues)
