"""The public clients against a broker: docs/python-client.md has the plain way, this has what differs from it."""

from __future__ import annotations

import asyncio
import gc
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import grpc
import pytest

from quarry_mq.client.admin import AdminClient, AsyncAdminClient
from quarry_mq.client.aio import AsyncMessagingClient
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.errors import BrokerUnreachable, CallRefused
from quarry_mq.client.messaging import MessagingClient
from quarry_mq.client.requests import OutgoingMessage, Subscription, body_of
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2
from tests.e2e.broker import SMALL_SEGMENTS, Broker

GROUP: Final = "readers"
WAIT_S: Final = 10.0
_NUMBERS: Final = count()
_Result = TypeVar("_Result")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("clients")
    broker = Broker(directory / "store", logs=directory / "logs", environment=SMALL_SEGMENTS)
    try:
        yield broker.start()
        broker.stop()
    finally:
        broker.close()


@pytest.fixture
def subscription(broker: Broker) -> Iterator[Subscription]:
    """A group and a topic of its own, with one queue."""
    made = Subscription(group=f"{GROUP}-{next(_NUMBERS)}", topic=f"topic-{next(_NUMBERS)}")
    with AdminClient(Endpoint(broker.admin)) as admin:
        admin.create_topic(made.topic, queues=1)
        admin.create_group(made.group)
        yield made
        admin.delete_group(made.group)
        admin.delete_topic(made.topic)


def over_asyncio(
    broker: Broker, subscription: Subscription | None, act: Callable[[AsyncMessagingClient], Awaitable[_Result]]
) -> _Result:
    async def run() -> _Result:
        async with AsyncMessagingClient(Endpoint(broker.endpoint), subscription=subscription) as client:
            return await act(client)

    return asyncio.run(run())


def test_topics_and_groups(broker: Broker) -> None:
    with AdminClient(Endpoint(broker.admin)) as admin:
        made = admin.create_topic("bills", type=admin_pb2.TOPIC_TYPE_FIFO, queues=3, attributes={"owner": "shop"})
        assert (made.name, made.read_queues, dict(made.attributes)) == ("bills", 3, {"owner": "shop"})
        assert admin.topic("bills") == made
        assert list(admin.topics("bil")) == [made]
        group = admin.create_group("archive", fifo=True, max_attempts=3)
        assert admin.group("archive") == group
        assert list(admin.groups("arc")) == [group]
        assert admin.call("AdminService/GetBroker", admin_pb2.GetBrokerRequest()).name
        admin.delete_topic("bills")
        admin.delete_group("archive")
        assert list(admin.topics("bil")) == []
        with pytest.raises(grpc.RpcError) as refused:
            admin.topic("bills")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_topics_and_groups_over_asyncio(broker: Broker) -> None:
    async def run() -> None:
        async with AsyncAdminClient(Endpoint(broker.admin)) as admin:
            made = await admin.create_topic("bills", queues=3)
            assert await admin.topic("bills") == made
            assert [each async for each in admin.topics("bil")] == [made]
            group = await admin.create_group("archive", max_attempts=3)
            assert await admin.group("archive") == group
            assert [each async for each in admin.groups("arc")] == [group]
            await admin.delete_topic("bills")
            await admin.delete_group("archive")
            with pytest.raises(grpc.RpcError, match="bills"):
                await admin.topic("bills")

    asyncio.run(run())


def test_a_message_given_back_comes_again_at_once(broker: Broker, subscription: Subscription) -> None:
    async def act(client: AsyncMessagingClient) -> list[int]:
        await client.send(OutgoingMessage(topic=subscription.topic, body=b"1"))
        first = await client.receive(limit=1, invisible_s=60, wait_s=WAIT_S)
        await client.give_back(first)
        second = await client.receive(limit=1, invisible_s=60, wait_s=WAIT_S)
        await client.acknowledge(second[0])
        return [each.system_properties.delivery_attempt for each in (*first, *second)]

    assert over_asyncio(broker, subscription, act) == [1, 2]


