"""Messages on their way into the store and out of it again."""

from __future__ import annotations

from hashlib import md5

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.limits import DEFAULT_LIMITS
from quarry_mq.protocol.messages.property_names import RESERVED_PREFIX, RESERVED_PROPERTIES
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.wire.messages import NO_HOST, fill_message, host_from_text, to_message
from quarry_mq.server.wire.validate import check_send
from quarry_mq.store.message import Host, Message, PhysicalOffset, QueueOffset, host_text
from quarry_mq.store.record import StoredMessage, encode_properties
from tests.wire.builders import NOW_MS, message, send

PEER = "192.0.2.7:50123"
STORE_HOST = host_from_text("10.0.0.1:8081")


def taken_in(sent: definition.Message) -> Message:
    (checked,) = check_send(send(sent), DEFAULT_LIMITS, NOW_MS).messages
    return to_message(checked, topic="orders", queue_number=3, peer=PEER, store_host=STORE_HOST, now_ms=NOW_MS)


def stored(taken: Message) -> StoredMessage:
    """As the store gives the message out again."""
    return StoredMessage(
        size=0,
        magic=0,
        body_crc=0,
        queue_number=taken.queue_number,
        flag=taken.flag,
        queue_offset=QueueOffset(42),
        physical_offset=PhysicalOffset(1_000),
        system_flag=taken.system_flag,
        born_timestamp_ms=taken.born_timestamp_ms,
        born_host=taken.born_host,
        store_timestamp_ms=NOW_MS + 7,
        store_host=taken.store_host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=memoryview(taken.body),
        topic=taken.topic,
        raw_properties=encode_properties(taken.properties),
    )


def delivered(record: StoredMessage, attempt: int = 1, invisible_ms: int | None = None) -> definition.Message:
    target = definition.Message()
    fill_message(
        target,
        record,
        topic="orders",
        receipt_handle="handle",
        delivery_attempt=attempt,
        invisible_ms=invisible_ms,
    )
    return target


def there_and_back(sent: definition.Message) -> definition.Message:
    return delivered(stored(taken_in(sent)))


def from_others(properties: dict[str, str]) -> definition.Message:
    """A message that another broker stored with these properties."""
    return delivered(stored(Message("orders", 0, b"body", properties, NOW_MS, STORE_HOST, STORE_HOST)))


def at(milliseconds: int) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromMilliseconds(milliseconds)
    return timestamp


def test_what_a_plain_message_is_stored_with() -> None:
    taken = taken_in(
        message(
            user_properties={"region": "north"},
            message_id="ID",
            tag="t",
            keys=["k1", "k2"],
            born_timestamp=at(NOW_MS - 5),
            born_host="producer-host",
        )
    )
    assert taken == Message(
        topic="orders",
        queue_number=3,
        body=b"body",
        properties={
            "region": "north",
            "TAGS": "t",
            "KEYS": "k1 k2",
            "UNIQ_KEY": "ID",
            "PGROUP": "orders",
            "BORN_TIMESTAMP": str(NOW_MS - 5),
            "__BORNHOST": "producer-host",
        },
        born_timestamp_ms=NOW_MS - 5,
        born_host=Host(bytes([192, 0, 2, 7]), 50123),
        store_host=Host(bytes([10, 0, 0, 1]), 8081),
    )


def test_what_special_messages_are_stored_with() -> None:
    taken = taken_in(
        message(
            message_id="ID",
            message_type=definition.TRANSACTION,
            body_encoding=definition.GZIP,
            orphaned_transaction_recovery_duration=Duration(seconds=30),
            delivery_timestamp=at(NOW_MS + 60_000),
            message_group="group",
            priority=5,
            lite_topic="lite",
            trace_context="00-abc",
            delivery_attempt=2,
        )
    )
    assert taken.system_flag == 0x5  # compressed, prepared
    assert taken.properties == {
        "UNIQ_KEY": "ID",
        "PGROUP": "orders",
        "BORN_TIMESTAMP": str(NOW_MS),
        "__BORNHOST": PEER,
        "TRAN_MSG": "true",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "30",
        "TIMER_DELIVER_MS": str(NOW_MS + 60_000),
        "__SHARDINGKEY": "group",
        "_SYS_MSG_PRIORITY_": "5",
        "__LITE_TOPIC": "lite",
        "TRACE_CONTEXT": "00-abc",
        "RECONSUME_TIME": "2",
    }


