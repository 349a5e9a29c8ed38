"""Settings of the store: the commit log, its queues, its indexes, and how long all of that is kept."""

from __future__ import annotations

from pathlib import Path

from pydantic import ByteSize, Field

from quarry_mq.kv.options import MIB
from quarry_mq.server.settings.sections.base import LIVE, Section
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePlace
from quarry_mq.store.settings import (
    HASH_ITEMS,
    HASH_SLOTS,
    SEGMENT_SIZE,
    SLOT_CACHE_BYTES,
    TIERED_ITEMS,
    TIERED_SLOTS,
    UNITS_PER_FILE,
    Durability,
)


class StoreSection(Section):
    directory: Path = Field(
        default=Path("quarry-store"),
        description="Where the store lies. Made when it is missing; a store written by RocketMQ opens as it is.",
    )
    segment_size: ByteSize = Field(
        default=ByteSize(SEGMENT_SIZE),
        description="Size of one commit log file of a new store. An existing store keeps the size it was made with.",
    )
    durability: Durability = Field(
        default=Durability.SYNC,
        description="`sync`: an acknowledged send is on disk. `async`: a power cut may lose what came in during "
        "the last `flush_interval_ms`; the death of the process loses nothing.",
    )
    flush_interval_ms: int = Field(
        default=500,
        gt=0,
        description="With `async`, how old a message gets at most until it is on disk. A flush begins after half of "
        "that, so this holds wherever one flush takes less than the other half.",
    )
    record_crc: bool = Field(
        default=True,
        description="Add RocketMQ's CRC property to each record, so that header and properties are covered too.",
    )
    mapped_segments_max: int = Field(
        default=64, ge=4, description="Commit log files kept mapped at once. Each costs one open file."
    )
    cached_queues_max: int = Field(
        default=16_384,
        ge=16,
        description="Queues whose next offset is kept in memory; others are looked up in RocksDB.",
    )
    queue_flush_size: ByteSize = Field(
        default=ByteSize(256 * MIB),
        description="Commit log bytes after which the consume queues are flushed: what a restart after a kill "
        "dispatches again at most.",
    )


class ConsumeQueueSection(Section):
    mode: QueueMode | None = Field(
        default=None,
        description="Where consume queues are kept: `rocksdb`, `file` (RocketMQ's files) or `double_write` (both, "
        "files are read). Without it where the store has them; a new store, and one of RocketMQ's file queues, in "
        "RocksDB. A mode that the store does not have is refused (rmq#8600), but for `double_write` on `file`.",
    )
    units_per_file: int = Field(
        default=UNITS_PER_FILE,
        gt=0,
        description="How many messages one file of the file queues holds, 20 bytes each. A store keeps what it has.",
    )
    read: QueuePlace | None = Field(
        default=None,
        description="Which of the two is read while both are written, `file` or `rocksdb`. Without it as the phase of "
        "the [migration](migration.md) says. `rocksdb` is refused before it holds everything.",
    )
    assign: QueuePlace | None = Field(
        default=None, description="The same for who says what offset the next message of a queue gets."
    )
    double_write_topics: list[str] | None = Field(
        default=None,
        description="Name patterns (`orders-*`) of the topics that are written to both while both are written "
        "(rmq#10450); the others stay in files. Without it all are. With it a migration goes no further than its "
        "backfill.",
    )
    backfill_rate: ByteSize = Field(
        default=ByteSize(32 * MIB),
        gt=0,
        description="How much of the commit log is read per second at most to bring older entries into RocksDB.",
        json_schema_extra=LIVE,
    )
    removal_interval_ms: int = Field(
        default=3_600_000,
        ge=0,
        description="How often queues that nobody can use any more are looked for and removed: those of topics that do "
        "not exist, and idle light ones where `idle_light_queue_hours` says so. 0: never.",
    )
    removal_delay_ms: int = Field(default=600_000, ge=0, description="How long after a start that is first done.")
    idle_light_queue_hours: float | None = Field(
        default=None,
        gt=0,
        description="Remove a light queue, and the progress of all groups in it, once all of its messages have been "
        "gone from the commit log for so long and none came (rocketmq-mqtt#287). Without it none is ever removed; "
        "nor is one that is in files.",
    )


