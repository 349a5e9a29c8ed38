"""Message bodies: decompression of those that their senders compressed, and text that people can read.

A few KiB can expand to gigabytes, so nothing here produces more bytes than its caller allows.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from lz4.frame import LZ4FrameDecompressor

from quarry_mq.protocol.messages.system_flag import Compression, compression

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""All control characters except those that lay out text."""

PLAIN_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes that a body may have uncompressed, for callers that show or export it."""

GZIP_START: Final = b"\x1f\x8b"
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_ZSTD_WINDOW_LOG_MAX: Final = 25
"""The limit of a frame's window: a frame may ask for 2 GiB; the highest usual level asks for 2^23 bytes."""


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Inflater:
    """The adapter keeps the input that `zlib` hands back unread; the other libraries keep it themselves."""

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
    """The body is not compressed with the stated method, is cut off, or is followed by something else."""


class Inflated(NamedTuple):
    """The object holds the content of a compressed body, or its beginning."""

    plain: bytes
    is_whole: bool


def compression_name(system_flag: int, body: bytes) -> str | None:
    """Return `gzip`, `zlib`, `lz4`, `zstd` or `unknown`; None for a body that is not compressed."""
    try:
        method = compression(system_flag)
    except ValueError:
        return "unknown"
    if method is Compression.ZLIB and body.startswith(GZIP_START):
        return "gzip"
    return None if method is None else method.name.lower()


def plain_body(system_flag: int, body: bytes, size_max: int | None = None) -> bytes | None:
    """Return the body as its sender had it; None if it is not compressed as the flag says, or is too large."""
    try:
        method = compression(system_flag)
    except ValueError:
        return None
    return body if method is None or not body else uncompressed(body, method, size_max)


def body_problem(system_flag: int, body: bytes) -> str:
    """Return why `plain_body` has no body to return, in words for a person."""
    method = compression_name(system_flag, body)
    return f"marked as compressed ({method}), but it is not, is broken, or has more than {PLAIN_SIZE_MAX >> 20} MiB"


def inflated(body: bytes, size_max: int, method: Compression = Compression.ZLIB) -> Inflated | None:
    """Return at most `size_max` bytes of the content; None if it is not compressed so. With ZLIB it may
    also be gzip.
    """
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
    """Return the whole content; None if it is not compressed so, is cut off, or has more than `size_max` bytes."""
    found = inflated(body, PLAIN_SIZE_MAX if size_max is None else size_max, method)
    return found.plain if found is not None and found.is_whole else None


def uncompressed_parts(body: bytes, method: Compression, part_size: int) -> Iterator[bytes]:
    """Yield the content in parts, at most `PLAIN_SIZE_MAX` bytes; stop where what follows is not compressed."""
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
    """Yield non-empty parts of at most `part_size` bytes each. Raises BodyBroken."""
    unpacker = _UNPACKERS[method]()
    part_size = max(part_size, 1)
    while not unpacker.eof:
        try:
            part = unpacker.decompress(body, part_size)
        except (zlib.error, zstd.ZstdError, RuntimeError) as error:  # lz4 has no error class of its own
            raise BodyBroken(str(error)) from error
        body = b""
        if part:
            yield part
        elif not unpacker.eof:
            raise BodyBroken("truncated")
    if unpacker.unused_data:
        raise BodyBroken("bytes follow after its end")


def body_text(body: bytes) -> str | None:
    """Return the body as text, or None if it is not text or has control characters that could affect a terminal."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text
