"""Define the base class of settings sections, and types of addresses."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue

from quarry_mq.server.addresses import split_address


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches `host:port`; the only host name this is known of is `localhost`."""
    host = split_address(address)[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listening(address: str) -> str:
    if split_address(address)[0] in SCHEMES:
        raise ValueError("must be host:port, not a Unix socket")
    return address


def _listening_or_off(address: str) -> str:
    return address if address == OFF else _listening(address)


def _advertised(address: str) -> str:
    if split_address(address)[1] == 0:
        raise ValueError("clients cannot connect to port 0")
    return address


def _network(text: str) -> str:
    ip_network(text)
    return text


OFF: Final = "off"
SCHEMES: Final = ("unix", "unix-abstract", "vsock")
"""Prefixes that gRPC would take for sockets of another kind, not for hosts."""

ListenAddress = Annotated[str, AfterValidator(_listening)]
ListenAddressOrOff = Annotated[str, AfterValidator(_listening_or_off)]
AdvertisedAddress = Annotated[str, AfterValidator(_advertised)]
Network = Annotated[str, AfterValidator(_network)]


LIVE: Final[dict[str, JsonValue]] = {"live": True}
"""Marks a field that can be changed while the broker runs (`json_schema_extra`). Numbers, switches and levels only: no
path, address, class or name, nothing that could make the broker do something else than before."""


class Section(BaseModel):
    # errors do not show the value, which may be a secret
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=False, hide_input_in_errors=True)
