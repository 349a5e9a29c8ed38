"""The module reads RocketMQ's metadata as a whole, and imports it into Quarry's tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quarry_mq.kv import KeyValueEngine
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.metadata import ConsumerOffsetTable, GroupTable, TopicTable
from quarry_mq.store.rocketmq.model import ConsumerOffset, RocketmqMetadata, Warnings
from quarry_mq.store.rocketmq.pending_progress import read_pending_progress
from quarry_mq.store.rocketmq.rows import groups_of, offsets_of, topics_of
from quarry_mq.store.rocketmq.sources import (
    V2_DIRECTORY,
    V2_GROUPS,
    V2_TOPICS,
    Source,
    json_offset_source,
    json_source,
    newest,
    v1_offset_source,
    v1_source,
    v2_offset_source,
    v2_source,
)

BATCH_OFFSETS: Final = 1000


def read_metadata(disk: Disk, root: Path) -> RocketmqMetadata:
    """Return topics, groups and consumer offsets of a store that RocketMQ wrote, without leaving a trace in it.

    If a table has several copies, the newest is read. Files that are damaged together with their backup, and invalid
    rows, are named in `warnings`. Raises StoreDamaged for a database that cannot be read, OSError as the disk gives it.
    """
    config = StorePaths(root).config
    rdb = config / V2_DIRECTORY
    warnings = Warnings()
    topics = _newest(
        warnings,
        json_source(disk, config / "topics.json", "topicConfigTable", warnings),
        v1_source(config / "topics", warnings),
        v2_source(rdb, V2_TOPICS, warnings),
    )
    groups = _newest(
        warnings,
        json_source(disk, config / "subscriptionGroup.json", "subscriptionGroupTable", warnings),
        v1_source(config / "subscriptionGroups", warnings),
        v2_source(rdb, V2_GROUPS, warnings),
    )
    offsets = _newest(
        warnings,
        json_offset_source(disk, config, warnings),
        v1_offset_source(config / "consumerOffsets", warnings),
        v2_offset_source(rdb, warnings),
    )
    normal: list[ConsumerOffset] = []
    light: list[ConsumerOffset] = []
    for each in offsets_of(offsets, warnings) if offsets else ():
        (light if is_light_queue(each.queue.topic) else normal).append(each)
    return RocketmqMetadata(
        topics=list(topics_of(topics, warnings)) if topics else [],
        groups=list(groups_of(groups, warnings)) if groups else [],
        offsets=normal,
        light_offsets=light,
        pending=read_pending_progress(disk, StorePaths(root), normal, warnings),
        warnings=warnings.texts(),
    )


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The report counts the rows that were added; rows that existed already are not counted."""

    topics: int
    groups: int
    offsets: int


def import_metadata(
    metadata: RocketmqMetadata,
    topics: TopicTable,
    groups: GroupTable,
    offsets: ConsumerOffsetTable,
    engine: KeyValueEngine,
) -> ImportReport:
    """Add the rows that Quarry's tables do not have yet; nothing that exists is changed.

    Rows are written in batches of bounded size, durable on return. After a crash halfway, a repetition completes the
    import.
    """
    return ImportReport(
        topics=topics.add_missing(metadata.topics),
        groups=groups.add_missing(metadata.groups),
        offsets=_add_missing_offsets((*metadata.offsets, *metadata.light_offsets), offsets, engine),
    )


def _add_missing_offsets(rows: Iterable[ConsumerOffset], offsets: ConsumerOffsetTable, engine: KeyValueEngine) -> int:
    added = 0
    batch = engine.batch()
    for row in rows:
        if offsets.get(row.group, row.queue) is not None:
            continue
        offsets.stage(batch, row.group, row.queue, row.offset)
        added += 1
        if len(batch) >= BATCH_OFFSETS:
            engine.write(batch)
            batch = engine.batch()
    engine.write(batch, sync=True)
    return added


def _newest(warnings: Warnings, *sources: Source | None) -> Source | None:
    return newest([source for source in sources if source is not None], warnings)
