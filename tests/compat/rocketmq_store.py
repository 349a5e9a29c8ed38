"""A store directory as Apache RocketMQ 5.5.0 reads it: its own message store, opened by a small Java program."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.e2e.languages import java_classes

PROJECT: Final = Path(__file__).parent / "java"
TIMEOUT_S: Final = 300
JVM: Final = (
    "-Xmx512m",
    # RocketMQ unmaps files through internals of the JDK
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


class QueuesIn(Enum):
    """Where RocketMQ is told to find the consume queues."""

    ROCKSDB = "rocksdb"
    FILE = "file"


class Place(NamedTuple):
    """One entry of one queue."""

    topic: str
    queue_id: int
    offset: int


class Unit(NamedTuple):
    """What a queue holds at one place."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class StoreDump:
    """All that RocketMQ finds in a store."""

    min_physical_offset: int
    max_physical_offset: int
    checkpoint_flushed_ms: int
    """The store time of the newest flushed record, as the checkpoint file said at the opening."""
    checkpoint_confirmed_up_to: int
    queues: Mapping[tuple[str, int], tuple[int, int]]
    """(topic, queue) → first kept offset, next free offset."""
    units: Mapping[Place, Unit]
    messages: Mapping[Place, dict[str, Any] | None]
    """The record each unit points to, None when RocketMQ cannot read it."""
    holes: tuple[Place, ...]
    """Offsets between the bounds of a queue that have no unit."""


class QueueDigest(NamedTuple):
    """A queue in short."""

    minimum: int
    maximum: int
    units: int
    """How many have a message that can be read."""
    unreadable: int
    sha256: str
    """Of all units in order: `DIGESTED_UNIT`, then the message's body."""


DIGESTED_UNIT: Final = struct.Struct(">qqqi")
"""Queue offset, physical offset, code of the tags, size."""


def open_in_rocketmq(store: Path, scratch: Path) -> StoreDump:
    """Open a copy of the store in RocksDB mode and read everything. Fails with RocketMQ's words."""
    copy = scratch / "opened-by-rocketmq"
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("lock"))
    return _parse(_run(copy, scratch, QueuesIn.ROCKSDB, "units", TIMEOUT_S))


def digests_of_rocketmq(
    store: Path, scratch: Path, queues_in: QueuesIn, *, timeout_s: float, of: str = "digests"
) -> dict[tuple[str, int], QueueDigest]:
    """Open the store itself, which changes it, and read every message of every queue.

    With `of="contents"` the digests are those of `lake_reader.digests`.
    """
    lines = _run(store, scratch, queues_in, of, timeout_s)
    found = {
        (line["topic"], line["queueId"]): QueueDigest(
            line["minOffset"], line["maxOffset"], line["units"], line["unreadable"], line["sha256"]
        )
        for line in lines
        if line["kind"] == "queue"
    }
    assert lines[-1]["kind"] == "end"
    assert lines[-1]["units"] == sum(each.units for each in found.values())
    return found


def keys_in_rocketmq(
    store: Path, scratch: Path, keys: Sequence[tuple[str, str]], *, slots: int, items: int
) -> dict[tuple[str, str], list[int]]:
    """Open a copy of the store and query for (topic, key); where the messages lie that are found, at most 64 of each.

    By hash: messages of other keys may be among them.
    """
    copy = scratch / "queried-by-rocketmq"
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("lock"))
    asked = "".join(f"{topic}\t{key}\n" for topic, key in keys)
    lines = _run(copy, scratch, QueuesIn.ROCKSDB, "keys", TIMEOUT_S, str(slots), str(items), asked=asked)
    return {(line["topic"], line["key"]): line["offsets"] for line in lines if line["kind"] == "key"}


def _run(
    store: Path, scratch: Path, queues_in: QueuesIn, what: str, timeout_s: float, *more: str, asked: str = ""
) -> list[dict[str, Any]]:
    class_path = java_classes("store-dump", PROJECT)
    home = scratch / "rocketmq-home"
    home.mkdir(exist_ok=True)
    program = ["java", *JVM, f"-Duser.home={home}", "-cp", class_path, "quarry.compat.StoreDump"]
    done = subprocess.run(
        [*program, str(store), queues_in.value, what, *more],
        input=asked,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n{_logged(home)}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def _logged(home: Path) -> str:
    return "\n".join(path.read_text(errors="replace")[-4000:] for path in sorted(home.rglob("*.log")))


def _parse(lines: list[dict[str, Any]]) -> StoreDump:
    by_kind: dict[str, list[dict[str, Any]]] = {"store": [], "queue": [], "unit": [], "hole": [], "end": []}
    for line in lines:
        by_kind[line["kind"]].append(line)
    [store], [end] = by_kind["store"], by_kind["end"]
    units, messages = {}, {}
    for line in by_kind["unit"]:
        place = Place(line["topic"], line["queueId"], line["offset"])
        units[place] = Unit(line["phyOffset"], line["size"], line["tagsCode"], line["storeTimestamp"])
        messages[place] = line.get("message")  # left out when RocketMQ reads none
    assert (end["queues"], end["units"]) == (len(by_kind["queue"]), len(units)), end
    return StoreDump(
        min_physical_offset=store["minPhyOffset"],
        max_physical_offset=store["maxPhyOffset"],
        checkpoint_flushed_ms=store["physicMsgTimestamp"],
        checkpoint_confirmed_up_to=store["confirmPhyOffset"],
        queues={(line["topic"], line["queueId"]): (line["minOffset"], line["maxOffset"]) for line in by_kind["queue"]},
        units=units,
        messages=messages,
        holes=tuple(Place(line["topic"], line["queueId"], line["offset"]) for line in by_kind["hole"]),
    )
