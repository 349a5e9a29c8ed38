"""Settings of limits, above which calls are refused before they cost anything."""

from __future__ import annotations

from typing import Self

from pydantic import ByteSize, Field, model_validator

from quarry_mq.kv.options import MIB
from quarry_mq.server.settings.sections.base import LIVE, Section
from quarry_mq.server.wire.validate import ROOM_FOR_SENDERS, needed_by
from quarry_mq.store.settings import BODY_SIZE_MAX


class LimitsSection(Section):
    body_size: ByteSize = Field(
        default=ByteSize(BODY_SIZE_MAX), ge=1, description="Largest message body. Producers are told this limit."
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
        description="Calls that may be open at once, including long polls.",
        json_schema_extra=LIVE,
    )
    connections: int = Field(
        default=10_000,
        ge=1,
        description="Connections of messaging clients (front `h2`). At the limit, a new connection replaces the "
        "oldest one that has no open call.",
        json_schema_extra=LIVE,
    )
    connections_per_address: int = Field(
        default=5_000,
        ge=1,
        description="Connections from one address; for IPv6, from one /64 network (front `h2`).",
        json_schema_extra=LIVE,
    )
    unread_size: ByteSize = Field(
        default=ByteSize(192 * MIB),
        ge=1,
        description="Memory for answers that clients have not read yet, of all clients together (front `h2`). One "
        "connection may have 64 MiB of them. Above the limit, the answers that wait for the slowest reader are "
        "dropped.",
    )
    waiting_sends_size: ByteSize = Field(
        default=ByteSize(256 * MIB),
        ge=1,
        description="Memory for message bodies that wait to be written to disk.",
        json_schema_extra=LIVE,
    )
    waiting_sends_per_client: ByteSize = Field(
        default=ByteSize(64 * MIB), ge=1, description="The same limit for one client.", json_schema_extra=LIVE
    )
    requests_per_client: int = Field(
        default=0,
        ge=0,
        description="Requests that one client may make per second. 0: no limit. Fairness between clients does not "
        "depend on this setting (docs/limits.md); use it to slow down single programs.",
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
        description="Clients that the broker keeps in memory. At the limit, a new client replaces the one that has "
        "been without a telemetry stream for longest.",
        json_schema_extra=LIVE,
    )
    client_topics: int = Field(
        default=1_000_000,
        ge=1,
        description="Topics that all clients in memory together may have declared.",
        json_schema_extra=LIVE,
    )
    subscriptions: int = Field(
        default=250_000,
        ge=1,
        description="Pairs of group and topic that may be in use at once. Pairs that were unused for five minutes do "
        "not count.",
        json_schema_extra=LIVE,
    )
    in_flight_per_group: int = Field(
        default=10_000_000,
        ge=1,
        description="Messages that a group may have in flight in one topic. At the limit the group gets only messages "
        "that become visible again, and no new ones.",
        json_schema_extra=LIVE,
    )
    topics_per_user: int = Field(
        default=10_000,
        ge=0,
        description="Topics that may exist because clients of one user asked for them; without users, because any "
        "client did. Topics created with `quarry topic create` do not count.",
        json_schema_extra=LIVE,
    )
    groups_per_user: int = Field(
        default=10_000, ge=0, description="The same limit for consumer groups.", json_schema_extra=LIVE
    )
    lite_topics_per_topic: int = Field(
        default=1_000_000,
        ge=0,
        description="Lite topics that one topic may have. 0: no limit. Messages to existing lite topics are always "
        "accepted.",
        json_schema_extra=LIVE,
    )
    admin_calls: int = Field(
        default=256,
        ge=1,
        description="Calls on the admin port that known callers together may have open at once; one caller may have "
        "half as many. Members of the cluster have a limit of the same size of their own, and unknown callers one of "
        "a quarter.",
    )

    @model_validator(mode="after")
    def _a_body_fits_a_request(self) -> Self:
        if self.request_size < self.body_size + self.properties_size:
            raise ValueError("request_size must be at least body_size plus properties_size")
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
                f"a record has space for {ROOM_FOR_SENDERS}"
            )
        return self
