"""The task of a replay: it sends rows, and reports each message that the broker refuses because of its content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute

from quarry_mq.pipeline.export.body import PROBLEM
from quarry_mq.pipeline.stream.options import SinkOptions
from quarry_mq.pipeline.stream.outgoing import messages_of
from quarry_mq.pipeline.stream.sender import Sender
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages.property_names import REPLAYED_FROM

FIRST_REFUSED: Final = 20
"""Refused messages that are listed; further ones are only counted."""

SENDING_TELLS: Final = "messages long, refused long, first array<struct<place: string, reason: string>>"
_TELLS: Final = pa.schema(
    [
        ("messages", pa.int64()),
        ("refused", pa.int64()),
        ("first", pa.list_(pa.struct([("place", pa.string()), ("reason", pa.string())]))),
    ]
)


def sending(options: SinkOptions) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a task runs over its rows.

    It yields one row with the count of sent and refused messages.
    """

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        refused: list[tuple[str, str]] = []
        clock, client = SystemClock(), options.connection.client()
        sender = Sender(
            client,
            options.in_flight_max,
            lambda message, reason: refused.append((message.user_properties[REPLAYED_FROM], reason)),
        )
        count = 0
        try:
            for batch in batches:
                refused += _without_body(batch)
                whole = batch.filter(compute.is_valid(batch.column("body"))).drop_columns([PROBLEM])
                # each row has an id already, so no id is made of its place
                for message in messages_of(
                    whole, topic=None, write="", partition=0, first_row=count, now_ms=clock.wall_ms()
                ):
                    sender.add(message)
                count += batch.num_rows
            sender.finish()
        finally:
            client.close()
            sender.close()
        first = [{"place": place, "reason": reason} for place, reason in refused[:FIRST_REFUSED]]
        told: dict[str, list[Any]] = {
            "messages": [count - len(refused)],
            "refused": [len(refused)],
            "first": [first],
        }
        yield pa.RecordBatch.from_pydict(told, _TELLS)

    return send


def _without_body(batch: pa.RecordBatch) -> list[tuple[str, str]]:
    """Return the positions and reasons of the rows whose body could not be uncompressed."""
    problems = batch.column(PROBLEM)
    if problems.null_count == len(problems):
        return []
    rows = batch.select(["properties", PROBLEM]).filter(compute.is_valid(problems)).to_pylist()
    return [(dict(row["properties"])[REPLAYED_FROM], row[PROBLEM]) for row in rows]
