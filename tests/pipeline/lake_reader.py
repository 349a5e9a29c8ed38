"""Prints the rows of an Iceberg table as JSON lines, read by pyiceberg, which is not Spark. Run by its own Python."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from pyiceberg.table import StaticTable


def main(warehouse: str, name: str) -> None:
    metadata = Path(warehouse, *name.split("."), "metadata")
    version = int((metadata / "version-hint.text").read_text())
    table = StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json"))
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


if __name__ == "__main__":
    main(*sys.argv[1:])
