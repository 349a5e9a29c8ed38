"""Settings of topics, groups, lite topics, and delivery to consumers."""

from __future__ import annotations

from typing import Self

from pydantic import ByteSize, Field, model_validator

from quarry_mq.server.delivery.model import NewGroupStart
from quarry_mq.server.settings.sections.base import LIVE, Section


class TopicsSection(Section):
    auto_create: bool = Field(
        default=True, description="Make a topic when a client first asks for it.", json_schema_extra=LIVE
    )
    default_queues: int = Field(
        default=8,
        ge=1,
        le=65_536,
        description="Queues of a topic that is made without a number of queues.",
        json_schema_extra=LIVE,
    )


class GroupsSection(Section):
    auto_create: bool = Field(
        default=True, description="Make a consumer group when a client first asks for it.", json_schema_extra=LIVE
    )


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
        description="How long leases of one message are renewed before it is delivered again.",
        json_schema_extra=LIVE,
    )
    polling_min_ms: int = Field(
        default=5_000,
        ge=0,
        description="A receive waits at least this long for messages, if its deadline allows.",
        json_schema_extra=LIVE,
    )
    polling_max_ms: int = Field(
        default=20_000, ge=0, description="A receive waits at most this long for messages.", json_schema_extra=LIVE
    )
    polling_reserve_ms: int = Field(
        default=200,
        ge=0,
        description="How long before the client's deadline a receive without messages is answered.",
        json_schema_extra=LIVE,
    )
    waiting_polls_max: int = Field(
        default=20_000,
        ge=1,
        description="Receives that may wait at once; above it they are refused as too many requests.",
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
        description="Silence after which a client whose telemetry streams have all ended is taken for gone: "
        "its leased messages go to others.",
        json_schema_extra=LIVE,
    )
    client_silent_ms: int = Field(
        default=120_000,
        ge=1_000,
        description="Silence after which any client is forgotten. Clients send heartbeats every 10 s, those for "
        "Rust every 30 s.",
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
        description="How long a half message waits before its producer is asked about it, where the producer does not "
        "say (`orphaned_transaction_recovery_duration`).",
    )
    check_interval_ms: int = Field(
        default=30_000, ge=100, description="How long after that it is asked again.", json_schema_extra=LIVE
    )
    checks_max: int = Field(
        default=15,
        ge=1,
        description="After so many checks without a word the transaction is rolled back, and the message kept in "
        "RocketMQ's topic TRANS_CHECK_MAX_TIME_TOPIC. A check that no producer was there to hear does not count.",
        json_schema_extra=LIVE,
    )


class LiteSection(Section):
    expiry_interval_ms: int = Field(
        default=120_000,
        ge=0,
        description="How often lite topics are looked for whose last message is older than their topic's "
        "`lite.topic.expiration`. 0: none expires.",
    )
