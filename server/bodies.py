"""Bodies of messages as people get to see them."""

from __future__ import annotations

import re
import zlib
from typing import Final, NamedTuple

PLAIN_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes that a body may have uncompressed: a few KiB can be made to hold gigabytes."""
GZIP_START: Final = b"\x1f\x8b"
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""All control characters but those that lay out text."""


class Inflated(NamedTuple):
    """What a compressed body holds, or how it begins."""

    plain: bytes
    is_whole: bool


def inflated(body: bytes, size_max: int) -> Inflated | None:
    """At most `size_max` bytes of it, as clients do it: gzip or zlib, whichever it is. None for what is neither."""
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = inflater.decompress(body, size_max)
    except zlib.error:
        return None
    return Inflated(plain, inflater.eof and not inflater.unused_data)


def uncompressed(body: bytes) -> bytes | None:
    """All of it. None for what is neither gzip nor zlib, is cut off, or is too large."""
    found = inflated(body, PLAIN_SIZE_MAX)
    return found.plain if found is not None and found.is_whole else None


def body_text(body: bytes) -> str | None:
    """None for what is no text, or would do something to a terminal."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text
