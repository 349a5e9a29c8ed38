"""Messages as receives answer with them: the native part, Python and protobuf write the same."""

from __future__ import annotations

import zlib
from random import Random

import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.messages.property_names import RESERVED_PROPERTIES
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.delivery import Delivered
from quarry_mq.server.rpc.plain import PlainReceiveWriter
from quarry_mq.server.rpc.receives import UNUSUAL_PROPERTIES, message_items
from quarry_mq.server.wire.messages import fill_message
from quarry_mq.store.message import Host, PhysicalOffset, QueueOffset
from quarry_mq.store.native import NATIVE, Native, ReceiveWriter, ReceiveWriterMaker
from quarry_mq.store.record import StoredMessage
from tests.record import zstd

KINDS: list[Native | None] = [None] if NATIVE is None else [None, NATIVE]
"""Both writers of plain messages: Python, and the native part where it is installed."""

ID = b"UNIQ_KEY\x01id-1\x02"
SENT_NOW = ID + b"BORN_TIMESTAMP\x011700000000123\x02"
LOOPBACK = Host(b"\x7f\0\0\1", 8081)
ATTEMPTS = st.integers(1, 2**31 - 1)
TIMES = st.one_of(
    st.integers(0, 2**40), st.sampled_from([0, 999, 1000, 253_402_300_799_999, 253_402_300_800_000, 2**63 - 1])
)
INVISIBLE = st.one_of(st.integers(0, 2**40), st.sampled_from([0, 999, 1000]))
HOSTS = st.builds(
    Host,
    st.one_of(
        st.binary(min_size=4, max_size=4),
        st.binary(min_size=16, max_size=16),
        st.sampled_from([bytes(16), bytes(10) + b"\xff\xff\1\2\3\4", bytes(15) + b"\1", b"\x20\1" + bytes(13) + b"\1"]),
        st.lists(st.sampled_from([b"\0\0", b"\0\1", b"\x0a\xbc"]), min_size=8, max_size=8).map(b"".join),
    ),
    st.integers(0, 65_535),
)
NAMES = st.one_of(
    st.sampled_from(sorted(RESERVED_PROPERTIES)),
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "BORN_TIMESTAMP"]),
    st.text("aä€\U0001f600 ", max_size=3),
)
VALUES = st.one_of(st.text("abä€\U0001f600 ", max_size=12), st.sampled_from(["true", "1", " a  b ", "\ufffd"]))
ENTRIES = st.lists(st.tuples(NAMES, VALUES).map(lambda pair: f"{pair[0]}\x01{pair[1]}\x02".encode()), max_size=8)


def handed_out(
    raw_properties: bytes = ID,
    body: bytes = b"body",
    *,
    hosts: tuple[Host, Host] = (LOOPBACK, LOOPBACK),
    times: tuple[int, int] = (1_700_000_000_123, 1_700_000_000_456),
    system_flag: int = 0,
    place: tuple[int, int] = (3, 5),
    delivery: tuple[str, int, int] = ("handle", 1, 10_000),
) -> Delivered:
    record = StoredMessage(
        100, 0, 0, place[0], 0, QueueOffset(place[1]), PhysicalOffset(7), system_flag, times[0], hosts[0], times[1],
        hosts[1], 0, 0, memoryview(body), "orders", raw_properties,
    )  # fmt: skip
    return Delivered(record, *delivery)


DIGESTS = st.sampled_from([definition.MD5, definition.CRC32])
DELIVERED = st.builds(
    handed_out,
    st.one_of(
        st.lists(ENTRIES.map(b"".join), max_size=3).map(ID.join),
        ENTRIES.map(lambda entries: ID + b"".join(entries)),
        st.binary(max_size=30).map(lambda noise: ID + noise),
        st.lists(st.sampled_from([b"\1", b"\2", b"a", b"TAGS", b"\xc3", b"\xa4", ID]), max_size=9).map(b"".join),
    ),
    st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=200).map(zlib.compress),
        st.binary(max_size=200).map(lz4.frame.compress),
        st.binary(max_size=200).map(zstd.compress),
    ),
    hosts=st.tuples(HOSTS, HOSTS),
    times=st.tuples(st.one_of(TIMES, st.integers(-5, 0), st.just(-(2**63))), TIMES),
    system_flag=st.integers(0, 0x7FF),
    place=st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62)),
    delivery=st.tuples(st.text("abc_-=.ä", max_size=60), ATTEMPTS, INVISIBLE),
)


def writer_of(native: Native | None) -> ReceiveWriter:
    maker: ReceiveWriterMaker = PlainReceiveWriter if native is None else native.ReceiveWriter
    return maker(RESERVED_PROPERTIES, UNUSUAL_PROPERTIES)


def by_protobuf(topic: str, message: Delivered, digest: definition.DigestType = definition.MD5) -> bytes:
    response = service.ReceiveMessageResponse()
    fill_message(
        response.message,
        message.record,
        topic=topic,
        receipt_handle=message.receipt_handle,
        delivery_attempt=message.attempt,
        invisible_ms=message.invisible_ms,
        digest=digest,
    )
    return response.SerializeToString()


def parsed(items: list[bytes]) -> list[service.ReceiveMessageResponse]:
    return [service.ReceiveMessageResponse.FromString(item) for item in items]


