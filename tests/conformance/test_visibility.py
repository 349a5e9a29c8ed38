"""Points 42 to 49: acknowledging, hiding longer or shorter, coming back."""

from __future__ import annotations

import asyncio

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.conftest import WithBroker, both_ways

pytestmark = both_ways

PUSH = definition.PUSH_CONSUMER


def test_point_42_an_acknowledgement_may_be_repeated(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
            received = await client.receive("billing", "orders", invisible_s=30)
            for _ in range(2):
                answer = await client.ack("billing", "orders", *received.handles)
                assert answer.status.code == definition.OK
                [entry] = answer.entries
                assert entry.status.code == definition.OK
                assert entry.receipt_handle == received.handles[0]
                assert entry.message_id == f"id of {received.handles[0]}"

    with_broker(test)


def test_point_42_many_acknowledgements_at_once_have_an_answer_each(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.declare(consumer_settings("billing", "orders"))
            for number in range(20):
                await client.sent(message("orders", b"%d" % number))
            handles: list[str] = []
            while len(handles) < 20:
                handles += (await client.receive("billing", "orders", invisible_s=30)).handles
            calls = [client.ack("billing", "orders", handle) for handle in handles]
            calls += [client.ack("billing", "orders", handles[0]), client.ack("others", "orders", handles[1])]
            calls += [client.ack("billing", "or ders", handles[2]), client.ack("billing", "orders", "no handle")]
            calls += [client.ack("billing", "orders"), client.ack("billing", "orders", *handles[:2], "no handle")]
            answers = await asyncio.gather(*calls)
            codes = [answer.status.code for answer in answers]
            assert codes[:21] == [definition.OK] * 21
            assert codes[21:] == [
                definition.INVALID_RECEIPT_HANDLE,
                definition.ILLEGAL_TOPIC,
                definition.INVALID_RECEIPT_HANDLE,
                definition.BAD_REQUEST,
                definition.MULTIPLE_RESULTS,
            ]
            assert [entry.receipt_handle for answer in answers[:20] for entry in answer.entries] == handles
            assert broker.delivery.inflight_count == 0
            assert broker.registry.get_sample_value("quarry_messages_acknowledged_total") == 23

    with_broker(test)


def test_point_43_an_expired_handle_acknowledges_nothing(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            [sent] = await client.sent(message("orders"))
            received = await client.receive("billing", "orders", invisible_s=60)
            broker.clock.push(61)
            answer = await client.ack("billing", "orders", *received.handles)
            assert answer.status.code == definition.INVALID_RECEIPT_HANDLE
            assert [entry.status.code for entry in answer.entries] == [definition.INVALID_RECEIPT_HANDLE]
            assert (await client.receive("billing", "orders")).ids == [sent]

    with_broker(test)


def test_point_43_entries_with_different_results_are_told_apart(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
            [expired] = (await client.receive("billing", "orders", invisible_s=60)).handles
            broker.clock.push(61)
            [valid] = (await client.receive("billing", "orders")).handles
            answer = await client.ack("billing", "orders", expired, valid, "garbage")
            assert answer.status.code == definition.MULTIPLE_RESULTS
            assert [(entry.receipt_handle, entry.status.code) for entry in answer.entries] == [
                (expired, definition.INVALID_RECEIPT_HANDLE),
                (valid, definition.OK),
                ("garbage", definition.INVALID_RECEIPT_HANDLE),
            ]

    with_broker(test)


def test_point_43_a_handle_is_good_for_its_own_group_and_topic_only(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic("others")
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
            [handle] = (await client.receive("billing", "orders")).handles
            for group, topic in (("shipping", "orders"), ("billing", "others")):
                answer = await client.ack(group, topic, handle)
                assert answer.status.code == definition.INVALID_RECEIPT_HANDLE
            assert (await client.ack("billing", "orders", handle)).status.code == definition.OK

    with_broker(test)


def test_point_44_a_changed_invisible_time_brings_a_new_handle_and_a_redelivery_when_it_is_up(
    with_broker: WithBroker,
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            [sent] = await client.sent(message("orders"))
            [old] = (await client.receive("billing", "orders", invisible_s=30)).handles
            changed = await client.change("billing", "orders", old, 600)
            assert changed.status.code == definition.OK
            assert changed.receipt_handle not in ("", old)
            refused = await client.ack("billing", "orders", old)
            assert refused.status.code == definition.INVALID_RECEIPT_HANDLE
            broker.clock.push(500)
            assert (await client.receive("billing", "orders")).ids == []
            broker.clock.push(101)
            again = await client.receive("billing", "orders")
            assert again.ids == [sent]
            assert again.messages[0].system_properties.delivery_attempt == 2

    with_broker(test)


def test_point_44_the_new_handle_acknowledges(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
            [old] = (await client.receive("billing", "orders", invisible_s=60)).handles
            new = (await client.change("billing", "orders", old, 600)).receipt_handle
            broker.clock.push(61)
            assert (await client.ack("billing", "orders", new)).status.code == definition.OK
            broker.clock.push(600)
            assert (await client.receive("billing", "orders")).ids == []

    with_broker(test)


def test_point_44_an_invisible_time_of_zero_redelivers_at_once(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            [sent] = await client.sent(message("orders"))
            [handle] = (await client.receive("billing", "orders")).handles
            assert (await client.change("billing", "orders", handle, 0)).status.code == definition.OK
            assert (await client.receive("billing", "orders")).ids == [sent]

    with_broker(test)


@pytest.mark.parametrize("invisible_s", [-1, 12 * 3600 + 1])
def test_point_44_an_invisible_time_out_of_bounds_changes_nothing(with_broker: WithBroker, invisible_s: float) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
            [handle] = (await client.receive("billing", "orders")).handles
            answer = await client.change("billing", "orders", handle, invisible_s)
            assert answer.status.code == definition.ILLEGAL_INVISIBLE_TIME
            assert answer.receipt_handle == handle
            assert (await client.ack("billing", "orders", handle)).status.code == definition.OK

    with_broker(test)


def test_point_44_a_failing_change_echoes_the_handle_it_was_given(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
            [expired] = (await client.receive("billing", "orders", invisible_s=60)).handles
            broker.clock.push(61)
            for handle in (expired, "garbage"):
                answer = await client.change("billing", "orders", handle, 5)
                assert answer.status.code == definition.INVALID_RECEIPT_HANDLE
                assert answer.receipt_handle == handle

    with_broker(test)


def test_point_45_a_message_that_is_not_acknowledged_comes_back_as_itself(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            [sent] = await client.sent(message("orders"))
            for attempt in (1, 2, 3):
                received = await client.receive("billing", "orders", invisible_s=60)
                broker.clock.push(61)
                assert received.ids == [sent]
                [delivered] = received.messages
                assert delivered.topic.name == "orders"
                assert delivered.system_properties.delivery_attempt == attempt

    with_broker(test)


def test_point_45_nothing_comes_back_before_its_time(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
            await client.receive("billing", "orders", invisible_s=600)
            broker.clock.push(500)
            assert (await client.receive("billing", "orders")).code == definition.MESSAGE_NOT_FOUND

    with_broker(test)


@pytest.mark.parametrize("jump_s", [-3_600, 3_600], ids=["back", "forward"])
def test_point_45_holds_when_somebody_sets_the_clock(with_broker: WithBroker, jump_s: float) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            [sent] = await client.sent(message("orders"))
            received = await client.receive("billing", "orders", invisible_s=600)
            broker.clock.jump(jump_s)
            assert received.messages[0].system_properties.invisible_duration.ToMilliseconds() == 600_000
            broker.clock.push(500)
            assert (await client.receive("billing", "orders")).code == definition.MESSAGE_NOT_FOUND
            broker.clock.push(101)
            again = await client.receive("billing", "orders")
            assert again.ids == [sent]
            assert (await client.ack("billing", "orders", *again.handles)).status.code == definition.OK

    with_broker(test)


def test_point_48_a_leased_message_stays_with_a_client_that_lives(with_broker: WithBroker) -> None:
    """Three leases long."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.declare(consumer_settings("billing", "orders", kind=PUSH))
            await client.sent(message("orders"))
            [handle] = (await client.receive("billing", "orders", invisible_s=None)).handles
            waited = await client.receive("billing", "orders", invisible_s=None, polling_s=3.2)
            assert waited.code == definition.MESSAGE_NOT_FOUND
            assert waited.seconds > 3
            assert (await client.ack("billing", "orders", handle)).status.code == definition.OK

    with_broker(test)


@pytest.mark.parametrize(
    ("changes", "disconnected_s"), [({}, 20), ({"client_disconnected_ms": 3_000}, 3)], ids=["default", "set"]
)
def test_point_48_a_leased_message_of_a_client_that_died_goes_to_another(
    with_broker: WithBroker, changes: dict[str, int], disconnected_s: int
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as living:
            dying = Client(broker.endpoint)
            for client in (dying, living):
                await client.declare(consumer_settings("billing", "orders", kind=PUSH))
            [sent] = await living.sent(message("orders"))
            assert (await dying.receive("billing", "orders", invisible_s=None)).ids == [sent]
            terms = {"invisible_s": None, "polling_s": 60, "deadline_s": 90}
            waiting = asyncio.ensure_future(living.receive("billing", "orders", **terms))
            await dying.vanish()
            await until(lambda: broker.broker._messaging.telemetry.open_streams == 1, "the broker sees the stream end")
            broker.clock.push(disconnected_s + 1)  # the time after which a client without a stream is taken for dead
            received = await waiting
            assert received.ids == [sent]
            assert received.messages[0].system_properties.delivery_attempt == 2

    with_broker(test, delivery={"lease_ms": 60_000, **changes})


def test_point_48_a_client_that_says_goodbye_gives_back_what_it_holds(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as leaving, Client(broker.endpoint) as staying:
            for client in (leaving, staying):
                await client.declare(consumer_settings("billing", "orders", kind=PUSH))
            [sent] = await staying.sent(message("orders"))
            assert (await leaving.receive("billing", "orders", invisible_s=None)).ids == [sent]
            goodbye = service.NotifyClientTerminationRequest(group=resource("billing"))
            assert (await leaving.call("NotifyClientTermination", goodbye)).status.code == definition.OK
            terms = {"invisible_s": None, "polling_s": 60, "deadline_s": 90}
            received = await staying.receive("billing", "orders", **terms)
            assert received.ids == [sent]

    with_broker(test, delivery={"lease_ms": 60_000})


def test_point_49_a_receive_cancelled_while_it_waits_takes_no_message_with_it(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as leaving, Client(broker.endpoint) as staying:
            call = leaving.start_receive("billing", "orders", polling_s=6)
            await until(lambda: broker.broker._delivery.waiting_polls == 1, "the receive waits")
            call.cancel()
            await until(lambda: broker.broker._delivery.waiting_polls == 0, "the broker sees it end")
            [sent] = await staying.sent(message("orders"))
            received = await staying.receive("billing", "orders", polling_s=1)
            assert received.ids == [sent]
            assert received.messages[0].system_properties.delivery_attempt == 1

    with_broker(test)


@pytest.mark.parametrize("invisible_s", [60, None], ids=["hidden", "leased"])
def test_point_49_messages_on_their_way_to_a_client_that_left_come_back_after_a_second(
    with_broker: WithBroker, invisible_s: float | None
) -> None:
    """More than a connection takes at once, so that the client can leave in the midst of them.

    A leased message would otherwise stay with a living client for hours that never saw it.
    """
    size = 1024 * 1024  # seven of them are one answer

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as leaving, Client(broker.endpoint) as staying:
            for client in (leaving, staying):
                await client.declare(consumer_settings("billing", "orders", kind=PUSH))
            sent = [(await staying.sent(message("orders", bytes(size))))[0] for _ in range(7)]
            call = leaving.start_receive("billing", "orders", invisible_s=invisible_s)
            first = await call.read()
            assert first.status.code == definition.OK
            call.cancel()
            back: list[str] = []
            while len(back) < len(sent):
                received = await staying.receive("billing", "orders", polling_s=4, invisible_s=30)
                assert received.code == definition.OK, f"{len(back)} of {len(sent)} came back"
                assert {each.system_properties.delivery_attempt for each in received.messages} == {2}
                back += received.ids
            assert sorted(back) == sorted(sent)

    with_broker(test, delivery={"lease_ms": 60_000})
