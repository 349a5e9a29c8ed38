"""The settings of the store are frozen values, checked once. Components (disk, clock, metrics) are
passed in instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from resource import getpagesize
from typing import Final

from quarry_mq.kv.options import MIB
from quarry_mq.store.errors import Invalid
from quarry_mq.store.layout.queue_phase import AS_THE_PHASE_SAYS, QueueMode, QueuePlaces

SEGMENT_SIZE: Final = 1 << 30  # RocketMQ's; keeps every position inside a segment within int32
BODY_SIZE_MAX: Final = 4 * MIB  # RocketMQ's maxMessageSize
RECORD_OVERHEAD_MAX: Final = 64 * 1024  # topic, properties and head: RocketMQ's allowance above the body
UNITS_PER_FILE: Final = 300_000  # RocketMQ's: 6,000,000 bytes
HASH_SLOTS: Final = 5_000_000  # RocketMQ's maxHashSlotNum
HASH_ITEMS: Final = 20_000_000  # RocketMQ's maxIndexNum
TIERED_SLOTS: Final = 1_000_000
SLOT_CACHE_BYTES: Final = 16 * MIB
TIERED_ITEMS: Final = 4_000_000
SEGMENT_SIZE_MIN: Final = 64 * 1024


class Durability(Enum):
    """The durability says what an acknowledged send survives."""

    SYNC = "sync"  # power loss: the message was on disk before the answer
    ASYNC = "async"  # the death of the process; a power cut may take back up to one flush interval


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSettings:
    """The settings of the indexes say how messages are found by their keys."""

    hash_files: bool = False
    """True to keep RocketMQ's index files."""
    hash_slots: int = HASH_SLOTS
    hash_items: int = HASH_ITEMS
    """Items per hash index file, including the one that is never used. Existing files keep their own
    slots and items.
    """
    tiered: bool = False
    """True to keep the tiered index."""
    tiered_slots: int = TIERED_SLOTS
    tiered_items: int = TIERED_ITEMS
    """Items per file of the tiered index."""
    upload_to: str | None = field(default=None, repr=False)
    """The place that compacted files of the tiered index are copied to: a folder, or the URL of an object store."""
    upload_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options of the object store. URL and options may hold secrets, which no text about the settings shows."""
    keep_uploaded: bool = True
    """True to keep uploaded files locally, too."""
    slot_cache_bytes: int = SLOT_CACHE_BYTES
    """Bytes of cache for slots of uploaded files."""

    def __post_init__(self) -> None:
        _require(self.hash_slots > 0, "index.hash_slots", "must be positive")
        _require(self.hash_items > 1, "index.hash_items", "must be at least 2")
        _require(self.tiered_slots > 0, "index.tiered_slots", "must be positive")
        _require(self.tiered_items > 0, "index.tiered_items", "must be positive")
        _require(self.slot_cache_bytes >= 0, "index.slot_cache", "must not be negative")


COPY_GROWTH_MAX: Final = 4 * 1024
"""Bytes by which the record of a copy may be larger than that of its original: another topic, and more properties."""
CHECK_AFTER_MS: Final = 6_000
"""Milliseconds until the producer of a half message is asked, unless it sets a time: as RocketMQ's
`transactionTimeOut`.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """The settings of a store say how it is laid out and maintained.

    `record_crc` adds RocketMQ's CRC property to each record, so that header and properties are covered, not only the
    body. `queue_flush_bytes` limits what a restart dispatches again after the process died.
    """

    root: Path
    queue_mode: QueueMode | None = None
    """The place of the consume queues; None: where they are now, and in RocksDB if there are none."""
    queue_places: QueuePlaces = AS_THE_PHASE_SAYS
    """The choice which of two sets of consume queues is read and which assigns offsets, while a store has both."""
    doubled_topics: tuple[str, ...] | None = None
    """Patterns of the topics that are written to both sets of consume queues; None: all topics."""
    units_per_file: int = UNITS_PER_FILE
    check_after_ms: int = CHECK_AFTER_MS
    segment_size: int = SEGMENT_SIZE
    durability: Durability = Durability.SYNC
    flush_interval_ms: int = 500
    record_crc: bool = True
    record_size_max: int = BODY_SIZE_MAX + RECORD_OVERHEAD_MAX
    queue_flush_bytes: int = 256 * MIB
    mapped_segments_max: int = 64
    cached_queues_max: int = 16_384
    index: IndexSettings = field(default_factory=IndexSettings)
    member: str | None = None
    """The store's name in its cluster; None without a cluster."""
    has_copies: bool = False
    """True to record the changes of `quarry/` for copies of the store on other machines."""

    def __post_init__(self) -> None:
        _require(
            self.segment_size % getpagesize() == 0,
            "store.segment_size",
            "must be a multiple of the page size",
        )
        _require(
            self.segment_size >= SEGMENT_SIZE_MIN,
            "store.segment_size",
            f"must be at least {SEGMENT_SIZE_MIN}",
        )
        _require(self.segment_size <= SEGMENT_SIZE, "store.segment_size", f"must be at most {SEGMENT_SIZE}")
        _require(self.units_per_file > 0, "consume_queue.units_per_file", "must be positive")
        _require(self.flush_interval_ms > 0, "store.flush_interval_ms", "must be positive")
        _require(self.mapped_segments_max >= 4, "store.mapped_segments_max", "must be at least 4")
        _require(self.cached_queues_max >= 16, "store.cached_queues_max", "must be at least 16")


def _require(condition: bool, key: str, rule: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not condition:
        raise Invalid(f"{key} {rule}")
