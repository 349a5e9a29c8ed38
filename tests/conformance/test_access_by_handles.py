"""Handles of deliveries, transactions and delayed messages: good only for the callers that the broker gave them to."""

from __future__ import annotations

from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.delivery.handles import HandleKey, ReceiptHandle
from quarry_mq.server.pending.delays import RecallHandle
from quarry_mq.server.pending.transactions import encode_transaction_id
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import RunningBroker
from tests.conformance.client import message, resource
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.secured import SECURED, add_user, client_of
from tests.conformance.test_order import dead_letter
from tests.pending.test_handles import unproven_recall, unproven_transaction

EARLIEST: Final = {"new_group_start": "earliest"}


@both_ways
def test_handles_reach_nothing_beyond_the_group_and_topic_that_the_caller_may_use(with_broker: WithBroker) -> None:
    """Not even where somebody knew the key."""

    async def test(broker: RunningBroker) -> None:
        add_user(broker, "billing", "topic:orders pub sub", "group:billing sub")
        add_user(broker, "mallory", "topic:payments pub sub", "group:mallory sub")
        broker.topic("payments")
        async with client_of(broker, "billing") as billing, client_of(broker, "mallory") as mallory:
            await billing.sent(message("orders", b"one"))
            handle = (await billing.receive("billing", "orders", invisible_s=30)).handles[0]
            fields = ReceiptHandle.decode(handle, "billing", "orders", broker.delivery.handle_key)
            for made_up in (handle, fields.encode("mallory", "payments", broker.delivery.handle_key)):
                answer = await mallory.ack("mallory", "payments", made_up)
                assert answer.status.code == definition.INVALID_RECEIPT_HANDLE
                changed = await mallory.change("mallory", "payments", made_up, 60.0)
                assert changed.status.code == definition.INVALID_RECEIPT_HANDLE
            assert (await mallory.ack("billing", "orders", handle)).status.code == definition.UNAUTHORIZED
            assert (await billing.ack("billing", "orders", handle)).status.code == definition.OK

    with_broker(test, security=SECURED, delivery=EARLIEST)


def test_a_transaction_of_another_topic_cannot_be_ended(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "billing", "topic:orders pub sub", "group:billing sub")
        add_user(broker, "mallory", "topic:payments pub")
        for name in ("orders", "payments"):
            broker.topic(name, TopicType.TRANSACTION)
        async with client_of(broker, "billing") as billing, client_of(broker, "mallory") as mallory:
            answer = await billing.send(message("orders", b"half", message_type=definition.TRANSACTION))
            entry = answer.entries[0]
            made_up = encode_transaction_id(int(entry.transaction_id[:16], 16), "payments", broker.delivery.handle_key)
            request = service.EndTransactionRequest(
                topic=resource("payments"), transaction_id=made_up, resolution=definition.ROLLBACK
            )
            assert (await mallory.call("EndTransaction", request)).status.code == definition.INVALID_TRANSACTION_ID
            request = service.EndTransactionRequest(
                topic=resource("orders"), transaction_id=entry.transaction_id, resolution=definition.COMMIT
            )
            assert (await billing.call("EndTransaction", request)).status.code == definition.OK
            assert len((await billing.receive("billing", "orders", polling_s=30)).messages) == 1

    with_broker(test, security=SECURED, delivery=EARLIEST)


def test_a_delayed_message_of_another_topic_cannot_be_recalled(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "orders", "topic:orders pub")
        add_user(broker, "mallory", "topic:payments pub")
        for name in ("orders", "payments"):
            broker.topic(name, TopicType.DELAY)
        async with client_of(broker, "orders") as client, client_of(broker, "mallory") as mallory:
            due = Timestamp()
            due.FromMilliseconds(broker.clock.wall_ms() + 3_600_000)
            delayed = message("orders", message_type=definition.DELAY, delivery_timestamp=due)
            handle, key = (await client.send(delayed)).entries[0].recall_handle, broker.delivery.handle_key
            made_up = RecallHandle.decode(handle, "orders", key).encode("payments", key)
            for text in (handle, made_up):
                request = service.RecallMessageRequest(topic=resource("payments"), recall_handle=text)
                assert (await mallory.call("RecallMessage", request)).status.code == definition.BAD_REQUEST
            request = service.RecallMessageRequest(topic=resource("orders"), recall_handle=handle)
            assert (await mallory.call("RecallMessage", request)).status.code == definition.UNAUTHORIZED
            assert (await client.call("RecallMessage", request)).status.code == definition.OK

    with_broker(test, security=SECURED)


