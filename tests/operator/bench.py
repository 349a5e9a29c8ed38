"""A Kubernetes API, a broker, and an operator between the two."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Secret
from lightkube.resources.events_v1 import Event
from lightkube.types import PatchType

from quarry_mq.cli.operator.broker import Broker
from quarry_mq.cli.operator.kubernetes import Kubernetes, Pod
from quarry_mq.cli.operator.loop import Operator, Stats
from quarry_mq.cli.operator.process import reconcilers
from quarry_mq.cli.operator.resources import GROUP, READY, VERSION, Kind, Resource
from quarry_mq.cli.operator.shards import Wanted
from quarry_mq.client.admin import AsyncAdminClient
from quarry_mq.client.aio import AsyncMessagingClient
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.requests import OutgoingMessage, Subscription
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2.definition_pb2 import Message

PATIENCE_S: Final = 90.0
SWEEP_S: Final = 0.3
"""Between two sweeps of the operators of tests: they look often, so that tests are quick."""

T = TypeVar("T")


def run(scenario: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(scenario, PATIENCE_S * 3))


class Bench:
    """A bench does to the API what a test wants, and sees what is there."""

    def __init__(self, client: AsyncClient, admin: AsyncAdminClient, own_user: str | None = None) -> None:
        self.client = client
        self.admin = admin
        self.stats = Stats()
        self._own_user = own_user

    @asynccontextmanager
    async def operating(self, clock: Clock | None = None) -> AsyncIterator[None]:
        """Run an operator while the block runs."""
        kubernetes = Kubernetes(self.client)
        known = reconcilers(Broker(self.admin), kubernetes, clock or SystemClock(), self._own_user, _silent)
        operator = Operator(kubernetes, known, clock=SystemClock(), stats=self.stats, sweep_s=SWEEP_S)
        running = asyncio.create_task(operator.run())
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running  # an operator that ended by itself fails the test here

    async def declare(
        self, kind: Kind, name: str, spec: Mapping[str, Any], annotations: Mapping[str, str] | None = None
    ) -> None:
        metadata = ObjectMeta(name=name, annotations=dict(annotations or {}))
        await self.client.create(_class_of(kind)(metadata=metadata, spec=dict(spec)))

    async def change(self, kind: Kind, name: str, spec: Mapping[str, Any]) -> None:
        """Set fields of the declaration; None removes one."""
        await self._patch(kind, name, {"spec": dict(spec)})

    async def annotate(self, kind: Kind, name: str, annotation: str) -> None:
        await self._patch(kind, name, {"metadata": {"annotations": {annotation: "true"}}})

    async def _patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> None:
        await self.client.patch(_class_of(kind), name, dict(change), patch_type=PatchType.MERGE)

    async def delete(self, kind: Kind, name: str) -> None:
        await self.client.delete(_class_of(kind), name)

    async def find(self, kind: Kind, name: str) -> Resource | None:
        try:
            return Resource(kind, dict(await self.client.get(_class_of(kind), name)))
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise

    async def until(self, kind: Kind, name: str, is_reached: Callable[[Resource], bool]) -> Resource:
        """Wait until a resource is as the condition says."""
        found = None
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while found is None or not is_reached(found):
            assert asyncio.get_running_loop().time() < deadline, f"in vain: {found}"
            await asyncio.sleep(0.02)
            found = await self.find(kind, name)
        return found

    async def ready(self, kind: Kind, name: str) -> Resource:
        """Wait until a resource is ready, in its present generation."""
        return await self.until(kind, name, lambda each: _ready(each) == ("True", each.generation))

    async def not_ready(self, kind: Kind, name: str, reason: str) -> str:
        """Wait until a resource is not ready for this reason; returns the message."""
        found = await self.until(kind, name, lambda each: each.condition(READY).get("reason") == reason)
        assert found.condition(READY)["status"] != "True"
        return str(found.condition(READY)["message"])

    async def found(self, look: Callable[[], Coroutine[Any, Any, object]], wanted: object) -> None:
        """Wait until a look finds what is wanted."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while (found := await look()) != wanted:
            assert asyncio.get_running_loop().time() < deadline, f"in vain: {found}"
            await asyncio.sleep(0.02)

    async def gone(self, kind: Kind, name: str) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while await self.find(kind, name) is not None:
            assert asyncio.get_running_loop().time() < deadline, "still there"
            await asyncio.sleep(0.02)

    async def looked(self, kind: Kind, times: int = 3) -> None:
        """Wait for further looks at the resources of a kind."""
        wanted = self.stats.looks[kind.name] + times
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while self.stats.looks[kind.name] < wanted:
            assert asyncio.get_running_loop().time() < deadline, "nothing is looked at"
            await asyncio.sleep(0.02)

    async def told(self, name: str, *reasons: str) -> None:
        """Wait until there are events about a resource for these reasons, in this order, and no others."""
        await self.found(lambda: self.events(name), list(reasons))

    async def events(self, name: str) -> list[str]:
        """The reasons of all events about a resource, in their order."""
        found = [each async for each in self.client.list(Event)]
        own = [each for each in found if each.regarding is not None and each.regarding.name == name]
        return [str(each.reason) for each in sorted(own, key=lambda each: each.eventTime)]

    async def secret(self, name: str) -> dict[str, str]:
        data = (await self.client.get(Secret, name)).data or {}
        return {key: base64.b64decode(text).decode() for key, text in data.items()}

    async def set_secret(self, name: str, **entries: str) -> None:
        data = {key: base64.b64encode(text.encode()).decode() for key, text in entries.items()}
        try:
            await self.client.patch(Secret, name, {"data": data}, patch_type=PatchType.MERGE)
        except ApiError:
            await self.client.create(Secret(metadata=ObjectMeta(name=name), data=data, type="Opaque"))

    async def call(self, method: str, request: Any) -> Any:
        return await self.admin.call(method, request)


async def _silent(_pod: Pod, _wanted: Wanted) -> None:
    """Answer for pods, of which there are none."""


def _ready(resource: Resource) -> tuple[object, object]:
    condition = resource.condition(READY)
    return condition.get("status"), condition.get("observedGeneration")


def _class_of(kind: Kind) -> Any:
    return create_namespaced_resource(GROUP, VERSION, kind.name, kind.plural)


@asynccontextmanager
async def opened(client: AsyncClient, address: str, own_user: str | None = None) -> AsyncIterator[Bench]:
    try:
        async with AsyncAdminClient(Endpoint(address)) as admin:
            yield Bench(client, admin, own_user)
    finally:
        await client.close()


async def send(endpoint: str, topic: str, **more: Any) -> None:
    async with AsyncMessagingClient(Endpoint(endpoint)) as client:
        await client.send(OutgoingMessage(topic=topic, body=b"one", **more))


async def consume(endpoint: str, topic: str, group: str) -> None:
    """Receive one message and acknowledge it."""
    subscription = Subscription(group=group, topic=topic)
    async with AsyncMessagingClient(Endpoint(endpoint), subscription=subscription) as client:
        received: list[Message] = []
        while not received:
            received = await client.receive(limit=1, invisible_s=60, wait_s=5)
        await client.acknowledge(received[0])