class IndexSection(Section):
    hash_files: bool = Field(
        default=False,
        description="Keep RocketMQ's key index files (`index/`) up, so that messages are found by their keys here "
        "(`quarry query`) and by RocketMQ on this store. When it is turned on the log is read once, beside everything "
        "else.",
    )
    hash_slots: int = Field(
        default=HASH_SLOTS,
        gt=0,
        description="Hash slots of a file: RocketMQ's `maxHashSlotNum`. A store keeps what its files have.",
    )
    hash_items: int = Field(
        default=HASH_ITEMS,
        gt=1,
        description="Keys that one file holds, and one more: RocketMQ's `maxIndexNum`. A store keeps what its files "
        "have. Slots take 4 bytes each and keys 20, all of which a file takes from the disk when it is made.",
    )

    tiered: bool = Field(
        default=False,
        description="Keep the tiered index of keys (`key_index/`): its files are compacted when they are full and, "
        "where `upload_to` says so, copied to an object store. Queries ask it before `hash_files`.",
    )
    tiered_slots: int = Field(
        default=TIERED_SLOTS, gt=0, description="Hash slots of a new file of the tiered index, 4 bytes each."
    )
    tiered_items: int = Field(
        default=TIERED_ITEMS,
        gt=0,
        description="Keys that one file of the tiered index holds, 20 bytes each. A file takes all of its room from "
        "the disk when it is made.",
    )
    upload_to: str | None = Field(
        default=None,
        repr=False,  # may hold a secret, as the next one
        description="Where compacted files of the tiered index are copied to: a folder, or an object store as "
        "`s3://bucket/prefix` (`gs://`, `az://`). Without it they stay here alone.",
    )
    upload_options: dict[str, str] = Field(
        default={},
        repr=False,
        description="Options of the object store as obstore names them: `endpoint`, `region`, `access_key_id`, "
        "`secret_access_key` and others, also those of its connections, as `timeout`. What is not said comes from the "
        "environment, as its tools read it.",
    )
    keep_uploaded: bool = Field(
        default=True, description="Whether files that were uploaded stay here, too. If not, queries read them there."
    )
    slot_cache: ByteSize = Field(
        default=ByteSize(SLOT_CACHE_BYTES),
        ge=0,
        description="Memory for parts of uploaded files that tell where a key is to be found: who asks for keys of "
        "such a part again spares one of two requests to the object store.",
    )


class ExpirySection(Section):
    retention_hours: float = Field(
        default=72,
        gt=0,
        description="How long messages are kept at least. A commit log file expires when its newest message is that "
        "old.",
        json_schema_extra=LIVE,
    )
    delete_when: list[int] = Field(
        default=[4],
        description="Hours of the local clock (0 to 23) during which expired files are deleted; an empty list: at any "
        "hour.",
    )
    clean_percent: int = Field(
        default=75,
        ge=1,
        le=100,
        description="Above this use of the disk expired files are deleted at any hour.",
        json_schema_extra=LIVE,
    )
    force_percent: int = Field(
        default=85,
        ge=1,
        le=100,
        description="Above this use of the commit log's disk the oldest files are deleted whatever their age, until "
        "it is reached again.",
        json_schema_extra=LIVE,
    )
    refuse_percent: int = Field(
        default=90,
        ge=1,
        le=100,
        description="Above this use of the disk of commit log or consume queues no sends are taken; receives and "
        "acknowledgements go on.",
        json_schema_extra=LIVE,
    )
    force: bool = Field(
        default=True,
        description="Whether anything may be deleted before its time. If not, a disk that fills up ends in sends "
        "being refused.",
        json_schema_extra=LIVE,
    )
    segments_per_round: int = Field(
        default=10, ge=1, description="Commit log files that expire at once at most.", json_schema_extra=LIVE
    )
    interval_ms: int = Field(default=10_000, ge=100, description="How often age and disk are looked at.")
    start_delay_ms: int = Field(
        default=60_000,
        ge=0,
        description="Nothing is deleted sooner after a start: clocks are often set right then.",
    )
    pause_ms: int = Field(
        default=100, ge=0, description="Pause between the removal of two files.", json_schema_extra=LIVE
    )
    reader_patience_ms: int = Field(
        default=120_000,
        ge=0,
        description="How long an expired file stays on disk while the broker still reads it. After that it is removed "
        "all the same; the read goes on, and the room comes back when it ends.",
        json_schema_extra=LIVE,
    )
    queue_pause_ms: int = Field(
        default=2,
        ge=0,
        description="Shortest pause between two steps of removing the entries of expired messages from the consume "
        "queues. A step is about 1 ms; the pause is never shorter than the step was.",
    )
    queue_rewrite_percent: int = Field(
        default=20,
        ge=1,
        le=100,
        description="When so much of the entries went, RocksDB rewrites the tables that hold them, which gives their "
        "room back and needs room for the new ones meanwhile.",
    )
