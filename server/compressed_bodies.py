"""Bodies that were compressed by who sent them, plain again."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

PLAIN_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes that a body may have uncompressed: a few KiB can be made to hold gigabytes."""

GZIP_START: Final = b"\x1f\x8b"
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


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
