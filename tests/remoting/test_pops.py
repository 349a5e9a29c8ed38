"""POP by remoting, at a running broker: receives, acknowledgements, invisible times, and who reads what."""

from __future__ import annotations

import json
from base64 import b64encode
from itertools import product
from typing import Any, NamedTuple

import pytest

from quarry_mq.protocol.lite_attributes import BIND_TOPIC
from quarry_mq.protocol.messages.property_names import RETRY_TOPIC
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.protocol.remoting.frames import Command
from quarry_mq.server.delivery.dead_letters import make_internal_topic
from quarry_mq.server.remoting import pops
from quarry_mq.server.remoting.clients import circular_share, consecutive_share
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import Group, Permission, Topic, TopicType
from quarry_mq.store.record import StoredMessage
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client
from tests.conformance.secured import SECRET, SECURED, add_user
from tests.remoting.client import RemotingClient, records_in
from tests.remoting.conftest import Serve, address_of


class Popped(NamedTuple):
    """A message of a pop, with the extra info that RocketMQ's client makes of the answer's header."""

    record: StoredMessage
    extra: str

    @property
    def body(self) -> bytes:
        return bytes(self.record.body)


def pop_fields(topic: str = "T", **terms: Any) -> dict[str, object]:
    return {
        "consumerGroup": "G", "topic": topic, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000, "pollTime": 0,
        "bornTime": 0, "initMode": 0, "expType": "TAG", "exp": "*", "order": "false", **terms,
    }  # fmt: skip


def kind_of(topic: str) -> str:
    return "0" if not topic.startswith("%RETRY%") else "2" if "+" in topic else "1"


def popped(answer: Command) -> list[Popped]:
    """Return the messages of an answer, read as RocketMQ's client does."""
    assert answer.code == ResponseCode.SUCCESS, answer
    fields = answer.fields
    starts = {tuple(each.split(" ")[:2]): each.split(" ")[2] for each in fields["startOffsetInfo"].split(";")}
    offsets = {tuple(each.split(" ")[:2]): each.split(" ")[2].split(",") for each in fields["msgOffsetInfo"].split(";")}
    found = []
    for record in records_in(answer.body):
        key = (kind_of(record.topic), str(record.queue_number))
        offset = offsets[key].pop(0)
        assert offset == str(record.queue_offset)
        times = f"{fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']}"
        found.append(Popped(record, f"{starts[key]} {times} {key[0]} broker-a {key[1]} {offset}"))
    assert not any(offsets.values())
    return found


async def pop(client: RemotingClient, topic: str = "T", **terms: Any) -> list[Popped]:
    return popped(await client.call(RequestCode.POP_MESSAGE, pop_fields(topic, **terms)))


async def code_of_pop(client: RemotingClient, topic: str = "T", **terms: Any) -> int:
    return (await client.call(RequestCode.POP_MESSAGE, pop_fields(topic, **terms))).code


def named(message: Popped, **terms: Any) -> dict[str, object]:
    return {
        "consumerGroup": "G", "topic": message.record.topic, "queueId": message.record.queue_number,
        "offset": message.record.queue_offset, "extraInfo": message.extra, **terms,
    }  # fmt: skip


async def ack(client: RemotingClient, message: Popped, **terms: Any) -> int:
    return (await client.call(RequestCode.ACK_MESSAGE, named(message, **terms))).code


async def change(client: RemotingClient, message: Popped, invisible_ms: int, **terms: Any) -> Popped:
    """Change the invisible time; return the message with its new extra info, as RocketMQ's client makes it."""
    fields = named(message, invisibleTime=invisible_ms, **terms)
    answer = await client.call(RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME, fields)
    assert answer.code == ResponseCode.SUCCESS, answer
    offset, kind = message.record.queue_offset, kind_of(message.record.topic)
    times = f"{answer.fields['popTime']} {answer.fields['invisibleTime']} {answer.fields['reviveQid']}"
    return message._replace(extra=f"{offset} {times} {kind} broker-a {message.record.queue_number} {offset}")


