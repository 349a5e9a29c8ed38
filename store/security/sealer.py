"""The module seals secrets for storage, with a key that lies outside of the store.

A broker has to know a secret itself, since clients sign with it. So it is encrypted, not hashed (ADR 25). Fernet is AES
in CBC mode with an HMAC over it: a sealed text that was changed is detected, not misread. The library is loaded only
where there is a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quarry_mq.store.errors import Invalid, SecretsUnreadable

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

KEYS_MAX: Final = 16
KEY_SETTINGS: Final = "security.key_file (or security.key)"
_READABLE_BY_OTHERS: Final = 0o077


class Sealer:
    """The sealer encrypts texts: the first key seals, all of them open."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Make a sealer. `keys`: 32 bytes each, in url-safe base64. Raises Invalid."""
        from cryptography.fernet import MultiFernet

        if not 1 <= len(keys) <= KEYS_MAX:
            raise Invalid(f"{len(keys)} keys; 1 to {KEYS_MAX} are allowed")
        self._keys = MultiFernet([_fernet(number, key) for number, key in enumerate(keys, start=1)])

    def seal(self, text: str) -> bytes:
        """Return the sealed text as ASCII, different each time."""
        return self._keys.encrypt(text.encode())

    def open(self, token: bytes) -> str:
        """Open a sealed text. Raises SecretsUnreadable if none of the keys has sealed it."""
        from cryptography.fernet import InvalidToken

        try:
            return self._keys.decrypt(token).decode()
        except InvalidToken:
            raise SecretsUnreadable(f"it was sealed with a key that is not in {KEY_SETTINGS}") from None


def _fernet(number: int, key: bytes) -> Fernet:
    from cryptography.fernet import Fernet

    try:
        return Fernet(key)
    except ValueError:
        # the cause is left out: a text about a key might contain the key
        raise Invalid(
            f"key {number} is not a key as made by `quarry security new-key`: 32 bytes in URL-safe base64"
        ) from None


def read_keys(path: Path) -> Sequence[bytes]:
    """Return the keys in a file: one per line; blank lines and lines that begin with `#` are skipped.

    Raises Invalid that names the file: it is missing, holds no key, or users other than its owner may read it.
    """
    try:
        mode, text = path.stat().st_mode, path.read_bytes()
    except OSError as cause:
        raise Invalid(f"key file {path}: {cause.strerror}") from None
    if mode & _READABLE_BY_OTHERS:
        raise Invalid(
            f"key file {path}: users other than its owner may read it; run chmod 600 on the file, and make new keys"
        )
    lines = (line.strip() for line in text.splitlines())
    keys = [line for line in lines if line and not line.startswith(b"#")]
    try:
        Sealer(keys)
    except Invalid as cause:
        raise Invalid(f"key file {path}: {cause}") from None
    return keys


def new_key() -> bytes:
    from cryptography.fernet import Fernet

    return Fernet.generate_key()
