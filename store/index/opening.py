"""Open the key index of a store.

Where it resumes:

| row | files | last stop | resumes |
|---|---|---|---|
| there | as the row says | clean | where it was saved |
| there | otherwise | or an unclean one | there, too: the files go back to what the row says |
| missing | RocketMQ's | clean | after their last record |
| missing | RocketMQ's | unclean | after the last file that RocketMQ's checkpoint says is whole |
| missing | none | | at the begin of the log |

The rows are `hash_index` and `tiered_index` of family `meta`. Files differ from the row when a broker died after
writing more than it saved, or when RocketMQ has run on the store since.

The log is read when the store is open, beside everything else: no start waits for the index.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue.dispatch import StoredAssignment
from quarry_mq.store.errors import StoreDamaged, StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.index.chains import ChainShape
from quarry_mq.store.index.hash.index import HashIndex, index_files
from quarry_mq.store.index.hash.keys import HashKeyFiles
from quarry_mq.store.index.hash.layout import find_shape, shape_of
from quarry_mq.store.index.indexes import KeyIndexes
from quarry_mq.store.index.key_files import KeyFiles
from quarry_mq.store.index.message_index import IndexState, MessageIndex, Portion
from quarry_mq.store.index.tiered.chain_file import IndexShape
from quarry_mq.store.index.tiered.object_store.protocol import FolderObjects, ObjectStore
from quarry_mq.store.index.tiered.tiered_index import TieredIndex
from quarry_mq.store.index.tiered_keys import PLACE, TieredKeyFiles
from quarry_mq.store.layout.paths import PHYSICAL_OFFSET_MAXIMUM, StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.recovery.recovery import whole_runs
from quarry_mq.store.settings import IndexSettings
from quarry_mq.store.state.identity import StoreIdentity

log = structlog.get_logger(__name__)

HASH_ROW: Final = "hash_index"
TIERED_ROW: Final = "tiered_index"
NOWHERE: Final = PhysicalOffset(0)


@dataclass(frozen=True, slots=True)
class IndexedLog:
    """The log that indexes follow, as recovery left it.

    After an unclean stop, `whole_until_ms` is the time up to which RocketMQ's checkpoint says its index files are
    whole; after a clean one it is None.
    """

    segments: SegmentList
    end: PhysicalOffset
    durable_up_to: Callable[[], PhysicalOffset]
    whole_until_ms: int | None

    @property
    def was_unclean(self) -> bool:
        return self.whole_until_ms is not None

    def portions(self, begin: PhysicalOffset, end: PhysicalOffset) -> Generator[Portion, None, None]:
        for run in whole_runs(self.segments, begin, end, StoredAssignment()):
            yield Portion(begin, run.requests, run.end)
            begin = run.end

    def begin(self) -> PhysicalOffset:
        """Return the log's current min offset."""
        return self.segments.minimum


def open_indexes(
    settings: IndexSettings,
    disk: Disk,
    paths: StorePaths,
    identity: StoreIdentity,
    indexed: IndexedLog,
    *,
    clock: Clock,
) -> KeyIndexes:
    """Open the indexes that the settings enable. Raises StoreUnusable, Invalid, OSError."""
    found: list[MessageIndex] = []
    hash_files, tiered = None, None
    if settings.tiered:
        tiered = _open_tiered(settings, disk, paths.key_index)
        found.append(_follow(TieredKeyFiles(tiered), TIERED_ROW, identity, indexed, _shape_of_tiered(settings)))
    if settings.hash_files:
        row = identity.index_row(HASH_ROW)
        if row is not None:
            # finding the shape in the files would mean to read all of their slots
            shape = shape_of(**IndexState.unpack(row).shape)
        else:
            shape = shape_in(disk, paths.index, shape_of(settings.hash_slots, settings.hash_items))
        hash_files = HashIndex(disk, paths.index, shape, clock)
        if row is None and indexed.whole_until_ms is not None:
            hash_files.keep_until(indexed.whole_until_ms)
        made_with = {"slots": shape.slots, "items": shape.items_max + 1}
        files = HashKeyFiles(hash_files)
        found.append(_follow(files, HASH_ROW, identity, indexed, made_with, known_to=lambda: hash_files.end_offset))
    return KeyIndexes(tuple(found), hash_files, tiered)


