"""Points 46 and 49: an attempt counts once the first byte of its answer was written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.front import Call
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.lite import GROUP, PARENT, LiteClient, found, send

pytestmark = both_ways


class DelayedAnswers:
    """Answers of receives that are held back until the test lets them go."""

    def __init__(self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[Callable[[], None]] = []
        self.calls: list[Call] = []
        self._messages = broker.messaging._messages
        answer = self._messages._answer_receive

        def hold(call: Call, group: str, topic: str, messages: Any, error: Exception | None) -> None:
            self.calls.append(call)
            self.answers.append(partial(answer, call, group, topic, messages, error))

        self._patch = monkeypatch
        monkeypatch.setattr(self._messages, "_answer_receive", hold)

    def let_go(self) -> None:
        self._patch.undo()
        for each in self.answers:
            each()


@pytest.mark.parametrize("front", ["h2", pytest.param("grpcio", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["cancelled", "gone", "late"])
@pytest.mark.parametrize("is_waiting", [False, True], ids=["at once", "after waiting"])
def test_point_46_a_message_that_nobody_saw_is_no_dead_letter(
    with_broker: WithBroker, front: str, how: str, is_waiting: bool
) -> None:
    """Of a group with one attempt; its calls end between the hand-out and the answer."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        broker.group("billing", max_attempts=1)
        async with Client(broker.endpoint) as producer:
            if not is_waiting:
                await producer.sent(message("orders", message_id="the-one"))
            with pytest.MonkeyPatch.context() as patch:
                answers = DelayedAnswers(broker, patch)
                consumer = Client(broker.endpoint)
                deadline_s = 1.5 if how == "late" else 90.0
                call = consumer.start_receive("billing", "orders", polling_s=60, deadline_s=deadline_s)
                if is_waiting:
                    await until(lambda: broker.delivery.waiting_polls == 1, "the receive waits")
                    await producer.sent(message("orders", message_id="the-one"))
                await until(lambda: answers.answers, "the message is handed out")
                assert broker.delivery.inflight_count == 1
                if how == "cancelled":
                    call.cancel()
                elif how == "gone":
                    await consumer.vanish()
                await until(lambda: answers.calls[0].closed, "the call is over")
                answers.let_go()
            await consumer.vanish()
            received = await producer.receive("billing", "orders", polling_s=60, deadline_s=90)
            assert received.ids == ["the-one"]
            assert received.messages[0].system_properties.delivery_attempt == 1
            letters = broker.store.topics.get("%DLQ%billing")
            assert letters is None or broker.store.messages.queues_of("%DLQ%billing") == []
            answer = await producer.ack("billing", "orders", *received.handles)
            assert answer.status.code == definition.OK
            assert broker.delivery.inflight_count == 0

    with_broker(test, network={"front": front}, delivery={"new_group_start": "earliest"})


def test_point_57_a_message_of_a_lite_topic_that_nobody_saw_is_there_at_once(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic(PARENT, TopicType.LITE)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("a")
            await send(client, "a", b"1", b"2")
            with pytest.MonkeyPatch.context() as patch:
                answers = DelayedAnswers(broker, patch)
                call = client.start_receive(GROUP, PARENT, invisible_s=600)
                await until(lambda: answers.answers, "the messages are handed out")
                call.cancel()
                await until(lambda: answers.calls[0].closed, "the call is over")
                answers.let_go()
            received = await client.got(polling_s=60, deadline_s=90)
            assert found(received) == [("a", b"1"), ("a", b"2")]
            assert {each.system_properties.delivery_attempt for each in received.messages} == {1}
            await client.done(received)
            assert broker.delivery.inflight_count == 0

    with_broker(test)
