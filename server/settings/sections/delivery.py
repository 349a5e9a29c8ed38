"""Settings of topics, groups, lite topics, and delivery to consumers."""

from __future__ import annotations

from enum import Enum
from typing import Self

from pydantic import ByteSize, Field, model_validator

from quarry_mq.server.settings.sections.base import LIVE, Section


class NewGroupStart(Enum):
    """Position at which a group starts in a queue that it has never read."""

    AUTO = (
        "auto"  # RocketMQ's rule: from the start of a queue that is complete and not too large for memory, else the end
    )
    EARLIEST = "earliest"
    LATEST = "latest"


class TopicsSection(Section):
    auto_create: bool = Field(
        default=True, description="Create a topic when a client first asks for it.", json_schema_extra=LIVE
    )
    default_queues: int = Field(
        default=8,
        ge=1,
        le=65_536,
        description="Number of queues of a topic that is created without one.",
        json_schema_extra=LIVE,
    )


class GroupsSection(Section):
    auto_create: bool = Field(
        default=True, description="Create a consumer group when a client first asks for it.", json_schema_extra=LIVE
    )


class DeliverySection(Section):
    new_group_start: NewGroupStart = Field(
        default=NewGroupStart.AUTO,
        description="Where a new group starts to read: at the first message (`earliest`), after the last (`latest`), "
        "or as in RocketMQ (`auto`): at the first message if nothing of the queue was deleted and that message lies "
        "within `auto_start_size`, otherwise after the last.",
    )
    auto_start_size: ByteSize = Field(
        default=ByteSize(8 << 30),
        description="With `auto`, a new group starts at the first message only if that message is at most this far "
        "back in the commit log.",
        json_schema_extra=LIVE,
    )
    invisible_time_min_ms: int = Field(
        default=1_000,
        ge=1,
        description="Shortest time for which a consumer may hide a message it received.",
        json_schema_extra=LIVE,
    )
    invisible_time_max_ms: int = Field(
        default=12 * 3_600_000,
        ge=1,
        description="Longest time for which a consumer may hide a message it received.",
        json_schema_extra=LIVE,
    )
    lease_ms: int = Field(
        default=60_000,
        ge=1_000,
        description="How long messages of a push consumer stay hidden before the lease is renewed.",
        json_schema_extra=LIVE,
    )
    lease_total_ms: int = Field(
        default=3 * 3_600_000,
        ge=1_000,
        description="How long the lease of one message is renewed at most; after that the message is delivered again.",
        json_schema_extra=LIVE,
    )
    polling_min_ms: int = Field(
        default=5_000,
        ge=0,
        description="A receive waits at least this long for messages, if the client's deadline allows.",
        json_schema_extra=LIVE,
    )
    polling_max_ms: int = Field(
        default=20_000, ge=0, description="A receive waits at most this long for messages.", json_schema_extra=LIVE
    )
    polling_reserve_ms: int = Field(
        default=200,
        ge=0,
        description="How long before the client's deadline an empty receive is answered.",
        json_schema_extra=LIVE,
    )
    waiting_polls_max: int = Field(
        default=20_000,
        ge=1,
        description="Receives that may wait at once; further ones are refused as too many requests.",
        json_schema_extra=LIVE,
    )
    waiting_pulls_max: int = Field(
        default=50_000,
        ge=1,
        description="Pulls that may wait at once; further ones are refused as too many requests. A consumer by "
        "remoting pulls each of its queues. A waiting pull takes 4 KiB of memory.",
        json_schema_extra=LIVE,
    )
    batch_max: int = Field(
        default=32,
        ge=1,
        le=1_024,
        description="Messages of one receive at most. A receive of several messages also ends at 8 MiB.",
        json_schema_extra=LIVE,
    )
    client_disconnected_ms: int = Field(
        default=20_000,
        ge=1_000,
        description="A client whose telemetry streams have all ended and that is silent for this long counts as gone: "
        "its leased messages go to other clients.",
        json_schema_extra=LIVE,
    )
    client_silent_ms: int = Field(
        default=120_000,
        ge=1_000,
        description="Any client that is silent for this long is removed from memory. Clients send heartbeats every 10 "
        "s, the Rust client every 30 s.",
        json_schema_extra=LIVE,
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


class TransactionsSection(Section):
    check_after_ms: int = Field(
        default=6_000,
        ge=1,
        description="How long a half message waits before its producer is asked about it, unless the producer says "
        "how long (`orphaned_transaction_recovery_duration`).",
    )
    check_interval_ms: int = Field(
        default=30_000,
        ge=100,
        description="How long the broker waits before it asks the producer again.",
        json_schema_extra=LIVE,
    )
    checks_max: int = Field(
        default=15,
        ge=1,
        description="After this many checks without an answer the transaction is rolled back, and the message is kept "
        "in RocketMQ's topic TRANS_CHECK_MAX_TIME_TOPIC. A check counts only if a producer was connected.",
        json_schema_extra=LIVE,
    )


class LiteSection(Section):
    expiry_interval_ms: int = Field(
        default=120_000,
        ge=0,
        description="How often the broker looks for lite topics whose last message is older than "
        "`lite.topic.expiration` of their topic. 0: lite topics never expire.",
    )
