"""Points 29, 53 and 54: transactions, and producers that are asked about them."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message, producer_settings, resource
from tests.conformance.conftest import WithBroker

COMMIT, ROLLBACK = definition.COMMIT, definition.ROLLBACK


def half(topic: str, body: bytes = b"body", recovery_s: int = 0, **system: Any) -> definition.Message:
    if recovery_s:
        system["orphaned_transaction_recovery_duration"] = Duration(seconds=recovery_s)
    return message(topic, body, message_type=definition.TRANSACTION, **system)


async def begin(client: Client, topic: str, *, recovery_s: int = 0) -> service.SendResultEntry:
    answer = await client.send(half(topic, recovery_s=recovery_s))
    assert answer.status.code == definition.OK
    entry: service.SendResultEntry = answer.entries[0]
    assert entry.transaction_id.strip()
    return entry


async def end(
    client: Client,
    topic: str,
    entry: Any,
    resolution: definition.TransactionResolution,
    source: definition.TransactionSource = definition.SOURCE_CLIENT,
) -> definition.Code:
    answer = await client.call(
        "EndTransaction",
        service.EndTransactionRequest(
            topic=resource(topic),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=resolution,
            source=source,
        ),
    )
    code: definition.Code = answer.status.code
    return code


@pytest.mark.parametrize("kind", [TopicType.TRANSACTION, TopicType.MIXED])
def test_point_53_a_half_message_is_seen_once_it_is_committed(with_broker: WithBroker, kind: TopicType) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", kind)
        async with Client(broker.endpoint) as client:
            sent = half("orders", b"paid", tag="t", keys=["k"])
            sent.user_properties["region"] = "x"
            [entry] = (await client.send(sent)).entries
            assert not (await client.receive("billing", "orders", polling_s=0.5)).ids
            assert await end(client, "orders", entry, COMMIT) == definition.OK
            received = await client.receive("billing", "orders", polling_s=5)
            [delivered] = received.messages
            assert received.ids == [entry.message_id]
            assert (delivered.body, dict(delivered.user_properties)) == (b"paid", {"region": "x"})
            assert delivered.system_properties.tag == "t"
            assert list(delivered.system_properties.keys) == ["k"]
            assert delivered.system_properties.message_type == definition.TRANSACTION
            assert delivered.topic.name == "orders"

    with_broker(test)


def test_point_53_a_half_message_that_is_rolled_back_is_never_seen(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.TRANSACTION)
        async with Client(broker.endpoint) as client:
            entry = await begin(client, "orders")
            assert await end(client, "orders", entry, ROLLBACK) == definition.OK
            assert not (await client.receive("billing", "orders", polling_s=0.5)).ids
            assert not broker.store.messages.pending.halves(QueueOffset(0), 1)

    with_broker(test)


def test_point_53_the_same_word_twice_is_fine_and_another_is_not(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.TRANSACTION)
        async with Client(broker.endpoint) as client:
            for first, other in ((COMMIT, ROLLBACK), (ROLLBACK, COMMIT)):
                entry = await begin(client, "orders")
                assert await end(client, "orders", entry, first) == definition.OK
                assert await end(client, "orders", entry, first) == definition.OK
                assert await end(client, "orders", entry, other) == definition.INVALID_TRANSACTION_ID
            assert len((await client.receive("billing", "orders", polling_s=2)).ids) == 1

    with_broker(test)


def test_point_53_words_about_no_transaction(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.TRANSACTION)
        broker.topic("bills", TopicType.TRANSACTION)
        async with Client(broker.endpoint) as client:
            entry = await begin(client, "orders")
            bad = definition.INVALID_TRANSACTION_ID
            for topic, message_id, transaction_id, code in (
                ("orders", entry.message_id, "", bad),
                ("orders", entry.message_id, " ", bad),
                ("orders", entry.message_id, "garbage", bad),
                ("orders", entry.message_id, entry.transaction_id.lower() + "0", bad),
                ("bills", entry.message_id, entry.transaction_id, bad),
                ("orders", "another", entry.transaction_id, bad),
                ("a b", entry.message_id, entry.transaction_id, definition.ILLEGAL_TOPIC),
            ):
                wrong = service.SendResultEntry(message_id=message_id, transaction_id=transaction_id)
                assert await end(client, topic, wrong, COMMIT) == code, (topic, message_id, transaction_id)
            unspecified = definition.TRANSACTION_RESOLUTION_UNSPECIFIED
            assert await end(client, "orders", entry, unspecified) == definition.OK
            assert broker.store.messages.pending.half_of(entry.message_id) is not None, "nothing has happened"

    with_broker(test)


def test_point_29_a_producer_may_not_be_left_alone_for_more_than_an_hour(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.TRANSACTION)
        async with Client(broker.endpoint) as client:
            assert (await client.send(half("orders", recovery_s=3601))).status.code == definition.BAD_REQUEST
            assert (await client.send(half("orders", recovery_s=3600))).status.code == definition.OK

    with_broker(test)


def test_point_54_a_producer_that_says_nothing_is_asked(with_broker: WithBroker) -> None:
    """With the whole message, and not before the time that it wanted."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.TRANSACTION)
        async with Client(broker.endpoint) as client:
            await client.declare(producer_settings("orders"))
            entry = await begin(client, "orders", recovery_s=40)
            broker.clock.push(20)  # far from the end: the clock also runs by itself
            with pytest.raises(TimeoutError):
                await client.told_within(1.5)
            broker.clock.push(20)
            command = await client.told()
            check = command.recover_orphaned_transaction_command
            assert check.transaction_id == entry.transaction_id
            asked = check.message
            assert (asked.topic.name, asked.body) == ("orders", b"body")
            assert asked.system_properties.message_id == entry.message_id
            assert asked.system_properties.body_digest.checksum
            assert asked.system_properties.body_encoding == definition.IDENTITY
            assert asked.system_properties.message_type == definition.TRANSACTION
            found = service.SendResultEntry(
                message_id=asked.system_properties.message_id, transaction_id=check.transaction_id
            )
            assert await end(client, "orders", found, COMMIT, definition.SOURCE_SERVER_CHECK) == definition.OK
            assert (await client.receive("billing", "orders", polling_s=5)).ids == [entry.message_id]

    with_broker(test)


