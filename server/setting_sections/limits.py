"""What is refused before it costs anything."""

from __future__ import annotations

from typing import Self

from pydantic import ByteSize, Field, model_validator

from server.setting_sections.base import Section
from store.settings import BODY_SIZE_MAX, MIB


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
