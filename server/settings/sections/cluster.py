"""Settings of the cluster that a broker is a member of."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from quarry_mq.server.settings.sections.base import AdvertisedAddress, Section


class ClusterSection(Section):
    members: list[AdvertisedAddress] = Field(
        default=[],
        description="Admin addresses of the other members of this broker's cluster; its own may be among them. "
        "Members that are not listed are found through those that are. [How](cluster.md)",
    )
    dns: AdvertisedAddress | None = Field(
        default=None,
        description="A DNS name and the admin port: every address of the name is a member, as with a headless "
        "service. The name is looked up regularly.",
    )
    advertise: AdvertisedAddress | None = Field(
        default=None,
        description="The admin address of this broker that the other members call. Default: `network.admin`, with the "
        "host of `network.advertise` if `network.admin` stands for all addresses of the machine.",
    )
    key_file: Path | None = Field(
        default=None,
        description="A file with the key that signs the calls between members, made by `quarry security new-key`. "
        "Several keys, one per line: the first one signs, all are accepted.",
    )
    tls_ca: Path | None = Field(
        default=None,
        description="The certificate authorities by which members' admin ports are verified if `network.admin_tls` is "
        "on (PEM). Default: those of the machine.",
    )
    exchange_interval_ms: int = Field(
        default=1_000,
        ge=50,
        description="How often a member asks every other member for changes. With more than ten members it asks "
        "proportionally less often, but at least three times within `unreachable_after_ms`.",
    )
    unreachable_after_ms: int = Field(
        default=10_000,
        ge=500,
        description="A member that has not answered for this long is left out of all routes until it answers again.",
    )
    ready_delay_ms: int = Field(
        default=0,
        ge=0,
        description="How long `/readyz` stays red after a start while another member is ready; clients are served "
        "meanwhile. Whoever restarts members one after another, and looks at `/readyz`, so gives producers the time to "
        "use this member again. [Why](cluster.md#versions-and-restarts)",
    )
    leave_delay_ms: int = Field(
        default=0,
        ge=0,
        description="How long a member goes on serving after a stop signal when it gives its message groups to the "
        "other members, in place of `network.drain_delay_ms`. Clients ask for routes every 30 s, so with 35000 they "
        "send to others before this member stops. 0: it stops with its groups, and sends of these groups wait for its "
        "next start. [Why](cluster.md#versions-and-restarts)",
    )
    tombstone_days: int = Field(
        default=30,
        ge=1,
        le=3_650,
        description="How long a member remembers deletions for members that are away; use the same value on all "
        "members. A member that was away for longer has to [rejoin](cluster.md#away-for-long).",
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
