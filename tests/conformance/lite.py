"""A client of lite topics, word for word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from tests.conformance.client import Client, Received, consumer_settings, message, resource

GROUP, PARENT = "devices", "events"


class LiteClient(Client):
    """A consumer of group `devices`, or another one, bound to the topic `events`."""

    group = GROUP

    async def start(self, group: str = GROUP) -> None:
        self.group = group
        answer = await self.declare(consumer_settings(group, PARENT, kind=definition.LITE_PUSH_CONSUMER))
        assert answer.status.code == definition.OK

    async def sync(
        self, action: definition.LiteSubscriptionAction, *names: str, topic: str = PARENT, **option: Any
    ) -> int:
        """Returns the code. `option`: a field of OffsetOption."""
        request = service.SyncLiteSubscriptionRequest(
            action=action, topic=resource(topic), group=resource(self.group), lite_topic_set=names
        )
        if option:
            request.offset_option.CopyFrom(definition.OffsetOption(**option))
        answer: service.SyncLiteSubscriptionResponse = await self.call("SyncLiteSubscription", request)
        return answer.status.code

    async def add(self, *names: str, **option: Any) -> None:
        assert await self.sync(definition.PARTIAL_ADD, *names, **option) == definition.OK

    async def remove(self, *names: str) -> None:
        assert await self.sync(definition.PARTIAL_REMOVE, *names) == definition.OK

    async def replace(self, *names: str) -> None:
        assert await self.sync(definition.COMPLETE_ADD, *names) == definition.OK

    async def got(self, **terms: Any) -> Received:
        return await self.receive(self.group, PARENT, **terms)

    async def done(self, received: Received) -> None:
        """Acknowledge each message, as libraries do."""
        for each in received.messages:
            answer = await self.acknowledge(each)
            assert answer.status.code == definition.OK, answer

    async def acknowledge(self, received: definition.Message, *, says_lite_topic: bool = True) -> Any:
        system = received.system_properties
        request = service.AckMessageRequest(group=resource(self.group), topic=resource(PARENT))
        entry = request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        if says_lite_topic:
            entry.lite_topic = system.lite_topic
        return await self.call("AckMessage", request)

    async def give_back(self, received: definition.Message, seconds: float, *, suspend: bool = False) -> Any:
        system = received.system_properties
        request = service.ChangeInvisibleDurationRequest(
            group=resource(self.group),
            topic=resource(PARENT),
            receipt_handle=system.receipt_handle,
            message_id=system.message_id,
            suspend=suspend,
        )
        request.invisible_duration.FromMilliseconds(int(seconds * 1000))
        return await self.call("ChangeInvisibleDuration", request)


async def send(client: Client, lite_topic: str, *bodies: bytes) -> None:
    for body in bodies:
        await client.sent(message(PARENT, body, lite_topic=lite_topic, message_type=definition.LITE))


def found(received: Received) -> Sequence[tuple[str, bytes]]:
    """Lite topic and body of each message."""
    return [(each.system_properties.lite_topic, each.body) for each in received.messages]
