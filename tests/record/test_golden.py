"""Every record that RocketMQ 5.5.0 wrote into the golden stores, read and written again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from quarry_mq.protocol.messages.property_names import CRC_PROPERTY
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import (
    Blank,
    EndOfData,
    StoredMessage,
    decode_record,
    encode_blank,
    encode_properties,
    encode_record,
    offset_message_id,
    record_size,
    tags_code,
)
from tests import golden
from tests.record.records import as_message, message, record

GoldenStore = Callable[[str], Path]
FILE_UNIT = Struct(">qiq")


def segments(store: Path) -> Iterator[tuple[int, memoryview]]:
    for path in sorted((store / "store" / "commitlog").iterdir()):
        yield int(path.name), memoryview(path.read_bytes())


def walk(store: Path, *, crc_required: bool = False) -> Iterator[tuple[StoredMessage | Blank, memoryview]]:
    """Every record and blank with its bytes; nothing but zeros may follow the last one."""
    for base, segment in segments(store):
        position = 0
        while position < len(segment):
            at = PhysicalOffset(base + position)
            decoded = decode_record(segment, position, at, require_crc_property=crc_required)
            if isinstance(decoded, EndOfData):
                assert not any(segment[position:])
                break
            assert isinstance(decoded, StoredMessage | Blank), decoded
            yield decoded, segment[position : position + decoded.size]
            position += decoded.size


def as_golden(decoded: StoredMessage | Blank) -> dict[str, Any]:
    """The fields that RocketMQ's decoder reported, without the digest of the body."""
    if isinstance(decoded, Blank):
        return {"blank": decoded.physical_offset, "size": decoded.size}
    message_id = offset_message_id(decoded.store_host, decoded.physical_offset)
    born, stored = decoded.born_host, decoded.store_host
    return {
        "bodyCRC": decoded.body_crc,
        "bodyLength": len(decoded.body),
        "bornHost": f"{'.'.join(map(str, born.address))}:{born.port}",
        "bornTimestamp": decoded.born_timestamp_ms,
        "flag": decoded.flag,
        "magic": f"{decoded.magic:08x}",
        "msgId": message_id,
        "offsetMsgId": message_id,
        "phyOffset": decoded.physical_offset,
        "preparedTransactionOffset": decoded.prepared_transaction_offset,
        "properties": decoded.properties,
        "queueId": decoded.queue_number,
        "queueOffset": decoded.queue_offset,
        "reconsumeTimes": decoded.reconsume_times,
        "storeHost": f"{'.'.join(map(str, stored.address))}:{stored.port}",
        "storeSize": decoded.size,
        "storeTimestamp": decoded.store_timestamp_ms,
        "sysFlag": decoded.system_flag,
        "topic": decoded.topic,
    }


@pytest.mark.parametrize("name", golden.NAMES)
def test_records_read_as_rocketmq_reads_them(golden_store: GoldenStore, name: str) -> None:
    store = golden_store(name)
    expected = golden.records(store)
    for line in expected:
        line.pop("bodySha1", None)
    assert [as_golden(decoded) for decoded, _ in walk(store)] == expected


@pytest.mark.parametrize("name", golden.NAMES)
def test_records_are_written_as_rocketmq_wrote_them(golden_store: GoldenStore, name: str) -> None:
    """Byte for byte, with the properties in the order in which they were stored."""
    for decoded, data in walk(golden_store(name)):
        if isinstance(decoded, Blank):
            assert encode_blank(decoded.size) == data[:8]
            continue
        message = as_message(decoded)
        raw_properties = encode_properties(message.properties)
        has_crc = CRC_PROPERTY in message.properties
        encoded = encode_record(
            message,
            queue_offset=decoded.queue_offset,
            physical_offset=decoded.physical_offset,
            store_timestamp_ms=decoded.store_timestamp_ms,
            raw_properties=raw_properties,
            crc_property=has_crc,
        )
        assert encoded == data
        assert len(encoded) == record_size(message, raw_properties, has_crc)


def test_every_record_of_a_log_with_crc_properties_has_a_right_one(golden_store: GoldenStore) -> None:
    decoded = [each for each, _ in walk(golden_store("file-kill"), crc_required=True)]
    assert len(decoded) == len(golden.records(golden_store("file-kill")))


@pytest.mark.parametrize("name", ["file-clean", "file-kill"])
def test_tags_codes_are_those_of_rocketmqs_units(golden_store: GoldenStore, name: str) -> None:
    """The units of every queue, the schedule topic's with their delivery times among them."""
    store = golden_store(name)
    stored = {each.physical_offset: each for each, _ in walk(store) if isinstance(each, StoredMessage)}
    compared = set()
    for path in (store / "store" / "consumequeue").glob("*/*/*"):
        units = path.read_bytes()
        for physical_offset, size, code in FILE_UNIT.iter_unpack(units[: len(units) // 20 * 20]):
            if size == 0:
                break
            each = stored[physical_offset]
            assert tags_code(each.topic, each.properties, each.store_timestamp_ms) == code, each
            assert each.size == size
            compared.add(each.topic)
    assert {"SCHEDULE_TOPIC_XXXX", "acme-orders", "%RETRY%acme-cg"} <= compared


PAGE = Path(__file__).parents[2] / "docs" / "formats" / "commit-log.md"


def test_example_of_the_page() -> None:
    (example,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    shown = bytes.fromhex("".join(line.partition("|")[0] for line in example.splitlines()))
    assert shown == record(message(topic="T", body=b"hi", properties={"a": "b"}), 4096)
