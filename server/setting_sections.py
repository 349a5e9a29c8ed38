"""The sections of the settings: each key with its default, its bounds and its description."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, model_validator

from server.delivery.model import NewGroupStart
from server.front import FrontKind
from store.queue_phase import QueueMode, QueuePlace
from store.settings import (
    BODY_SIZE_MAX,
    HASH_ITEMS,
    HASH_SLOTS,
    MIB,
    SEGMENT_SIZE,
    SLOT_CACHE_BYTES,
    TIERED_ITEMS,
    TIERED_SLOTS,
    UNITS_PER_FILE,
    Durability,
)


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as its parts; IPv6 hosts keep their brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or (":" in host and not re.fullmatch(r"\[[0-9a-fA-F:.]+\]", host)):
        raise ValueError("must be host:port (an IPv6 host in brackets)")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError("the port must be a number from 0 to 65535")
    return host, int(port)


def _listening(address: str) -> str:
    split_address(address)
    return address


def _advertised(address: str) -> str:
    if split_address(address)[1] == 0:
        raise ValueError("clients cannot connect to port 0")
    return address


ListenAddress = Annotated[str, AfterValidator(_listening)]
AdvertisedAddress = Annotated[str, AfterValidator(_advertised)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=False)


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
        description="Where compacted files of the tiered index are copied to: a folder, or an object store as "
        "`s3://bucket/prefix` (`gs://`, `az://`). Without it they stay here alone.",
    )
    upload_options: dict[str, str] = Field(
        default={},
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
    )
    delete_when: list[int] = Field(
        default=[4],
        description="Hours of the local clock (0 to 23) during which expired files are deleted; an empty list: at any "
        "hour.",
    )
    clean_percent: int = Field(
        default=75, ge=1, le=100, description="Above this use of the disk expired files are deleted at any hour."
    )
    force_percent: int = Field(
        default=85,
        ge=1,
        le=100,
        description="Above this use of the commit log's disk the oldest files are deleted whatever their age, until "
        "it is reached again.",
    )
    refuse_percent: int = Field(
        default=90,
        ge=1,
        le=100,
        description="Above this use of the disk of commit log or consume queues no sends are taken; receives and "
        "acknowledgements go on.",
    )
    force: bool = Field(
        default=True,
        description="Whether anything may be deleted before its time. If not, a disk that fills up ends in sends "
        "being refused.",
    )
    segments_per_round: int = Field(default=10, ge=1, description="Commit log files that expire at once at most.")
    interval_ms: int = Field(default=10_000, ge=100, description="How often age and disk are looked at.")
    start_delay_ms: int = Field(
        default=60_000,
        ge=0,
        description="Nothing is deleted sooner after a start: clocks are often set right then.",
    )
    pause_ms: int = Field(default=100, ge=0, description="Pause between the removal of two files.")
    reader_patience_ms: int = Field(
        default=120_000,
        ge=0,
        description="How long an expired file stays on disk while the broker still reads it. After that it is removed "
        "all the same; the read goes on, and the room comes back when it ends.",
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


class TransactionsSection(Section):
    check_after_ms: int = Field(
        default=6_000,
        ge=1,
        description="How long a half message waits before its producer is asked about it, where the producer does not "
        "say (`orphaned_transaction_recovery_duration`).",
    )
    check_interval_ms: int = Field(default=30_000, ge=100, description="How long after that it is asked again.")
    checks_max: int = Field(
        default=15,
        ge=1,
        description="After so many checks without a word the transaction is rolled back, and the message kept in "
        "RocketMQ's topic TRANS_CHECK_MAX_TIME_TOPIC. A check that no producer was there to hear does not count.",
    )


class NetworkSection(Section):
    listen: ListenAddress = Field(default="127.0.0.1:8081", description="Where messaging clients connect (gRPC).")
    advertise: AdvertisedAddress | None = Field(
        default=None,
        description="The address that clients are sent to. Without it they are sent to the address they used, "
        "which works behind port mappings too (rmq#8864).",
    )
    admin: ListenAddress = Field(
        default="127.0.0.1:8082", description="Where `quarry topic`, `group` and the like connect."
    )
    http: ListenAddress = Field(default="127.0.0.1:9464", description="Where `/metrics`, `/healthz` and `/readyz` are.")
    front: FrontKind = Field(
        default="h2",
        description="Which engine serves the messaging port: `h2` is our own, `grpcio` the C core's, ten times slower.",
    )
    tls_listen: ListenAddress | None = Field(
        default=None, description="Where messaging clients connect with TLS, beside `listen`."
    )
    tls_certificate: Path | None = Field(
        default=None, description="The certificate chain that is shown on `tls_listen` (PEM)."
    )
    tls_key: Path | None = Field(default=None, description="The private key of `tls_certificate` (PEM).")
    tls_client_ca: Path | None = Field(
        default=None,
        description="Clients on `tls_listen` must show a certificate signed by one of these authorities (PEM).",
    )
    stop_grace_ms: int = Field(
        default=5_000, ge=0, description="How long open calls may take to end when the broker stops."
    )

    @model_validator(mode="after")
    def _tls_is_complete(self) -> Self:
        if self.tls_listen is not None and (self.tls_certificate is None or self.tls_key is None):
            raise ValueError("tls_listen needs tls_certificate and tls_key")
        return self


class BrokerSection(Section):
    name: str = Field(
        default="quarry",
        pattern=r"^[A-Za-z0-9_.-]{1,255}$",
        description="The broker's name in routes. Producers tell brokers apart by it: unique in a cluster.",
    )
    cluster: str = Field(
        default="DefaultCluster", pattern=r"^[A-Za-z0-9_.-]{1,255}$", description="The cluster's name, for display."
    )


class TopicsSection(Section):
    auto_create: bool = Field(default=True, description="Make a topic when a client first asks for it.")
    default_queues: int = Field(
        default=8, ge=1, le=65_536, description="Queues of a topic that is made without a number of queues."
    )


class GroupsSection(Section):
    auto_create: bool = Field(default=True, description="Make a consumer group when a client first asks for it.")


class DeliverySection(Section):
    new_group_start: NewGroupStart = Field(
        default=NewGroupStart.AUTO,
        description="Where a new group starts to read: at the first message (`earliest`), behind the last "
        "(`latest`), or as RocketMQ does it (`auto`): at the first one as long as nothing of the queue was deleted "
        "and it lies within `auto_start_size`, else behind the last.",
    )
    auto_start_size: ByteSize = Field(
        default=ByteSize(8 << 30),
        description="How far back in the commit log `auto` still starts at the first message.",
    )
    invisible_time_min_ms: int = Field(
        default=1_000, ge=1, description="Shortest time for which a consumer may hide a message it received."
    )
    invisible_time_max_ms: int = Field(
        default=12 * 3_600_000, ge=1, description="Longest time for which a consumer may hide a message it received."
    )
    lease_ms: int = Field(
        default=60_000,
        ge=1_000,
        description="How long messages of a push consumer stay hidden before the lease is renewed.",
    )
    lease_total_ms: int = Field(
        default=3 * 3_600_000,
        ge=1_000,
        description="How long leases of one message are renewed before it is delivered again.",
    )
    polling_min_ms: int = Field(
        default=5_000, ge=0, description="A receive waits at least this long for messages, if its deadline allows."
    )
    polling_max_ms: int = Field(default=20_000, ge=0, description="A receive waits at most this long for messages.")
    polling_reserve_ms: int = Field(
        default=200, ge=0, description="How long before the client's deadline a receive without messages is answered."
    )
    waiting_polls_max: int = Field(
        default=20_000,
        ge=1,
        description="Receives that may wait at once; above it they are refused as too many requests.",
    )
    batch_max: int = Field(
        default=32,
        ge=1,
        le=1_024,
        description="Messages of one receive at most. A receive of several messages also ends at 8 MiB.",
    )
    client_disconnected_ms: int = Field(
        default=20_000,
        ge=1_000,
        description="Silence after which a client whose telemetry streams have all ended is taken for gone: "
        "its leased messages go to others.",
    )
    client_silent_ms: int = Field(
        default=120_000,
        ge=1_000,
        description="Silence after which any client is forgotten. Clients send heartbeats every 10 s, those for "
        "Rust every 30 s.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for low, high in (
            ("invisible_time_min_ms", "invisible_time_max_ms"),
            ("polling_min_ms", "polling_max_ms"),
            ("lease_ms", "lease_total_ms"),
            ("client_disconnected_ms", "client_silent_ms"),
        ):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low} must not exceed {high}")
        return self


class LimitsSection(Section):
    body_size: ByteSize = Field(
        default=ByteSize(BODY_SIZE_MAX), ge=1, description="Largest message body. Announced to producers."
    )
    properties_size: ByteSize = Field(
        default=ByteSize(16_384),
        ge=0,
        description="Bytes of one message's property names, values, tag and keys together.",
    )
    properties_count: int = Field(default=128, ge=0, description="User properties of one message.")
    message_group_size: int = Field(default=63, ge=1, description="Bytes of a message group's name.")
    request_size: ByteSize = Field(
        default=ByteSize(16 * MIB), ge=1, description="Largest request; larger ones are refused before they are read."
    )
    metadata_size: ByteSize = Field(default=ByteSize(64 * 1024), ge=8_192, description="Largest request header block.")
    open_calls: int = Field(default=100_000, ge=1, description="Calls that may be open at once, long polls included.")
    connections: int = Field(
        default=10_000,
        ge=1,
        description="Connections of messaging clients (front `h2`). The oldest without a call gives way to a new one.",
    )

    @model_validator(mode="after")
    def _a_body_fits_a_request(self) -> Self:
        if self.request_size < self.body_size + self.properties_size:
            raise ValueError("request_size must have room for body_size and properties_size")
        return self


class LogSection(Section):
    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="`auto`: readable on a terminal, JSON lines elsewhere."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important events shown."
    )
    access: bool = Field(default=False, description="A line for each call of a messaging client.")
