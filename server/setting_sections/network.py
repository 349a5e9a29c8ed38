"""Where the broker is reached, and as what it is known."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from server.front import FrontKind
from server.setting_sections.base import AdvertisedAddress, ListenAddress, Section


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
    drain_delay_ms: int = Field(
        default=0,
        ge=0,
        description="How long the broker serves on after it was told to stop, with `/readyz` red: time for load "
        "balancers to send nobody here any more.",
    )
    stop_grace_ms: int = Field(
        default=5_000, ge=0, description="How long open calls may take to end when the broker stops."
    )
    stop_rest_ms: int = Field(
        default=20_000,
        gt=0,
        description="How long the rest of a stop may take, which is mostly flushes: beyond delay, grace and this the "
        "process ends with status 3, and the next start recovers.",
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
