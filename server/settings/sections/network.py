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
    Network,
    Section,
    is_loopback,
)

Port = Literal["listen", "admin", "http", "console", "replication", "rocketmq_ha"]


class NetworkSection(Section):
    listen: ListenAddress = Field(default="127.0.0.1:8081", description="Where messaging clients connect (gRPC).")
    advertise: AdvertisedAddress | None = Field(
        default=None,
        description="The address that routes give to clients. Default: the address the client used, which also works "
        "behind port mappings (rmq#8864).",
    )
    admin: ListenAddress = Field(
        default="127.0.0.1:8082",
        description="Where `quarry topic`, `quarry group` and the other admin commands connect.",
    )
    http: ListenAddress = Field(
        default="127.0.0.1:9464", description="Where `/metrics`, `/healthz`, `/readyz` and `/replica` are served."
    )
    console: ListenAddressOrOff = Field(
        default="127.0.0.1:8083",
        description="Where the web console is served, or `off`. If this setting is not set and the port is taken, the "
        "broker starts without a console. [How](console.md)",
    )
    console_hosts: list[str] = Field(
        default=[],
        description="Host names, in addition to addresses and `localhost`, under which browsers may open a console "
        "without login. All other names are refused, as a protection against DNS rebinding.",
    )
    rocketmq_ha: ListenAddressOrOff = Field(
        default=OFF,
        description="Where slaves of RocketMQ copy the log (its HA protocol, port 10912 there), or `off`. Whoever "
        "reaches this port can read all messages: RocketMQ's protocol has neither users nor TLS. "
        "[The way back to RocketMQ](follow-rocketmq.md#back-to-rocketmq)",
    )
    front: FrontKind = Field(
        default="h2",
        description="Which engine serves the messaging port: `h2` is Quarry's own; `grpcio` is gRPC's C core and ten "
        "times slower.",
    )
    proxies: list[Network] = Field(
        default=[],
        description="Load balancers in front of the messaging ports, as addresses or networks (`10.0.0.0/8`): a "
        "connection from one of them may begin with a PROXY header (HAProxy's protocol, version 1 or 2), and the "
        "client's address in that header counts for limits, rules and logs. Others are not believed. Not available "
        'with `front = "grpcio"`.',
    )
    plain_text: Literal["loopback", "everywhere"] | list[Port] = Field(
        default="loopback",
        description="Where ports may accept connections without TLS: `loopback` (127.0.0.0/8, ::1, localhost; only "
        "this machine reaches them) or `everywhere`; or a list of the ports that may do so everywhere, such as "
        '`["listen", "http"]`, of `listen`, `admin`, `http`, `console`, `replication` and `rocketmq_ha`. Without TLS '
        "anybody on the network path can read everything, including secrets.",
    )
    tls: Literal["off", "optional", "required"] = Field(
        default="optional",
        description="TLS on `listen`. With `optional` the first byte of each connection decides, so that clients with "
        'and without TLS can use the same port, as in RocketMQ; `optional` is not available with `front = "grpcio"`. '
        "If it is not set, it is `required` where `plain_text` does not allow plain text on `listen`; otherwise `off` "
        'with `tls_listen` or `front = "grpcio"`. [How](tls.md)',
    )
    tls_listen: ListenAddress | None = Field(
        default=None, description="A second address for messaging clients, with TLS."
    )
    tls_advertise: AdvertisedAddress | None = Field(
        default=None,
        description="The address that routes give to clients with TLS. Default: `advertise`; if `tls` is `off`, the "
        "address the client used.",
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="The certificate chain of all ports with TLS (PEM). When the file changes, new connections get "
        "the new certificate. If it is not set, messaging ports with TLS present a "
        "[self-signed certificate](tls.md#the-self-signed-certificate); other ports with TLS need one.",
    )
    tls_key: Path | None = Field(default=None, description="The private key of `tls_certificate` (PEM).")
    tls_directory: Path | None = Field(
        default=None,
        description="The folder of the self-signed certificate. Default: `tls` in the store; with `--shards`, `tls` "
        "beside the stores.",
    )
    tls_client_ca: Path | None = Field(
        default=None,
        description="Messaging clients with TLS must present a certificate signed by one of these authorities (PEM). "
        "Clients without TLS, if they are allowed, need no certificate.",
    )
    tls_client_certificate: Literal["required", "optional"] = Field(
        default="required",
        description="With `optional` and `tls_client_ca`, clients may connect without a certificate; a certificate "
        'that is presented must be valid. `optional` is not available with `front = "grpcio"`.',
    )
    admin_tls: bool = Field(default=False, description="TLS on `admin`.")
    admin_client_ca: Path | None = Field(
        default=None,
        description="Callers of `admin`, and of `console` if `console_tls` is on, must present a certificate signed "
        "by one of these authorities (PEM).",
    )
    replication: ListenAddress = Field(
        default="127.0.0.1:8084",
        description="Where other copies of the store connect, if `replication.mode` is on.",
    )
    replication_tls: bool = Field(
        default=False, description="TLS on `replication`, here and on the other copies of the store."
    )
    http_tls: bool = Field(default=False, description="TLS on `http`.")
    console_tls: bool = Field(default=False, description="TLS on `console`.")
    metrics_token_file: Path | None = Field(
        default=None,
        description="Requests for `/metrics` must send the token in this file (`Authorization: Bearer …`). The file "
        "is read for each request, so the token can be changed at any time. `/healthz` and `/readyz` need no token.",
    )
    drain_delay_ms: int = Field(
        default=0,
        ge=0,
        description="How long the broker goes on serving after a stop signal while `/readyz` already fails. This "
        "gives load balancers time to stop sending clients here.",
    )
    stop_grace_ms: int = Field(
        default=5_000, ge=0, description="How long open calls have to finish when the broker stops."
    )
    stop_rest_ms: int = Field(
        default=20_000,
        gt=0,
        description="How long the rest of a stop, mostly flushes, may take. After delay, grace and this time the "
        "process exits with status 3, and the next start recovers.",
    )

    @property
    def console_address(self) -> str | None:
        """Return the console's `host:port`; None if there is no console."""
        return None if self.console == OFF else self.console

    @property
    def serves_tls(self) -> bool:
        """Return whether messaging clients may connect with TLS."""
        return self.tls != "off" or self.tls_listen is not None

    @property
    def is_self_signed(self) -> bool:
        """Return whether messaging ports present the self-signed certificate."""
        return self.serves_tls and self.tls_certificate is None

    @model_validator(mode="after")
    def _tls_is_chosen(self) -> Self:
        """Choose `tls` if it is not set, before anything else looks at it."""
        if "tls" not in self.model_fields_set:
            if not is_loopback(self.listen) and not self._may_be_plain("listen"):
                self.__dict__["tls"] = "required"
            elif self.tls_listen is not None or self.front == "grpcio":
                self.__dict__["tls"] = "off"
        return self

    def _may_be_plain(self, name: Port) -> bool:
        """Return whether the port may accept plain text from other machines."""
        return self.plain_text == "everywhere" or name in self.plain_text

    @model_validator(mode="after")
    def _tls_is_complete(self) -> Self:
        if self.tls_certificate is not None and self.tls_key is None:
            raise ValueError("tls_certificate needs tls_key")
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("tls_key needs tls_certificate")
        for name, wants_tls in (
            ("admin_tls", self.admin_tls),
            ("http_tls", self.http_tls),
            ("console_tls", self.console_tls),
            ("replication_tls", self.replication_tls),
        ):
            if wants_tls and self.tls_certificate is None:
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
        if self.front == "grpcio" and self.proxies:
            raise ValueError('proxies needs front = "h2"')
        return self

    @model_validator(mode="after")
    def _plain_text_stays_here(self) -> Self:
        ports: tuple[tuple[Port, str | None, bool, str], ...] = (
            ("listen", self.listen, self.tls != "required", 'tls = "required"'),
            ("admin", self.admin, not self.admin_tls, "admin_tls = true"),
            ("http", self.http, not self.http_tls, "http_tls = true"),
            ("console", self.console_address, not self.console_tls, "console_tls = true"),
            ("replication", self.replication, not self.replication_tls, "replication_tls = true"),
            ("rocketmq_ha", None if self.rocketmq_ha == OFF else self.rocketmq_ha, True, "an address of this machine"),
        )
        for name, address, takes_plain, cure in ports:
            if address is None or not takes_plain or is_loopback(address):
                continue
            if not self._may_be_plain(name):
                raise ValueError(
                    f"{name} = {address} would accept plain text from other machines: set {cure}, or plain_text = "
                    f'["{name}"] if the network is trusted'
                )
        return self


class BrokerSection(Section):
    name: str = Field(
        default="quarry",
        pattern=r"^[A-Za-z0-9_.-]{1,255}$",
        description="The broker's name in routes. Producers distinguish brokers by it, so it must be unique in a "
        "cluster.",
    )
    cluster: str = Field(
        default="DefaultCluster", pattern=r"^[A-Za-z0-9_.-]{1,255}$", description="The cluster's name, for display."
    )
    native: bool = Field(
        default=True,
        description="Use the native extension if it is installed. Otherwise everything runs in Python.",
    )
