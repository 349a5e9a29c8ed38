"""Parse and compare the addresses of brokers and peers."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, Final, NamedTuple

NETWORK_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Address:
    """An address is a host name or IP address, and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port`, IPv6 in brackets; to listen, port 0 is any free one. Raises ValueError with the text."""
        host, separator, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (separator and host and port.isascii() and port.isdigit() and int(port) < 65_536):
            raise ValueError(f"{text!r} is not host:port")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_unspecified(self) -> bool:
        """Return whether the host stands for all addresses of a machine, to which no client can connect."""
        try:
            return ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @property
    def from_here(self) -> Address:
        """Return an address at which this machine reaches a listener on this one."""
        return replace(self, host="::1" if ":" in self.host else "127.0.0.1") if self.is_unspecified else self

    @property
    def ip_version(self) -> int | None:
        """Return 4 or 6; None for a host name."""
        try:
            return ip_address(self.host).version
        except ValueError:
            return None


def host_of(peer: str) -> str:
    """Return the address in a peer's `ip:port`, IPv6 without its brackets."""
    return peer.rpartition(":")[0].removeprefix("[").removesuffix("]")


def plain_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address; None for other text. `::ffff:192.0.2.1`, as dual-stack sockets show IPv4, becomes IPv4."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def network_of(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Network:
    """Return the least that one customer of a network has: an IPv4 address, or an IPv6 network of 64 bits."""
    if isinstance(address, IPv4Address):
        return address
    return IPv6Network((address, NETWORK_BITS), strict=False)


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` into its parts; IPv6 hosts keep their brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or (":" in host and not re.fullmatch(r"\[[0-9a-fA-F:.]+\]", host)):
        raise ValueError("must be host:port (an IPv6 host in brackets)")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError("the port must be a number from 0 to 65535")
    return host, int(port)


class Ends(NamedTuple):
    """The ends of a connection are the addresses of its peer and of this broker: `127.0.0.1:5`, `[::1]:5`, `unix`."""

    peer_host: str
    """The peer's address without port: `127.0.0.1`, `::1`, `unix`."""
    peer: str
    local: str

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Ends:
        """Return the ends of a transport."""
        peer: Any = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else "unix"
        return cls(host, _text(peer), _text(transport.get_extra_info("sockname")))


def _text(address: Any) -> str:
    return str(Address(*address[:2])) if isinstance(address, tuple) else "unix"
