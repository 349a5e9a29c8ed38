"""Users and rules, as values.

Names and meaning follow RocketMQ's Access Control 2.0 (rmq#7560), so that who knows one can write the other: a user is
`super` or `normal`, a rule allows or denies actions on a resource, what no rule allows is denied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from quarry_mq.store.errors import Invalid

USER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
"""No `/`: clients put what follows one behind the name in their credential (C++, Go)."""

SECRET_TEXT: Final = re.compile(r"[!-~]{12,256}")
"""Printable ASCII without blanks: it travels through configuration files and environments of seven languages."""

SECRETS_MAX: Final = 2
"""Live secrets of a user: the one in use and the one that is about to take its place."""

CERTIFICATES_MAX: Final = 16
RULES_MAX: Final = 256
"""Rules of a user: all of them are looked at for a decision that is not remembered."""


class UserKind(Enum):
    """What a user may do without any rule: everything, or nothing."""

    SUPER = "super"
    NORMAL = "normal"


@dataclass(frozen=True, slots=True)
class Secret:
    """One live secret of a user. `number` tells the user's secrets apart and is never used again."""

    number: int
    text: str = field(repr=False)
    created_at_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """One user. `certificates` are subjects of client certificates (RFC 4514: `CN=orders,O=Shop`) that stand for it."""

    name: str
    kind: UserKind = UserKind.NORMAL
    enabled: bool = True
    secrets: tuple[Secret, ...] = ()
    certificates: tuple[str, ...] = ()
    created_at_ms: int = 0
    next_secret_number: int = 1


class ResourceKind(Enum):
    ANY = "any"
    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"


class Action(Enum):
    """`pub` and `sub` are for messaging clients; the others are for the admin port."""

    PUB = "pub"
    SUB = "sub"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    GET = "get"
    LIST = "list"


class Decision(Enum):
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Resource:
    """What a rule is about, written `topic:orders`, `topic:orders-*`, `group:*`, `cluster:*` or `*` for everything.

    `name` is a whole name, or with a `*` at its end what names begin with.
    """

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind is ResourceKind.ANY else f"{self.kind.value}:{self.name}"

    @property
    def is_prefix(self) -> bool:
        return self.name.endswith("*")

    def covers(self, kind: ResourceKind, name: str) -> bool:
        """Whether the rule is about this thing, which is of no kind `any`."""
        if self.kind is not ResourceKind.ANY and self.kind is not kind:
            return False
        return name.startswith(self.name[:-1]) if self.is_prefix else name == self.name

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Raises Invalid that says what is wrong with the text."""
        if text == "*":
            return cls(ResourceKind.ANY, "*")
        kind_text, colon, name = text.partition(":")
        kinds = {kind.value: kind for kind in (ResourceKind.CLUSTER, ResourceKind.TOPIC, ResourceKind.GROUP)}
        if not colon or kind_text not in kinds or not name:
            raise Invalid(f"resource {text!r} must be *, or topic:, group: or cluster: and a name")
        if "*" in name[:-1]:
            raise Invalid(f"resource {text!r} has a * before its end")
        return cls(kinds[kind_text], name)


SourceNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Allows or denies `actions` on `resource`, to calls from `sources`; without any from everywhere."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision = Decision.ALLOW
    sources: tuple[SourceNetwork, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules of one user, one per resource and decision: setting a rule replaces the one that was there."""

    user: str
    rules: Mapping[tuple[Resource, Decision], Rule] = field(default_factory=dict)
