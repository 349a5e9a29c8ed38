"""`quarry storage`, `pending` and `topic spans` show a live broker's disk use, pending messages, and stored times."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.administration import known, known_rounded, known_time, listed, service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json, Name
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.quantities import exact_bytes_text
from quarry_mq.cli.terminal.text import time_text
from quarry_mq.protocol.proto.quarry.admin.v1 import storage_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.storage_pb2_grpc import StorageServiceStub

CALL_TIMEOUT_S: Final = 60.0
PAGE_ROWS: Final = 1_000
HOUR_MS: Final = 3_600_000
FILE_COLUMNS: Final = ("name", "begin", "size", "firstStoredAt", "lastStoredAt")
FAMILY_COLUMNS: Final = ("family", "database", "keysEstimate", "tableBytes", "memtableBytes", "pendingCompactionBytes")
SPAN_COLUMNS: Final = ("queue", "minOffset", "maxOffset", "firstStoredAt", "lastStoredAt", "expiresNext")
PENDING_COLUMNS: Final = ("messageId", "kind", "topic", "at", "storedAt", "checks", "physicalOffset")
WITHIN: Final = {60_000: "dueInAMinute", HOUR_MS: "dueInAnHour", 24 * HOUR_MS: "dueInADay", 168 * HOUR_MS: "dueInAWeek"}


def storage(
    *,
    files: Annotated[bool, typer.Option("--files", help="One row per file of the commit log.")] = False,
    rocksdb: Annotated[bool, typer.Option("--rocksdb", help="One row per column family of the databases.")] = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show how full a broker's disk is, what uses the space, how old the messages are, and which expire next.

    `expires next at` is when a file expires by its age; it expires sooner if the disk fills up.
    """
    with service_port(admin, StorageServiceStub) as broker:
        found = broker.GetStorage(pb.GetStorageRequest(), timeout=CALL_TIMEOUT_S)
    if files:
        print_rows(map(_file, found.segments), FILE_COLUMNS, as_json=as_json, kind="files")
    elif rocksdb:
        print_rows(map(_family, found.families), FAMILY_COLUMNS, as_json=as_json, kind="column families")
    else:
        parts = {each.name: known(each, "bytes") for each in found.parts}
        print_object(
            {
                **_storage(found),
                **(
                    {"parts": parts}
                    if as_json
                    else {name: None if each is None else exact_bytes_text(each) for name, each in parts.items()}
                ),
            },
            as_json=as_json,
        )


def spans(
    name: Name,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum number of queues.")] = 1000,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """List when the oldest and newest message of each queue were stored, and how many expire with the next file."""
    request = pb.ListQueueSpansRequest(topic=name)
    with service_port(admin, StorageServiceStub) as broker:
        ask = partial(broker.ListQueueSpans, timeout=CALL_TIMEOUT_S)
        found = listed(ask, request, "queues", lambda each: each.queue, limit=limit, page_rows=PAGE_ROWS)
        print_rows(map(_span, found), SPAN_COLUMNS, as_json=as_json, kind="queues")


def pending(
    *,
    rows: Annotated[bool, typer.Option("--list", help="One row for each of the first messages.")] = False,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", metavar="N", min=1, max=500, help="With --list: maximum number of each kind."),
    ] = 50,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show pending messages: delayed messages that are not due, and transactions that are not committed or rolled back.

    The numbers by due time cover the first 100,000 messages. For a transaction `at` is the next time its producer is
    asked.
    """
    with service_port(admin, StorageServiceStub) as broker:
        found = broker.ListPending(pb.ListPendingRequest(limit=limit), timeout=CALL_TIMEOUT_S)
    if rows:
        print_rows(_pending_rows(found), PENDING_COLUMNS, as_json=as_json, kind="pending messages")
        return
    print_object(
        {
            "timers": known(found, "timers"),
            "transactions": known(found, "transactions"),
            **{WITHIN.get(each.within_ms, f"dueIn{each.within_ms}Ms"): each.timers for each in found.due},
            "dueOf": found.due_looked_at,
            "lateMs": found.late_ms,
        },
        as_json=as_json,
    )


def _storage(found: pb.Storage) -> dict[str, object]:
    return {
        "diskTotal": known(found, "disk_total"),
        "diskFree": known(found, "disk_free"),
        "diskUsedPercent": known_rounded(found, "disk_used_percent"),
        "forcePercent": found.force_percent,
        "refusePercent": found.refuse_percent,
        "retentionHours": found.retention_ms / HOUR_MS if found.HasField("retention_ms") else None,
        "deleteHours": list(found.delete_hours),
        "files": found.segment_count,
        "logBegin": found.log_begin,
        "logEnd": found.log_end,
        "oldestStoredAt": known_time(found, "oldest_stored_at_ms"),
        "newestStoredAt": known_time(found, "newest_stored_at_ms"),
        "expiresNext": known(found, "expires_next"),
        "expiresNextAt": known_time(found, "expires_next_at_ms"),
    }


def _file(each: pb.Segment) -> dict[str, object]:
    return {
        "name": each.name,
        "begin": each.begin,
        "size": each.size,
        "firstStoredAt": known_time(each, "first_stored_at_ms"),
        "lastStoredAt": known_time(each, "last_stored_at_ms"),
    }


def _family(each: pb.RocksFamily) -> dict[str, object]:
    stats = dict(each.figures)
    return {
        "family": each.family or None,
        "database": each.database,
        "keysEstimate": stats.get("keys_estimate"),
        "tableBytes": stats.get("table_bytes"),
        "memtableBytes": stats.get("memtable_bytes"),
        "pendingCompactionBytes": stats.get("pending_compaction_bytes"),
        "figures": stats,
    }


def _span(each: pb.QueueSpan) -> dict[str, object]:
    return {
        "queue": each.queue,
        "minOffset": each.minimum_offset,
        "maxOffset": each.maximum_offset,
        "firstStoredAt": known_time(each, "first_stored_at_ms"),
        "lastStoredAt": known_time(each, "last_stored_at_ms"),
        "expiresNext": known(each, "expires_next"),
    }


def _pending_rows(found: pb.ListPendingResponse) -> Iterator[dict[str, object]]:
    for timer in found.first_timers:
        yield {
            "messageId": timer.message_id or None,
            "kind": "timer",
            "topic": timer.topic or None,
            "at": time_text(timer.due_at_ms),
            "storedAt": None,
            "checks": None,
            "physicalOffset": timer.physical_offset,
        }
    for each in found.first_transactions:
        yield {
            "messageId": each.message_id or None,
            "kind": "transaction",
            "topic": each.topic or None,
            "at": known_time(each, "next_check_at_ms"),
            "storedAt": known_time(each, "stored_at_ms"),
            "checks": known(each, "checks"),
            "physicalOffset": each.physical_offset,
        }
