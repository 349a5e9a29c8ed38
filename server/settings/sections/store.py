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
        description="The directory of the store. It is created if it does not exist; a store written by RocketMQ can "
        "be opened as it is.",
    )
    segment_size: ByteSize = Field(
        default=ByteSize(SEGMENT_SIZE),
        description="Size of one commit log file of a new store. An existing store keeps the size it was created with.",
    )
    durability: Durability = Field(
        default=Durability.SYNC,
        description="`sync`: an acknowledged send is on disk. `async`: a power cut may lose the messages of the last "
        "`flush_interval_ms`; a crash of the process loses nothing.",
    )
    flush_interval_ms: int = Field(
        default=500,
        gt=0,
        description="With `async`, a message is on disk at most this long after it was sent. A flush begins after "
        "half of this time, so one flush may take up to the other half.",
    )
    record_crc: bool = Field(
        default=True,
        description="Add RocketMQ's CRC property to each record, so that the header and the properties are also "
        "checked for damage.",
    )
    mapped_segments_max: int = Field(
        default=64, ge=4, description="Commit log files that are kept memory-mapped at once. Each needs one open file."
    )
    cached_queues_max: int = Field(
        default=16_384,
        ge=16,
        description="Number of queues whose next offset is kept in memory; for others it is read from RocksDB.",
    )
    queue_flush_size: ByteSize = Field(
        default=ByteSize(256 * MIB),
        description="The consume queues are flushed after this many bytes of commit log. A restart after a kill "
        "dispatches at most this much again.",
    )


class ConsumeQueueSection(Section):
    mode: QueueMode | None = Field(
        default=None,
        description="Where consume queues are kept: `rocksdb`, `file` (RocketMQ's files) or `double_write` (both; "
        "files are read). Default: where the store has them; in RocksDB for a new store and for a RocketMQ store "
        "with file queues. A mode other than the store's is refused (rmq#8600), except `double_write` for a store in "
        "mode `file`.",
    )
    units_per_file: int = Field(
        default=UNITS_PER_FILE,
        gt=0,
        description="How many messages one consume queue file holds, 20 bytes each. An existing store keeps its own "
        "value.",
    )
    read: QueuePlace | None = Field(
        default=None,
        description="Which of the two is read while both are written, `file` or `rocksdb`. Default: as the phase of "
        "the [migration](migration.md) requires. `rocksdb` is refused until it holds everything.",
    )
    assign: QueuePlace | None = Field(
        default=None,
        description="Which of the two decides the offset of the next message of a queue while both are "
        "written. Default: as the phase of the [migration](migration.md) requires.",
    )
    double_write_topics: list[str] | None = Field(
        default=None,
        description="Name patterns (`orders-*`) of the topics that a double-write store writes to both (rmq#10450); "
        "all other topics stay in files. Default: all topics. With this setting a migration stops after its "
        "backfill.",
    )
    backfill_rate: ByteSize = Field(
        default=ByteSize(32 * MIB),
        gt=0,
        description="How much of the commit log the backfill of RocksDB reads per second at most.",
        json_schema_extra=LIVE,
    )
    removal_interval_ms: int = Field(
        default=3_600_000,
        ge=0,
        description="How often the broker removes queues that nobody can use any more: queues of topics that do not "
        "exist, and idle light queues if `idle_light_queue_hours` is set. 0: never.",
    )
    removal_delay_ms: int = Field(
        default=600_000, ge=0, description="How long after a start unused queues are removed for the first time."
    )
    idle_light_queue_hours: float | None = Field(
        default=None,
        gt=0,
        description="Remove a light queue, with the progress of all groups in it, when it has been empty for this "
        "long: all of its messages have left the commit log and no new one came (rocketmq-mqtt#287). If not set, "
        "light queues are never removed. Light queues in files are never removed.",
    )


