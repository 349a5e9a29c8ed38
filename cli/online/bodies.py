"""Bodies of messages as commands show them."""

from __future__ import annotations

import base64
import re
import zlib
from typing import Final

PLAIN_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes that a body may have uncompressed: a few KiB can be made to hold gigabytes."""
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""All control characters but those that lay out text."""


def uncompressed(body: bytes) -> bytes | None:
    """As clients do it: gzip or zlib, whichever it is. None for what is neither, is cut off, or is too large."""
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = inflater.decompress(body, PLAIN_SIZE_MAX)
    except zlib.error:
        return None
    return plain if inflater.eof and not inflater.unused_data else None


def body_text(body: bytes) -> str | None:
    """None for what is no text, or would do something to a terminal."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def body_fields(body: bytes) -> dict[str, object]:
    """As JSON: `body` when it is text, else `bodyBase64`."""
    text = body_text(body)
    return {"bodyBase64": base64.b64encode(body).decode()} if text is None else {"body": text}
