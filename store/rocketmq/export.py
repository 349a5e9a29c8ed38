"""The module exports topics, groups and consumer offsets as RocketMQ keeps them: JSON files, or one RocksDB per table.

| table   | JSON                                            | RocksDB (config manager v1) |
|---------|-------------------------------------------------|-----------------------------|
| topics  | `topics.json`                                   | `topics/`                   |
| groups  | `subscriptionGroup.json`                        | `subscriptionGroups/`       |
| offsets | `consumerOffset.json`, `lmqConsumerOffset.json` | `consumerOffsets/`          |

RocketMQ reads the first file of offsets, or with `enableLmq` the second, so both are written. A broker that keeps its
metadata in RocksDB imports JSON files whose counter is above that of its database: the exported counter is above that
of every copy in the folder.

Two more files hold the progress of pending messages: `store.rocketmq.pending_progress`.

RocketMQ knows one offset per group and queue, and no messages in flight. A group that has some continues at the first
of them: messages that it had acknowledged after that one come again, none is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from quarry_mq.kv import KeyValueEngine
from quarry_mq.kv.options import FamilyOptions
from quarry_mq.kv.rocks import RocksEngine
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import ConsumerOffsetTable, GroupTable, TopicTable
from quarry_mq.store.pending import PendingBefore
from quarry_mq.store.rocketmq.model import DataVersion, Warnings, format_json
from quarry_mq.store.rocketmq.pending_progress import HALVES_RESOLVED, pending_files
from quarry_mq.store.rocketmq.rows import Row, group_row, offset_rows, topic_row
from quarry_mq.store.rocketmq.sources import (
    UNVERSIONED,
    V1_FORBIDDEN_FAMILY,
    V1_VERSION_FAMILY,
    V1_VERSION_KEY,
    V2_DIRECTORY,
    V2_GROUPS,
    V2_TOPICS,
    Source,
    json_source,
    read_json_file,
    v1_source,
    v2_offset_source,
    v2_source,
)
from quarry_mq.store.state.identity import INFLIGHT
from quarry_mq.store.state.in_flight_key import ROWS, parse_key

TOPICS_FILE: Final = "topics.json"
GROUPS_FILE: Final = "subscriptionGroup.json"
OFFSETS_FILE: Final = "consumerOffset.json"
LIGHT_OFFSETS_FILE: Final = "lmqConsumerOffset.json"
TOPICS_DATABASE: Final = "topics"
GROUPS_DATABASE: Final = "subscriptionGroups"
OFFSETS_DATABASE: Final = "consumerOffsets"
FORBIDDEN: Final = "forbiddenTable"


class Form(Enum):
    """The form says how RocketMQ is to find the metadata."""

    JSON = "json"
    ROCKSDB = "rocksdb"


@dataclass(frozen=True, slots=True)
class Exported:
    """The result counts the rows that were written, and says where. `offsets` counts queues, light ones included."""

    topics: int
    groups: int
    offsets: int
    lowered: int
    """Number of offsets that were set back to the first message that the group has in flight."""
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables hold what is written: rows by name."""

    topics: dict[str, Row]
    groups: dict[str, Row]
    forbidden: dict[str, Any]
    offsets: dict[str, dict[int, int]]
    light_offsets: dict[str, dict[int, int]]
    lowered: int


def export_metadata(
    disk: Disk,
    engine: KeyValueEngine,
    config: Path,
    form: Form,
    *,
    now_ms: int,
    pending: PendingBefore | None = None,
    timers_end: int = 0,
) -> Exported:
    """Write the metadata that `engine` (`quarry/`) holds into the folder `config`, which is made if it is missing.

    Existing files become `<name>.bak`; fields of a topic or group that Quarry does not know are kept. An existing
    database is not touched. `pending` is the progress of pending messages, and `timers_end` the end of the queue of
    timers; with None, existing files about pending messages are left. Raises StoreUnusable if a database is in the way,
    OSError, kv.KvError.
    """
    disk.make_directories(config)
    before = _Before(disk, config)
    tables = _tables(engine, before, pending)
    version = before.next_version(now_ms)
    if form is Form.JSON:
        paths = _write_json(disk, config, tables, version, before)
    else:
        paths = _write_databases(disk, config, tables, version)
    if pending is not None:
        paths += _write_files(disk, config, pending_files(pending, version, timers_end=timers_end))
    return Exported(
        topics=len(tables.topics),
        groups=len(tables.groups),
        offsets=sum(map(len, tables.offsets.values())) + sum(map(len, tables.light_offsets.values())),
        lowered=tables.lowered,
        paths=paths,
    )


