"""Readers of plain sends, native and in Python, read a request as the slow path does, or leave it to the slow path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.limits import (
    BORN_HOST_SIZE_MAX,
    DEFAULT_LIMITS,
    ENTRIES_MAX,
    MESSAGE_ID_SIZE_MAX,
    NAME_SIZE_MAX,
    WireLimits,
)
from quarry_mq.protocol.messages.property_names import RESERVED_PREFIX, RESERVED_PROPERTIES
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.rpc.plain import PlainCalls, make_send_reader
from quarry_mq.server.wire.messages import NO_HOST, to_message
from quarry_mq.server.wire.parsing import UNCOUNTED_SIZE
from quarry_mq.server.wire.status import fill_ok
from quarry_mq.server.wire.validate import CheckedMessage, check_send
from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata import IllegalTopicName
from quarry_mq.store.native import NATIVE, Native, PlainMessage, PlainSend
from quarry_mq.store.record import decode_properties, encode_properties, tags_code
from tests.wire.builders import NOW_MS, message, send

LIMITS = WireLimits(body_size_max=64, user_properties_max=3, user_properties_size_max=80)
PEER = "192.0.2.7:50123"

both_readers = pytest.mark.parametrize(
    "native",
    [pytest.param(NATIVE, marks=pytest.mark.skipif(NATIVE is None, reason="no native part"), id="native"), None],
)


def read(native: Native | None, request: bytes, peer: str = PEER) -> PlainSend | None:
    return make_send_reader(native, LIMITS).read(request, peer, NOW_MS)


def of_python(request: bytes, peer: str = PEER) -> PlainSend:
    """The same of a request that Python takes. Raises what it is refused for."""
    parsed = service.SendMessageRequest.FromString(request)
    topic, messages = check_send(parsed, LIMITS, NOW_MS)
    return topic, [message_of_python(topic, each, peer) for each in messages]


def message_of_python(topic: str, checked: CheckedMessage, peer: str) -> PlainMessage:
    assert checked.type == definition.NORMAL
    taken = to_message(checked, topic=topic, queue_number=0, peer=peer, store_host=NO_HOST, now_ms=NOW_MS)
    return (
        checked.message.system_properties.message_id,
        taken.body,
        encode_properties(taken.properties),
        tags_code(topic, taken.properties, NOW_MS),
        taken.born_timestamp_ms,
        taken.system_flag,
    )


def agrees(native: Native | None, request: bytes) -> bool:
    """Whether it reads nothing, or what Python makes of it; who asks it looks at the topic's name himself."""
    plain = read(native, request)
    if plain is None:
        return True
    try:
        expected = of_python(request)
    except IllegalTopicName:
        return True
    return in_one_order(plain) == in_one_order(expected)


def in_one_order(plain: PlainSend) -> tuple[str, list[object]]:
    """The order of user properties is nobody's promise: protobuf's maps have none."""
    topic, messages = plain
    return topic, [
        (message_id, body, len(properties), decode_properties(properties), *rest)
        for message_id, body, properties, *rest in messages
    ]


