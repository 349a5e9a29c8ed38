"""Bodies that were compressed by their senders, made plain again.

A few KiB can be made to hold gigabytes, so nothing here makes more bytes than its caller allows.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from lz4.frame import LZ4FrameDecompressor

from quarry_mq.store.record.system_flag import Compression, compression

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PLAIN_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes that a body may have uncompressed, for those who show or export it."""

GZIP_START: Final = b"\x1f\x8b"
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_ZSTD_WINDOW_LOG_MAX: Final = 25
"""A frame may ask for a window of 2 GiB; the highest usual level asks for 2^23 bytes."""


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Inflater:
    """`zlib` hands back what it has not looked at; the others keep it."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB)

    @property
    def eof(self) -> bool:
        return self._inflater.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflater.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inflater.decompress(self._inflater.unconsumed_tail + data, max_length)


def _zstd_unpacker() -> _Unpacker:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX})


_UNPACKERS: Final[dict[Compression, Callable[[], _Unpacker]]] = {
    Compression.ZLIB: _Inflater,
    Compression.LZ4: LZ4FrameDecompressor,
    Compression.ZSTD: _zstd_unpacker,
}


class BodyBroken(ValueError):
    """The body is not compressed in the way that is said, is cut off, or is followed by something else."""


class Inflated(NamedTuple):
    """What a compressed body holds, or how it begins."""

    plain: bytes
    is_whole: bool


def compression_name(system_flag: int, body: bytes) -> str | None:
    """`gzip`, `zlib`, `lz4`, `zstd`, `unknown`; None for a body that is not compressed."""
    try:
        method = compression(system_flag)
    except ValueError:
        return "unknown"
    if method is Compression.ZLIB and body.startswith(GZIP_START):
        return "gzip"
    return None if method is None else method.name.lower()


def plain_body(system_flag: int, body: bytes, size_max: int | None = None) -> bytes | None:
    """The body as its sender had it. None where it is not compressed as the flag says, or is too large."""
    try:
        method = compression(system_flag)
    except ValueError:
        return None
    return body if method is None or not body else uncompressed(body, method, size_max)


def inflated(body: bytes, size_max: int, method: Compression = Compression.ZLIB) -> Inflated | None:
    """At most `size_max` bytes of it. None for what is not compressed so. With ZLIB it may be gzip, too."""
    plain = b""
    try:
        for part in _parts(body, method, size_max):
            if len(plain) + len(part) > size_max:
                return Inflated(plain + part[: size_max - len(plain)], is_whole=False)
            plain += part
    except BodyBroken:
        return Inflated(plain, is_whole=False) if plain else None
    return Inflated(plain, is_whole=True)


def uncompressed(body: bytes, method: Compression = Compression.ZLIB, size_max: int | None = None) -> bytes | None:
    """All of it. None for what is not compressed so, is cut off, or has more than `size_max` bytes."""
    found = inflated(body, PLAIN_SIZE_MAX if size_max is None else size_max, method)
    return found.plain if found is not None and found.is_whole else None


def uncompressed_parts(body: bytes, method: Compression, part_size: int) -> Iterator[bytes]:
    """The same a part at a time, `PLAIN_SIZE_MAX` bytes at most; it ends where what follows is not compressed."""
    left = PLAIN_SIZE_MAX
    try:
        for part in _parts(body, method, part_size):
            yield part[:left]
            left -= len(part)
            if left <= 0:
                return
    except BodyBroken:
        return


def _parts(body: bytes, method: Compression, part_size: int) -> Iterator[bytes]:
    """At most `part_size` bytes each, one at least. Raises BodyBroken."""
    unpacker = _UNPACKERS[method]()
    part_size = max(part_size, 1)
    while not unpacker.eof:
        try:
            part = unpacker.decompress(body, part_size)
        except (zlib.error, zstd.ZstdError, RuntimeError) as error:  # lz4 knows no error of its own
            raise BodyBroken(str(error)) from error
        body = b""
        if part:
            yield part
        elif not unpacker.eof:
            raise BodyBroken("it is cut off")
    if unpacker.unused_data:
        raise BodyBroken("something follows it")