@both_ways
def test_who_counts_handles_up_ends_nothing_of_others_with_the_same_rights(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        for name in ("honest", "mallory"):
            add_user(broker, name, "topic:* pub sub", "group:billing sub")
        broker.topic("orders", queues=1)
        broker.topic("sure", TopicType.TRANSACTION)
        broker.topic("later", TopicType.DELAY)
        due = Timestamp()
        due.FromMilliseconds(broker.clock.wall_ms() + 3_600_000)
        async with client_of(broker, "honest") as honest, client_of(broker, "mallory") as mallory:
            await honest.sent(message("orders", b"one"), message("orders", b"two"))
            handles = (await honest.receive("billing", "orders", count=2)).handles
            begun = await honest.send(message("sure", message_type=definition.TRANSACTION))
            delayed = message("later", message_type=definition.DELAY, delivery_timestamp=due)
            delayed_at = broker.store.messages.dispatched_up_to
            handle = (await honest.send(delayed)).entries[0].recall_handle
            transaction_id = begun.entries[0].transaction_id
            guessed = HandleKey(bytes(32), PhysicalOffset(0))
            for text in handles:
                fields = ReceiptHandle.decode(text, "billing", "orders", broker.delivery.handle_key)
                for delivery_id in range(fields.delivery_id - 2, fields.delivery_id + 3):
                    made_up = fields._replace(delivery_id=delivery_id).encode("billing", "orders", guessed)
                    for answer in (
                        await mallory.ack("billing", "orders", made_up),
                        await mallory.change("billing", "orders", made_up, 60.0),
                        await dead_letter(mallory, "billing", "orders", made_up),
                    ):
                        assert answer.status.code == definition.INVALID_RECEIPT_HANDLE
            for made_up in (
                unproven_transaction(int(transaction_id[:16], 16), "sure"),
                encode_transaction_id(int(transaction_id[:16], 16), "sure", guessed),
            ):
                request = service.EndTransactionRequest(
                    topic=resource("sure"), transaction_id=made_up, resolution=definition.ROLLBACK
                )
                assert (await mallory.call("EndTransaction", request)).status.code == definition.INVALID_TRANSACTION_ID
            named = RecallHandle.decode(handle, "later", broker.delivery.handle_key)
            assert named.physical_offset == delayed_at
            message_id = named.message_id.encode()
            for made_up in (
                unproven_recall(named.due_ms, named.physical_offset, message_id, "later"),
                unproven_recall(named.due_ms, 0, message_id, "later"),
                named.encode("later", guessed),
            ):
                recall = service.RecallMessageRequest(topic=resource("later"), recall_handle=made_up)
                assert (await mallory.call("RecallMessage", recall)).status.code == definition.BAD_REQUEST
            assert broker.delivery.inflight_count == 2
            assert broker.store.topics.stored("%DLQ%billing") is None
            for text in handles:
                assert (await honest.ack("billing", "orders", text)).status.code == definition.OK
            commit = service.EndTransactionRequest(
                topic=resource("sure"), transaction_id=transaction_id, resolution=definition.COMMIT
            )
            assert (await honest.call("EndTransaction", commit)).status.code == definition.OK
            recall = service.RecallMessageRequest(topic=resource("later"), recall_handle=handle)
            assert (await honest.call("RecallMessage", recall)).status.code == definition.OK

    with_broker(test, security=SECURED, delivery=EARLIEST)