class _Before:
    """The object reads the metadata that RocketMQ's folder holds already, whatever the form."""

    def __init__(self, disk: Disk, config: Path) -> None:
        warnings = Warnings()
        rdb = config / V2_DIRECTORY
        self.topics = _known(
            json_source(disk, config / TOPICS_FILE, "topicConfigTable", warnings),
            v1_source(config / TOPICS_DATABASE, warnings),
            v2_source(rdb, V2_TOPICS, warnings),
        )
        self.groups = _known(
            json_source(disk, config / GROUPS_FILE, "subscriptionGroupTable", warnings),
            v1_source(config / GROUPS_DATABASE, warnings),
            v2_source(rdb, V2_GROUPS, warnings),
        )
        self.offsets = {
            name: read_json_file(disk, config / name, warnings) or {} for name in (OFFSETS_FILE, LIGHT_OFFSETS_FILE)
        }
        offset_sources = [
            json_source(disk, config / OFFSETS_FILE, "offsetTable", warnings),
            json_source(disk, config / LIGHT_OFFSETS_FILE, "offsetTable", warnings),
            v1_source(config / OFFSETS_DATABASE, warnings),
            v2_offset_source(rdb, warnings),
        ]
        found = [*self.topics, *self.groups, *(each for each in offset_sources if each is not None)]
        self._versions = [each.version for each in found if each.version != UNVERSIONED]

    def next_version(self, now_ms: int) -> DataVersion:
        """Return a version above all that lie in the folder."""
        state_version = max((each.state_version for each in self._versions), default=0)
        counter = max((each.counter for each in self._versions), default=0)
        return DataVersion(state_version, counter + 1, now_ms)

    def row(self, sources: list[Source], name: str) -> Mapping[str, Any]:
        """Return the row of this name in the newest copy that has it."""
        for source in sources:
            row = source.rows.get(name)
            if isinstance(row, dict):
                return row
        return {}


def _known(*sources: Source | None) -> list[Source]:
    """Return the sources, the newest first."""
    return sorted((each for each in sources if each is not None), key=lambda each: each.version, reverse=True)


def _tables(engine: KeyValueEngine, before: _Before, pending: PendingBefore | None) -> _Tables:
    # RocketMQ's own topics it makes by itself, as its configuration says; those it had are left as they were
    topics = {name: dict(before.row(before.topics, name)) for name in _system_topics(engine, before)}
    for topic in TopicTable(engine).list():
        if not topic.is_system:
            topics[topic.name] = topic_row(topic, before.row(before.topics, topic.name))
    groups = {each.name: group_row(each, before.row(before.groups, each.name)) for each in GroupTable(engine).list()}
    first_in_flight = _first_in_flight(engine)
    offsets: list[tuple[str, QueueId, QueueOffset]] = []
    light: list[tuple[str, QueueId, QueueOffset]] = []
    lowered = 0
    for group, queue, offset in ConsumerOffsetTable(engine).all_rows():
        first = first_in_flight.get((group, queue), offset)
        lowered += first < offset
        (light if is_light_queue(queue.topic) else offsets).append((group, queue, min(first, offset)))
    if pending is not None and pending.halves:
        offsets = [each for each in offsets if each[:2] != HALVES_RESOLVED]
        offsets.append((*HALVES_RESOLVED, QueueOffset(pending.halves)))
    forbidden = {name: row for source in before.groups[:1] for name, row in source.forbidden.items() if row}
    return _Tables(topics, groups, forbidden, offset_rows(offsets), offset_rows(light), lowered)


