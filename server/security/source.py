"""Where calls come from."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from server.addresses import plain_address

Source = IPv4Address | IPv6Address | None
"""The address of the peer; None where it has none (a Unix socket)."""

ADDRESSES_REMEMBERED: Final = 4096


def source_of(peer: str) -> Source:
    """The address in a peer's `ip:port`, where IPv6 is in brackets."""
    return _address(peer.rpartition(":")[0])


@lru_cache(ADDRESSES_REMEMBERED)
def _address(host: str) -> Source:
    return plain_address(host.strip("[]"))
