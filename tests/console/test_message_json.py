"""Records as pages show them: text, JSON, bytes, compressed in each way, cut, huge, damaged."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import lz4.frame
import pytest

from quarry_mq.protocol.messages.property_names import DELIVER_AT_MS, KEYS, LITE_TOPIC, MESSAGE_GROUP, TAGS, UNIQUE_KEY
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression, TransactionState
from quarry_mq.server.admin_port.console import (
    BODIES_MAX,
    BODY_BEYOND_MAX,
    BODY_IN_LIST_MAX,
    BODY_MAX,
    Room,
    message_fields,
)
from quarry_mq.store.message import Host, Message, PhysicalOffset, QueueOffset
from quarry_mq.store.record import encode_properties, encode_record
from tests.record import zstd

AT: Final = 4096
STORED_AT_MS: Final = 1_770_000_000_000
BORN, STORE = Host(bytes([10, 0, 0, 1]), 5000), Host(bytes([10, 0, 0, 2]), 8081)


def record(body: bytes, *, flag: int = 0, properties: Mapping[str, str] = MappingProxyType({})) -> bytes:
    message = Message("orders", 3, body, properties, STORED_AT_MS - 5, BORN, STORE, system_flag=flag, reconsume_times=2)
    return encode_record(message, QueueOffset(7), PhysicalOffset(AT), STORED_AT_MS, encode_properties(properties))


def shown(body: bytes, *, flag: int = 0, body_max: int = BODY_IN_LIST_MAX) -> dict[str, Any]:
    return message_fields(record(body, flag=flag), AT, Room(body_max))


def test_all_that_is_there() -> None:
    properties = {
        UNIQUE_KEY: "01AA",
        TAGS: "paid",
        KEYS: "k1  k2",
        MESSAGE_GROUP: "g",
        LITE_TOPIC: "l",
        DELIVER_AT_MS: "1770000000001",
        "a": "b",
    }
    stored = record(b"{}", flag=TransactionState.COMMIT, properties=properties)
    assert message_fields(stored, AT, Room(100)) == {
        "messageId": "01AA",
        "offsetId": "0A00000200001F910000000000001000",
        "topic": "orders",
        "queue": 3,
        "offset": 7,
        "physicalOffset": AT,
        "storedAtMs": STORED_AT_MS,
        "bornAtMs": STORED_AT_MS - 5,
        "bornHost": "10.0.0.1:5000",
        "storeHost": "10.0.0.2:8081",
        "tag": "paid",
        "keys": ["k1", "k2"],
        "messageGroup": "g",
        "liteTopic": "l",
        "deliverAtMs": 1_770_000_000_001,
        "reconsumeTimes": 2,
        "transactionState": "commit",
        "properties": properties,
        "bodySize": 2,
        "compression": None,
        "body": {"text": "{}", "base64": "e30=", "isCut": False, "plainSize": 2},
    }


def test_what_is_not_there_is_left_out() -> None:
    fields = shown(b"")
    assert fields["messageId"] == fields["offsetId"]
    assert not fields.keys() & {"tag", "messageGroup", "liteTopic", "deliverAtMs", "transactionState"}
    assert fields["keys"] == []
    assert fields["body"] == {"text": "", "base64": "", "isCut": False, "plainSize": 0}
    odd = message_fields(record(b"", properties={DELIVER_AT_MS: "\u0663soon"}), AT, Room(1))
    assert "deliverAtMs" not in odd


@pytest.mark.parametrize("body", [b"\xff\xfe", b"\x00", b"\x1b[2J"])
def test_what_is_no_text_has_none(body: bytes) -> None:
    assert shown(body)["body"] == {
        "text": None,
        "base64": base64.b64encode(body).decode(),
        "isCut": False,
        "plainSize": len(body),
    }


@pytest.mark.parametrize(
    ("flag", "compress", "name"),
    [
        (COMPRESSED, zlib.compress, "zlib"),
        (COMPRESSED | Compression.ZLIB, zlib.compress, "zlib"),
        (COMPRESSED, gzip.compress, "gzip"),
        (COMPRESSED | Compression.LZ4, lz4.frame.compress, "lz4"),
        (COMPRESSED | Compression.ZSTD, zstd.compress, "zstd"),
    ],
)
def test_bodies_are_uncompressed_where_they_can_be(flag: int, compress: Any, name: str) -> None:
    body = json.dumps({"zwölf": list(range(100))}, ensure_ascii=False).encode()
    fields = shown(compress(body), flag=flag)
    assert fields["compression"] == name
    assert fields["bodySize"] == len(compress(body))
    assert fields["body"] == {
        "text": body.decode(),
        "base64": base64.b64encode(body).decode(),
        "isCut": False,
        "plainSize": len(body),
    }


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        (COMPRESSED | Compression.LZ4, "lz4"),
        (COMPRESSED | Compression.ZSTD, "zstd"),
        (COMPRESSED | 0x700, "unknown"),
        (COMPRESSED, "zlib"),
    ],
)
def test_others_are_shown_as_they_lie_there(flag: int, name: str) -> None:
    """The last one says that it is zlib, and is not."""
    fields = shown(b"looks like text", flag=flag)
    assert fields["compression"] == name
    assert fields["body"] == {
        "text": None,
        "base64": base64.b64encode(b"looks like text").decode(),
        "isCut": False,
        "plainSize": None,
    }


def test_long_bodies_are_cut_between_characters() -> None:
    body = "ä€😀".encode() * 10
    for size in range(9, 20):
        cut = shown(body * 100, body_max=256 + size)["body"]
        assert cut["isCut"]
        assert cut["plainSize"] == len(body) * 100
        text: str = cut["text"]
        assert (body * 100).decode().startswith(text)
        assert 256 + size - len(text.encode()) < 4
        assert len(base64.b64decode(cut["base64"])) == 256 + size
    whole = shown(b"a" * BODY_IN_LIST_MAX)["body"]
    assert not whole["isCut"]
    assert shown(b"a" * (BODY_IN_LIST_MAX + 1))["body"]["isCut"]


def test_one_that_was_asked_for_alone_is_shown_whole() -> None:
    body = b"a" * BODY_MAX
    assert not shown(body, body_max=BODY_MAX)["body"]["isCut"]
    assert not shown(zlib.compress(body), flag=COMPRESSED, body_max=BODY_MAX)["body"]["isCut"]
    assert shown(zlib.compress(body + b"a"), flag=COMPRESSED, body_max=BODY_MAX)["body"]["isCut"]


def test_a_bomb_does_not_go_off() -> None:
    """Much in little: only what is shown is ever unpacked, and how much there is remains unknown."""
    packer = zlib.compressobj(1)
    zeros = bytes(1024 * 1024)
    bomb = b"".join([*(packer.compress(zeros) for _ in range(64)), packer.flush()])
    fields = shown(bomb, flag=COMPRESSED)
    assert fields["body"]["isCut"]
    assert fields["body"]["plainSize"] is None
    assert len(base64.b64decode(fields["body"]["base64"])) == BODY_IN_LIST_MAX


def test_a_compressed_body_that_breaks_off_is_shown_up_to_there() -> None:
    body = shown(zlib.compress(b"hello " * 100)[:-4], flag=COMPRESSED)["body"]
    assert body["isCut"]
    assert body["plainSize"] is None
    assert body["text"].startswith("hello hello")


def test_the_bodies_of_one_answer_have_a_size_together() -> None:
    room = Room(BODY_IN_LIST_MAX)
    stored = record(b"a" * BODY_IN_LIST_MAX)
    sizes = [len(base64.b64decode(message_fields(stored, AT, room)["body"]["base64"])) for _ in range(500)]  # type: ignore[index]
    assert sizes[0] == BODY_IN_LIST_MAX
    assert sizes[-1] == BODY_BEYOND_MAX
    assert sum(sizes) <= BODIES_MAX + 500 * BODY_BEYOND_MAX


@pytest.mark.parametrize(
    "damage", [b"", b"\x00" * 100, record(b"hello")[:-1], record(b"hello").replace(b"hello", b"hallo")]
)
def test_what_is_no_record_is_told_of(damage: bytes) -> None:
    assert message_fields(damage, AT, Room(100)) == {
        "physicalOffset": AT,
        "problem": "the answer contains no complete record",
    }