ODD_TEXTS = st.sampled_from(
    ["", " ", "\t", "a\x01b", "\x7f", "\x85", "ä", "中文", "🙂", "a|b", "\u2028", " a ", "\u200b"]
)
TEXTS = st.one_of(st.text(alphabet="abcXYZ 09_-%", max_size=12), ODD_TEXTS)
NAMES = st.one_of(TEXTS, st.sampled_from([*sorted(RESERVED_PROPERTIES), f"{RESERVED_PREFIX}x", "INNER_MULTI_DISPATCH"]))
NUMBERS = st.one_of(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1))
TIMES = st.builds(
    Timestamp,
    seconds=st.one_of(st.integers(-2, 2_000_000_000), st.sampled_from([253_402_300_799, 253_402_300_800, 2**62])),
    nanos=st.sampled_from([0, 1, 999_999, 1_000_000, 999_999_999, 1_000_000_000, -1]),
)
USUAL_FIELDS = {
    "tag": TEXTS,
    "keys": st.lists(TEXTS, max_size=3),
    "message_id": TEXTS,
    "body_encoding": st.sampled_from([0, 1, 2, 3]),
    "message_type": st.sampled_from([0, 1, 2, 5]),
    "born_timestamp": TIMES,
    "born_host": TEXTS,
    "queue_id": NUMBERS,
}
RARE_FIELDS = {
    "body_digest": st.builds(definition.Digest, checksum=TEXTS),
    "store_timestamp": TIMES,
    "store_host": TEXTS,
    "delivery_timestamp": TIMES,
    "receipt_handle": TEXTS,
    "queue_offset": NUMBERS,
    "invisible_duration": st.builds(Duration, seconds=st.integers(0, 9)),
    "delivery_attempt": NUMBERS,
    "message_group": TEXTS,
    "trace_context": TEXTS,
    "lite_topic": TEXTS,
    "priority": NUMBERS,
}
SYSTEMS = st.builds(
    lambda usual, rare: definition.SystemProperties(**usual, **rare),
    st.fixed_dictionaries({}, optional=USUAL_FIELDS),
    st.one_of(st.just({}), st.just({}), st.fixed_dictionaries({}, optional=RARE_FIELDS)),
)
MESSAGES = st.builds(
    definition.Message,
    topic=st.builds(definition.Resource, name=st.sampled_from(["orders", "", "a b", "%DLQ%x", "t" * 127, "ö"])),
    user_properties=st.dictionaries(NAMES, TEXTS, max_size=4),
    system_properties=SYSTEMS,
    body=st.binary(max_size=70),
)
PLAIN_MESSAGES = st.builds(
    message,
    body=st.binary(min_size=1, max_size=64),
    user_properties=st.dictionaries(st.text("abc", min_size=1), st.text("xyz "), max_size=3),
    tag=st.text("abcd", max_size=5),
    keys=st.lists(st.text("abcd", min_size=1, max_size=5), max_size=3),
    born_timestamp=st.builds(Timestamp, seconds=st.integers(0, 2_000_000_000), nanos=st.integers(0, 999_999_999)),
    born_host=st.text("abc.", max_size=9),
    body_encoding=st.sampled_from([0, 1, 2]),
    message_type=st.sampled_from([0, 1]),
    queue_id=st.integers(0, 9),
)


@both_readers
@settings(max_examples=250)
@given(st.lists(MESSAGES, min_size=1, max_size=2))
def test_what_it_reads_is_what_python_makes_of_it(native: Native | None, messages: list[definition.Message]) -> None:
    request = send(*messages).SerializeToString()
    assert agrees(native, request)


@both_readers
@settings(max_examples=200)
@given(st.lists(PLAIN_MESSAGES, min_size=1, max_size=4))
def test_plain_messages_are_read(native: Native | None, sent: list[definition.Message]) -> None:
    request = send(*sent).SerializeToString()
    plain = read(native, request)
    try:
        expected = of_python(request)
    except Exception:
        assert plain is None
    else:
        assert plain is not None
        assert in_one_order(plain) == in_one_order(expected)
        if all(len(each.user_properties) < 2 for each in sent):
            assert plain == expected


@both_readers
@settings(max_examples=250)
@given(st.lists(PLAIN_MESSAGES, min_size=1, max_size=2), st.data())
def test_bytes_that_went_wrong_are_read_as_python_reads_them_or_not_at_all(
    native: Native | None, sent: list[definition.Message], data: st.DataObject
) -> None:
    request = bytearray(send(*sent).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(request) - 1))
        if data.draw(st.booleans()):
            request[at] = data.draw(st.integers(0, 255))
        else:
            del request[at]
    assert agrees(native, bytes(request))


@both_readers
@pytest.mark.parametrize(
    "peer", ["unix", "[2001:db8::1]:7", "", "a\x01b"], ids=["unix", "IPv6", "none", "control character"]
)
def test_who_names_no_host_is_known_by_its_address(native: Native | None, peer: str) -> None:
    request = send(message()).SerializeToString()
    plain = read(native, request, peer)
    if plain is not None:
        assert plain == of_python(request, peer)
    assert (plain is None) is ("\x01" in peer)


@both_readers
@pytest.mark.parametrize(
    "unusual",
    [
        definition.Message(),
        message(body=b""),
        message(body=bytes(65)),
        message(message_id=" "),
        message(message_group="g"),
        message(lite_topic="l"),
        message(priority=0),
        message(delivery_timestamp=Timestamp(seconds=1)),
        message(message_type=definition.TRANSACTION),
        message(trace_context="t"),
        message(delivery_attempt=2),
        message(tag="a|b"),
        message(user_properties={"TAGS": "a"}),
        message(user_properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}),
        message(user_properties={f"{RESERVED_PREFIX}a": "b"}),
        message(user_properties={str(number): "" for number in range(4)}),
        message(user_properties={"a": "b" * 80}),
    ],
    ids=lambda each: str(each).replace("\n", " ")[-60:],
)
def test_what_is_unusual_is_left_to_python(native: Native | None, unusual: definition.Message) -> None:
    assert read(native, send(unusual).SerializeToString()) is None
    assert read(native, send(message(), unusual).SerializeToString()) is None


