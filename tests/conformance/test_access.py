"""Every call asks who calls and what it may do; what it may not do does not happen."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import grpc
import pytest
from cryptography.fernet import Fernet
from google.protobuf.message import Message

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.rpc.messaging import METHOD_NAMES
from quarry_mq.server.rpc.sessions import STRANGERS_MAX
from quarry_mq.store.errors import SecretsUnreadable
from quarry_mq.store.security.model import Decision, UserKind
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, consumer_settings, message, producer_settings, resource
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.secured import SECRET, SECURED, add_user, allow, client_of, disable

EARLIEST: Final = {"new_group_start": "earliest"}

REQUESTS: Final[Mapping[str, Message]] = {
    "QueryRoute": service.QueryRouteRequest(topic=resource("new-topic")),
    "Heartbeat": service.HeartbeatRequest(group=resource("billing"), client_type=definition.SIMPLE_CONSUMER),
    "SendMessage": service.SendMessageRequest(messages=[message("orders"), message("orders")]),
    "QueryAssignment": service.QueryAssignmentRequest(topic=resource("orders"), group=resource("billing")),
    "ReceiveMessage": service.ReceiveMessageRequest(
        group=resource("new-group"), message_queue=definition.MessageQueue(topic=resource("orders")), auto_renew=True
    ),
    "AckMessage": service.AckMessageRequest(
        group=resource("billing"), topic=resource("orders"), entries=[service.AckMessageEntry(receipt_handle="x")]
    ),
    "ForwardMessageToDeadLetterQueue": service.ForwardMessageToDeadLetterQueueRequest(
        group=resource("billing"), topic=resource("orders"), receipt_handle="x"
    ),
    "PullMessage": service.PullMessageRequest(
        group=resource("billing"), message_queue=definition.MessageQueue(topic=resource("orders"))
    ),
    "UpdateOffset": service.UpdateOffsetRequest(
        group=resource("billing"), message_queue=definition.MessageQueue(topic=resource("orders"))
    ),
    "GetOffset": service.GetOffsetRequest(
        group=resource("billing"), message_queue=definition.MessageQueue(topic=resource("orders"))
    ),
    "QueryOffset": service.QueryOffsetRequest(message_queue=definition.MessageQueue(topic=resource("orders"))),
    "EndTransaction": service.EndTransactionRequest(
        topic=resource("orders"), transaction_id="x", resolution=definition.COMMIT
    ),
    "NotifyClientTermination": service.NotifyClientTerminationRequest(group=resource("billing")),
    "ChangeInvisibleDuration": service.ChangeInvisibleDurationRequest(
        group=resource("billing"), topic=resource("orders"), receipt_handle="x"
    ),
    "RecallMessage": service.RecallMessageRequest(topic=resource("orders"), recall_handle="x"),
    "SyncLiteSubscription": service.SyncLiteSubscriptionRequest(topic=resource("orders"), group=resource("billing")),
}


async def status_of(client: Client, method: str) -> definition.Status:
    """The status in the answer to the method's request."""
    first, *_ = await client.raw(method, REQUESTS[method].SerializeToString())
    status: definition.Status = getattr(service, f"{method}Response").FromString(first).status
    return status


async def last_word(client: Client, settings: definition.Settings) -> definition.Status:
    """What a telemetry stream is told before it is ended in good order: a status and nothing else."""
    told = await client.declare(settings)
    assert told.WhichOneof("command") is None
    assert await client.ended() is grpc.StatusCode.OK
    return told.status


def test_every_call_but_telemetry_is_asked_here() -> None:
    assert set(REQUESTS) | {"Telemetry"} == METHOD_NAMES