async def fill(broker: RunningBroker, client: RemotingClient, count: int, queues: int = 1, **properties: str) -> None:
    """Make the topic, with messages `0`, `1` … in turn over its queues."""
    broker.topic("T", queues=queues)
    for number in range(count):
        assert (await client.send("T", b"%d" % number, number % queues, **properties)).code == ResponseCode.SUCCESS
    await until(
        lambda: sum(broker.store.messages.maximum(QueueId("T", each)) for each in range(queues)) == count, "all there"
    )


# -- hand-outs and acknowledgements


def test_a_pop_hands_out_messages_of_all_queues_until_they_are_acknowledged(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 7, 4)
        answer = await client.call(RequestCode.POP_MESSAGE, pop_fields())
        found = popped(answer)
        assert sorted(each.body for each in found) == [b"%d" % number for number in range(7)]
        assert {each.record.queue_number for each in found} == {0, 1, 2, 3}
        assert (answer.fields["invisibleTime"], answer.fields["reviveQid"]) == ("60000", "0")
        assert abs(int(answer.fields["popTime"]) - broker.clock.wall_ms()) < 30_000
        assert "orderCountInfo" not in answer.fields
        assert await code_of_pop(client) == ResponseCode.POLLING_TIMEOUT, "all are hidden"
        for each in found:
            assert await ack(client, each) == ResponseCode.SUCCESS
        assert await ack(client, found[0]) == ResponseCode.SUCCESS, "a repetition within the time is allowed"
        assert broker.delivery.inflight_count == 0
        broker.pass_time(61)
        assert await code_of_pop(client) == ResponseCode.POLLING_TIMEOUT
        progress = await client.call(14, {"consumerGroup": "G", "topic": "T", "queueId": 0})
        assert progress.fields["offset"] == "2"

    serve(test)


@pytest.mark.slow
def test_what_was_not_acknowledged_comes_again_and_counts_its_deliveries(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 2)
        first = await pop(client, maxMsgNums=1, invisibleTime=5_000)
        second = await pop(client)
        assert [each.record.reconsume_times for each in (*first, *second)] == [0, 0]
        waiting = client.begin(RequestCode.POP_MESSAGE, pop_fields(pollTime=20_000))
        await until(lambda: broker.delivery.waiting_polls == 1, "it waits")
        broker.pass_time(5.1)
        [again] = popped(await waiting)
        assert (again.body, again.record.reconsume_times) == (b"0", 1)
        assert await ack(client, first[0]) == ResponseCode.NO_MESSAGE, "it was handed out again since"
        assert await ack(client, again) == ResponseCode.SUCCESS

    serve(test)


