"""Settings of limits, above which calls are refused before they cost anything."""

from __future__ import annotations

from typing import Self

from pydantic import ByteSize, Field, model_validator

from quarry_mq.kv.options import MIB
from quarry_mq.server.settings.sections.base import LIVE, Section
from quarry_mq.server.wire.property_room import ROOM_FOR_SENDERS, needed_by
from quarry_mq.store.settings import BODY_SIZE_MAX


class LimitsSection(Section):
    body_size: ByteSize = Field(
        default=ByteSize(BODY_SIZE_MAX), ge=1, description="Largest message body. Announced to producers."
    )
    properties_size: ByteSize = Field(
        default=ByteSize(16_384),
        ge=0,
        description="Bytes of one message's property names, values, tag and keys together.",
        json_schema_extra=LIVE,
    )
    properties_count: int = Field(
        default=128, ge=0, description="User properties of one message.", json_schema_extra=LIVE
    )
    message_group_size: int = Field(
        default=63, ge=1, description="Bytes of a message group's name.", json_schema_extra=LIVE
    )
    request_size: ByteSize = Field(
        default=ByteSize(16 * MIB), ge=1, description="Largest request; larger ones are refused before they are read."
    )
    metadata_size: ByteSize = Field(default=ByteSize(16 * 1024), ge=8_192, description="Largest request header block.")
    open_calls: int = Field(
        default=100_000,
        ge=1,
        description="Calls that may be open at once, long polls included.",
        json_schema_extra=LIVE,
    )
    connections: int = Field(
        default=10_000,
        ge=1,
        description="Connections of messaging clients (front `h2`). The oldest without a call gives way to a new one.",
        json_schema_extra=LIVE,
    )
    connections_per_address: int = Field(
        default=5_000,
        ge=1,
        description="The same for one address, of IPv6 for the first 64 bits (front `h2`).",
        json_schema_extra=LIVE,
    )
    unread_size: ByteSize = Field(
        default=ByteSize(192 * MIB),
        ge=1,
        description="Answers of all clients together that may wait in memory to be read (front `h2`). One connection "
        "may have 64 MiB of them. Beyond it the slowest reader gives up what waits for it.",
    )
    waiting_sends_size: ByteSize = Field(
        default=ByteSize(256 * MIB),
        ge=1,
        description="Bodies of messages that may wait to be on disk.",
        json_schema_extra=LIVE,
    )
    waiting_sends_per_client: ByteSize = Field(
        default=ByteSize(64 * MIB), ge=1, description="The same for one client.", json_schema_extra=LIVE
    )
    requests_per_client: int = Field(
        default=0,
        ge=0,
        description="Requests that one client may make per second. 0: as many as it likes. Fairness does not depend "
        "on it (docs/limits.md); it is for programs that are to be held back.",
        json_schema_extra=LIVE,
    )
    waiting_polls_per_client: int = Field(
        default=10_000, ge=1, description="Receives of one client that may wait at once.", json_schema_extra=LIVE
    )
    streams_per_client: int = Field(
        default=32, ge=1, description="Telemetry streams that one client may have open.", json_schema_extra=LIVE
    )
    clients: int = Field(
        default=100_000,
        ge=1,
        description="Clients that are known at once. Who has had no telemetry stream for longest gives way.",
        json_schema_extra=LIVE,
    )
    client_topics: int = Field(
        default=1_000_000,
        ge=1,
        description="Topics that all known clients together may have declared.",
        json_schema_extra=LIVE,
    )
    subscriptions: int = Field(
        default=250_000,
        ge=1,
        description="Pairs of group and topic that are in use at once. Those unused for five minutes do not count.",
        json_schema_extra=LIVE,
    )
    in_flight_per_group: int = Field(
        default=10_000_000,
        ge=1,
        description="Messages that a group may have been handed and not acknowledged. Beyond it, it gets again what "
        "comes back, and nothing new.",
        json_schema_extra=LIVE,
    )
    topics_per_user: int = Field(
        default=10_000,
        ge=0,
        description="Topics that may be there because clients of one user asked for them first; where there are no "
        "users, clients altogether. Those made with `quarry topic create` do not count.",
        json_schema_extra=LIVE,
    )
    groups_per_user: int = Field(
        default=10_000, ge=0, description="The same for consumer groups.", json_schema_extra=LIVE
    )
    lite_topics_per_topic: int = Field(
        default=1_000_000,
        ge=0,
        description="Lite topics that one topic may have. 0: any number. Messages to those that are there are always "
        "taken.",
        json_schema_extra=LIVE,
    )
    admin_calls: int = Field(
        default=256,
        ge=1,
        description="Calls on the admin port that known callers may have open at once, each of them half. Members of "
        "the cluster may have as many beside them, callers who are not known a quarter.",
    )

    @model_validator(mode="after")
    def _a_body_fits_a_request(self) -> Self:
        if self.request_size < self.body_size + self.properties_size:
            raise ValueError("request_size must have room for body_size and properties_size")
        return self

    @model_validator(mode="after")
    def _what_senders_may_give_fits_a_record(self) -> Self:
        needed = needed_by(
            properties_count=self.properties_count,
            properties_size=self.properties_size,
            message_group_size=self.message_group_size,
        )
        if needed > ROOM_FOR_SENDERS:
            raise ValueError(
                f"properties_size, message_group_size and two bytes for each of properties_count are {needed} bytes; "
                f"a record has room for {ROOM_FOR_SENDERS}"
            )
        return self
