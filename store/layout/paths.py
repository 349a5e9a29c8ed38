"""The module makes and parses every file name of a store (docs/formats/store-directory.md).

Files with foreign names are never touched: the code that lists a directory reports them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from quarry_mq.store.message import PhysicalOffset

SEGMENT_NAME: Final = re.compile(r"[0-9]{20}", re.ASCII)
SHARD_NAME: Final = re.compile(r"shard-(0|[1-9][0-9]{0,3})", re.ASCII)
PHYSICAL_OFFSET_MAXIMUM: Final = 2**63 - 1
"""Physical offsets are signed 64-bit integers on disk."""


def segment_name(base: PhysicalOffset) -> str:
    """Return the name of the segment whose first byte is `base`: 20 digits, so that names sort like offsets."""
    return f"{base:020d}"


def parse_segment_name(name: str) -> PhysicalOffset | None:
    """Return the base offset in a segment's name; None when the name is no segment's."""
    if not SEGMENT_NAME.fullmatch(name) or int(name) > PHYSICAL_OFFSET_MAXIMUM:
        return None
    return PhysicalOffset(int(name))


def shard_name(number: int) -> str:
    """Return the name of a shard (`quarry serve --shards`), and of the directory of its store."""
    return f"shard-{number}"


def parse_shard_name(name: str) -> int | None:
    """Return the number of a shard; None when the name is no shard's."""
    found = SHARD_NAME.fullmatch(name)
    return int(found[1]) if found else None


def cut_name(start: PhysicalOffset, number: int) -> str:
    """Return the name of a file that keeps bytes cut from the log, the first of which lay at `start`.

    `number` counts from 0 and tells repeated cuts at one offset apart.
    """
    return f"{start:020d}.broken" + (f".{number}" if number else "")


def cut_directory(commit_log: Path) -> Path:
    """Return the folder that keeps bytes that were cut off the log.

    It is a separate folder because RocketMQ passes over folders in `commitlog/` but refuses to start on a plain file
    there that has not the length of a segment.
    """
    return commit_log / "broken"


def expired_directory(commit_log: Path) -> Path:
    """Return the folder in which expired segments wait for their removal: out of the log, under their old names."""
    return commit_log / "expired"


class StorePart(Enum):
    """A part of a store, told apart by how its damage is repaired."""

    LOG = auto()
    QUEUES = auto()
    PENDING_MESSAGES = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The files and directories directly below a store's root, laid out as RocketMQ lays them out."""

    root: Path

    @property
    def commit_log(self) -> Path:
        """Return the directory of the commit log's segments."""
        return self.root / "commitlog"

    @property
    def consume_queue(self) -> Path:
        """Return the directory of file consume queues; RocketMQ's RocksDB is there too, unless it was told to keep it
        apart.
        """
        return self.root / "consumequeue"

    @property
    def consume_queue_rocksdb(self) -> Path:
        """Return the directory of consume queues in RocksDB; RocketMQ 5.5 uses it with
        `useSeparateStorePathForRocksdbCQ`.
        """
        return self.root / "consumequeue_rocksdb"

    @property
    def quarry(self) -> Path:
        """Return the directory of Quarry's own database: metadata and delivery state. RocketMQ leaves it alone."""
        return self.root / "quarry"

    @property
    def cut_over(self) -> Path:
        """Return the file that says that a cut-over from RocketMQ is complete: a broker may serve the store."""
        return self.quarry / "CUT_OVER"

    @property
    def cut_over_order(self) -> Path:
        """Return the file by which the process that follows RocketMQ is ordered to cut over."""
        return self.quarry / "CUT_OVER_ORDER"

    @property
    def following(self) -> Path:
        """Return the file in which the process that follows RocketMQ says how far it is."""
        return self.quarry / "FOLLOWING"

    @property
    def pending_messages(self) -> Path:
        """Return the directory of the pending messages (delayed messages and half messages), which are derived from the
        log.
        """
        return self.root / "held_rocksdb"

    @property
    def config(self) -> Path:
        """Return the directory of RocketMQ's metadata as JSON."""
        return self.root / "config"

    @property
    def index(self) -> Path:
        """Return the directory of key index files."""
        return self.root / "index"

    @property
    def key_index(self) -> Path:
        """Return the directory of the tiered index of keys."""
        return self.root / "key_index"

    @property
    def tls(self) -> Path:
        """Return the folder of the self-signed certificate and its key. It belongs to the broker, not to the store's
        content: no backup has it.
        """
        return self.root / "tls"

    @property
    def replication(self) -> Path:
        """Return the folder that says which copy of a replicated store this is. It belongs to the copy: no backup has
        it.
        """
        return self.root / "replication"

    @property
    def abort(self) -> Path:
        """Return the file that exists while a broker runs: if a start finds it, the last stop was unclean."""
        return self.root / "abort"

    @property
    def checkpoint(self) -> Path:
        """Return the file that says how far the log was flushed."""
        return self.root / "checkpoint"

    @property
    def backup_points(self) -> Path:
        """Return the folder of consistent copies of the databases while a live broker is backed up, one sub-folder
        each.
        """
        return self.root / "backup"

    @property
    def consume_queue_migrating(self) -> Path:
        """Return the folder in which an offline migration makes queue files before they are moved to their place."""
        return self.root / "consumequeue.migrating"

    @property
    def consume_queue_rocksdb_migrating(self) -> Path:
        """Return the folder in which an offline migration makes the database of queues before it is
        moved to its place.
        """
        return self.root / "consumequeue_rocksdb.migrating"

    @property
    def restoring(self) -> Path:
        """Return the folder in which a restore puts files before they are moved: if a start finds it, the restore did
        not finish.
        """
        return self.root / "restoring"

    @property
    def lock(self) -> Path:
        """Return the file that the broker that owns the store locks."""
        return self.root / "lock"

    def part_of(self, path: Path) -> StorePart:
        """Return the part of the store that a file or directory belongs to."""
        directories = (
            (self.commit_log, StorePart.LOG),
            (self.consume_queue, StorePart.QUEUES),
            (self.consume_queue_rocksdb, StorePart.QUEUES),
            (self.pending_messages, StorePart.PENDING_MESSAGES),
        )
        absolute = path.absolute()
        return next((part for each, part in directories if absolute.is_relative_to(each.absolute())), StorePart.OTHER)