@pytest.mark.slow
def test_a_message_is_dead_lettered_after_as_many_deliveries_as_its_group_allows(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.group("G", max_attempts=2)
        await fill(broker, client, 1)
        for times in range(2):
            [found] = await pop(client)
            assert found.record.reconsume_times == times
            await change(client, found, 0)
        assert await code_of_pop(client) == ResponseCode.POLLING_TIMEOUT
        await until(lambda: broker.store.messages.maximum(QueueId("%DLQ%G", 0)) == 1, "the dead letter")

    serve(test)


def test_a_changed_invisible_time_has_a_new_extra_info(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 1)
        [found] = await pop(client)
        longer = await change(client, found, 120_000)
        assert longer.extra != found.extra
        assert await ack(client, found) == ResponseCode.NO_MESSAGE
        broker.pass_time(61)
        assert await code_of_pop(client) == ResponseCode.POLLING_TIMEOUT
        await change(client, longer, 0, suspend="true")
        [again] = await pop(client)
        assert again.record.reconsume_times == 0, "a suspended delivery does not count"
        await change(client, again, 0)
        [counted] = await pop(client)
        assert counted.record.reconsume_times == 1
        late = await client.call(RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME, named(longer, invisibleTime=1_000))
        assert late.code == ResponseCode.NO_MESSAGE

    serve(test)


def test_a_batch_acknowledges_messages_of_several_pops(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 12, 2)
        found = await pop(client, maxMsgNums=8)
        rest = await pop(client)
        assert len(found) + len(rest) == 12

        def entry(messages: list[Popped], number: int) -> dict[str, object]:
            own = [each for each in messages if each.record.queue_number == number]
            start, pop_time, invisible, revive = (int(part) for part in own[0].extra.split(" ")[:4])
            bits = sum(1 << each.record.queue_offset - start for each in own)
            raw = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
            return {
                "c": "G", "t": "T", "r": "0", "so": start, "q": number, "rq": revive, "pt": pop_time, "it": invisible,
                "b": b64encode(raw).decode(),
            }  # fmt: skip

        async def acknowledge(*acks: dict[str, object]) -> int:
            body = json.dumps({"brokerName": "broker-a", "acks": acks}).encode()
            return (await client.call(RequestCode.BATCH_ACK_MESSAGE, body=body)).code

        entries = [entry(found, number) for number in {each.record.queue_number for each in found}]
        assert await acknowledge(*entries) == ResponseCode.SUCCESS
        assert broker.delivery.inflight_count == len(rest)
        broker.pass_time(61)
        assert len(await pop(client)) == len(rest)
        stale = [entry(rest, number) for number in {each.record.queue_number for each in rest}]
        assert await acknowledge(*stale) == ResponseCode.NO_MESSAGE
        assert await acknowledge() == ResponseCode.NO_MESSAGE
        far = b64encode(bytes(100_000) + b"\x80").decode()
        assert await acknowledge({**entries[0], "b": far}) == ResponseCode.NO_MESSAGE
        for name, value in (("b", "?"), ("b", b64encode(b"\xff" * 513).decode()), ("r", "3"), ("q", -1), ("c", "")):
            assert await acknowledge({**entries[0], name: value}) == ResponseCode.INVALID_PARAMETER, name

    serve(test)


def test_acknowledgements_stay_valid_when_the_clock_of_the_machine_is_set(serve: Serve) -> None:
    """A client compares the pop time with its own clock, and drops messages whose time seems to be over."""

    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 3)
        for jump_s in (0, 86_400, -2 * 86_400):
            broker.clock.jump(jump_s)
            answer = await client.call(RequestCode.POP_MESSAGE, pop_fields(maxMsgNums=1))
            assert abs(int(answer.fields["popTime"]) - broker.clock.wall_ms()) < 30_000
            [found] = popped(answer)
            changed = await change(client, found, 70_000)
            assert await ack(client, changed) == ResponseCode.SUCCESS
        assert broker.delivery.inflight_count == 0

    serve(test)


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("skew_s", [0, 1, -1, 998, 999, 1_000, 86_400, -999, 2**31, -(2**32)])
def test_the_times_of_a_delivery_survive_the_way_to_the_client(skew_s: int, *, is_ordered: bool) -> None:
    times = pops._Times.of(1_700_000_000_000, 5_000, 1_700_000_000_300, 1_700_000_000_300 + skew_s * 1000,
                           is_ordered=is_ordered)  # fmt: skip
    extra = f"7 {times.pop_ms} {times.invisible_ms} {times.revive_queue} 0 b 1 7"
    assert pops._times_in(extra).visible_at_ms == 1_700_000_005_000
    assert (times.revive_queue == 999) == (is_ordered and abs(skew_s) <= 1)
    if -(2**31) < skew_s < 2**31:
        assert abs(times.pop_ms - (1_700_000_000_000 + skew_s * 1000)) <= 1_000


# -- waiting


