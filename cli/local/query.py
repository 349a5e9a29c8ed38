"""`quarry query` shows messages with a key, of a store or of a live broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Topic
from quarry_mq.cli.offline.record_text import json_line, record_fields, record_lines
from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import AdminOrNone, StoreOrNone, broker_of
from quarry_mq.cli.online.messages.message_query import found_pages
from quarry_mq.cli.records import Record, decoded
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say
from quarry_mq.cli.terminal.times import Since, Until, option_ms
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub


def query(
    store: StoreOrNone = None,
    *,
    topic: Topic,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="A key that the sender gave, or the message's id.")],
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, max=1000, help="Maximum number of messages; the newest are shown."
        ),
    ] = 32,
    admin: AdminOrNone = None,
    as_json: Json = False,
) -> None:
    """Show the messages of a topic that have a key, the newest first.

    For a stopped store it searches the index files, the tiered index or RocketMQ's, and reads the log from where they
    end; if there are no index files, or some are elsewhere, it reads all of the log. A live broker has to keep an index
    (index.tiered or index.hash_files); a warning on stderr says if it lags behind the log, or if a file of it could not
    be read. Exit status 1 when there is no such message.
    """
    begin_ms, end_ms = option_ms(since, "--since") or 0, option_ms(until, "--until")
    admin = broker_of(admin, is_store_named=store is not None)
    if (store is None) == (admin is None):
        raise typer.BadParameter("either STORE or --admin is needed")
    if admin is not None:
        request = pb.QueryMessagesRequest(topic=topic, key=key, from_ms=begin_ms, to_ms=end_ms, limit=limit)
        found = list(_of_broker(admin, request))
    else:
        assert store is not None
        found = _of_store(store, topic, key, times_ms=(begin_ms, end_ms), limit=limit)
    for record in found:
        say(json_line(record_fields(record)) if as_json else record_lines(record))
    if not found and not as_json:
        say("no messages")
    raise typer.Exit(Exit.FINE if found else Exit.FINDING)


def _of_store(store: Path, topic: str, key: str, *, times_ms: tuple[int, int | None], limit: int) -> list[Record]:
    # Imported here: queries of a live broker need no store.
    from quarry_mq.cli.offline.opened_store import opened
    from quarry_mq.store.index import TIME_MAX_MS
    from quarry_mq.store.offline import OfflineIndex, indexes_of

    begin_ms, end_ms = times_ms
    with opened(store) as open_store, indexes_of(open_store) as indexes, shown_progress() as report:
        return OfflineIndex(open_store, indexes).find(
            topic,
            key,
            begin_ms=begin_ms,
            end_ms=TIME_MAX_MS if end_ms is None else end_ms,
            limit=limit,
            report=report,
        )


def _of_broker(address: str, request: pb.QueryMessagesRequest) -> Iterator[Record]:
    with service_port(address, QueryServiceStub) as broker:
        for number, page in enumerate(found_pages(broker.QueryMessages, request, address)):
            lag_bytes = page.dispatched_offset - page.indexed_offset
            if lag_bytes > 0 and number == 0:
                say(f"{address}: the index lags {lag_bytes} bytes behind the log", err=True)
            yield from (decoded(each, address) for each in page.messages)