class IndexSection(Section):
    hash_files: bool = Field(
        default=False,
        description="Maintain RocketMQ's key index files (`index/`), so that messages are found by their keys here "
        "(`quarry query`) and by RocketMQ on this store. When this is turned on, the log is read once in the "
        "background.",
    )
    hash_slots: int = Field(
        default=HASH_SLOTS,
        gt=0,
        description="Hash slots per index file: RocketMQ's `maxHashSlotNum`. An existing store keeps the value of its "
        "files.",
    )
    hash_items: int = Field(
        default=HASH_ITEMS,
        gt=1,
        description="Number of keys that one index file holds, plus one: RocketMQ's `maxIndexNum`. An existing store "
        "keeps the value of its files. A slot takes 4 bytes and a key 20; a file takes its full size from the disk "
        "when it is created.",
    )

    tiered: bool = Field(
        default=False,
        description="Maintain the tiered key index (`key_index/`): its files are compacted when they are full and, if "
        "`upload_to` is set, copied to an object store. Queries use it before `hash_files`.",
    )
    tiered_slots: int = Field(
        default=TIERED_SLOTS, gt=0, description="Hash slots of a new file of the tiered index, 4 bytes each."
    )
    tiered_items: int = Field(
        default=TIERED_ITEMS,
        gt=0,
        description="Keys that one file of the tiered index holds, 20 bytes each. A file takes its full size from the "
        "disk when it is created.",
    )
    upload_to: str | None = Field(
        default=None,
        repr=False,  # may hold a secret, as the next one
        description="Where compacted files of the tiered index are copied to: a folder, or an object store such as "
        "`s3://bucket/prefix` (`gs://`, `az://`). Default: they stay only in the store.",
    )
    upload_options: dict[str, str] = Field(
        default={},
        repr=False,
        description="Options of the object store as obstore names them: `endpoint`, `region`, `access_key_id`, "
        "`secret_access_key` and others, including options of its connections such as `timeout`. Options that are "
        "not set here are read from the environment variables that the object store's own tools use.",
    )
    keep_uploaded: bool = Field(
        default=True,
        description="Whether uploaded files also stay in the store. If not, queries read them from the object store.",
    )
    slot_cache: ByteSize = Field(
        default=ByteSize(SLOT_CACHE_BYTES),
        ge=0,
        description="Memory for the lookup tables of uploaded files. A query whose part of the table is in memory "
        "needs one request to the object store instead of two.",
    )


class ExpirySection(Section):
    retention_hours: float = Field(
        default=72,
        gt=0,
        description="How long messages are kept at least. A commit log file expires when its newest message is this "
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
        description="If the disk is more than this full, expired files are deleted at any hour.",
        json_schema_extra=LIVE,
    )
    force_percent: int = Field(
        default=85,
        ge=1,
        le=100,
        description="If the commit log's disk is more than this full, the oldest files are deleted regardless of "
        "their age, until usage is back at this value.",
        json_schema_extra=LIVE,
    )
    refuse_percent: int = Field(
        default=90,
        ge=1,
        le=100,
        description="If the disk of the commit log or of the consume queues is more than this full, sends are "
        "refused; receives and acknowledgements go on.",
        json_schema_extra=LIVE,
    )
    force: bool = Field(
        default=True,
        description="Whether messages may be deleted before their retention time to make room. If not, sends are "
        "refused when the disk is full.",
        json_schema_extra=LIVE,
    )
    segments_per_round: int = Field(
        default=10,
        ge=1,
        description="How many commit log files are deleted in one run at most.",
        json_schema_extra=LIVE,
    )
    interval_ms: int = Field(
        default=10_000, ge=100, description="How often the age of the files and the disk usage are checked."
    )
    start_delay_ms: int = Field(
        default=60_000,
        ge=0,
        description="Nothing is deleted during this time after a start, because clocks are often corrected then.",
    )
    pause_ms: int = Field(
        default=100, ge=0, description="Pause between the removal of two files.", json_schema_extra=LIVE
    )
    reader_patience_ms: int = Field(
        default=120_000,
        ge=0,
        description="How long an expired file stays on disk while the broker still reads it. After that the file is "
        "removed anyway; the read goes on, and the space is freed when it ends.",
        json_schema_extra=LIVE,
    )
    queue_pause_ms: int = Field(
        default=2,
        ge=0,
        description="Shortest pause between two steps that remove entries of expired messages from the consume "
        "queues. A step takes about 1 ms; the pause is never shorter than the step before it.",
    )
    queue_rewrite_percent: int = Field(
        default=20,
        ge=1,
        le=100,
        description="When this share of the entries has been removed, RocksDB rewrites the tables that hold them. "
        "This frees their space, but needs additional space for the new tables meanwhile.",
    )


class VerificationSection(Section):
    interval_ms: int = Field(
        default=86_400_000,
        ge=0,
        description="How often the broker reads its whole commit log in the background, so that damage is found before "
        "somebody needs the message. A sweep is spread over half of this time. Default: once a day. 0: never.",
        json_schema_extra=LIVE,
    )
    rate: ByteSize = Field(
        default=ByteSize(32 * MIB),
        ge=MIB,
        description="How much of the commit log such a sweep reads per second at most. It never takes more than 10 % "
        "of the time of a processor core.",
        json_schema_extra=LIVE,
    )
