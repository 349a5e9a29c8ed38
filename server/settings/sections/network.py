"""Settings of the broker's addresses and name, and of TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from quarry_mq.server.front import FrontKind
from quarry_mq.server.settings.sections.base import (
    OFF,
    AdvertisedAddress,
    ListenAddress,
    ListenAddressOrOff,
    Section,
    is_loopback,
)

Port = Literal["listen", "admin", "http", "console"]


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
    console: ListenAddressOrOff = Field(
        default="127.0.0.1:8083",
        description="Where the web console is, or `off`. Without this setting, the broker does without a console where "
        "the port is taken. [How](console.md)",
    )
    console_hosts: list[str] = Field(
        default=[],
        description="Names by which browsers may ask for the console where nobody has to log in, beside addresses and "
        "`localhost`: against pages of others whose name is led here (DNS rebinding).",
    )
    front: FrontKind = Field(
        default="h2",
        description="Which engine serves the messaging port: `h2` is our own, `grpcio` the C core's, ten times slower.",
    )
    plain_text: Literal["loopback", "everywhere"] | list[Port] = Field(
        default="loopback",
        description="Where ports may take connections without TLS: `loopback` (127.0.0.0/8, ::1, localhost), where "
        'only this machine reaches them, or `everywhere`; or a list of the ports that may everywhere: `["listen", '
        '"http"]` of `listen`, `admin`, `http` and `console`. Without TLS who listens on the way reads everything, '
        "secrets too.",
    )
    tls: Literal["off", "optional", "required"] = Field(
        default="off",
        description="TLS on `listen`. With `optional` the first byte of each connection decides, so that clients with "
        'and without TLS use one port, as on RocketMQ; not with `front = "grpcio"`. [How](tls.md)',
    )
    tls_listen: ListenAddress | None = Field(
        default=None, description="Another address where messaging clients connect, with TLS."
    )
    tls_advertise: AdvertisedAddress | None = Field(
        default=None,
        description="The address that clients with TLS are sent to. Without it `advertise`, or where `tls` is `off` "
        "the address they used.",
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="The certificate chain that all ports with TLS show (PEM). When a file changes, new connections "
        "get the new one.",
    )
    tls_key: Path | None = Field(default=None, description="The private key of `tls_certificate` (PEM).")
    tls_client_ca: Path | None = Field(
        default=None,
        description="Messaging clients with TLS must show a certificate signed by one of these authorities (PEM). "
        "Those without TLS, where they are let in, need none.",
    )
    tls_client_certificate: Literal["required", "optional"] = Field(
        default="required",
        description="With `optional` and `tls_client_ca`, clients may also show none; one they show must be good. Not "
        'with `front = "grpcio"`.',
    )
    admin_tls: bool = Field(default=False, description="TLS on `admin`.")
    admin_client_ca: Path | None = Field(
        default=None,
        description="Who connects to `admin`, or with `console_tls` to `console`, must show a certificate signed by "
        "one of these authorities (PEM).",
    )
    http_tls: bool = Field(default=False, description="TLS on `http`.")
    console_tls: bool = Field(default=False, description="TLS on `console`.")
    metrics_token_file: Path | None = Field(
        default=None,
        description="Who asks for `/metrics` must send the token in this file (`Authorization: Bearer …`). Read each "
        "time, so it can change. `/healthz` and `/readyz` stay open.",
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

    @property
    def console_address(self) -> str | None:
        """Return the console's `host:port`; None if there is no console."""
        return None if self.console == OFF else self.console

    @property
    def serves_tls(self) -> bool:
        """Return whether messaging clients may connect with TLS."""
        return self.tls != "off" or self.tls_listen is not None

    @model_validator(mode="after")
    def _tls_is_complete(self) -> Self:
        for name, wants_tls in (
            ("tls", self.tls != "off"),
            ("tls_listen", self.tls_listen is not None),
            ("admin_tls", self.admin_tls),
            ("http_tls", self.http_tls),
            ("console_tls", self.console_tls),
        ):
            if wants_tls and (self.tls_certificate is None or self.tls_key is None):
                raise ValueError(f"{name} needs tls_certificate and tls_key")
        for name, value, needed, is_there in (
            ("tls_advertise", self.tls_advertise, "tls_listen", self.tls_listen is not None),
            ("tls_client_ca", self.tls_client_ca, "tls or tls_listen", self.serves_tls),
            ("admin_client_ca", self.admin_client_ca, "admin_tls", self.admin_tls),
        ):
            if value is not None and not is_there:
                raise ValueError(f"{name} needs {needed}")
        if self.tls_client_certificate == "optional" and self.tls_client_ca is None:
            raise ValueError("tls_client_certificate needs tls_client_ca")
        return self

    @model_validator(mode="after")
    def _front_can_do_it(self) -> Self:
        for name, value in (("tls", self.tls), ("tls_client_certificate", self.tls_client_certificate)):
            if self.front == "grpcio" and value == "optional":
                raise ValueError(f'{name} = "optional" needs front = "h2"')
        return self

    @model_validator(mode="after")
    def _plain_text_stays_here(self) -> Self:
        for name, address, takes_plain, cure in (
            ("listen", self.listen, self.tls != "required", 'tls = "required"'),
            ("admin", self.admin, not self.admin_tls, "admin_tls = true"),
            ("http", self.http, not self.http_tls, "http_tls = true"),
            ("console", self.console_address, not self.console_tls, "console_tls = true"),
        ):
            if address is None or not takes_plain or is_loopback(address):
                continue
            if self.plain_text != "everywhere" and name not in self.plain_text:
                raise ValueError(
                    f"{name} = {address} would take plain text from other machines: "
                    f'set {cure}, or plain_text = ["{name}"] where the network is trusted'
                )
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
    native: bool = Field(
        default=True,
        description="Use the native part where it is installed; without it everything is done in Python.",
    )
