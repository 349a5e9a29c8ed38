"""Reconciles consumer groups."""

from __future__ import annotations

from typing import Any

from quarry_mq.cli.operator.broker import BrokerAway
from quarry_mq.cli.operator.declarations.declared import DeclaredReconciler, Found, Settings, Waiting
from quarry_mq.cli.operator.declarations.topics import attribute_settings, attributes
from quarry_mq.cli.operator.resources import CONSUMER_GROUP, Resource
from quarry_mq.protocol import lite_attributes
from quarry_mq.protocol.lite_attributes import LiteModel
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2

DELAYS: str = "retryDelaysSeconds"


class GroupReconciler(DeclaredReconciler):
    """Brings consumer groups to what resources declare."""

    kind = CONSUMER_GROUP
    noun = "group"

    def thing(self, resource: Resource) -> str:
        return str(resource.spec.get("name", resource.name))

    def declared(self, resource: Resource) -> Settings:
        spec = resource.spec
        plain = {name: spec[name] for name in ("fifo", "maxAttempts", "enabled", DELAYS) if name in spec}
        model = spec.get("liteModel")
        options = {
            lite_attributes.BIND_TOPIC: spec.get("liteParent"),
            lite_attributes.MODEL: None if model is None else LiteModel[model.upper()].value,
            lite_attributes.CLIENT_QUOTA: spec.get("liteQuota"),
        }
        return {**plain, **attribute_settings(spec.get("attributes", {})), **attribute_settings(options)}

    async def find(self, resource: Resource) -> Found | None:
        group = await self.broker.found("AdminService/GetGroup", pb.GetGroupRequest(name=self.thing(resource)))
        if group is None:
            return None
        delays: object = "an exponential backoff"
        if group.WhichOneof("backoff") != "exponential":
            delays = [_seconds(each) for each in group.customized.delays_ms]
        settings = {
            "fifo": group.fifo,
            "maxAttempts": group.max_attempts,
            "enabled": group.enabled,
            DELAYS: delays,
            **attribute_settings(dict(group.attributes)),
        }
        return Found(settings, group)

    async def create(self, resource: Resource, settings: Settings) -> None:
        request = pb.CreateGroupRequest(name=self.thing(resource), **_fields(settings))
        await self.broker.call("AdminService/CreateGroup", request)

    async def change(self, resource: Resource, found: Found, changes: Settings) -> None:
        del found
        request = pb.UpdateGroupRequest(name=self.thing(resource), **_fields(changes))
        await self.broker.call("AdminService/UpdateGroup", request)

    async def delete(self, resource: Resource) -> None:
        name = self.thing(resource)
        if await self.find(resource) is None:
            return
        request = overview_pb2.ListGroupFiguresRequest(names=[name])
        answer = await self.broker.call("AllMembersService/ListGroupFigures", request)
        for each in answer.members:
            if each.problem:
                raise BrokerAway(f"{each.name}: {each.problem}")
        consumers = max((each.consumers for each in answer.groups), default=0)
        if consumers:
            raise Waiting("ConsumersConnected", f"group {name} is not deleted: {consumers} consumers are connected")
        await self.broker.call("AdminService/DeleteGroup", pb.DeleteGroupRequest(name=name))


def _seconds(delay_ms: int) -> int | float:
    return delay_ms // 1000 if delay_ms % 1000 == 0 else delay_ms / 1000


def _fields(settings: Settings) -> dict[str, Any]:
    """Return the fields of a request that creates or changes a group."""
    delays = settings.get(DELAYS)
    return {
        "fifo": settings.get("fifo"),
        "max_attempts": settings.get("maxAttempts"),
        "enabled": settings.get("enabled"),
        "customized": None if delays is None else pb.CustomizedBackoff(delays_ms=[each * 1000 for each in delays]),
        "attributes": attributes(settings),
    }
