"""Reconciles topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quarry_mq.cli.operator.broker import Broker, CallRefused
from quarry_mq.cli.operator.declarations.declared import ATTRIBUTE, DeclaredReconciler, Found, Settings, Waiting
from quarry_mq.cli.operator.resources import BREAK_ORDER, DELETE_MESSAGES, TOPIC, Resource
from quarry_mq.protocol.lite_attributes import EXPIRATION
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import storage_pb2

PENDING_MAX: Final = 500
"""Pending messages of a broker that are searched for those of a topic: the most that the broker lists."""


def attributes(settings: Settings) -> dict[str, str]:
    """Return the attributes among settings. One that is to be removed has an empty value."""
    return {
        name.removeprefix(ATTRIBUTE): "" if value is None else str(value)
        for name, value in settings.items()
        if name.startswith(ATTRIBUTE)
    }


def attribute_settings(given: Mapping[str, object]) -> dict[str, str]:
    """Return attributes as settings. Those without a value are left out."""
    return {ATTRIBUTE + name: str(value) for name, value in given.items() if value is not None}


class TopicReconciler(DeclaredReconciler):
    """Brings topics to what resources declare.

    A lower number of queues applies to senders only: consumers go on reading the queues above it, which may hold
    messages.
    """

    kind = TOPIC
    noun = "topic"

    def thing(self, resource: Resource) -> str:
        return str(resource.spec.get("name", resource.name))

    def declared(self, resource: Resource) -> Settings:
        spec = resource.spec
        plain = {name: spec[name] for name in ("type", "queues", "permission") if name in spec}
        options = {EXPIRATION: spec.get("liteTopicTtlMinutes")}
        return {**plain, **attribute_settings(spec.get("attributes", {})), **attribute_settings(options)}

    async def find(self, resource: Resource) -> Found | None:
        topic = await self.broker.found("AdminService/GetTopic", pb.GetTopicRequest(name=self.thing(resource)))
        if topic is None:
            return None
        queues: object = topic.write_queues
        if topic.read_queues < topic.write_queues:
            queues = f"{topic.read_queues} to read and {topic.write_queues} to write"
        settings = {
            "type": pb.TopicType.Name(topic.type).removeprefix("TOPIC_TYPE_").lower(),
            "queues": queues,
            "permission": pb.Permission.Name(topic.permission).removeprefix("PERMISSION_").lower().replace("_", "-"),
            **attribute_settings(dict(topic.attributes)),
        }
        return Found(settings, topic)

    async def create(self, resource: Resource, settings: Settings) -> None:
        queues = settings.get("queues")
        request = pb.CreateTopicRequest(
            name=self.thing(resource),
            type=_type(settings),
            read_queues=queues,
            write_queues=queues,
            permission=_permission(settings),
            attributes=attributes(settings),
        )
        await self.broker.call("AdminService/CreateTopic", request)

    async def change(self, resource: Resource, found: Found, changes: Settings) -> None:
        queues = changes.get("queues")
        request = pb.UpdateTopicRequest(
            name=self.thing(resource),
            type=_type(changes),
            read_queues=queues if queues is not None and queues > found.answer.read_queues else None,
            write_queues=queues,
            permission=_permission(changes),
            attributes=attributes(changes),
            break_order=resource.is_annotated(BREAK_ORDER),
        )
        await self.broker.call("AdminService/UpdateTopic", request)

    async def delete(self, resource: Resource) -> None:
        name = self.thing(resource)
        if await self.find(resource) is None:
            return
        if not resource.is_annotated(DELETE_MESSAGES):
            reason = await unconsumed(self.broker, name)
            if reason is not None:
                text = f"topic {name} is not deleted: {reason}; the annotation {DELETE_MESSAGES}: true deletes it"
                raise Waiting("MessagesNotConsumed", text)
        await self.broker.call("AdminService/DeleteTopic", pb.DeleteTopicRequest(name=name))


async def unconsumed(broker: Broker, topic: str) -> str | None:
    """Return which messages of a topic are still to be consumed, or None. All members of the cluster are asked.

    A message is consumed when all groups that read the topic have consumed it. Without such a group, no message is.
    """
    queues = broker.of_members("AdminService/ListQueues", pb.ListQueuesRequest(topic=topic), pb.ListQueuesResponse)
    messages = {
        member: sum(each.maximum_offset - each.minimum_offset for each in answer.queues)
        async for member, answer in queues
    }
    return await _unread(broker, topic, messages) or await _pending(broker, topic)


async def _unread(broker: Broker, topic: str, messages: dict[str, int]) -> str | None:
    if not any(messages.values()):
        return None
    named = definition.Resource(name=topic)
    listing = official.ListSubscriptionRequest(topic=named)
    readers = broker.of_members("Admin/ListSubscription", listing, official.ListSubscriptionResponse)
    groups = set()
    async for member, answer in readers:
        if answer.status.code != definition.OK:
            raise CallRefused(f"{member}: {answer.status.message}")
        groups |= {each.group.name for each in answer.subscription_info}
    if not groups:
        return f"no group has read its {sum(messages.values())} messages"
    for group in sorted(groups):
        request = official.DescribeGroupAccumulationRequest(group=definition.Resource(name=group), topics=[named])
        counts = broker.of_members(
            "Admin/DescribeGroupAccumulation", request, official.DescribeGroupAccumulationResponse
        )
        left = 0
        async for member, answer in counts:
            if answer.status.code == definition.OFFSET_NOT_FOUND:
                left += messages.get(member, 0)
            elif answer.status.code == definition.OK:
                left += answer.accumulation.accumulation
            else:
                raise CallRefused(f"{member}: {answer.status.message}")
        if left:
            return f"group {group} has {left} messages to consume"
    return None


async def _pending(broker: Broker, topic: str) -> str | None:
    """Return whether delayed messages or open transactions of a topic wait, as far as they can be listed."""
    request = storage_pb2.ListPendingRequest(limit=PENDING_MAX)
    async for member, answer in broker.of_members(
        "StorageService/ListPending", request, storage_pb2.ListPendingResponse
    ):
        listed = (*answer.first_timers, *answer.first_transactions)
        if any(each.topic == topic for each in listed):
            return "delayed messages or transactions wait in it"
        for noun, field, shown in (
            ("delayed messages", "timers", answer.first_timers),
            ("transactions", "transactions", answer.first_transactions),
        ):
            if not answer.HasField(field):
                return f"the {noun} of {member} are not counted yet"
            if getattr(answer, field) > len(shown):
                return f"{member} has more than {len(shown)} {noun}, and some may be of this topic"
    return None


def _type(settings: Settings) -> str:
    return f"TOPIC_TYPE_{str(settings.get('type', 'unspecified')).upper()}"


def _permission(settings: Settings) -> str:
    return f"PERMISSION_{str(settings.get('permission', 'unspecified')).upper().replace('-', '_')}"
