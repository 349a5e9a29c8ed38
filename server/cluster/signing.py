"""Signs calls between members, and their answers, with the cluster's key.

    quarry-cluster-date        seconds since 1970, decimal
    quarry-cluster-signature   hex of HMAC-SHA256 over the signed parts, each with its size before it

The parts of a call are its method, its date and its bytes; those of an answer are the call's signature and the answer's
bytes, so that an answer to another call is not accepted for this one.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from quarry_mq.server.errors import NotAMember
from quarry_mq.store.security.sealer import read_keys

DATE: Final = "quarry-cluster-date"
SIGNATURE: Final = "quarry-cluster-signature"

DATE_TOLERANCE_S: Final = 300
"""Largest difference in seconds between the clocks of two members, and the largest age of a call that was recorded."""

_CALL: Final = b"quarry cluster call"
_ANSWER: Final = b"quarry cluster answer"

Headers = tuple[tuple[str, str], ...]


class ClusterKeys:
    """The keys of the cluster. The first key signs, all are accepted: so a cluster changes its key without a pause."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def read(cls, path: Path) -> ClusterKeys:
        """Read the keys of a file. Raises Invalid that names the file."""
        return cls(read_keys(path))

    def sign_call(self, method: str, body: bytes, now_s: int) -> Headers:
        date = str(now_s)
        return ((DATE, date), (SIGNATURE, _digest(self._keys[0], _CALL, method.encode(), date.encode(), body)))

    def check_call(self, method: str, body: bytes, headers: Mapping[str, str], now_s: int) -> str:
        """Check the signature of a call, and return it for the answer. Raises NotAMember."""
        date, signature = headers.get(DATE, ""), headers.get(SIGNATURE, "")
        if not (date.isascii() and date.isdigit() and len(date) <= 12):
            raise NotAMember("the call is not signed with the cluster's key")
        parts = (_CALL, method.encode(), date.encode(), body)
        if not any(_same(signature, _digest(key, *parts)) for key in self._keys):
            raise NotAMember("the call is not signed with the cluster's key")
        if abs(now_s - int(date)) > DATE_TOLERANCE_S:
            raise NotAMember(f"the call is dated {int(date) - now_s:+} s from now: check the clocks")
        return signature

    def sign_answer(self, call_signature: str, body: bytes) -> Headers:
        return ((SIGNATURE, _digest(self._keys[0], _ANSWER, call_signature.encode(), body)),)

    def check_answer(self, call_signature: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Check the signature of an answer. Raises NotAMember."""
        signature = headers.get(SIGNATURE, "")
        if not any(_same(signature, _digest(key, _ANSWER, call_signature.encode(), body)) for key in self._keys):
            raise NotAMember("the answer is not signed with the cluster's key")


def _digest(key: bytes, *parts: bytes) -> str:
    digest = hmac.new(key, digestmod=sha256)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _same(shown: str, expected: str) -> bool:
    return hmac.compare_digest(shown.encode(errors="replace"), expected.encode())
