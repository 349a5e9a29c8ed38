"""Addresses of peers, as they are told apart and compared."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

NETWORK_BITS: Final = 64


def host_of(peer: str) -> str:
    """The address in a peer's `ip:port`, IPv6 without its brackets."""
    return peer.rpartition(":")[0].removeprefix("[").removesuffix("]")


def plain_address(text: str) -> IPv4Address | IPv6Address | None:
    """IPv4 as such, also where a socket for both kinds shows it as `::ffff:192.0.2.1`; None for what is no address."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def network_of(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Network:
    """What one customer of a network has at least: an IPv4 address, or all of IPv6 with the same first 64 bits."""
    if isinstance(address, IPv4Address):
        return address
    return IPv6Network((address, NETWORK_BITS), strict=False)


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as its parts; IPv6 hosts keep their brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or (":" in host and not re.fullmatch(r"\[[0-9a-fA-F:.]+\]", host)):
        raise ValueError("must be host:port (an IPv6 host in brackets)")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError("the port must be a number from 0 to 65535")
    return host, int(port)