def test_a_host_that_could_forge_properties_is_replaced() -> None:
    assert taken_in(message(born_host="a\x02TAGS\x01forged")).properties["__BORNHOST"] == PEER


@pytest.mark.parametrize("seconds", [2**62, -(2**62), -1])
def test_an_impossible_birth_is_now(seconds: int) -> None:
    """What does not fit the record's field must not fail the whole round of appends."""
    taken = taken_in(message(born_timestamp=Timestamp(seconds=seconds)))
    assert taken.born_timestamp_ms == NOW_MS


def test_what_a_receiver_sees() -> None:
    """Point 35."""
    sent = message(
        body=b"\x1f\x8bcompressed by the sender",
        user_properties={"region": "north", "INNER": "x"},
        message_id="ID",
        tag="t",
        keys=["k1", "k2"],
        born_timestamp=at(NOW_MS - 5),
        body_encoding=definition.GZIP,
    )
    got = delivered(stored(taken_in(sent)), attempt=3, invisible_ms=15_500)
    system = got.system_properties
    assert got.topic.name == "orders"
    assert got.body == sent.body
    assert dict(got.user_properties) == {"region": "north", "INNER": "x"}
    assert (system.tag, list(system.keys), system.message_id) == ("t", ["k1", "k2"], "ID")
    assert system.body_digest.type == definition.MD5
    assert system.body_digest.checksum == md5(sent.body).hexdigest().upper()
    assert system.body_encoding == definition.GZIP
    assert system.message_type == definition.NORMAL
    assert system.born_timestamp.ToMilliseconds() == NOW_MS - 5
    assert system.store_timestamp.ToMilliseconds() == NOW_MS + 7
    assert (system.born_host, system.store_host) == (PEER, "10.0.0.1:8081")
    assert (system.queue_id, system.queue_offset) == (3, 42)
    assert system.receipt_handle == "handle"
    assert system.delivery_attempt == 3
    assert system.invisible_duration.ToMilliseconds() == 15_500
    absent = {"delivery_timestamp", "message_group", "trace_context", "dead_letter_queue", "lite_topic", "priority"}
    assert not [field for field in absent if system.HasField(field)]


def test_what_is_not_there_is_not_invented() -> None:
    got = there_and_back(message(tag="", keys=[]))
    assert not got.system_properties.HasField("tag")
    assert not got.system_properties.keys
    assert not got.user_properties
    assert got.system_properties.body_encoding == definition.IDENTITY
    assert not got.system_properties.HasField("invisible_duration")


def test_the_first_queue_offset_is_set_too() -> None:
    record = stored(taken_in(message()))._replace(queue_offset=QueueOffset(0))
    assert delivered(record).system_properties.HasField("queue_offset")


def test_special_messages_come_back_as_they_were() -> None:
    system = there_and_back(
        message(
            delivery_timestamp=at(NOW_MS + 60_001),
            message_group="group",
            priority=0,
            lite_topic="lite",
            trace_context="00-abc",
        )
    ).system_properties
    assert system.message_type == definition.DELAY
    assert system.delivery_timestamp.ToMilliseconds() == NOW_MS + 60_001
    assert (system.message_group, system.lite_topic, system.trace_context) == ("group", "lite", "00-abc")
    assert system.HasField("priority")


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, definition.NORMAL),
        ({"TRAN_MSG": "true", "DELAY": "3"}, definition.TRANSACTION),
        ({"TRAN_MSG": "false"}, definition.NORMAL),
        ({"DELAY": "3", "__SHARDINGKEY": "g"}, definition.DELAY),
        ({"TIMER_DELAY_SEC": "3"}, definition.DELAY),
        ({"TIMER_DELAY_MS": "3"}, definition.DELAY),
        ({"TIMER_DELIVER_MS": "3"}, definition.DELAY),
        ({"__SHARDINGKEY": "g", "_SYS_MSG_PRIORITY_": "1"}, definition.FIFO),
        ({"_SYS_MSG_PRIORITY_": "1", "__LITE_TOPIC": "l"}, definition.PRIORITY),
        ({"__LITE_TOPIC": "l"}, definition.LITE),
    ],
)
def test_the_type_of_stored_messages(properties: dict[str, str], kind: definition.MessageType) -> None:
    assert from_others(properties).system_properties.message_type == kind


