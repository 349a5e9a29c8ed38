"""Formats records for people and for programs.

The JSON object has the keys that RocketMQ's tools use for a decoded message, so that both can be compared by `diff`:
keys are sorted, and only the necessary characters are escaped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from quarry_mq.cli.terminal.text import moment, one_line
from quarry_mq.store.message import host_text
from quarry_mq.store.record import Blank, StoredMessage, offset_message_id

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def json_line(fields: Mapping[str, object]) -> str:
    return _ENCODER.encode(fields)


def record_fields(record: StoredMessage | Blank) -> dict[str, object]:
    """Return the fields of a record.

    Digest and length are those of the body as stored: a compressed one stays compressed.
    """
    if isinstance(record, Blank):
        return {"blank": record.physical_offset, "size": record.size}
    offset_id = offset_message_id(record.store_host, record.physical_offset)
    return {
        "bodyCRC": record.body_crc,
        "bodyLength": len(record.body),
        "bodySha1": hashlib.sha1(record.body, usedforsecurity=False).hexdigest(),
        "bornHost": host_text(record.born_host),
        "bornTimestamp": record.born_timestamp_ms,
        "flag": record.flag,
        "magic": f"{record.magic:08x}",
        "msgId": offset_id,
        "offsetMsgId": offset_id,
        "phyOffset": record.physical_offset,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "properties": record.properties,
        "queueId": record.queue_number,
        "queueOffset": record.queue_offset,
        "reconsumeTimes": record.reconsume_times,
        "storeHost": host_text(record.store_host),
        "storeSize": record.size,
        "storeTimestamp": record.store_timestamp_ms,
        "sysFlag": record.system_flag,
        "topic": record.topic,
    }


def record_lines(record: StoredMessage | Blank) -> str:
    """Format a record as one line of numbers, with its properties, if any, indented below."""
    if isinstance(record, Blank):
        return f"{record.physical_offset:>15}  {record.size:>8}  blank up to the end of the segment"
    line = (
        f"{record.physical_offset:>15}  {record.size:>8}  {exact_time_text(record.store_timestamp_ms)}  "
        f"{one_line(record.topic)}/{record.queue_number}@{record.queue_offset}  body {len(record.body)}"
    )
    if record.system_flag:
        line += f"  flags {record.system_flag:#x}"
    if record.reconsume_times:
        line += f"  redelivered {record.reconsume_times}"
    properties = "  ".join(f"{one_line(name)}={one_line(value)}" for name, value in sorted(record.properties.items()))
    return f"{line}\n{'':>17}{properties}" if properties else line


def exact_time_text(timestamp_ms: int) -> str:
    """Format a time as UTC with milliseconds; as the bare number if no calendar reaches it."""
    found = moment(timestamp_ms)
    if found is None:
        return str(timestamp_ms)
    return found.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds") + "Z"