@pytest.mark.parametrize("native", KINDS)
@settings(max_examples=300)
@given(st.sampled_from(["orders", "%RETRY%g", "t" * 127, "ö"]), st.lists(DELIVERED, max_size=3), DIGESTS)
def test_what_is_written_is_what_protobuf_writes(
    native: Native | None, topic: str, messages: list[Delivered], digest: definition.DigestType
) -> None:
    written = message_items(native)(topic, messages, digest)
    assert parsed(written) == parsed([by_protobuf(topic, each, digest) for each in messages])


@pytest.mark.parametrize("native", KINDS)
@settings(max_examples=200)
@given(
    st.dictionaries(st.text("ab", min_size=1), st.text("xyz ", min_size=1), max_size=1),
    st.text("rgb", max_size=3),
    st.lists(st.text("k1", min_size=1), max_size=3),
    st.binary(max_size=2_000),
    DIGESTS,
)
def test_plain_messages_are_written_to_the_byte(
    native: Native | None, user: dict[str, str], tag: str, keys: list[str], body: bytes, digest: definition.DigestType
) -> None:
    properties = {**user, "TAGS": tag, "KEYS": " ".join(keys), "UNIQ_KEY": "id", "PGROUP": "orders"}
    raw = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    message = handed_out(raw, body)
    assert writer_of(native).write("orders", [message], digest) == [by_protobuf("orders", message, digest)]


@pytest.mark.parametrize("native", KINDS)
@pytest.mark.parametrize("digest", [definition.MD5, definition.CRC32])
@pytest.mark.parametrize("size", [4_095, 4_096, 4_097, 8_192, 1_000_001])
def test_large_bodies_are_digested_and_copied_as_a_whole(
    native: Native | None, size: int, digest: definition.DigestType
) -> None:
    large = handed_out(body=Random(size).randbytes(size))
    assert writer_of(native).write("orders", [large], digest) == [by_protobuf("orders", large, digest)]


@pytest.mark.parametrize("size", [126, 127, 128, 4_095, 4_096, 20_000])
@pytest.mark.parametrize("name", ["a", "TAGS", "KEYS", "UNIQ_KEY"])
def test_long_texts_are_written_as_protobuf_writes_them(name: str, size: int) -> None:
    raw = (b"" if name == "UNIQ_KEY" else ID) + f"{name}\x01{'x' * size}\x02".encode()
    message = handed_out(raw, delivery=("h" * size, 1, 1))
    for native in KINDS:
        assert message_items(native)("orders", [message], definition.MD5) == [by_protobuf("orders", message)]


@pytest.mark.parametrize(
    "unusual",
    [
        handed_out(b""),
        handed_out(b"TAGS\x01a\x02"),
        handed_out(ID + ID),
        handed_out(ID + b"a\x01b\x02a\x01c\x02"),
        handed_out(ID + b"a\x01\xff\x02"),
        handed_out(ID + b"".join(b"%d\x01b\x02" % number for number in range(64))),
        handed_out(ID + b"TRAN_MSG\x01false\x02"),
        handed_out(ID + b"__SHARDINGKEY\x01g\x02"),
        handed_out(ID + b"TRACE_CONTEXT\x01t\x02"),
        handed_out(ID + b"DLQ_ORIGIN_TOPIC\x01t\x02"),
        handed_out(ID + b"DELAY\x013\x02"),
        handed_out(hosts=(Host(bytes(10) + b"\xff\xff\1\2\3\4", 1), LOOPBACK)),
        handed_out(body=zlib.compress(b"body"), system_flag=COMPRESSED),
        handed_out(SENT_NOW, zlib.compress(b"body"), system_flag=COMPRESSED | Compression.ZLIB),
        handed_out(SENT_NOW, lz4.frame.compress(b"body"), system_flag=COMPRESSED | Compression.LZ4),
        handed_out(SENT_NOW, zstd.compress(b"body"), system_flag=COMPRESSED | Compression.ZSTD),
    ],
)  # fmt: skip
def test_what_is_unusual_is_left_to_python(native: Native, unusual: Delivered) -> None:
    assert writer_of(native).write("orders", [unusual], definition.MD5) == [None]
    expected = parsed([by_protobuf("orders", each) for each in (handed_out(), unusual)])
    for kind in KINDS:
        assert parsed(message_items(kind)("orders", [handed_out(), unusual], definition.MD5)) == expected


def test_what_a_sender_called_gzip_is_written(native: Native) -> None:
    sent = handed_out(SENT_NOW, b"as it came", system_flag=COMPRESSED)
    [item] = message_items(native)("orders", [sent], definition.MD5)
    assert writer_of(native).write("orders", [sent], definition.MD5) == [item]
    [answer] = parsed([by_protobuf("orders", sent)])
    assert (answer.message.body, answer.message.system_properties.body_encoding) == (b"as it came", definition.GZIP)
    assert service.ReceiveMessageResponse.FromString(item) == answer


def test_what_is_no_message_is_told(native: Native) -> None:
    writer = native.ReceiveWriter(set(), set())
    for wrong in [(), (1,), (handed_out().record,), (tuple(range(17)), "h", 1, 1)]:
        with pytest.raises((TypeError, IndexError, BufferError)):
            writer.write("orders", [wrong], definition.MD5)  # type: ignore[list-item]