def test_a_pop_waits_for_a_message_and_is_answered_when_its_time_is_up(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        info = {"consumerGroup": "G", "topic": "T", "queueId": -1}
        waiting = client.begin(RequestCode.POP_MESSAGE, pop_fields(pollTime=20_000))
        await until(lambda: broker.delivery.waiting_polls == 1, "it waits")
        assert (await client.call(RequestCode.POLLING_INFO, info)).fields == {"pollingNum": "1"}
        await client.send("T", b"late")
        [found] = popped(await waiting)
        assert found.body == b"late"
        assert (await client.call(RequestCode.POLLING_INFO, info)).fields == {"pollingNum": "0"}
        waiting = client.begin(RequestCode.POP_MESSAGE, pop_fields(pollTime=20_000, bornTime=broker.clock.wall_ms()))
        await until(lambda: broker.delivery.waiting_polls == 1, "it waits")
        broker.pass_time(21)
        answer = await waiting
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        assert set(answer.fields) >= {"popTime", "invisibleTime", "reviveQid", "restNum"}, (
            "its client needs all of them"
        )

    serve(test)


@pytest.mark.slow
def test_a_pop_whose_client_has_stopped_waiting_takes_nothing(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 1)
        late = pop_fields(pollTime=1_000, bornTime=broker.clock.wall_ms() - 2_000)
        assert (await client.call(RequestCode.POP_MESSAGE, late)).code == ResponseCode.POLLING_TIMEOUT
        client.tell(RequestCode.POP_MESSAGE, pop_fields())
        [found] = await pop(client, pollTime=20_000)
        assert found.record.reconsume_times == 0
        await ack(client, found)
        other = await RemotingClient.connect(address_of(broker))
        other.begin(RequestCode.POP_MESSAGE, pop_fields(pollTime=20_000))
        await until(lambda: broker.delivery.waiting_polls == 1, "it waits")
        await other.close()
        await until(lambda: broker.delivery.waiting_polls == 0, "it is gone")
        await client.send("T", b"next")
        [found] = await pop(client, pollTime=20_000)
        assert (found.body, found.record.reconsume_times) == (b"next", 0)

    serve(test)


@pytest.mark.slow
def test_only_so_many_pops_of_a_client_wait(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        waiting = client.begin(RequestCode.POP_MESSAGE, pop_fields(pollTime=20_000))
        full = await client.call(RequestCode.POP_MESSAGE, pop_fields(pollTime=20_000))
        assert full.code == ResponseCode.POLLING_FULL
        assert set(full.fields) >= {"popTime", "invisibleTime", "reviveQid", "restNum"}
        notice = await client.call(RequestCode.NOTIFICATION, pop_fields(pollTime=20_000))
        assert notice.fields == {"hasMsg": "false", "pollingFull": "true"}
        await client.send("T")
        assert len(popped(await waiting)) == 1

    serve(test, limits={"waiting_polls_per_client": 1})


@pytest.mark.slow
def test_a_notification_and_a_look_take_nothing(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        notice = client.begin(RequestCode.NOTIFICATION, pop_fields(pollTime=20_000))
        await until(lambda: broker.delivery.waiting_polls == 1, "it waits")
        await client.send("T", b"1")
        assert (await notice).fields == {"hasMsg": "true", "pollingFull": "false"}
        for _ in range(2):
            seen = await client.call(
                RequestCode.PEEK_MESSAGE, {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 8}
            )
            assert [each.body for each in popped(seen)] == [b"1"]
        [found] = await pop(client)
        assert (found.body, found.record.reconsume_times) == (b"1", 0)
        answer = await client.call(RequestCode.NOTIFICATION, pop_fields())
        assert answer.fields == {"hasMsg": "false", "pollingFull": "false"}

    serve(test)


# -- what is handed out


def test_an_ordered_pop_waits_for_what_is_hidden_in_the_queue(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 3)
        ordered: dict[str, Any] = {"order": "true", "maxMsgNums": 2, "invisibleTime": 30_000}
        answer = await client.call(RequestCode.POP_MESSAGE, pop_fields(**ordered, attemptId="a"))
        assert (answer.fields["reviveQid"], answer.fields["orderCountInfo"]) == ("999", "")
        first = popped(answer)
        assert [each.body for each in first] == [b"0", b"1"]
        assert await code_of_pop(client, **ordered) == ResponseCode.POLLING_TIMEOUT
        broker.pass_time(20)
        again = await pop(client, **ordered, attemptId="a")
        assert [each.body for each in again] == [b"0", b"1"]
        assert [each.record.reconsume_times for each in again] == [0, 0], "the same attempt"
        broker.pass_time(20)
        assert await code_of_pop(client, **ordered) == ResponseCode.POLLING_TIMEOUT, "hidden again as a whole"
        assert await ack(client, first[0]) == ResponseCode.NO_MESSAGE
        assert await ack(client, again[0]) == ResponseCode.SUCCESS
        await change(client, again[1], 0)
        answer = await client.call(RequestCode.POP_MESSAGE, pop_fields(**ordered))
        [counted] = popped(answer)
        assert (counted.body, counted.record.reconsume_times) == (b"1", 1)
        assert answer.fields["orderCountInfo"] == "0 qo0%1 1"
        await ack(client, counted)
        assert [each.body for each in await pop(client, **ordered)] == [b"2"]

    serve(test)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "expression"), [("TAG", "A || B"), ("SQL92", "TAGS in ('A', 'B') and n > 0")])
def test_a_pop_brings_its_filter(serve: Serve, kind: str, expression: str) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        for tag in "ACB":
            await client.send("T", tag.encode(), TAGS=tag, n="1")
        found = await pop(client, expType=kind, exp=expression, maxMsgNums=1)
        found += await pop(client, expType=kind, exp=expression)
        assert [each.body for each in found] == [b"A", b"B"]
        wrong = await client.call(RequestCode.POP_MESSAGE, pop_fields(expType="SQL92", exp="a >"))
        assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    serve(test)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "count"), [(0, 2), (1, 0)])
