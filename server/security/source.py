"""Where calls come from."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

Source = IPv4Address | IPv6Address | None
"""The address of the peer; None where it has none (a Unix socket)."""

ADDRESSES_REMEMBERED: Final = 4096


def source_of(peer: str) -> Source:
    """The address in a peer's `ip:port`, where IPv6 is in brackets."""
    return _address(peer.rpartition(":")[0])


@lru_cache(ADDRESSES_REMEMBERED)
def _address(host: str) -> Source:
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
