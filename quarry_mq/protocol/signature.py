"""Sign calls, and read their signatures: RocketMQ's on the messaging port, and ours on the admin port.

Brokers and clients share this module.

RocketMQ's header is `MQv2-HMAC-SHA1 Credential=<user>[/…], SignedHeaders=x-mq-date-time, Signature=<hex>`. It covers
the bytes of the header `x-mq-date-time` and nothing else: neither the call nor what it carries (ADR 26).

Ours is `Quarry-HMAC-SHA256 Credential=<user>, Signature=<hex>` over method, date and nonce, a line each.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

AUTHORIZATION: Final = "authorization"
DATE: Final = "x-mq-date-time"
LANGUAGE: Final = "x-mq-language"
"""The header in which a client names its language. It is sent beside the signature, and is not signed."""
ADMIN_DATE: Final = "x-quarry-date"
ADMIN_NONCE: Final = "x-quarry-nonce"

MQ_ALGORITHM: Final = "MQv2-HMAC-SHA1"
ADMIN_ALGORITHM: Final = "Quarry-HMAC-SHA256"

AUTHORIZATION_SIZE_MAX: Final = 1024
DATE_SIZE_MAX: Final = 64
"""Most characters of the headers. Valid headers are remembered, so their size must be bounded."""


class Claim(NamedTuple):
    """The user that a header names, and the signature; no bytes if that was no hexadecimal text."""

    user: str
    signature: bytes


def parse_authorization(header: str | None) -> Claim | None:
    """Parse a header as RocketMQ does; None for one that names no user, as the Python client sends it.

    The algorithm is ignored, the fields' order does not matter, and what follows a `/` in the credential is the
    client's own (C++ and Go put a region and a service there).
    """
    if header is None or len(header) > AUTHORIZATION_SIZE_MAX:
        return None
    _, _, rest = header.partition(" ")
    fields = dict(_field(each) for each in rest.split(","))
    user = fields.get("Credential", "").partition("/")[0]
    return Claim(user, _from_hex(fields.get("Signature", ""))) if user else None


def _field(text: str) -> tuple[str, str]:
    name, _, value = text.strip().partition("=")
    return name, value


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def date_signature(secret: str, date: str) -> bytes:
    """Return RocketMQ's signature: HMAC-SHA1 of the date header as it was sent."""
    return hmac.digest(secret.encode(), date.encode(), "sha1")


def remoting_signature(secret: str, fields: Mapping[str, str], body: bytes, *, left_out: frozenset[str]) -> bytes:
    """Return the signature of a remoting request: HMAC-SHA1 of the fields' values in the order of their names, and of
    the body. The fields of `left_out` are not signed.
    """
    values = "".join([fields[name] for name in sorted(fields) if name not in left_out])
    return hmac.digest(secret.encode(), values.encode() + body, "sha1")


def admin_signature(secret: str, method: str, date: str, nonce: str) -> bytes:
    """Return our signature of one call: `method` is the whole path of the gRPC method."""
    return hmac.digest(secret.encode(), f"{method}\n{date}\n{nonce}".encode(), "sha256")


def is_same(proof: bytes, expected: bytes) -> bool:
    """Compare two signatures in a time that does not reveal how much of the proof is right."""
    return hmac.compare_digest(proof, expected)


# -- what clients send


def signed_messaging_headers(user: str, secret: str, *, now_ms: int) -> tuple[tuple[str, str], ...]:
    """Return the headers of a call of the messaging port."""
    date = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = date_signature(secret, date).hex()
    return (
        (DATE, date),
        (AUTHORIZATION, f"{MQ_ALGORITHM} Credential={user}, SignedHeaders={DATE}, Signature={signature}"),
    )


def signed_admin_headers(
    user: str, secret: str, method: str, *, now_ms: int, nonce: str
) -> tuple[tuple[str, str], ...]:
    """Return the headers of one call of the admin port. The nonce is 16 to 64 characters, never used before."""
    date = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="seconds")
    signature = admin_signature(secret, method, date, nonce).hex()
    return (
        (ADMIN_DATE, date),
        (ADMIN_NONCE, nonce),
        (AUTHORIZATION, f"{ADMIN_ALGORITHM} Credential={user}, Signature={signature}"),
    )
