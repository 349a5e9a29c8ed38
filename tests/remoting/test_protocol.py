"""Frames at a running broker: what it answers, what it closes, and what it does not notice."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl

import pytest
from structlog.testing import capture_logs

from quarry_mq.protocol.remoting.codes import ResponseCode
from quarry_mq.protocol.remoting.frames import FRAME_SIZE_MAX, Command, Flag, Serialization, write_command
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.message import QueueId
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message
from tests.remoting.client import RemotingClient, heartbeat_body, pull_fields, records_in, send_fields
from tests.remoting.conftest import Serve, address_of, front_of


def test_requests_in_one_segment_and_in_two_hundred_pieces(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        first, second = client.begin(105, {"topic": "T"}), client.begin(105, {"topic": "none"})
        assert (await first).code == ResponseCode.SUCCESS
        assert (await second).code == ResponseCode.TOPIC_NOT_EXIST
        third = client.command(105, {"topic": "T"})
        waiting = client._waiting[third.opaque] = asyncio.get_running_loop().create_future()
        data = write_command(third)
        for at in range(200):
            piece = data[at * len(data) // 200 : (at + 1) * len(data) // 200]
            if piece:
                client.writer.write(piece)
                await client.writer.drain()
                await asyncio.sleep(0)
        assert (await waiting).code == ResponseCode.SUCCESS

    serve(test)


@pytest.mark.parametrize(
    "garbage",
    [
        (16 * 1024 * 1024 + 1).to_bytes(4) + bytes(4),
        b"\0\0\0\x06\0\0\0\x03ab",
        b"\0\0\0\x06\x02\0\0\x02{}",
        b"\0\0\0\x06\0\0\0\x02{[",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["too long", "header longer than the frame", "serialization", "broken JSON", "HTTP"],
)
def test_what_cannot_be_read_ends_the_connection_alone(serve: Serve, garbage: bytes) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        other = await RemotingClient.connect(address_of(broker))
        other.writer.write(garbage)
        async with asyncio.timeout(10):
            await other.ended.wait()
        await other.close()
        assert (await client.call(106)).code == ResponseCode.SUCCESS
        await until(lambda: len(list(front_of(broker).connections)) == 1, "it is forgotten")

    serve(test)


def test_a_oneway_request_is_never_answered_and_unknown_answers_are_ignored(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        client.tell(310, send_fields("T"), b"1")
        client.tell(310, send_fields("none", 99), b"2")
        client.tell(9_999)
        client.writer.write(write_command(Command(0, 77, flag=Flag.RESPONSE)))
        answer = await client.call(9_999)
        assert (answer.code, bool(answer.flag & Flag.RESPONSE)) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, True)
        assert client.unexpected == []
        await until(lambda: broker.store.messages.maximum(QueueId("T", 0)) == 1, "the oneway send is stored")

    serve(test)


def test_the_answer_has_the_serialization_of_the_request(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        answer = await client.call(105, {"topic": "T"}, serialization=Serialization.ROCKETMQ)
        assert (answer.code, answer.serialization) == (ResponseCode.SUCCESS, Serialization.ROCKETMQ)
        sent = await client.call(310, send_fields("T", TAGS="A"), b"x", serialization=Serialization.ROCKETMQ)
        assert (sent.code, sent.fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")

    serve(test)


def test_missing_and_wrong_fields_are_named(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        for fields, name in (
            ({"b": "T", "e": 0, "f": 0, "g": 0, "h": 0}, "a"),
            ({**send_fields("T"), "e": "x"}, "e"),
            ({**send_fields("T"), "e": 1 << 31}, "e"),
            ({**send_fields("T"), "g": "9" * 40}, "g"),
        ):
            answer = await client.call(310, fields, b"x")
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert f"field {name} " in (answer.remark or "")
        for code in (34, 41, 42, 46):
            assert (await client.call(code, body=b"{")).code == ResponseCode.INVALID_PARAMETER

    serve(test)


def test_both_protocols_share_the_messaging_port(serve: Serve) -> None:
    async def test(broker: RunningBroker, _client: RemotingClient) -> None:
        topic = broker.topic("T")
        plain = await RemotingClient.connect(broker.endpoint)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        secure = await RemotingClient.connect(broker.endpoint, ssl=context)
        async with Client(broker.endpoint) as grpc_client:
            for client, body in ((plain, b"1"), (secure, b"2")):
                route = await client.call(105, {"topic": topic})
                assert broker.endpoint.encode() in route.body
                assert (await client.send(topic, body)).code == ResponseCode.SUCCESS
            await grpc_client.send(message(topic, b"3"))
        found = [
            bytes(each.body) for number in range(4) for each in records_in((await plain.pull(topic, 0, number)).body)
        ]
        assert sorted(found) == [b"1", b"2", b"3"]
        await plain.close()
        await secure.close()

    serve(test)


def test_a_port_of_its_own_speaks_tls_and_plain_text(serve: Serve) -> None:
    async def test(broker: RunningBroker, _client: RemotingClient) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        secure = await RemotingClient.connect(address_of(broker, "names_listen"), ssl=context)
        assert (await secure.call(106)).code == ResponseCode.SUCCESS
        await secure.close()

    serve(test)


def test_a_route_has_the_address_of_the_broker_whichever_port_is_asked(serve: Serve) -> None:
    async def test(broker: RunningBroker, _client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        for name in ("names_listen", "fast_listen", "listen"):
            client = await RemotingClient.connect(address_of(broker, name))
            route = await client.call(105, {"topic": "T"})
            assert f'"{address_of(broker)}"'.encode() in route.body
            await client.close()

    serve(test, remoting={"fast_listen": "127.0.0.1:0"})


@pytest.mark.parametrize("told", ["", "mq.example.com:31080"])
def test_a_client_of_the_messaging_port_gets_the_address_that_clients_by_grpc_get(serve: Serve, told: str) -> None:
    """Behind a port of a machine of Kubernetes, the address that was dialled is that of the pod."""

    async def test(broker: RunningBroker, _client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        client = await RemotingClient.connect(broker.endpoint)
        route = await client.call(105, {"topic": "T"})
        assert f'"{told or broker.endpoint}"'.encode() in route.body
        await client.close()

    serve(test, network={"advertise": told} if told else {})


def test_a_taken_port_is_left_out_unless_it_was_asked_for(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        assert "names_listen" not in broker.broker._remoting.listening
        route = await client.call(105, {"topic": broker.topic("T", queues=1)})
        assert f'"{address_of(broker)}"'.encode() in route.body

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match=f"remoting.names_listen: cannot listen on {taken}"):
            serve(test, remoting={"names_listen": taken})
        monkeypatch.setattr(BrokerSettings, "is_set", lambda *_: False)
        with capture_logs() as lines:
            serve(test, remoting={"names_listen": taken})
        [warning] = [line for line in lines if line["event"] == "a port for remoting clients is left out"]
        assert warning["reason"].endswith("set remoting.names_listen to another address, or off")


def test_a_silent_connection_is_closed_and_one_with_heartbeats_is_not(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        silent = await RemotingClient.connect(address_of(broker))
        assert (await silent.call(106)).code == ResponseCode.SUCCESS
        assert (await client.heartbeat("G", "T")).code == ResponseCode.SUCCESS
        for _ in range(5):
            broker.pass_time(30)
            assert (await client.heartbeat("G", "T")).code == ResponseCode.SUCCESS
            await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            await silent.ended.wait()
        await silent.close()
        assert not client.ended.is_set()

    serve(test)


def test_random_and_mutated_frames_harm_nobody(serve: Serve) -> None:
    """Each connection ends, or its requests get answers; the broker serves others and keeps nothing."""

    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        chance = random.Random(4711)
        whole = [
            write_command(Command(310, 1, {k: str(v) for k, v in send_fields("T").items()}, b"hello")),
            write_command(Command(11, 2, {k: str(v) for k, v in pull_fields("T", 0).items()})),
            write_command(Command(34, 3, {}, heartbeat_body("c", "G", "T"))),
            write_command(Command(105, 4, {"topic": "T"}, serialization=Serialization.ROCKETMQ)),
        ]
        broker.topic("T")
        for _ in range(150):
            data = bytearray(chance.choice(whole))
            for _ in range(chance.randrange(1, 6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            _, writer = await asyncio.open_connection(*address_of(broker).rsplit(":", 1))
            writer.write(data if chance.random() < 0.8 else chance.randbytes(len(data)))
            await writer.drain()
            writer.close()
        assert (await client.call(106)).code == ResponseCode.SUCCESS
        front = front_of(broker)
        await until(lambda: len(list(front.connections)) == 1, "all connections have ended")
        assert front.resources.incoming.size == 0

    serve(test)


def test_an_answer_that_fits_into_no_frame_is_an_error(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        front = front_of(broker)
        front._handlers = {**front._handlers, 33: lambda call: call.answer(body=bytes(FRAME_SIZE_MAX))}
        refused = await client.call(33)
        assert (refused.code, "do not fit into a frame" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        assert (await client.call(105, {"topic": "TBW102"})).code == ResponseCode.SUCCESS

    serve(test)
