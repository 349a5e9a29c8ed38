"""Bodies that were compressed by who sent them, plain again."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

PLAIN_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes that a body may have uncompressed: a few KiB can be made to hold gigabytes."""

_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


def uncompressed(body: bytes) -> bytes | None:
    """As clients do it: gzip or zlib, whichever it is. None for what is neither, is cut off, or is too large."""
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = inflater.decompress(body, PLAIN_SIZE_MAX)
    except zlib.error:
        return None
    return plain if inflater.eof and not inflater.unused_data else None


def uncompressed_parts(body: bytes, part_size: int) -> Iterator[bytes]:
    """The same a part at a time, `PLAIN_SIZE_MAX` bytes at most; it ends where what follows is not compressed."""
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    left = PLAIN_SIZE_MAX
    while left > 0 and not inflater.eof:
        try:
            plain = inflater.decompress(body, min(part_size, left))
        except zlib.error:
            return
        if not plain:
            return
        yield plain
        left -= len(plain)
        body = inflater.unconsumed_tail
