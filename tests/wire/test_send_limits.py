"""Limits on what is sent, by the conformance points of docs/formats/protocol.md (numbers in the docstrings)."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.limits import DEFAULT_LIMITS, ENTRIES_MAX, WireLimits
from quarry_mq.protocol.messages.property_names import RESERVED_PROPERTIES
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.wire.message_types import ACCEPTED_TYPES, check_types
from quarry_mq.server.wire.status import Refused, code_of
from quarry_mq.server.wire.validate import CheckedSend, check_send
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.metadata import Topic, TopicType
from tests.wire.builders import HOUR_MS, NOW_MS, message, send


def check(request: service.SendMessageRequest) -> CheckedSend:
    return check_send(request, DEFAULT_LIMITS, NOW_MS)


def code(request: service.SendMessageRequest) -> definition.Code:
    """The code of the answer to a request, as far as it can be told without its topic."""
    try:
        check(request)
    except BrokerError as error:
        return code_of(error)
    return definition.OK


def at(delay_ms: int) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromMilliseconds(NOW_MS + delay_ms)
    return timestamp


def test_an_ordinary_message_passes() -> None:
    """Point 20."""
    checked = check(send(message(user_properties={"a": "b"}, tag="t", keys=["k"])))
    assert checked.topic == "orders"
    assert checked.types == [definition.NORMAL]
    assert checked.messages[0].user_properties == {"a": "b"}
    assert checked.messages[0].keys == ["k"]


def test_a_request_holds_messages_of_one_topic() -> None:
    """Point 21."""
    assert code(send()) == definition.MESSAGE_CORRUPTED
    assert code(send(message(), message(topic="payments"))) == definition.MESSAGE_CORRUPTED
    assert code(send(message(), message())) == definition.OK


@pytest.mark.parametrize("topic", ["", " ", "a b", "rmq_sys_x", "TBW102", "a" * 128])
def test_the_topics_name_is_checked_first(topic: str) -> None:
    assert code(send(message(topic=topic, body=b""))) == definition.ILLEGAL_TOPIC


def test_the_body_is_neither_empty_nor_too_large() -> None:
    """Point 22."""
    limit = DEFAULT_LIMITS.body_size_max
    assert limit == 4_194_304
    assert code(send(message(body=b""))) == definition.MESSAGE_BODY_EMPTY
    assert code(send(message(body=bytes(limit)))) == definition.OK
    assert code(send(message(body=bytes(limit + 1)))) == definition.MESSAGE_BODY_TOO_LARGE
    check_send(send(message(body=b"")), WireLimits(accept_empty_body=True), NOW_MS)


def test_a_request_of_countless_entries_is_refused_before_they_are_read() -> None:
    """A request of 16 MiB has room for eight million empty messages, which took the loop 46 s to look at."""
    assert code(send(*[message()] * ENTRIES_MAX)) == definition.OK
    assert code(send(*[message()] * (ENTRIES_MAX + 1))) == definition.PAYLOAD_TOO_LARGE
    assert code(send(message(keys=[""] * (ENTRIES_MAX + 1)))) == definition.MESSAGE_PROPERTIES_TOO_LARGE


def test_user_properties_are_few_and_small() -> None:
    """Point 23."""
    many = {f"name{number}": "v" for number in range(129)}
    assert code(send(message(user_properties=many))) == definition.MESSAGE_PROPERTIES_TOO_LARGE
    many.popitem()
    assert code(send(message(user_properties=many))) == definition.OK
    large = message(user_properties={"n": "v" * 16_000}, tag="t" * 300, keys=["k" * 83])
    assert code(send(large)) == definition.OK
    large.system_properties.keys.append("k")
    assert code(send(large)) == definition.MESSAGE_PROPERTIES_TOO_LARGE
    assert code(send(message(user_properties={"n": "é" * 8_192}))) == definition.MESSAGE_PROPERTIES_TOO_LARGE


@pytest.mark.parametrize("name", [*sorted(RESERVED_PROPERTIES), "__RMQ.TRANSIENT.X", ""])
def test_the_brokers_own_property_names_are_refused(name: str) -> None:
    """Point 24."""
    properties = {"harmless": "value", name: "value"}
    assert code(send(message(user_properties=properties))) == definition.ILLEGAL_MESSAGE_PROPERTY_KEY


@pytest.mark.parametrize("character", ["\0", "\x01", "\x02", "\n", "\x1f", "\x7f", "\x9f"])
def test_control_characters_are_refused_everywhere(character: str) -> None:
    """Points 24, 25, 27; what gets past here could forge properties, whose stored form is delimited by them."""
    text = f"a{character}b"
    assert code(send(message(user_properties={text: "v"}))) == definition.ILLEGAL_MESSAGE_PROPERTY_KEY
    assert code(send(message(user_properties={"n": text}))) == definition.ILLEGAL_MESSAGE_PROPERTY_KEY
    assert code(send(message(tag=text))) == definition.ILLEGAL_MESSAGE_TAG
    assert code(send(message(keys=["fine", text]))) == definition.ILLEGAL_MESSAGE_KEY
    assert code(send(message(message_id=text))) == definition.ILLEGAL_MESSAGE_ID
    assert code(send(message(message_group=text))) == definition.ILLEGAL_MESSAGE_GROUP
    assert code(send(message(lite_topic=text))) == definition.ILLEGAL_LITE_TOPIC
    assert code(send(message(trace_context=text))) == definition.BAD_REQUEST


def test_characters_that_only_look_like_control_are_fine() -> None:
    text = "a\u00a0b\u2028c\u200dd\ud7ffe\U0001f600"
    properties = {text: text}
    assert code(send(message(user_properties=properties, tag=text, keys=[text], message_group=text))) == definition.OK


@pytest.mark.parametrize("tag", [" ", "\u2003", "a|b", "|"])
def test_illegal_tags(tag: str) -> None:
    """Point 25."""
    assert code(send(message(tag=tag))) == definition.ILLEGAL_MESSAGE_TAG


def test_an_empty_tag_or_key_is_fine_and_a_blank_key_is_not() -> None:
    """Point 25."""
    assert code(send(message(tag="", keys=[""]))) == definition.OK
    assert code(send(message(keys=["a", " "]))) == definition.ILLEGAL_MESSAGE_KEY


@pytest.mark.parametrize("space", ["\u00a0", "\u2007", "\u202f"])
def test_spaces_that_do_not_break_are_no_white_space(space: str) -> None:
    """Java knows them as letters of a text that is not blank."""
    assert code(send(message(tag=space, keys=[space], message_group=space))) == definition.OK
    assert code(send(message(message_id=space))) == definition.OK


@pytest.mark.parametrize("message_id", ["", " "])
def test_a_message_has_an_id(message_id: str) -> None:
    """Point 26."""
    assert code(send(message(message_id=message_id))) == definition.ILLEGAL_MESSAGE_ID


@pytest.mark.parametrize("group", [" ", "g" * 64, "é" * 32])
def test_illegal_message_groups(group: str) -> None:
    """Point 27."""
    assert code(send(message(message_group=group))) == definition.ILLEGAL_MESSAGE_GROUP


def test_a_message_group_of_63_bytes_is_fine() -> None:
    """Point 27."""
    assert check(send(message(message_group="g" * 63))).types == [definition.FIFO]


def test_the_delivery_time_is_within_a_day() -> None:
    """Point 28."""
    minute_ms = 60_000
    assert code(send(message(delivery_timestamp=at(24 * HOUR_MS + minute_ms)))) == definition.ILLEGAL_DELIVERY_TIME
    assert code(send(message(delivery_timestamp=at(24 * HOUR_MS)))) == definition.OK
    assert check(send(message(delivery_timestamp=at(-HOUR_MS)))).types == [definition.DELAY]
    assert code(send(message(delivery_timestamp=Timestamp(seconds=2**62)))) == definition.ILLEGAL_DELIVERY_TIME


def test_a_transactions_recovery_time_is_within_an_hour() -> None:
    """Point 29."""

    def request(seconds: int, kind: definition.MessageType) -> service.SendMessageRequest:
        recovery = Duration(seconds=seconds)
        return send(message(message_type=kind, orphaned_transaction_recovery_duration=recovery))

    assert code(request(3_601, definition.TRANSACTION)) == definition.BAD_REQUEST
    assert code(request(3_600, definition.TRANSACTION)) == definition.OK
    assert code(request(-1, definition.TRANSACTION)) == definition.BAD_REQUEST
    assert code(request(3_601, definition.NORMAL)) == definition.OK


@pytest.mark.parametrize("name", ["a b", "é", "a" * 65, "a/b"])
def test_illegal_lite_topics(name: str) -> None:
    assert code(send(message(lite_topic=name))) == definition.ILLEGAL_LITE_TOPIC


def test_a_priority_is_not_negative() -> None:
    assert code(send(message(priority=-1))) == definition.BAD_REQUEST
    assert check(send(message(priority=0))).types == [definition.PRIORITY]


def test_the_first_rule_broken_decides() -> None:
    """The order of the checks is part of the protocol."""
    worst = message(
        body=b"",
        user_properties={"TAGS": "x"},
        tag="|",
        keys=[" "],
        message_id="",
        message_group=" ",
        delivery_timestamp=at(48 * HOUR_MS),
    )
    seen = [code(send(worst))]
    worst.body = b"body"
    seen.append(code(send(worst)))
    worst.user_properties.clear()
    seen.append(code(send(worst)))
    worst.system_properties.tag = ""
    seen.append(code(send(worst)))
    worst.system_properties.keys.clear()
    seen.append(code(send(worst)))
    worst.system_properties.message_id = "id"
    seen.append(code(send(worst)))
    worst.system_properties.ClearField("delivery_timestamp")
    seen.append(code(send(worst)))
    assert seen == [
        definition.MESSAGE_BODY_EMPTY,
        definition.ILLEGAL_MESSAGE_PROPERTY_KEY,
        definition.ILLEGAL_MESSAGE_TAG,
        definition.ILLEGAL_MESSAGE_KEY,
        definition.ILLEGAL_MESSAGE_ID,
        definition.ILLEGAL_DELIVERY_TIME,
        definition.ILLEGAL_MESSAGE_GROUP,
    ]


TYPED = {
    "plain": (message(), definition.NORMAL),
    "called delay, without a time": (message(message_type=definition.DELAY), definition.NORMAL),
    "called normal, with a time": (
        message(message_type=definition.NORMAL, delivery_timestamp=at(1)),
        definition.DELAY,
    ),
    "group": (message(message_group="g"), definition.FIFO),
    "empty group": (message(message_group=""), definition.NORMAL),
    "time and group": (message(delivery_timestamp=at(1), message_group="g"), definition.DELAY),
    "priority": (message(priority=3), definition.PRIORITY),
    "lite": (message(lite_topic="a"), definition.LITE),
    "transaction with everything": (
        message(message_type=definition.TRANSACTION, delivery_timestamp=at(1), message_group="g", priority=1),
        definition.TRANSACTION,
    ),
    "a type from the future": (message(message_type=99), definition.NORMAL),
}


@pytest.mark.parametrize("case", TYPED)
def test_the_type_comes_from_the_properties(case: str) -> None:
    sent, expected = TYPED[case]
    assert check(send(sent)).types == [expected]


@pytest.mark.parametrize("kind", TopicType)
def test_a_topic_takes_its_own_types_only(kind: TopicType) -> None:
    """Point 30."""
    topic = Topic("orders", kind, 4, 4)
    for message_type in (
        definition.NORMAL,
        definition.FIFO,
        definition.DELAY,
        definition.TRANSACTION,
        definition.LITE,
        definition.PRIORITY,
    ):
        if message_type in ACCEPTED_TYPES[kind]:
            check_types(topic, [message_type])
        else:
            with pytest.raises(Refused, match="takes no") as refused:
                check_types(topic, [message_type])
            assert refused.value.code == definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
