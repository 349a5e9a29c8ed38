"""Users and rules as values, and the stored form of users.

Names and meaning follow RocketMQ's Access Control 2.0 (rmq#7560), so an administrator who knows one can use the other:
a user is `super` or `normal`, a rule allows or denies actions on a resource, and what no rule allows is denied.

In the stored form of a user (docs/formats/metadata.md §7) secrets are sealed, so reading a row needs no key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata.rows import Document, Fields, encode_document

USER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
"""The pattern excludes `/`: clients put what follows a `/` after the name in their credential (C++, Go)."""

SECRET_TEXT: Final = re.compile(r"[!-~]{12,256}")
"""Printable ASCII without blanks, because a secret passes through configuration files and environments of seven
languages.
"""

SECRETS_MAX: Final = 2
"""The most live secrets of a user: the one in use and the one that is about to replace it."""

CERTIFICATES_MAX: Final = 16
RULES_MAX: Final = 256
"""The most rules of a user: a decision that is not cached examines all of them."""


class UserKind(Enum):
    """The kind says what a user may do without any rule: everything, or nothing."""

    SUPER = "super"
    NORMAL = "normal"


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret is one live secret of a user. `number` tells the user's secrets apart and is never used again."""

    number: int
    text: str = field(repr=False)
    created_at_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """A user may call the broker. `certificates` are subjects of client certificates (RFC 4514: `CN=orders,O=Shop`) for
    it.
    """

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
    """An action is allowed or denied by a rule. `pub` and `sub` are for messaging clients, the others for the admin
    port.
    """

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
    """A resource is what a rule is about: `topic:orders`, `topic:orders-*`, `group:*`, `cluster:*` or `*` for
    everything.

    `name` is a whole name, or a prefix with a `*` at its end.
    """

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind is ResourceKind.ANY else f"{self.kind.value}:{self.name}"

    @property
    def is_prefix(self) -> bool:
        return self.name.endswith("*")

    def covers(self, kind: ResourceKind, name: str) -> bool:
        """Return whether the rule is about the thing of this kind and name; `kind` is never `any`."""
        if self.kind is not ResourceKind.ANY and self.kind is not kind:
            return False
        return name.startswith(self.name[:-1]) if self.is_prefix else name == self.name

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Parse a resource. Raises Invalid that says what is wrong with the text."""
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
    """A rule allows or denies `actions` on `resource` for calls from `sources`; without sources, from everywhere."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision = Decision.ALLOW
    sources: tuple[SourceNetwork, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy is all rules of one user, one per resource and decision: setting a rule replaces the earlier one."""

    user: str
    rules: Mapping[tuple[Resource, Decision], Rule] = field(default_factory=dict)


USERS_FAMILY: Final = "users"


@dataclass(frozen=True, slots=True)
class SealedSecret:
    """A sealed secret is a secret without its text."""

    number: int
    sealed: bytes
    created_at_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedUser:
    """A sealed user has no texts of its secrets; the fields are those of `store.security.model.User`."""

    name: str
    kind: UserKind
    enabled: bool
    secrets: tuple[SealedSecret, ...]
    certificates: tuple[str, ...]
    created_at_ms: int
    next_secret_number: int


def encode_user(user: SealedUser) -> bytes:
    """Return the row of docs/formats/metadata.md §7."""
    return encode_document(
        {
            "kind": user.kind.value,
            "enabled": user.enabled,
            "secrets": [
                {"number": each.number, "sealed": each.sealed.decode(), "createdMs": each.created_at_ms}
                for each in user.secrets
            ],
            "certificates": list(user.certificates),
            "createdMs": user.created_at_ms,
            "nextSecret": user.next_secret_number,
        }
    )


def decode_user(name: str, value: bytes) -> SealedUser:
    """Decode a user. Raises StoreDamaged."""
    document = Document(USERS_FAMILY, name, value)
    try:
        kind = UserKind(document.text("kind"))
    except ValueError as cause:
        document.damaged(str(cause))
    return SealedUser(
        name=name,
        kind=kind,
        enabled=document.boolean("enabled"),
        secrets=tuple(map(_secret, document.parts("secrets"))),
        certificates=tuple(document.text_list("certificates")),
        created_at_ms=document.integer("createdMs"),
        next_secret_number=document.integer("nextSecret"),
    )


def _secret(fields: Fields) -> SealedSecret:
    return SealedSecret(fields.integer("number"), fields.text("sealed").encode(), fields.integer("createdMs"))
