"""A broker in this process for the tests of a module, its admin port, and a client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from quarry_mq.protocol.proto.quarry.admin.v1 import browsing_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.browsing_pb2_grpc import BrowsingServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.lite_topics_pb2_grpc import LiteTopicServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.storage_pb2_grpc import StorageServiceStub
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import RunningBroker, running_broker
from tests.conformance.client import Client, message

CALL_TIMEOUT_S = 20.0

T = TypeVar("T")


class Served:
    """The broker goes on while something is run, and stands still in between."""

    def __init__(
        self, broker: RunningBroker, runner: asyncio.Runner, channel: grpc.aio.Channel, client: Client
    ) -> None:
        self.broker = broker
        self.client = client
        self.channel = channel
        self.browsing: Any = BrowsingServiceStub(channel)
        self.storage: Any = StorageServiceStub(channel)
        self.lite: Any = LiteTopicServiceStub(channel)
        self._runner = runner
        self._names = (f"topic-{number}" for number in count())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(coroutine, CALL_TIMEOUT_S))

    def topic(self, kind: TopicType = TopicType.NORMAL, queues: int = 4) -> str:
        return self.broker.topic(next(self._names), kind, queues)

    def send(self, topic: str, *bodies: bytes, **system: Any) -> None:
        async def send() -> None:
            for body in bodies:
                await self.client.sent(message(topic, body, **system))

        self.run(send())

    def call(self, call: Any, request: Any) -> Any:
        """The answer to one request of a unary call."""

        async def ask() -> Any:
            return await call(request, timeout=CALL_TIMEOUT_S)

        return self.run(ask())

    def refused(self, call: Any, request: Any) -> str:
        """The code and the text that a call is refused with."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            self.call(call, request)
        return f"{caught.value.code().name} {caught.value.details()}"

    def browse(self, topic: str, **fields: Any) -> pb.BrowseMessagesResponse:
        answer = self.call(self.browsing.BrowseMessages, pb.BrowseMessagesRequest(topic=topic, **fields))
        assert isinstance(answer, pb.BrowseMessagesResponse)
        return answer


@contextmanager
def served(directory: Path, **changes: Mapping[str, object]) -> Iterator[Served]:
    """`changes` are settings by section."""
    with asyncio.Runner() as runner:
        made, serving, may_end = runner.run(_begun(runner, directory, changes))
        try:
            yield made
        finally:
            may_end.set()
            runner.run(asyncio.wait_for(serving, CALL_TIMEOUT_S))


async def _begun(
    runner: asyncio.Runner, directory: Path, changes: Mapping[str, Mapping[str, object]]
) -> tuple[Served, asyncio.Future[None], asyncio.Event]:
    begun, may_end = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def serve() -> None:
        with pytest.MonkeyPatch.context() as patch:
            async with (
                running_broker(directory, patch, **changes) as broker,
                grpc.aio.insecure_channel(broker.admin) as channel,
                Client(broker.endpoint) as client,
            ):
                begun.set_result(Served(broker, runner, channel, client))
                await may_end.wait()

    serving = asyncio.ensure_future(serve())
    await asyncio.wait([serving, begun], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    return begun.result(), serving, may_end
