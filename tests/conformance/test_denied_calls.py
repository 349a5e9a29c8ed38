"""What is denied has no effect: neither on what is stored nor on what is kept in memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from google.protobuf.message import Message

from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server._generated.apache.rocketmq.v2 import service_pb2 as service
from server.security.signature import signed_messaging_headers
from server.wire.limits import ENTRIES_MAX
from store.metadata import TopicType
from store.security.model import Decision, Resource
from tests.conformance.broker import RunningBroker
from tests.conformance.client import message
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.lite import GROUP, PARENT, LiteClient
from tests.conformance.secured import SECRET, SECURED, add_user, allow, client_of
from tests.conformance.state import differences, settled, state_of
from tests.conformance.test_access import REQUESTS


def renamed(request: Message, names: Mapping[str, str]) -> Message:
    """The request with other names of topics and groups."""
    copy = type(request)()
    copy.CopyFrom(request)
    _rename(copy, names)
    return copy


def _rename(message: Message, names: Mapping[str, str]) -> None:
    for field, value in message.ListFields():
        if isinstance(value, definition.Resource):
            value.name = names.get(field.name, value.name)
        elif isinstance(value, Message):
            _rename(value, names)
        elif field.is_repeated and field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value:
                _rename(each, names)


@both_ways
def test_a_denied_call_leaves_everything_as_it_was(with_broker: WithBroker) -> None:
    """Rights are asked for before anything is looked up, made, counted or opened: a send used to make its topic first.

    Names that exist and names that do not; what a caller lacks is the right to the topic, to the group, or to both.
    """

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic("lite", TopicType.LITE)
        broker.group("billing")
        add_user(broker, "member", "group:billing sub", "group:new-group sub")
        add_user(broker, "reader", "topic:orders pub sub", "topic:lite pub sub", "topic:new-topic sub")
        add_user(broker, "denied", "topic:* pub sub get", "group:* sub")
        for name in ("topic:orders", "topic:lite", "topic:new-topic"):
            allow(broker, "denied", f"{name} pub sub get", Decision.DENY)
        for user in ("member", "reader", "denied"):
            client_id = f"client-of-{user}"
            async with client_of(broker, user, client_id) as client:
                before = await settled(broker)
                count = 0
                for method, request in REQUESTS.items():
                    for topic, group in itertools.product(("orders", "lite", "new-topic"), ("billing", "new-group")):
                        body = renamed(request, {"topic": topic, "group": group}).SerializeToString()
                        first, *_ = await client.raw(method, body)
                        status = getattr(service, f"{method}Response").FromString(first).status
                        if status.code == definition.UNAUTHORIZED:
                            count += 1
                            assert differences(before, state_of(broker)) == {}, (user, method, topic, group)
                        else:
                            before = await settled(broker)
                assert count > 20, "most of them are denied"
        assert broker.store.topics.get("new-topic") is None

    with_broker(test, security={**SECURED, "failures_per_minute": 1000})


def naming(light_queues: str) -> definition.Message:
    made = message("orders")
    made.user_properties["INNER_MULTI_DISPATCH"] = light_queues
    return made


@both_ways
def test_a_lite_topic_that_a_message_names_needs_the_right_to_its_topic(with_broker: WithBroker) -> None:
    """Who may send to every topic but one reached the consumers of that one's lite topics through another."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic(PARENT, TopicType.LITE)
        add_user(broker, "producer", "topic:* pub")
        allow(broker, "producer", f"topic:{PARENT} pub", Decision.DENY)
        add_user(broker, "consumer", f"topic:{PARENT} pub sub", f"group:{GROUP} sub")
        consumer = LiteClient(
            broker.endpoint, headers=signed_messaging_headers("consumer", SECRET, now_ms=broker.clock.wall_ms())
        )
        async with consumer, client_of(broker, "producer") as producer:
            await consumer.start()
            await consumer.add("kitchen")
            assert not (await consumer.got()).messages
            before = await settled(broker)
            for names in (
                f"%LMQ%${PARENT}$kitchen",
                f"%LMQ%mine,%LMQ%${PARENT}$kitchen",
                f"%LMQ%mine,%LMQ%mine,,x,%LMQ%${PARENT}$kitchen",
            ):
                status = (await producer.send(message("orders"), naming(names))).status
                assert status.code == definition.UNAUTHORIZED
                assert f"may not pub on topic {PARENT}" in status.message
            too_many = ",".join(["%LMQ%mine"] * ENTRIES_MAX + [f"%LMQ%${PARENT}$kitchen", "x"])
            assert (await producer.send(naming(too_many))).status.code == definition.PAYLOAD_TOO_LARGE
            assert differences(before, state_of(broker)) == {}
            assert not (await consumer.got()).messages
            broker.store.policies.remove_rule("producer", Resource.parse(f"topic:{PARENT}"), Decision.DENY)
            await producer.sent(naming(f"%LMQ%${PARENT}$kitchen"))
            assert len((await consumer.got(polling_s=5)).messages) == 1

    with_broker(test, security=SECURED, delivery={"new_group_start": "earliest"})
