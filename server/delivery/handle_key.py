"""Proofs that a handle is one which this broker gave out: of receipts, transactions and delayed messages.

Handles name what they stand for by numbers that anybody can count up. So each has a proof: BLAKE2b of whose it is and
of what it names, keyed with a secret of the store. Handles stay good over restarts, and nobody makes one up.
"""

from __future__ import annotations

import hmac
from enum import Enum
from hashlib import blake2b
from typing import Any, Final

from quarry_mq.store.native import Native
from quarry_mq.store.offsets import PhysicalOffset

PROOF_SIZE: Final = 8
"""Bytes. Each guess is a call to the broker."""


class Purpose(Enum):
    """What a handle is of: one of a kind is none of another."""

    RECEIPT = b"r"
    TRANSACTION = b"t"
    RECALL = b"d"


class HandleKey:
    """The key of a store, 16 to 64 bytes.

    `since`: where the log ended when it was made. Handles of transactions and of delayed messages that were stored
    before may have been given out by an older version, which knew no proof. `native` makes many handles at once.
    """

    def __init__(self, raw: bytes, since: PhysicalOffset, native: Native | None = None) -> None:
        self.raw: Final = raw
        self.since: Final = since
        self.native: Final = native

    def begun(self, purpose: Purpose, *names: str) -> Any:
        """A hash of whose a handle is: a copy of it that is updated with what the handle names gives the proof.

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
        """Whether this is the proof, in a time that does not tell how much of it is right."""
        return hmac.compare_digest(shown, self.proof(purpose, *names, fields=fields))