@both_ways
def test_no_call_is_served_without_a_good_signature_nor_to_a_user_without_rules(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.group("billing")
        add_user(broker, "stranger")
        before = broker.store.messages.dispatched_up_to
        callers = {
            "not signed": Client(broker.endpoint),
            "no user": client_of(broker, "nobody"),
            "no enabled user": client_of(broker, "stranger", secret="wrong-secret-indeed"),
            "behind the broker's clock": client_of(broker, "stranger", off_s=-400),
            "stranger may not": client_of(broker, "stranger"),
        }
        for text, client in callers.items():
            async with client:
                for method in REQUESTS:
                    status = await status_of(client, method)
                    assert status.code == definition.UNAUTHORIZED, (method, status)
                    assert text in status.message or "no enabled user" in status.message, (method, status)
        assert broker.store.messages.dispatched_up_to == before
        assert broker.store.topics.get("new-topic") is None
        assert broker.store.groups.get("new-group") is None

    with_broker(test, security={**SECURED, "failures_per_minute": 1000}, delivery=EARLIEST)


@both_ways
def test_who_may_gets_from_every_call_what_it_would_get_without_users(with_broker: WithBroker) -> None:
    """No answer is UNAUTHORIZED for who has exactly what RocketMQ's table asks for."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        add_user(
            broker, "orders", "topic:orders pub sub", "topic:new-topic pub", "group:billing sub", "group:new-group sub"
        )
        async with client_of(broker, "orders") as client:
            for method in REQUESTS:
                status = await status_of(client, method)
                assert status.code != definition.UNAUTHORIZED, (method, status)
            assert broker.store.groups.get("new-group") is not None

    with_broker(test, security=SECURED)


def test_who_proved_to_be_a_user_may_do_everything_where_rules_are_not_looked_at(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "orders")
        async with client_of(broker, "orders") as client, Client(broker.endpoint) as stranger:
            await client.sent(message("orders"))
            assert (await stranger.send(message("orders"))).status.code == definition.UNAUTHORIZED

    with_broker(test, security={**SECURED, "authorization": False})


def test_nothing_is_asked_where_nothing_is_set(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with client_of(broker, "nobody", secret="whatever-it-may-be", off_s=-(10**6)) as client:
            await client.sent(message("orders"))

    with_broker(test)


@both_ways
def test_who_calls_is_asked_before_the_client_id_and_before_the_request_is_read(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "orders")
        async with Client(broker.endpoint, None) as stranger, client_of(broker, "orders", None) as nameless:
            (answer,) = await stranger.raw("SendMessage", b"\xff")
            assert service.SendMessageResponse.FromString(answer).status.code == definition.UNAUTHORIZED
            (answer,) = await nameless.raw("SendMessage", b"\xff")
            assert service.SendMessageResponse.FromString(answer).status.code == definition.CLIENT_ID_REQUIRED

    with_broker(test, security=SECURED)


def test_a_route_makes_a_topic_only_for_who_may_send_to_it(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "reader", "topic:* sub")
        add_user(broker, "writer", "topic:* pub")
        request = service.QueryRouteRequest(topic=resource("new-topic"))
        async with client_of(broker, "reader") as reader, client_of(broker, "writer") as writer:
            assert (await reader.call("QueryRoute", request)).status.code == definition.TOPIC_NOT_FOUND
            assert (await writer.call("QueryRoute", request)).status.code == definition.OK
            assert (await reader.call("QueryRoute", request)).status.code == definition.OK

    with_broker(test, security=SECURED)


def test_topics_made_by_use_are_counted_for_the_user_whose_they_are(with_broker: WithBroker) -> None:
    async def scenario(broker: RunningBroker) -> None:
        for user in ("shop", "mill"):
            add_user(broker, user, "topic:* pub")
            async with client_of(broker, user) as client:
                sent = [await client.send(message(f"{user}-{number}")) for number in range(3)]
                assert [each.status.code for each in sent] == [
                    definition.OK,
                    definition.OK,
                    definition.TOO_MANY_REQUESTS,
                ]

    with_broker(scenario, security=SECURED, limits={"topics_per_user": 2})


def test_a_rule_may_hold_for_some_addresses_alone(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "orders")
        async with client_of(broker, "orders") as client:
            allow(broker, "orders", "topic:orders pub", source="10.0.0.0/8")
            assert (await client.send(message("orders"))).status.code == definition.UNAUTHORIZED
            allow(broker, "orders", "topic:orders pub", source="127.0.0.0/8")
            await client.sent(message("orders"))

    with_broker(test, security=SECURED)


def test_every_message_of_a_send_counts_and_every_light_queue_it_names(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "orders", "topic:orders pub", "topic:%LMQ%mine pub")
        async with client_of(broker, "orders") as client:
            status = (await client.send(message("orders"), message("payments"))).status
            assert (status.code, status.message) == (
                definition.UNAUTHORIZED,
                "user orders may not pub on topic payments (has no permission to access)",
            )
            named = message("orders")
            named.user_properties["INNER_MULTI_DISPATCH"] = "%LMQ%mine,%LMQ%theirs"
            status = (await client.send(named)).status
            assert (status.code, status.message) == (
                definition.UNAUTHORIZED,
                "user orders may not pub on topic %LMQ%theirs (has no permission to access)",
            )
            named.user_properties["INNER_MULTI_DISPATCH"] = "%LMQ%mine"
            await client.sent(named)

    with_broker(test, security=SECURED)


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_telemetry_tells_a_stranger_so_and_ends_in_good_order(with_broker: WithBroker, front: str) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "orders", "topic:orders pub sub", "group:billing sub")
        async with Client(broker.endpoint) as stranger:
            assert (await last_word(stranger, producer_settings())).code == definition.UNAUTHORIZED
        for settings, missing in (
            (producer_settings("orders", "payments"), "pub on topic payments"),
            (consumer_settings("audit", "orders"), "sub on group audit"),
            (consumer_settings("billing", "payments"), "sub on topic payments"),
        ):
            async with client_of(broker, "orders") as client:
                status = await last_word(client, settings)
                assert (status.code, status.message) == (
                    definition.UNAUTHORIZED,
                    f"user orders may not {missing} (has no permission to access)",
                )
        async with client_of(broker, "orders") as client:
            assert (await client.declare(producer_settings("orders"))).status.code == definition.OK
            broker.clock.push(3600)  # what the stream was opened with is stale by now, the stream goes on
            assert (await client.declare(producer_settings("orders"))).status.code == definition.OK
            assert (await last_word(client, producer_settings("payments"))).code == definition.UNAUTHORIZED

    with_broker(test, security=SECURED, network={"front": front})


def test_a_stranger_that_says_nothing_does_not_stay(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as stranger:
            call = stranger.stub.Telemetry(metadata=stranger.metadata)
            told = await asyncio.wait_for(call.read(), 60)
            assert told.status.code == definition.UNAUTHORIZED
            await until(lambda: broker.broker._messaging.telemetry.open_streams == 0, "the stream has ended")

    with_broker(test, security=SECURED)


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_strangers_have_no_more_streams_than_few_and_the_oldest_is_told(with_broker: WithBroker, front: str) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "orders", "topic:orders pub")
        telemetry = broker.broker._messaging.telemetry
        async with Client(broker.endpoint) as stranger, client_of(broker, "orders") as client:
            assert (await client.declare(producer_settings("orders"))).status.code == definition.OK
            calls = [stranger.stub.Telemetry(metadata=stranger.metadata) for _ in range(STRANGERS_MAX + 20)]
            for call in calls[:20]:
                told = await asyncio.wait_for(call.read(), 60)
                assert told.status.code == definition.UNAUTHORIZED
            assert telemetry.open_streams <= STRANGERS_MAX + 1
            assert (await client.declare(producer_settings("orders"))).status.code == definition.OK
            for call in calls:
                call.cancel()
            await until(lambda: telemetry.open_streams == 1, "nothing is left of the strangers")

    with_broker(test, security=SECURED, network={"front": front})


def test_a_client_is_its_users_own(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        for name in ("orders", "mallory"):
            add_user(broker, name, "topic:* pub sub", "group:* sub")
        async with client_of(broker, "orders", "host@1") as client, client_of(broker, "mallory", "host@1") as other:
            await client.declare(consumer_settings("billing", "orders"))
            for method in REQUESTS:
                status = await status_of(other, method)
                assert status.code == definition.UNAUTHORIZED, method
                assert "belongs to another user" in status.message
            assert (await last_word(other, consumer_settings("billing", "orders"))).code == definition.UNAUTHORIZED
            assert [each.client_id for each in broker.broker._clients] == ["host@1"]
            goodbye = service.NotifyClientTerminationRequest(group=resource("billing"))
            assert (await client.call("NotifyClientTermination", goodbye)).status.code == definition.OK

    with_broker(test, security=SECURED)


@both_ways
def test_delivery_works_under_rules_from_end_to_end(with_broker: WithBroker) -> None:
    """rmq#9518, rmq#9862: PUB on the topic, SUB on topic and group, and nothing that nobody thinks of."""

    async def test(broker: RunningBroker) -> None:
        add_user(broker, "shop", "topic:orders pub")
        add_user(broker, "billing", "topic:orders sub", "group:billing sub")
        broker.group("billing", max_attempts=2)
        async with client_of(broker, "shop") as shop, client_of(broker, "billing") as billing:
            await shop.declare(producer_settings("orders"))
            await shop.sent(message("orders", b"one"), message("orders", b"two"))
            await billing.declare(consumer_settings("billing", "orders", kind=definition.PUSH_CONSUMER))
            first = await billing.receive("billing", "orders", count=1)
            later = await billing.change("billing", "orders", first.handles[0], 0.0)
            assert later.status.code == definition.OK
            again = await billing.receive("billing", "orders", polling_s=60, deadline_s=90)
            answer = await billing.ack("billing", "orders", *again.handles)
            assert answer.status.code == definition.OK, answer
            assert (await status_of(billing, "Heartbeat")).code == definition.OK
            assert (await shop.receive("billing", "orders")).code == definition.UNAUTHORIZED
            assert (await billing.send(message("orders"))).status.code == definition.UNAUTHORIZED

    with_broker(test, security=SECURED, delivery=EARLIEST)


def test_a_group_may_read_its_dead_letters_and_nobody_may_write_any(with_broker: WithBroker) -> None:
    """rmq#10370, rmq#9349: no rule has to name topics that the broker made."""

    async def test(broker: RunningBroker) -> None:
        add_user(broker, "billing", "topic:orders pub sub", "group:billing sub")
        add_user(broker, "greedy", "topic:* pub sub", "group:greedy sub")
        add_user(broker, "ops", kind=UserKind.SUPER)
        async with client_of(broker, "billing") as billing, client_of(broker, "greedy") as greedy:
            await billing.sent(message("orders", b"bad"))
            handle = (await billing.receive("billing", "orders")).handles[0]
            request = service.ForwardMessageToDeadLetterQueueRequest(
                group=resource("billing"), topic=resource("orders"), receipt_handle=handle
            )
            assert (await billing.call("ForwardMessageToDeadLetterQueue", request)).status.code == definition.OK
            received = await billing.receive("billing", "%DLQ%billing")
            assert [each.body for each in received.messages] == [b"bad"]
            route = service.QueryRouteRequest(topic=resource("%DLQ%billing"))
            assert (await billing.call("QueryRoute", route)).status.code == definition.OK
            assert (await greedy.receive("greedy", "%DLQ%billing")).code == definition.UNAUTHORIZED
            for client in (billing, greedy):
                status = (await client.send(message("%DLQ%billing"))).status
                assert status.code == definition.UNAUTHORIZED
            async with client_of(broker, "ops") as ops:
                assert (await ops.send(message("%DLQ%billing"))).status.code != definition.UNAUTHORIZED

    with_broker(test, security=SECURED, delivery=EARLIEST)


@both_ways
def test_a_retry_topic_is_read_by_its_own_group_with_rights_on_group_and_topic(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        retry = broker.topic("%RETRY%billing_paid", queues=1)
        broker.topic("paid")
        broker.group("billing")
        add_user(broker, "mallory", "topic:* sub pub", "group:* sub")
        allow(broker, "mallory", "group:billing sub", Decision.DENY)
        allow(broker, "mallory", "topic:paid sub", Decision.DENY)
        add_user(broker, "billing", "topic:paid sub", "group:billing sub")
        queue = definition.MessageQueue(topic=resource(retry), id=0)
        groups_before = {group.name for group in broker.store.groups.list()}
        async with client_of(broker, "mallory") as mallory, client_of(broker, "billing") as billing:
            for group in ("billing_paid", "mallory", "billing"):
                assert (await mallory.receive(group, retry)).code == definition.UNAUTHORIZED
                pull = service.PullMessageRequest(group=resource(group), message_queue=queue, batch_size=1)
                answers = [each async for each in mallory.stub.PullMessage(pull, metadata=mallory.metadata)]
                assert answers[0].status.code == definition.UNAUTHORIZED
                assert (await mallory.ack(group, retry, "any")).status.code == definition.UNAUTHORIZED
            look = service.QueryOffsetRequest(message_queue=queue)
            assert (await mallory.call("QueryOffset", look)).status.code == definition.UNAUTHORIZED
            assert (await billing.receive("billing", retry)).code != definition.UNAUTHORIZED
            assert (await billing.call("QueryOffset", look)).status.code != definition.UNAUTHORIZED
        assert {group.name for group in broker.store.groups.list()} == groups_before

    with_broker(test, security=SECURED)


def test_a_user_that_loses_its_rights_loses_its_streams_and_what_waits(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        for name in ("orders", "billing", "audit"):
            add_user(broker, name, "topic:orders pub sub", f"group:{name} sub")
        broker.topic("orders")
        clients = {name: client_of(broker, name) for name in ("orders", "billing", "audit")}
        for name, client in clients.items():
            await client.declare(consumer_settings(name, "orders"))
        revocation = broker.broker._messaging._revocation
        assert revocation is not None
        await until(lambda: revocation._generation == revocation._gate.generation, "the new users are known")
        waiting: Any = asyncio.ensure_future(
            clients["billing"].receive("billing", "orders", polling_s=20, deadline_s=30)
        )
        await until(lambda: broker.broker._delivery.waiting_polls == 1, "the receive waits")
        disable(broker, "orders")
        told = await clients["orders"].told()
        assert (told.status.code, told.status.message) == (
            definition.UNAUTHORIZED,
            "user orders is disabled or gone (has no permission to access)",
        )
        assert await clients["orders"].ended() is grpc.StatusCode.OK
        allow(broker, "billing", "topic:orders sub", Decision.DENY)
        assert (await clients["billing"].told()).status.code == definition.UNAUTHORIZED
        assert (await waiting).code == definition.MESSAGE_NOT_FOUND
        assert (await clients["billing"].receive("billing", "orders")).code == definition.UNAUTHORIZED
        assert (await clients["audit"].declare(consumer_settings("audit", "orders"))).status.code == definition.OK
        assert len(broker.broker._clients) == 1
        for client in clients.values():
            await client.vanish()

    with_broker(test, security=SECURED)


def test_a_secret_is_replaced_without_a_moment_at_which_neither_is_good(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "orders", "topic:orders pub")
        new = broker.store.users.add_secret("orders", None, 0)
        for secret in (SECRET, new.text):
            async with client_of(broker, "orders", secret=secret) as client:
                await client.sent(message("orders"))
        broker.store.users.remove_secret("orders", 1)
        async with client_of(broker, "orders", secret=new.text) as client:
            await client.sent(message("orders"))
        async with client_of(broker, "orders") as client:
            assert (await client.send(message("orders"))).status.code == definition.UNAUTHORIZED

    with_broker(test, security=SECURED)


def test_a_broker_that_cannot_read_the_secrets_it_needs_does_not_start(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "orders")

    async def nothing(broker: RunningBroker) -> None:
        assert broker.store.users.get_sealed("orders") is not None

    other = {**SECURED, "key": Fernet.generate_key().decode()}
    with_broker(test, security=SECURED)
    with pytest.raises(SecretsUnreadable, match=r"1 users cannot be read \(orders\)"):
        with_broker(nothing, security=other)
    with pytest.raises(SecretsUnreadable):
        with_broker(nothing, security={"admin_authentication": True})
    with_broker(nothing, security={"key": other["key"]})  # where nobody asks for users, nobody needs them


def test_who_guesses_is_told_to_wait_and_who_knows_is_served(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "orders", "topic:orders pub")
        codes = []
        for number in range(4):
            async with client_of(broker, "orders", secret=f"guess-number-{number:04}") as client:
                codes.append((await client.send(message("orders"))).status.code)
        assert codes == [definition.UNAUTHORIZED] * 2 + [definition.TOO_MANY_REQUESTS] * 2
        async with client_of(broker, "orders") as client:
            await client.sent(message("orders"))

    with_broker(test, security={**SECURED, "failures_per_minute": 2})