def test_a_receive_that_is_cancelled_leaves_its_messages_to_others(broker: Broker, subscription: Subscription) -> None:
    async def act(client: AsyncMessagingClient) -> bytes | None:
        receiving = asyncio.create_task(client.receive(limit=1, invisible_s=60, wait_s=WAIT_S))
        with suppress(CallRefused):
            await client.send(
                OutgoingMessage(topic=subscription.topic, body=b"")
            )  # is answered after the receive began
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await client.send(OutgoingMessage(topic=subscription.topic, body=b"1"))
        [message] = await client.receive(limit=1, invisible_s=60, wait_s=WAIT_S)
        return body_of(message)

    assert over_asyncio(broker, subscription, act) == b"1"


def test_a_receive_that_waits_for_nothing_ends(broker: Broker, subscription: Subscription) -> None:
    with MessagingClient(Endpoint(broker.endpoint), subscription=subscription) as client:
        assert client.receive(limit=1, invisible_s=60, wait_s=0) == []
    assert over_asyncio(broker, subscription, lambda each: each.receive(limit=1, invisible_s=60, wait_s=0)) == []


def test_refused_calls_have_the_code_of_the_protocol(broker: Broker, subscription: Subscription) -> None:
    nothing = OutgoingMessage(topic=subscription.topic, body=b"")
    with MessagingClient(Endpoint(broker.endpoint)) as client, pytest.raises(CallRefused) as refused:
        client.send(nothing)
    assert refused.value.code == definition.MESSAGE_BODY_EMPTY
    with pytest.raises(CallRefused, match="MESSAGE_BODY_EMPTY"):
        over_asyncio(broker, None, lambda client: client.send(nothing))


def test_only_a_client_with_a_subscription_receives(broker: Broker) -> None:
    with MessagingClient(Endpoint(broker.endpoint)) as client, pytest.raises(TypeError, match="without a subscription"):
        client.receive(limit=1, invisible_s=1, wait_s=0)
    with pytest.raises(TypeError, match="without a subscription"):
        over_asyncio(broker, None, lambda client: client.receive(limit=1, invisible_s=1, wait_s=0))


def test_a_broker_that_is_not_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

    async def run() -> None:
        async with AsyncMessagingClient(Endpoint(address)):
            pass

    with pytest.raises(BrokerUnreachable, match=address):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "encoding", "plain"),
    [
        (b"text", definition.IDENTITY, b"text"),
        (zlib.compress(b"text", wbits=31), definition.GZIP, b"text"),
        (b"text", definition.GZIP, None),
    ],
)
def test_bodies_are_uncompressed(body: bytes, encoding: definition.Encoding, plain: bytes | None) -> None:
    message = definition.Message(body=body)
    message.system_properties.body_encoding = encoding
    assert body_of(message) == plain


def test_an_address_has_a_host_and_a_port() -> None:
    assert (Endpoint("[::1]:8081").host, Endpoint("[::1]:8081").port) == ("::1", 8081)
    with pytest.raises(ValueError, match="invalid literal"):
        _ = Endpoint("here").port


def test_a_secret_is_not_shown() -> None:
    assert "s3cret" not in repr(Endpoint("host:1", user="me", secret="s3cret"))


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "authority.pem"
    wrong.write_text("nothing")
    with pytest.raises(ValueError, match=rf"{wrong}: cannot be used for TLS"):
        Endpoint("host:1", tls=True, ca=wrong).check_tls_files()


def test_a_client_that_ended_keeps_no_call(broker: Broker, subscription: Subscription) -> None:
    """A call that is deleted at the end of the interpreter may wait for ever: its program never ended."""
    before = {id(call) for call in gc.get_objects() if isinstance(call, grpc.Call)}
    client = MessagingClient(Endpoint(broker.endpoint), subscription=subscription)
    with client:
        client.receive(limit=1, invisible_s=30, wait_s=0)
        assert [call for call in gc.get_objects() if isinstance(call, grpc.Call) and id(call) not in before]
    assert not [call for call in gc.get_objects() if isinstance(call, grpc.Call) and id(call) not in before]
