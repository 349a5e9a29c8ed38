"""Prints the rows of an Iceberg table as JSON lines, read by pyiceberg, which is not Spark. Run by its own Python.

With `digests` as the last argument, prints for each queue the count and a SHA-256 of its messages in their order: queue
offset and store time in ms as 8 bytes each, the message id, the body.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.table import StaticTable

PLACE: Final = struct.Struct(">qq")


def main(warehouse: str, name: str, what: str = "rows") -> None:
    metadata = Path(warehouse, *name.split("."), "metadata")
    version = int((metadata / "version-hint.text").read_text())
    table = StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json"))
    if what == "digests":
        print_digests(table)
        return
    rows = table.scan().to_arrow().to_pylist()
    for row in rows:
        body = row.pop("body", None)
        if body is not None:
            row |= {"bodyLength": len(body), "bodySha1": hashlib.sha1(body).hexdigest()}
        if row.get("properties") is not None:
            row["properties"] = dict(row["properties"])
        for key, value in row.items():
            if hasattr(value, "timestamp"):
                row[key] = round(value.timestamp() * 1000)
    keys = [
        name
        for name in ("group", "topic", "broker", "queueId", "queueOffset", "nextOffset")
        if rows and name in rows[0]
    ]
    for row in sorted(rows, key=lambda row: [row[key] for key in keys]):
        print(json.dumps(row))


def print_digests(table: StaticTable) -> None:
    names = ("topic", "queueId", "queueOffset", "storeTimestamp", "uniqKey", "body")
    rows = table.scan(selected_fields=names).to_arrow().sort_by([(name, "ascending") for name in names[:3]])
    digests: dict[tuple[str, int], Any] = {}
    counts = Counter[tuple[str, int]]()
    for batch in rows.to_batches(max_chunksize=100_000):
        times = batch.column("storeTimestamp").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
        columns = [batch.column(name).to_pylist() for name in names]
        columns[3] = times.to_pylist()
        for topic, number, offset, stored_ms, message_id, body in zip(*columns, strict=True):
            digest = digests.setdefault((topic, number), hashlib.sha256())
            digest.update(PLACE.pack(offset, stored_ms) + message_id.encode() + body)
            counts[topic, number] += 1
    for (topic, number), digest in digests.items():
        found = {"topic": topic, "queueId": number, "messages": counts[topic, number], "sha256": digest.hexdigest()}
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
