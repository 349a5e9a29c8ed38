"""`quarry decode` shows records of the commit log, in formats for people and for programs.

The JSON object has the keys that RocketMQ's tools use for a decoded message, so that both can be compared by `diff`:
keys are sorted, and only the necessary characters are escaped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Final

import typer

from quarry_mq.cli.offline.opened_store import Json, Store, opened
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.text import moment, one_line, say
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset, host_text
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.record import Blank, Corrupt, EndOfData, StoredMessage, Torn, offset_message_id

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


Found = StoredMessage | Blank | Torn | Corrupt


def decode(
    store: Store,
    *,
    at: Annotated[
        int | None,
        typer.Option(
            "--at", min=0, metavar="PHY", help="Start at this physical offset, which must be the start of a record."
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="With --queue and --offset: look up one consume queue entry.")
    ] = None,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Number of the queue.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="Queue offset of the entry.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help="Maximum number of records. Default: all; with --offset: 1.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Decode records of the commit log and run all checks on them.

    Without --topic: everything in log order, blanks between segments included. With --topic, --queue and --offset:
    from that entry of the queue to its record.

    Damage is reported on stderr with file, offset and reason, and ends the command with exit code 1.
    """
    lookup = (topic, queue, offset)
    if any(option is not None for option in lookup) and (None in lookup or at is not None):
        raise typer.BadParameter("--topic, --queue and --offset go together, and without --at")
    with opened(store) as open_store:
        if topic is None or queue is None or offset is None:
            _show(open_store, islice(_from_log(open_store, at), limit), as_json=as_json)
        else:
            records = _from_queue(open_store, QueueId(topic, queue), QueueOffset(offset))
            _show(open_store, islice(records, limit or 1), as_json=as_json)


def _from_log(store: OfflineStore, at: int | None) -> Iterator[Found]:
    """Yield records up to the zeros that end the log. The zeros are an error only at the requested offset itself."""
    records = store.records(None if at is None else PhysicalOffset(at))
    for decoded in records:
        if not isinstance(decoded, EndOfData):
            yield decoded
        elif decoded.physical_offset == at:
            end(Exit.FINDING, f"{store.file_of(decoded.physical_offset)}: offset {at}: nothing was written here")


def _from_queue(store: OfflineStore, queue: QueueId, start: QueueOffset) -> Iterator[Found]:
    for entry in store.entries(queue, start):
        yield store.record_of(entry, queue)


def _show(store: OfflineStore, records: Iterator[Found], *, as_json: bool) -> None:
    for record in records:
        match record:
            case Torn(physical_offset=at, reason=reason) | Corrupt(physical_offset=at, reason=reason):
                what = "torn" if isinstance(record, Torn) else "corrupt"
                end(Exit.FINDING, f"{store.file_of(at)}: offset {at}: {what}: {reason}")
            case _:
                say(json_line(record_fields(record)) if as_json else record_lines(record))