def test_a_client_says_where_a_new_group_begins(serve: Serve, mode: int, count: int) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 2, 2)
        answer = await client.call(RequestCode.POP_MESSAGE, pop_fields(initMode=mode))
        assert len(records_in(answer.body)) == count
        await client.send("T", b"new")
        assert [each.body for each in await pop(client, initMode=1 - mode, pollTime=20_000)] == [b"new"]

    serve(test, delivery={"new_group_start": "latest"})


@pytest.mark.slow
def test_messages_of_retry_topics_come_with_those_of_the_topic(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        broker.group("G")
        for name in ("%RETRY%G_T", "%RETRY%G+T"):
            make_internal_topic(broker.store.topics, name)
        await client.send("T", b"plain")
        assert len(await pop(client)) == 1
        retried: dict[str, Any] = {RETRY_TOPIC: "T"}
        for name in ("%RETRY%G_T", "%RETRY%G+T"):
            assert (await client.send(name, name.encode(), **retried)).code == ResponseCode.SUCCESS
        found = await pop(client, pollTime=20_000)
        while len(found) < 2:
            found += await pop(client, pollTime=20_000)
        assert sorted(each.extra.split(" ")[4] for each in found) == ["1", "2"]
        changed = [await change(client, each, 90_000) for each in found]
        assert [await ack(client, each) for each in found] == [ResponseCode.NO_MESSAGE] * 2
        assert [await ack(client, each) for each in changed] == [ResponseCode.SUCCESS] * 2
        assert broker.delivery.inflight_count == 1

    serve(test)


@pytest.mark.slow
def test_a_group_goes_on_by_the_other_protocol(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 4)
        first = await pop(client, maxMsgNums=1)
        async with Client(broker.endpoint) as other:
            second = await other.receive("G", "T", count=1)
            assert [each.body for each in second.messages] == [b"1"]
            assert (await other.ack("G", "T", *second.handles)).status.code == 20_000
        assert await ack(client, first[0]) == ResponseCode.SUCCESS
        [third] = await pop(client, maxMsgNums=1)
        assert third.body == b"2"
        progress = await client.call(14, {"consumerGroup": "G", "topic": "T", "queueId": 0})
        assert progress.fields["offset"] == "2", "one that pulls begins at the first that is not done"

    serve(test)


# -- refusals


def test_a_mistake_in_a_pop_is_named(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 1)
        wrong: list[tuple[dict[str, object], str]] = [
            ({"maxMsgNums": 33}, "maxMsgNums"), ({"maxMsgNums": 0}, "maxMsgNums"), ({"invisibleTime": -1}, "invisible"),
            ({"invisibleTime": 10**12}, "invisibleTime"), ({"queueId": 1}, "queueId"), ({"pollTime": "x"}, "pollTime"),
            ({"attemptId": "a" * 256}, "attemptId"), ({"consumerGroup": ""}, "consumerGroup"), ({"topic": ""}, "topic"),
        ]  # fmt: skip
        for terms, name in wrong:
            answer = await client.call(RequestCode.POP_MESSAGE, {**pop_fields(), **terms})
            assert answer.code == ResponseCode.INVALID_PARAMETER, terms
            assert name in (answer.remark or ""), answer
        assert await code_of_pop(client, "none") == ResponseCode.TOPIC_NOT_EXIST
        broker.store.topics.create(Topic("shut", TopicType.NORMAL, 1, 1, Permission.WRITE))
        assert await code_of_pop(client, "shut") == ResponseCode.NO_PERMISSION
        [found] = await pop(client)
        malformed: list[tuple[dict[str, Any], str]] = [
            ({"extraInfo": "1 2 3"}, "extraInfo"), ({"extraInfo": "0 x 1 0 0 b 0 0"}, "extraInfo"),
            ({"queueId": -1}, "queueId"), ({"queueId": 2**30}, "queueId"), ({"offset": ""}, "offset"),
        ]  # fmt: skip
        for terms, name in malformed:
            answer = await client.call(RequestCode.ACK_MESSAGE, named(found, **terms))
            assert answer.code == ResponseCode.INVALID_PARAMETER, terms
            assert name in (answer.remark or ""), answer
        unknown: list[dict[str, Any]] = [{"queueId": 7}, {"offset": 7}, {"offset": 2**62}, {"consumerGroup": "never"}]
        for terms in unknown:
            assert await ack(client, found, **terms) == ResponseCode.NO_MESSAGE, terms
        assert await ack(client, found, topic="none") == ResponseCode.TOPIC_NOT_EXIST
        assert await ack(client, found) == ResponseCode.SUCCESS

    serve(test)


@pytest.mark.slow
def test_a_group_of_lite_topics_gets_no_whole_topics(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("L", TopicType.LITE)
        broker.store.groups.create(Group("G", attributes={BIND_TOPIC: "L"}))
        assert await code_of_pop(client, "L") == ResponseCode.INVALID_PARAMETER

    serve(test)


def test_pops_need_the_rights_to_group_and_topic(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        client.user = add_user(broker, "ann", "topic:T sub"), SECRET
        acknowledgement = {
            "consumerGroup": "G", "topic": "T", "queueId": 0, "offset": 0, "extraInfo": "0 1 1 0 0 b 0 0",
            "invisibleTime": 1,
        }  # fmt: skip
        batch = json.dumps({"acks": [{"c": "G", "t": "T", "b": "AQ=="}]}).encode()
        assignment = json.dumps({"consumerGroup": "G", "topic": "T", "clientId": "c"}).encode()
        requests: list[tuple[int, dict[str, object], bytes]] = [
            (RequestCode.POP_MESSAGE, pop_fields(), b""), (RequestCode.PEEK_MESSAGE, pop_fields(), b""),
            (RequestCode.NOTIFICATION, pop_fields(), b""), (RequestCode.POLLING_INFO, pop_fields(), b""),
            (RequestCode.ACK_MESSAGE, acknowledgement, b""), (RequestCode.BATCH_ACK_MESSAGE, {}, batch),
            (RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME, acknowledgement, b""),
            (RequestCode.QUERY_ASSIGNMENT, {}, assignment),
            (RequestCode.SET_MESSAGE_REQUEST_MODE, {}, mode_body("POP")),
        ]  # fmt: skip
        for code, fields, body in requests:
            assert (await client.call(code, fields, body)).code == ResponseCode.NO_PERMISSION, code
        add_user(broker, "bob", "topic:T sub", "group:G sub")
        client.user = "bob", SECRET
        for code, fields, body in requests[:-1]:
            assert (await client.call(code, fields, body)).code != ResponseCode.NO_PERMISSION, code

    serve(test, security=SECURED)


# -- who reads what


def mode_body(mode: str, topic: str = "T", group: str = "G") -> bytes:
    return json.dumps({"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 8}).encode()


async def assigned(client: RemotingClient, topic: str = "T", client_id: str = "c1", **terms: Any) -> Any:
    members = {
        "topic": topic, "consumerGroup": "G", "clientId": client_id, "strategyName": "AVG",
        "messageModel": "CLUSTERING", **terms,
    }  # fmt: skip
    answer = await client.call(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(members).encode())
    assert answer.code == ResponseCode.SUCCESS, answer
    return json.loads(answer.body).get("messageQueueAssignments")


def test_consumers_are_told_their_share_or_to_pop(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=5)
        assert await assigned(client) is None, "nobody has registered"
        await client.heartbeat("G", "T", "%RETRY%G", client_id="c1")
        other = await RemotingClient.connect(address_of(broker))
        await other.heartbeat("G", "T", "%RETRY%G", client_id="c2")
        first, second = await assigned(client), await assigned(other, client_id="c2")
        assert first[0] == {"messageQueue": {"brokerName": "quarry", "queueId": 0, "topic": "T"}, "mode": "PULL"}
        assert [each["messageQueue"]["queueId"] for each in first] == [0, 1, 2]
        assert [each["messageQueue"]["queueId"] for each in second] == [3, 4]
        circle = await assigned(client, strategyName="AVG_BY_CIRCLE")
        assert [each["messageQueue"]["queueId"] for each in circle] == [0, 2, 4]
        assert await assigned(client, client_id="unknown") == []
        assert await assigned(client, strategyName="CONFIG") is None
        assert await assigned(client, "none") is None
        assert len(await assigned(client, messageModel="BROADCASTING")) == 5

        def to_pop(topic: str) -> list[object]:
            return [{"messageQueue": {"brokerName": "quarry", "queueId": -1, "topic": topic}, "mode": "POP"}]

        broker.topic("U")
        for topic in "TU":
            done = await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode_body("POP", topic))
            assert done.code == ResponseCode.SUCCESS
        assert [await assigned(client, each) for each in "TU"] == [to_pop("T"), to_pop("U")]
        retry = await assigned(client, "%RETRY%G") + await assigned(other, "%RETRY%G", client_id="c2")
        assert [each["mode"] for each in retry] == ["PULL"]
        await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode_body("PULL"))
        assert len(await assigned(client)) == 3
        assert await assigned(client, "U") == to_pop("U")
        await other.close()

    serve(test)


@pytest.mark.slow
def test_a_mode_is_refused_where_it_has_no_meaning(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")

        async def code(body: bytes) -> int:
            return (await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)).code

        assert await code(mode_body("POP")) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        broker.group("G")
        assert await code(mode_body("POP", "none")) == ResponseCode.TOPIC_NOT_EXIST
        assert await code(mode_body("POP", "%RETRY%G")) == ResponseCode.NO_PERMISSION
        assert await code(mode_body("PUSH")) == ResponseCode.INVALID_PARAMETER
        assert await code(b"{}") == ResponseCode.INVALID_PARAMETER
        assert await code(mode_body("POP")) == ResponseCode.SUCCESS

    serve(test)


@pytest.mark.parametrize("share", [consecutive_share, circular_share])
def test_every_queue_goes_to_one_client_and_all_get_about_as_many(share: Any) -> None:
    for queues, clients in product(range(7), range(1, 7)):
        all_queues = [("b", number) for number in range(queues)]
        ids = [f"c{number}" for number in range(clients)]
        shares = [share(all_queues, ids, each) for each in ids]
        assert sorted(queue for each in shares for queue in each) == all_queues
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.slow
def test_a_reset_of_a_group_that_pops_holds_at_once_and_is_not_told_again(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        await fill(broker, client, 3)
        await client.heartbeat("G", "T")
        for each in await pop(client):
            await ack(client, each)
        reset = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true", "queueId": -1, "offset": -1}
        assert (await client.call(RequestCode.RESET_OFFSET, reset)).code == ResponseCode.SUCCESS
        found = await pop(client)
        assert [each.body for each in found] == [b"0", b"1", b"2"]
        for each in found:
            await ack(client, each)
        assert (await client.pull("T", 3)).code == ResponseCode.PULL_NOT_FOUND, "it goes on where it is"

    serve(test)
