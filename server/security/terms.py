"""Define the terms of security: what a call does, where it comes from, and the tables of users and rules.

The tables are those of `store/security`. Both count how often they were changed.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple, Protocol

from quarry_mq.server.addresses import plain_address
from quarry_mq.store.security.model import Action, Policy, ResourceKind, User


class Users(Protocol):
    @property
    def generation(self) -> int:
        """Return a number that grows with each change."""

    def get(self, name: str) -> User | None: ...

    def by_certificate(self, subject: str) -> User | None: ...


class Policies(Protocol):
    @property
    def generation(self) -> int:
        """Return a number that grows with each change."""

    def get(self, user: str) -> Policy: ...


NAME_SHOWN_MAX: Final = 255
"""Characters of a name that errors show, as many as a valid name may have: callers may send any text."""


class Access(NamedTuple):
    """An access of a call: `action` on the resource `name`, which is no pattern and may be no valid name."""

    kind: ResourceKind
    name: str
    action: Action

    def __str__(self) -> str:
        return f"{self.action.value} on {self.kind.value} {self.name[:NAME_SHOWN_MAX]}"


Source = IPv4Address | IPv6Address | None
"""The address of the peer; None where it has none (a Unix socket)."""

ADDRESSES_REMEMBERED: Final = 4096


def source_of(peer: str) -> Source:
    """Return the address in a peer's `ip:port`, where IPv6 is in brackets."""
    return _address(peer.rpartition(":")[0])


@lru_cache(ADDRESSES_REMEMBERED)
def _address(host: str) -> Source:
    return plain_address(host.strip("[]"))
