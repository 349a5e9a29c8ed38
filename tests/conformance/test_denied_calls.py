"""What is denied has no effect: neither on what is stored nor on what is kept in memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from google.protobuf.message import Message

from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server._generated.apache.rocketmq.v2 import service_pb2 as service
from store.metadata import TopicType
from store.security.model import Decision
from tests.conformance.broker import RunningBroker
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.secured import SECURED, add_user, allow, client_of
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