def _system_topics(engine: KeyValueEngine, before: _Before) -> list[str]:
    table = TopicTable(engine)
    known = [table.get(name) for name in (before.topics[0].rows if before.topics else ())]
    return [topic.name for topic in known if topic is not None and topic.is_system]


def _first_in_flight(engine: KeyValueEngine) -> dict[tuple[str, QueueId], QueueOffset]:
    first: dict[tuple[str, QueueId], QueueOffset] = {}
    for key, _ in engine.family(INFLIGHT).iterate(ROWS):
        group, queue, offset = parse_key(key)
        first.setdefault((group, queue), offset)  # rows come in the order of their offsets
    return first


# -- JSON


def _write_json(disk: Disk, config: Path, tables: _Tables, version: DataVersion, before: _Before) -> tuple[Path, ...]:
    head = {"dataVersion": version.row}
    offsets = {"groupTopicMap": _group_topics(tables.offsets), "offsetTable": tables.offsets}
    light = {name: row[0] for name, row in tables.light_offsets.items() if 0 in row}
    documents: dict[str, Row] = {
        TOPICS_FILE: {**head, "topicConfigTable": tables.topics},
        GROUPS_FILE: {**head, FORBIDDEN: tables.forbidden, "subscriptionGroupTable": tables.groups},
        OFFSETS_FILE: {**before.offsets[OFFSETS_FILE], **head, **offsets},
        LIGHT_OFFSETS_FILE: {**before.offsets[LIGHT_OFFSETS_FILE], **head, **offsets, "lmqOffsetTable": light},
    }
    texts = {name: format_json(dict(sorted(document.items()))).encode() for name, document in documents.items()}
    return _write_files(disk, config, texts)


def _write_files(disk: Disk, config: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    for name, content in files.items():
        path = config / name
        if disk.exists(path):
            disk.move(path, path.with_name(f"{name}.bak"))
        disk.replace_atomically(path, content)
    return tuple(config / name for name in files)


def _group_topics(offsets: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the topics of each group, derived from the keys; RocketMQ ignores this when it reads the file."""
    topics: dict[str, list[str]] = {}
    for key in offsets:
        topic, _, group = key.partition("@")
        topics.setdefault(group, []).append(topic)
    return topics


# -- RocksDB


def _write_databases(disk: Disk, config: Path, tables: _Tables, version: DataVersion) -> tuple[Path, ...]:
    offsets = {
        name: {"offsetTable": {str(number): offset for number, offset in row.items()}}
        for name, row in (*tables.offsets.items(), *tables.light_offsets.items())
    }
    written: dict[str, Mapping[str, Row]] = {
        TOPICS_DATABASE: tables.topics,
        GROUPS_DATABASE: tables.groups,
        OFFSETS_DATABASE: offsets,
    }
    for name in written:
        if disk.list_directory(config / name):
            raise StoreUnusable(config / name, "there is an export already: move it away, or export to another folder")
    for name, rows in written.items():
        forbidden = tables.forbidden if name == GROUPS_DATABASE else {}
        _write_database(config / name, rows, forbidden, version)
    return tuple(config / name for name in written)


def _write_database(path: Path, rows: Mapping[str, Row], forbidden: Row, version: DataVersion) -> None:
    families = ("default", V1_VERSION_FAMILY, V1_FORBIDDEN_FAMILY)
    engine = RocksEngine.open(path, {name: FamilyOptions() for name in families}, create=True, write_ahead_log=True)
    try:
        batch = engine.batch()
        for family, found in (("default", rows), (V1_FORBIDDEN_FAMILY, forbidden)):
            batch.put_all(engine.family(family), ((name.encode(), _compact(row)) for name, row in found.items()))
        batch.put(engine.family(V1_VERSION_FAMILY), V1_VERSION_KEY, _compact(version.row))
        engine.write(batch, sync=True)
        engine.flush(families)
    finally:
        engine.close()


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
