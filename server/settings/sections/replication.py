"""Settings of the copies of a store on other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from quarry_mq.server.addresses import Address
from quarry_mq.server.settings.sections.base import Section

_NAME = r"^[A-Za-z0-9_.-]{1,64}$"


def _check_peer(text: str) -> str:
    """Raise ValueError unless the text is `name=host:port`."""
    name, separator, address = text.partition("=")
    if not (name and separator):
        raise ValueError(f"{text!r} is not name=host:port")
    Address.parse(address)
    return text


Peer = Annotated[str, AfterValidator(_check_peer)]


class ReplicationSection(Section):
    mode: Literal["none", "async"] = Field(
        default="none",
        description="`async`: other machines have copies of this store, which follow within a second. A send does not "
        "wait for them. [How](replicas.md)",
    )
    replica: str = Field(
        default="a",
        pattern=_NAME,
        description="The name of this copy of the store. Each copy has another one.",
    )
    peers: list[Peer] = Field(
        default=[],
        description="The other copies, as `name=host:port` with their `network.replication`. The same list may be used "
        "on all machines: a copy ignores its own name.",
    )
    key_file: Path | None = Field(
        default=None,
        description="A file with the key by which copies know each other, made by `quarry security new-key`. Several "
        "keys, one per line: the first one signs, all are accepted.",
    )
    tls_ca: Path | None = Field(
        default=None,
        description="The certificate authorities by which the certificates of other copies are verified, if "
        "`network.replication_tls` is on (PEM). Default: those of the machine.",
    )

    @property
    def is_on(self) -> bool:
        """Return whether the store has copies, or is one."""
        return self.mode != "none"

    @property
    def others(self) -> dict[str, Address]:
        """Return the addresses of the other copies by name."""
        named = (peer.partition("=") for peer in self.peers)
        return {name: Address.parse(address) for name, _, address in named if name != self.replica}

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.is_on and self.key_file is None:
            raise ValueError("mode needs key_file")
        if self.is_on and not self.others:
            raise ValueError("mode needs peers")
        return self
