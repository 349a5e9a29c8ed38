"""Proofs that a handle was given out by this broker: for receipts, transactions and delayed messages.

Handles name what they stand for by numbers that anybody can count up. So each has a proof: BLAKE2b over the owner of
the handle and what it names, keyed with a secret of the store. Handles stay valid over restarts and cannot be forged.
"""

from __future__ import annotations

import hmac
from enum import Enum
from hashlib import blake2b
from typing import Any, Final

from quarry_mq.store.native import Native
from quarry_mq.store.offsets import PhysicalOffset

PROOF_SIZE: Final = 8
"""Bytes of a proof. Each guess costs an attacker a call to the broker."""


class Purpose(Enum):
    """The kind of a handle: the proof of one kind is not valid for another."""

    RECEIPT = b"r"
    TRANSACTION = b"t"
    RECALL = b"d"


class HandleKey:
    """The secret key of a store, 16 to 64 bytes.

    `since` is the end of the log when the key was created. Handles of transactions and of delayed messages that were
    stored before may have been given out by an older version, which had no proofs. `native` makes many handles at once.
    """

    def __init__(self, raw: bytes, since: PhysicalOffset, native: Native | None = None) -> None:
        self.raw: Final = raw
        self.since: Final = since
        self.native: Final = native

    def begun(self, purpose: Purpose, *names: str) -> Any:
        """Return a hash of the owner of handles. A copy of it, updated with what a handle names, gives the proof.

        No name may have a zero byte.
        """
        begun = blake2b(purpose.value, key=self.raw, digest_size=PROOF_SIZE)
        begun.update("".join(f"{name}\0" for name in names).encode())
        return begun

    def proof(self, purpose: Purpose, *names: str, fields: bytes) -> bytes:
        hashed = self.begun(purpose, *names)
        hashed.update(fields)
        return bytes(hashed.digest())

    def proves(self, shown: bytes, purpose: Purpose, *names: str, fields: bytes) -> bool:
        """Return whether this is the proof, in constant time, which does not reveal how much of it is right."""
        return hmac.compare_digest(shown, self.proof(purpose, *names, fields=fields))
