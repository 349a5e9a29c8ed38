"""Settings of the cluster that a broker is a member of."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from quarry_mq.server.settings.sections.base import AdvertisedAddress, Section


class ClusterSection(Section):
    members: list[AdvertisedAddress] = Field(
        default=[],
        description="Admin addresses of brokers that are one cluster with this one; its own may be among them. Those "
        "that they know are found through them. [How](cluster.md)",
    )
    dns: AdvertisedAddress | None = Field(
        default=None,
        description="A name and the admin port: all addresses of the name are members, as those of a headless service "
        "are. It is looked up again and again.",
    )
    key_file: Path | None = Field(
        default=None,
        description="The key that members sign with what they ask of each other, as `quarry security new-key` makes "
        "them. With several, one in a line, the first signs and all are good.",
    )
    tls_ca: Path | None = Field(
        default=None,
        description="The authorities that admin ports of members are checked with where `network.admin_tls` is on "
        "(PEM). Without it those of the machine.",
    )
    exchange_interval_ms: int = Field(
        default=1_000,
        ge=50,
        description="How often a member asks each other one for what has changed. Where there are more than ten, less "
        "often in proportion, but three times within `unreachable_after_ms`.",
    )
    unreachable_after_ms: int = Field(
        default=10_000,
        ge=500,
        description="A member that has not answered for so long is in no route until it answers again.",
    )

    tombstone_days: int = Field(
        default=30,
        ge=1,
        le=3_650,
        description="How long a member remembers what was deleted, for those that are away: the same on all members. "
        "One that was away for longer has to [rejoin](cluster.md#away-for-long).",
    )

    @property
    def is_on(self) -> bool:
        """Return whether the broker is a member of a cluster."""
        return bool(self.members) or self.dns is not None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.is_on and self.key_file is None:
            raise ValueError("members and dns need key_file")
        if self.key_file is not None and not self.is_on:
            raise ValueError("key_file needs members or dns")
        if self.unreachable_after_ms < 2 * self.exchange_interval_ms:
            raise ValueError("unreachable_after_ms must be at least twice exchange_interval_ms")
        return self
