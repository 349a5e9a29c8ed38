"""The module normalizes subjects of client certificates to the one spelling by which users are found.

The library is loaded only where there are certificates: it takes 10 MB, and a part of the time of each start.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from quarry_mq.store.errors import Invalid

SUBJECT_MAX: Final = 512
"""The most characters of a subject."""

CERTIFICATES_REMEMBERED: Final = 1024


def checked_subject(text: str) -> str:
    """Return the subject as RFC 4514 writes it, most specific part first: `CN=orders,O=Shop`. Raises Invalid."""
    from cryptography.x509 import Name

    if not 1 <= len(text) <= SUBJECT_MAX:
        raise Invalid(f"certificate subject: {len(text)} characters; 1 to {SUBJECT_MAX} are allowed")
    if not text.isprintable():
        raise Invalid(f"certificate subject {text!r} contains characters that are not printable")
    try:
        return Name.from_rfc4514_string(text).rfc4514_string()
    except ValueError:
        raise Invalid(f"certificate subject {text!r} is not as RFC 4514 writes it: CN=orders,O=Shop") from None


@lru_cache(CERTIFICATES_REMEMBERED)
def subject_of(certificate: bytes) -> str | None:
    """Return the subject of a certificate (DER), as `checked_subject` writes it; None if it cannot be read."""
    from cryptography.x509 import load_der_x509_certificate

    try:
        return load_der_x509_certificate(certificate).subject.rfc4514_string()
    except ValueError:
        return None
