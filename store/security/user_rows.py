"""The module encodes users as they are stored (docs/formats/metadata.md §7): secrets are sealed, so reading a row
needs no key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quarry_mq.store.metadata.row_json import Document, Fields, encode_document
from quarry_mq.store.security.model import UserKind

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