def test_point_54_another_producer_of_the_topic_is_asked_when_the_first_is_gone(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.TRANSACTION)
        async with Client(broker.endpoint) as gone:
            await gone.declare(producer_settings("orders"))
            entry = await begin(gone, "orders")
        async with Client(broker.endpoint) as other, Client(broker.endpoint) as stranger:
            await other.declare(producer_settings("orders"))
            await stranger.declare(producer_settings("bills"))
            broker.clock.push(7)
            command = await other.told()
            assert command.recover_orphaned_transaction_command.transaction_id == entry.transaction_id
            with pytest.raises(TimeoutError):
                await stranger.told_within(0.2)

    with_broker(test)


def test_point_54_who_declares_no_topic_is_asked_about_its_own(with_broker: WithBroker) -> None:
    """Python, Go and Rust clients may declare none; RocketMQ never asks them."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.TRANSACTION)
        async with Client(broker.endpoint) as client:
            await client.declare(producer_settings())
            entry = await begin(client, "orders")
            broker.clock.push(7)
            command = await client.told()
            assert command.recover_orphaned_transaction_command.transaction_id == entry.transaction_id

    with_broker(test)


def test_after_too_many_checks_it_is_rolled_back_and_kept_for_operators(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.TRANSACTION)
        pending = broker.store.messages.pending
        async with Client(broker.endpoint) as client:
            await client.declare(producer_settings("orders"))
            entry = await begin(client, "orders")
            broker.clock.push(7)
            for _ in range(3):
                command = await client.told()
                assert command.recover_orphaned_transaction_command.transaction_id == entry.transaction_id
                broker.clock.push(31)
            await until(lambda: pending.half_of(entry.message_id) is None, "it is rolled back")
            assert broker.store.messages.maximum(QueueId("TRANS_CHECK_MAX_TIME_TOPIC", 0)) == 1
            assert await end(client, "orders", entry, COMMIT) == definition.INVALID_TRANSACTION_ID

    with_broker(test, transactions={"checks_max": 3})


def test_a_check_that_nobody_hears_does_not_count(with_broker: WithBroker) -> None:
    """A producer that is away for the night finds its transactions as it left them."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.TRANSACTION)
        pending = broker.store.messages.pending
        async with Client(broker.endpoint) as client:
            entry = await begin(client, "orders")
            broker.clock.push(7)
            for _ in range(4):
                before = pending.checks_due(0, 2**60, 10)
                await until(lambda before=before: pending.checks_due(0, 2**60, 10) != before, "the check is put off")
                broker.clock.push(31)
            await client.declare(producer_settings("orders"))
            command = await client.told()
            assert command.recover_orphaned_transaction_command.transaction_id == entry.transaction_id
            assert await end(client, "orders", entry, COMMIT) == definition.OK

    with_broker(test, transactions={"checks_max": 2})