def rebuild_indexes_later(identity: StoreIdentity, *, above: PhysicalOffset) -> None:
    """Let the next opening rebuild those indexes that have records at or above an offset where the log is cut.

    A row that is missing would not do: files in RocketMQ's format are taken as they are then.
    """
    for row in (HASH_ROW, TIERED_ROW):
        stored = identity.index_row(row)
        if stored is not None and (state := IndexState.unpack(stored)).up_to > above:
            beyond = state._replace(up_to=PhysicalOffset(PHYSICAL_OFFSET_MAXIMUM))  # of any log
            identity.set_index_row(row, beyond.pack())


def _follow(
    files: KeyFiles,
    row: str,
    identity: StoreIdentity,
    indexed: IndexedLog,
    shape: Mapping[str, int],
    *,
    known_to: Callable[[], PhysicalOffset] | None = None,
) -> MessageIndex:
    """Return the index over files, after taking them back to the saved state if need be.

    `known_to` returns how far the files are complete, if they show it themselves.
    """
    stored = identity.index_row(row)
    state = None if stored is None else IndexState.unpack(stored)
    if state is not None and (indexed.was_unclean or files.state != state.files):
        # after a crash the counts may be as saved though more items were being written: slots name items that
        # do not exist
        try:
            files.go_back(state.files)
        except StoreDamaged as damage:
            log.error("the key index is made anew", index=row, error=str(damage))
    if state is not None and files.state == state.files:
        up_to = state.up_to
    elif known_to is not None:
        up_to = known_to()  # files of RocketMQ's, or our files after RocketMQ has run
    else:
        files.go_back(None)
        up_to = NOWHERE
    if max(up_to, NOWHERE if known_to is None else known_to()) > indexed.end:
        # the index holds records that the log has lost
        files.go_back(None)
        up_to = NOWHERE
    files.settle(files.state)
    log.info("key index opened", index=row, files=files.file_count, complete_up_to=up_to, log_end=indexed.end)
    return MessageIndex(
        files,
        shape=shape,
        up_to=up_to,
        end=indexed.end,
        read_log=indexed.portions,
        begin=indexed.begin,
        durable_up_to=indexed.durable_up_to,
        save=lambda saved: identity.set_index_row(row, saved.pack()),
    )


def _shape_of_tiered(settings: IndexSettings) -> dict[str, int]:
    return {"slots": settings.tiered_slots, "items": settings.tiered_items}


def _open_tiered(settings: IndexSettings, disk: Disk, directory: Path) -> TieredIndex:
    shape = IndexShape(settings.tiered_slots, settings.tiered_items, PLACE)
    return TieredIndex(
        disk,
        directory,
        shape,
        objects=objects_at(settings, disk),
        keep_uploaded=settings.keep_uploaded,
        slot_cache_bytes=settings.slot_cache_bytes,
    )


def objects_at(settings: IndexSettings, disk: Disk) -> ObjectStore | None:
    """Return where files are uploaded: a folder, or an object store (`store.index.tiered.object_store`).

    None without uploads. Raises Invalid.
    """
    target = settings.upload_to
    if target is None:
        return None
    if "://" not in target:
        return FolderObjects(disk, Path(target))
    from quarry_mq.store.index.tiered.object_store.cloud import CloudObjects

    return CloudObjects.at(target, dict(settings.upload_options))


def shape_in(disk: Disk, directory: Path, likely: ChainShape) -> ChainShape:
    """Return the shape of the existing files, or `likely` without files.

    Raises StoreUnusable when the files do not show their shape.
    """
    shape = likely
    for entry in index_files(disk, directory):
        if not entry.size:
            continue
        with closing(disk.open_segment(directory / entry.name, writable=False)) as file:
            found = find_shape(file.view(), shape)
        if found is None and entry.size == shape.file_size:
            found = shape  # a power cut may have left the file inconsistent
        if found is None:
            raise StoreUnusable(
                directory / entry.name,
                "the number of slots is unknown: set index.hash_slots and index.hash_items to RocketMQ's "
                f"maxHashSlotNum and maxIndexNum, or move {directory} away to have the index rebuilt",
            )
        shape = found
    return shape
