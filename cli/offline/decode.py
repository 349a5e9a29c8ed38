"""`quarry decode` shows records of the commit log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.opened_store import opened
from quarry_mq.cli.offline.record_text import json_line, record_fields, record_lines
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.text import say
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.record import Blank, Corrupt, EndOfData, StoredMessage, Torn

Found = StoredMessage | Blank | Torn | Corrupt


def decode(
    store: Store,
    *,
    at: Annotated[
        int | None,
        typer.Option(
            "--at", min=0, metavar="OFFSET", help="Start at this physical offset, which must be the start of a record."
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Topic of the one consume queue entry to look up, with --queue and --offset.",
        ),
    ] = None,
    queue: Annotated[int | None, typer.Option("--queue", metavar="N", min=0, help="Number of the queue.")] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="OFFSET", min=0, help="Queue offset of the entry.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            metavar="N",
            min=1,
            help="Maximum number of records. Default: all; with --offset: 1.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Decode records of the commit log and run all checks on them.

    Without --topic: everything in log order, blanks between segments included. With --topic, --queue and --offset:
    from that entry of the queue to its record.

    Damage is reported on stderr with file, offset and reason, and ends the command with exit status 1.
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