@both_readers
def test_requests_that_hold_anything_but_messages_of_one_topic_are_left_to_python(native: Native | None) -> None:
    one = send(message()).SerializeToString()
    of_another_topic = message()
    of_another_topic.topic.name = "payments"
    assert read(native, b"") is None
    assert read(native, send(message(), of_another_topic).SerializeToString()) is None
    if native is not None:
        assert read(native, one + b"\x12\x01a") is None, "a field that is not known; Python passes over it"
    assert read(native, one + b"\x0a") is None
    assert read(native, one + one) == of_python(one + one)


@both_readers
def test_so_are_requests_of_too_many(native: Native | None) -> None:
    one = send(message(body=b"a")).SerializeToString()
    plain = read(native, one * ENTRIES_MAX)
    if native is None:
        assert plain is None, "it is larger than what is not counted"
        most = UNCOUNTED_SIZE // len(one)
        plain = read(native, one * most)
        assert read(native, one * (most + 1)) is None
    assert plain is not None
    assert len(plain[1]) == (ENTRIES_MAX if native is not None else most)
    assert read(native, one * (ENTRIES_MAX + 1)) is None


LARGE: dict[str, Callable[[int], definition.Message]] = {
    "keys": lambda count: message(keys=["k"] * count),
    "message_id": lambda size: message(message_id="i" * size),
    "born_host": lambda size: message(born_host="h" * size),
    "topic": lambda size: message(topic="t" * size),
    "body": lambda size: message(body=bytes(size)),
    "user_properties": lambda count: message(user_properties={f"p{number}": "" for number in range(count)}),
    "value": lambda size: message(user_properties={"": "x"} if not size else {"p": "v" * (size - 1)}),
    "keys_size": lambda size: message(keys=["k" * size]),
    "tag": lambda size: message(tag="t" * size),
}
MOST = {
    "keys": ENTRIES_MAX,
    "message_id": MESSAGE_ID_SIZE_MAX,
    "born_host": BORN_HOST_SIZE_MAX,
    "topic": NAME_SIZE_MAX,
    "body": DEFAULT_LIMITS.body_size_max,
    "user_properties": DEFAULT_LIMITS.user_properties_max,
    "value": DEFAULT_LIMITS.user_properties_size_max,
    "keys_size": DEFAULT_LIMITS.user_properties_size_max,
    "tag": DEFAULT_LIMITS.user_properties_size_max,
}
"""The limits of everything that a message may have."""


@both_readers
@pytest.mark.parametrize("what", LARGE)
def test_both_ways_have_the_same_limits(native: Native | None, what: str) -> None:
    """As many keys as a request has room for used to be taken here, and 4,096 in Python."""
    reader = make_send_reader(native, DEFAULT_LIMITS)
    largest, larger = (send(LARGE[what](MOST[what] + more)) for more in (0, 1))
    body = largest.SerializeToString()
    is_counted_first = native is None and len(body) > UNCOUNTED_SIZE
    assert (reader.read(body, PEER, NOW_MS) is None) is is_counted_first
    assert reader.read(larger.SerializeToString(), PEER, NOW_MS) is None
    if what != "topic":  # whose name has a stricter rule, which is asked for in both ways
        check_send(largest, DEFAULT_LIMITS, NOW_MS)
    with pytest.raises(Invalid):
        check_send(larger, DEFAULT_LIMITS, NOW_MS)


@pytest.mark.parametrize("offset", [0, 1, 127, 128, 2**31, 2**62])
@pytest.mark.parametrize("message_id", ["0156F7E71C361B21BC024CCDBE00000000", "ä", "x" * 300])
def test_an_answer_is_what_protobuf_writes(plain_calls: PlainCalls, message_id: str, offset: int) -> None:
    for ids in ([message_id], [message_id, "b", message_id]):
        expected = service.SendMessageResponse()
        fill_ok(expected.status)
        for index, each in enumerate(ids):
            fill_ok(expected.entries.add(message_id=each, offset=offset + index).status)
        assert plain_calls.send_answer(ids, offset) == expected.SerializeToString()


def test_answers_keep_no_memory(plain_calls: PlainCalls) -> None:
    """An object of protobuf that is used for one answer after the other grows by each text, and nothing shows it."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def answer_many() -> None:
        for number in range(100_000):
            plain_calls.send_answer([f"{number:034X}"], number)
            plain_calls.ack_answer(f"{number:034X}", f"{number:052X}")

    answer_many()
    before = resident_bytes()
    answer_many()
    assert resident_bytes() - before < 4 << 20, "13 MB with kept objects"
