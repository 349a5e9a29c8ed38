"""Stored messages as new ones: their bodies as receivers have them."""

from __future__ import annotations

import gzip
import zlib

import lz4.frame
import pytest

from quarry_mq.protocol.messages.property_names import BORN_TIMESTAMP, COMPRESSED_BY
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.admin_port.messages.dead_letters import new_message
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.message import PhysicalOffset, QueueOffset
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.record import StoredMessage, decode_record, encode_properties, encode_record
from tests.store.assembly import message

NOW_MS = 1_700_000_000_000
TOPIC = Topic("orders", TopicType.NORMAL, 1, 1)


def resent(body: bytes, system_flag: int, **properties: str) -> definition.Message:
    stored = message("orders", 0, body, UNIQ_KEY="id", **properties)._replace(system_flag=system_flag)
    record = encode_record(stored, QueueOffset(0), PhysicalOffset(0), NOW_MS, encode_properties(stored.properties))
    found = decode_record(memoryview(record), 0, PhysicalOffset(0))
    assert isinstance(found, StoredMessage)
    return new_message(found, TOPIC, 1, NOW_MS)


def test_what_remoting_producers_compressed_is_sent_plain() -> None:
    for flag, packed in ((Compression.ZLIB, zlib.compress(b"body")), (Compression.LZ4, lz4.frame.compress(b"body"))):
        sent = resent(packed, COMPRESSED | flag)
        assert (sent.body, sent.system_properties.body_encoding) == (b"body", definition.IDENTITY)


def test_what_a_grpc_client_called_gzip_is_sent_so() -> None:
    mark = {BORN_TIMESTAMP: str(NOW_MS), COMPRESSED_BY: "its own property"}
    for body in (gzip.compress(b"body"), b"neither"):
        sent = resent(body, COMPRESSED, **mark)
        assert (sent.body, sent.system_properties.body_encoding) == (body, definition.GZIP)
        assert sent.user_properties[COMPRESSED_BY] == "its own property"


def test_what_cannot_be_made_plain_is_refused_by_its_method() -> None:
    with pytest.raises(Refused, match=r"the body is compressed \(lz4\) and cannot be decompressed"):
        resent(b"broken", COMPRESSED | Compression.LZ4)