def test_messages_of_other_brokers() -> None:
    """What older clients and RocketMQ itself add stays out of sight."""
    got = from_others(
        {
            "WAIT": "true",
            "CLUSTER": "DefaultCluster",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "région": "île-1",
            "DLQ_ORIGIN_TOPIC": "payments",
            "DLQ_ORIGIN_MESSAGE_ID": "ID-1",
        }
    )
    assert dict(got.user_properties) == {"région": "île-1"}
    assert got.system_properties.dead_letter_queue.topic == "payments"
    assert got.system_properties.dead_letter_queue.message_id == "ID-1"


@pytest.mark.parametrize("text", ["soon", "-1", "", " 1", "1e3", "9" * 19, "9" * 10_000, str(2**63)])
def test_numbers_that_are_none_or_do_not_fit_are_left_out(text: str) -> None:
    """A bad property of one message must not stop the delivery of its queue."""
    names = ("TIMER_DELIVER_MS", "_SYS_MSG_PRIORITY_", "CHECK_IMMUNITY_TIME_IN_SECONDS")
    system = from_others(dict.fromkeys(names, text)).system_properties
    assert not system.HasField("delivery_timestamp")
    assert not system.HasField("priority")
    assert not system.HasField("orphaned_transaction_recovery_duration")


def test_a_message_without_id_is_called_by_its_place() -> None:
    assert from_others({}).system_properties.message_id == "0A00000100001F9100000000000003E8"


PRINTABLE = st.characters(exclude_categories=["Cc", "Cs"])
TEXT = st.text(PRINTABLE, min_size=1, max_size=20)
WORD = TEXT.map(lambda text: text.replace(" ", "")).filter(lambda text: bool(text.strip()))
NAMES = TEXT.filter(lambda name: name not in RESERVED_PROPERTIES and not name.startswith(RESERVED_PREFIX))


@settings(max_examples=150)
@given(
    body=st.binary(min_size=1, max_size=100),
    user_properties=st.dictionaries(NAMES, TEXT, max_size=6),
    tag=st.none() | WORD.filter(lambda tag: "|" not in tag),
    keys=st.lists(WORD, max_size=4),
    message_id=TEXT.filter(lambda text: bool(text.strip())),
    group=st.none() | st.text("abcdé/", min_size=1, max_size=20),
    encoding=st.sampled_from([definition.IDENTITY, definition.GZIP]),
    born_ms=st.integers(0, 2**42),
)
def test_a_message_comes_back_as_sent(
    body: bytes,
    user_properties: dict[str, str],
    tag: str | None,
    keys: list[str],
    message_id: str,
    group: str | None,
    encoding: definition.Encoding,
    born_ms: int,
) -> None:
    """Point 35: exactly the sender's properties."""
    sent = message(
        body=body,
        user_properties=user_properties,
        message_id=message_id,
        keys=keys,
        body_encoding=encoding,
        born_timestamp=at(born_ms),
    )
    if tag is not None:
        sent.system_properties.tag = tag
    if group is not None:
        sent.system_properties.message_group = group
    got = there_and_back(sent)
    assert got.body == body
    assert dict(got.user_properties) == user_properties
    system = got.system_properties
    assert system.HasField("tag") == (tag is not None)
    assert system.tag == (tag or "")
    assert list(system.keys) == keys
    assert system.message_id == message_id
    assert system.body_encoding == encoding
    assert system.born_timestamp.ToMilliseconds() == born_ms
    assert system.message_type == (definition.NORMAL if group is None else definition.FIFO)
    assert system.message_group == (group or "")


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("127.0.0.1:8081", Host(bytes([127, 0, 0, 1]), 8081)),
        ("[::1]:9", Host(bytes(15) + b"\x01", 9)),
        ("[::ffff:10.0.0.1]:5", Host(bytes([10, 0, 0, 1]), 5)),
        ("unix:/tmp/socket", NO_HOST),
        ("name:80", NO_HOST),
        ("127.0.0.1", NO_HOST),
        ("127.0.0.1:70000", NO_HOST),
        ("127.0.0.1:-1", NO_HOST),
        ("", NO_HOST),
    ],
)
def test_hosts(text: str, host: Host) -> None:
    assert host_from_text(text) == host
    if host is not NO_HOST and "ffff" not in text:
        assert host_text(host) == text
