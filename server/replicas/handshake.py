"""The handshake between a replica and a peer: each proves that it has the key, and says what it has.

The replica sends HELLO. The peer answers with WELCOME and a MAC over both, and the replica proves itself with a MAC of
its own. A recorded conversation proves nothing, since both sides put 32 random bytes into it. Bodies are JSON objects,
so that a later version can say more.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final, TypeVar

from quarry_mq.server.replicas.role import Epoch
from quarry_mq.server.replicas.wire import WireError

VERSION: Final = 1
MAC_SIZE: Final = 32
START_OVER: Final = -1
_NONCE_SIZE: Final = 64
"""Characters of a nonce: 32 bytes as hex."""

_WELCOME: Final = b"quarry replication"
_PROOF: Final = b"quarry replication proof"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """A hello says what a replica has. A copy that only asks for the primary sends the same."""

    version: int = VERSION
    shard: str
    replica: str
    nonce: str
    follows: bool
    """False: the peer is only asked who it is."""
    lineage: str
    term: int
    epochs: tuple[Epoch, ...]
    segment_size: int
    log_end: int
    run: str
    number: int
    position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """A welcome says what the peer is, and how the replica goes on."""

    version: int = VERSION
    replica: str
    nonce: str
    is_primary: bool
    lineage: str
    term: int
    epochs: tuple[Epoch, ...]
    origin: str
    segment_size: int
    log_begin: int
    log_end: int
    cut_to: int
    """The offset where the replica's log has to end, so that the primary can continue it; or `START_OVER`."""
    refusal: str = ""
    """The reason why the peer does not accept this replica; empty if it does."""


def nonce() -> str:
    """Return 32 random bytes as hex."""
    return token_hex(32)


def pack(message: Hello | Welcome) -> bytes:
    """Return the JSON of a message."""
    return json.dumps(asdict(message)).encode()


_Message = TypeVar("_Message", Hello, Welcome)


def unpack(kind: type[_Message], data: bytes) -> _Message:
    """Return the message. Raises WireError if the bytes are none of this version."""
    try:
        found = json.loads(data)
        if not isinstance(found, dict):
            raise TypeError("not an object")
        if found.get("version") != VERSION:
            raise WireError(f"version {found.get('version')} of the protocol is not supported; this is {VERSION}")
        message = kind(**_checked(kind, found))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as cause:
        raise WireError(f"the handshake cannot be read: {cause}") from cause
    if len(message.nonce) != _NONCE_SIZE:
        raise WireError("the handshake has no nonce")
    return message


def _checked(kind: type[Hello | Welcome], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields with their types checked. Fields of later versions are passed over."""
    checked: dict[str, Any] = {}
    types: dict[str, type] = {"str": str, "int": int, "bool": bool}
    for name, type_name in kind.__annotations__.items():
        value = found[name]
        if name == "epochs":
            checked[name] = tuple(Epoch(*map(int, each)) for each in value)
        elif type(value) is not types[type_name]:
            raise TypeError(f"{name} is {value!r}")
        else:
            checked[name] = value
    return checked


class Keys:
    """The keys by which replicas know each other. The first one signs, all are accepted."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    def sign_welcome(self, hello: bytes, welcome: bytes) -> bytes:
        """Return the MAC of a peer that has answered `hello` with `welcome`."""
        return _mac(self._keys[0], _WELCOME, hello, welcome)

    def check_welcome(self, mac: bytes, hello: bytes, welcome: bytes) -> None:
        """Raise WireError unless a peer with a key has sent the answer."""
        self._check(mac, _WELCOME, hello, welcome)

    def sign_proof(self, hello: bytes, welcome: bytes) -> bytes:
        """Return the MAC of a replica that has got `welcome`."""
        return _mac(self._keys[0], _PROOF, hello, welcome)

    def check_proof(self, mac: bytes, hello: bytes, welcome: bytes) -> None:
        """Raise WireError unless a replica with a key has sent the proof."""
        self._check(mac, _PROOF, hello, welcome)

    def _check(self, mac: bytes, *parts: bytes) -> None:
        if not any(hmac.compare_digest(mac, _mac(key, *parts)) for key in self._keys):
            raise WireError("the other side does not have the key of the replicas: compare replication.key_file")


def _mac(key: bytes, *parts: bytes) -> bytes:
    digest = hmac.new(key, digestmod=sha256)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()
