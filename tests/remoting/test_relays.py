"""Requests that the broker passes on to a client: replies, and what operators ask consumers."""

from __future__ import annotations

import asyncio

import pytest

from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.protocol.remoting.frames import Command, write_command
from quarry_mq.server.remoting import relays
from tests.conformance.broker import RunningBroker
from tests.conformance.secured import SECRET, SECURED, add_user
from tests.remoting.client import RemotingClient, records_in, send_fields
from tests.remoting.conftest import Serve, address_of

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


async def asked(client: RemotingClient, code: RequestCode) -> Command:
    """The next request of the broker with this code."""
    while (command := await client.asked.get()).code != code:
        pass
    return command


def answer(client: RemotingClient, command: Command, code: int = 0, body: bytes = b"") -> None:
    client.writer.write(write_command(command.response(code, {"by": "client"}, body)))


@pytest.mark.parametrize("code", [324, 325])
def test_a_reply_is_pushed_to_the_producer_that_waits_for_it(serve: Serve, code: int) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        requester = await RemotingClient.connect(address_of(broker))
        await requester.heartbeat("", client_id="asker", producers=("P", "Q"))
        await requester.call(35, {"clientID": "asker", "producerGroup": "P"})
        fields = send_fields(REPLY_TOPIC, REPLY_TO_CLIENT="asker", CORRELATION_ID="7", MSG_TYPE="reply")
        if code == 324:
            names = {"a": "producerGroup", "b": "topic", "e": "queueId", "i": "properties", "g": "bornTimestamp"}
            fields = {names.get(name, name): value for name, value in fields.items()}
        replied = client.begin(code, fields, b"pong")
        pushed = await asked(requester, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
        assert (pushed.body, pushed.fields["topic"], pushed.fields["bornTimestamp"]) == (
            b"pong", REPLY_TOPIC, "1700000000000",
        )  # fmt: skip
        assert "CORRELATION_ID\x017\x02" in pushed.fields["properties"]
        assert "PUSH_REPLY_TIME\x01" in pushed.fields["properties"]
        assert not replied.done()
        answer(requester, pushed)
        sent = await replied
        assert (sent.code, sent.fields["msgId"], sent.fields["queueOffset"]) == (ResponseCode.SUCCESS, "0", "0")
        assert (await client.call(105, {"topic": REPLY_TOPIC})).code == ResponseCode.SUCCESS
        assert broker.store.topics.get(REPLY_TOPIC) is None

        replied = client.begin(code, fields, b"pong")
        answer(requester, await asked(requester, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT), 1)
        assert (await replied).code == ResponseCode.SYSTEM_ERROR
        await requester.call(35, {"clientID": "asker", "producerGroup": "Q"})
        assert "not found" in ((await client.call(code, fields, b"pong")).remark or "")
        await requester.close()

    serve(test)


def test_a_producer_is_found_by_its_last_id_and_as_long_as_it_is_connected(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        sessions = broker.broker._remoting.sessions
        for number in range(50):
            await client.heartbeat("", client_id=f"c{number}", producers=("P", "Q"))
        assert list(sessions._producers_by_id) == ["c49"]
        assert sessions.producer("c49") is not None
        second = await RemotingClient.connect(address_of(broker))
        await second.heartbeat("", client_id="c49", producers=("P",))
        newest = sessions.producer("c49")
        await second.close()
        while sessions.producer("c49") is newest:
            await asyncio.sleep(0.01)
        assert sessions.producer("c49") is not None
        await client.close()
        while sessions._producers_by_id:
            await asyncio.sleep(0.01)

    serve(test)


def test_an_operator_asks_a_consumer(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        sent = await client.send("T", b"body")
        consumer = await RemotingClient.connect(address_of(broker))
        await consumer.heartbeat("G", "T", client_id="worker")
        fields = {"consumerGroup": "G", "clientId": "worker", "jstackEnable": "true"}
        told = client.begin(307, fields)
        question = await asked(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO)
        assert question.fields == fields
        answer(consumer, question, body=b"{{not}:json}")
        assert ((await told).code, (await told).body) == (ResponseCode.SUCCESS, b"{{not}:json}")

        directly = {"consumerGroup": "G", "clientId": "worker", "topic": "T", "msgId": sent.fields["msgId"]}
        told = client.begin(309, directly)
        question = await asked(consumer, RequestCode.CONSUME_MESSAGE_DIRECTLY)
        [record] = records_in(question.body)
        assert (bytes(record.body), question.fields["topic"]) == (b"body", "T")
        answer(consumer, question, ResponseCode.SYSTEM_ERROR)
        assert (await told).code == ResponseCode.SYSTEM_ERROR
        for wrong in ("7F0000010000", "z" * 32, "7F00000100001F907FFFFFFFFFFFFFFF"):
            refused = await client.call(309, {**directly, "msgId": wrong})
            assert (refused.code, "can not find" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)

        assert "not online" in ((await client.call(307, {**fields, "clientId": "other"})).remark or "")
        monkeypatch.setattr(relays, "OPERATOR_TIMEOUT_S", 0.05)
        assert (await client.call(307, fields)).code == ResponseCode.CONSUME_MESSAGE_TIMEOUT
        told = client.begin(307, fields)
        await consumer.close()
        assert (await told).code == ResponseCode.CONSUME_MESSAGE_TIMEOUT

    serve(test)


def test_operators_and_those_who_reply_need_rights_and_prove_nothing_to_a_client(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        add_user(broker, "worker", "group:G sub", "topic:T sub")
        add_user(broker, "operator", "group:G get")
        consumer = await RemotingClient.connect(address_of(broker))
        consumer.user = ("worker", SECRET)
        assert (await consumer.heartbeat("G", "T", client_id="worker")).code == ResponseCode.SUCCESS
        client.user = ("operator", SECRET)
        told = client.begin(307, {"consumerGroup": "G", "clientId": "worker"})
        question = await asked(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO)
        assert question.fields == {"consumerGroup": "G", "clientId": "worker"}
        answer(consumer, question)
        assert (await told).code == ResponseCode.SUCCESS
        for code, fields in (
            (307, {"consumerGroup": "other", "clientId": "worker"}),
            (325, send_fields(REPLY_TOPIC, REPLY_TO_CLIENT="worker")),
        ):
            assert (await client.call(code, fields)).code == ResponseCode.NO_PERMISSION, code
        await consumer.close()

    serve(test, security=SECURED)
