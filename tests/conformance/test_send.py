"""Points 20 to 33 as far as normal messages go, seen from a client; the tables of limits are tested in tests/wire."""

from __future__ import annotations

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker, both_ways

pytestmark = both_ways


def test_point_20_a_normal_message_is_stored_under_the_id_its_client_gave_it(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            answer = await client.send(message("orders", message_id="the-id"))
        assert answer.status.code == definition.OK
        [entry] = answer.entries
        assert (entry.status.code, entry.message_id) == (definition.OK, "the-id")
        assert entry.offset >= 0
        assert (entry.transaction_id, entry.recall_handle) == ("", "")

    with_broker(test)


def test_point_22_a_body_at_the_limit_is_stored_and_one_byte_more_is_refused(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        limit = 4 * 1024 * 1024
        async with Client(broker.endpoint) as client:
            [sent] = await client.sent(message("orders", bytes(limit)))
            answer = await client.send(message("orders", bytes(limit + 1)))
            assert answer.status.code == definition.MESSAGE_BODY_TOO_LARGE
            received = await client.receive("billing", "orders")
            assert received.ids == [sent]
            assert received.messages[0].body == bytes(limit)

    with_broker(test)


def test_point_33_a_batch_has_one_entry_per_message_with_consecutive_offsets_in_one_queue(
    with_broker: WithBroker,
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            answer = await client.send(*(message("orders", b"%d" % n) for n in range(2)))
            assert answer.status.code == definition.OK
            offsets = [entry.offset for entry in answer.entries]
            assert offsets == [offsets[0], offsets[0] + 1]
            received = await client.receive("billing", "orders")
            assert [each.body for each in received.messages] == [b"0", b"1"]
            assert len({each.system_properties.queue_id for each in received.messages}) == 1

    with_broker(test)


def test_times_no_calendar_has_do_not_harm_the_store(with_broker: WithBroker) -> None:
    """A record has 64 bits for a time in milliseconds; protobuf has them for seconds."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            for seconds in (2**63 - 1, -(2**63), 253_402_300_800):
                strange = message("orders")
                strange.system_properties.born_timestamp.seconds = seconds
                await client.sent(strange)
            received = await client.receive("billing", "orders")
            assert len(received.messages) == 3

    with_broker(test)
