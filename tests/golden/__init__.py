"""Stores written by Apache RocketMQ 5.5.0, and a reader of what RocketMQ itself says they hold.

Those that earlier versions of Quarry wrote: `quarry_stores.py`. Each other `<name>.tar.xz` unpacks to `<name>/` with

- `store/`          the store directory,
- `broker.conf`     the configuration RocketMQ ran with: small segments on purpose (1 MiB commit log, 5,000
                    index slots); consume queue files have the default 6,000,000 bytes and are sparse,
- `messages.jsonl`  every record of the commit log in order, as RocketMQ's own decoder reads it. Digests and
                    lengths are of the body as stored (compressed ones stay compressed). The blank record
                    that ends a segment is a line with the key `blank`.

How they came about:

- `file-clean`      file queues, clean shutdown
- `rocks-clean`     queues and metadata in RocksDB, clean shutdown
- `double-clean`    `file-clean` opened again in double-write mode, more messages, clean shutdown. RocksDB
                    lies inside `consumequeue/` and holds only what came after double write began
- `file-kill`       file queues, records with a CRC property, ended by SIGKILL: an `abort` file is left

Some messages name the same light queue twice in `INNER_MULTI_DISPATCH`. RocketMQ gives both names the same
offset but advances the counter by two: its RocksDB has a hole at the second number. A file queue stores the unit
once and has no hole, so later units of that light queue sit at a lower index than `INNER_MULTI_QUEUE_OFFSET` says.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

ARCHIVES: Final = Path(__file__).parent
NAMES: Final = ("file-clean", "rocks-clean", "double-clean", "file-kill")
HALF_SLOW: Final = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in {"file-clean", "double-clean"})) for name in NAMES
]
"""All of them, for tests that take seconds with each: the quick run has one store of each queue kind."""


def unpack(name: str, destination: Path) -> Path:
    """Unpack the archive below `destination` with its holes kept; returns `destination/name`."""
    assert name in NAMES, f"no golden store {name!r}; there are {', '.join(NAMES)}"
    with tarfile.open(ARCHIVES / f"{name}.tar.xz", "r:xz") as archive:
        if sys.version_info >= (3, 12):
            archive.extractall(destination, filter="data")
        else:
            archive.extractall(destination)
    return destination / name


def records(store: Path) -> list[dict[str, Any]]:
    """The lines of `messages.jsonl` of an unpacked golden store, blanks included."""
    lines = (store / "messages.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
