"""The gRPC layer over HTTP/2: the layout of messages in DATA frames, and the header blocks of answers.

    message = 1 byte compressed? │ 4 bytes length │ body

A message that spans several frames is put together again.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from struct import Struct
from typing import Final
from urllib.parse import quote

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.h2.frames import FRAME_SIZE_MAX
from quarry_mq.protocol.h2.header_blocks import encode_fields

MESSAGE_PREFIX: Final = Struct(">BI")
MESSAGE_PREFIX_SIZE: Final = MESSAGE_PREFIX.size
COMPRESSED: Final = 1

ACCEPTED_ENCODINGS: Final = b"identity,gzip"

_STATUS_200: Final = b"\x88"  # entry 8 of HPACK's static table
_CONTENT_TYPE_GRPC: Final = b"\x0f\x10\x10application/grpc"  # the name is entry 31, the value a literal

RESPONSE_HEAD: Final = _STATUS_200 + _CONTENT_TYPE_GRPC
"""The header block before every answer."""

TRAILERS_OK: Final = encode_fields([(b"grpc-status", b"0")])

_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_TIMEOUT_DIGITS_MAX: Final = 8
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MESSAGE_SIZE_MAX: Final = 1_024
"""Bytes of a status message, encoded: clients bound their header lists, some at 8 KiB."""


class BadMessage(Exception):
    """A client's message is not valid for the method it called; the call ends with `status`."""

    def __init__(self, status: GrpcStatus, reason: str, limit: str | None = None) -> None:
        """`limit` is the name of the limit that the message exceeds, if any."""
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.limit = limit


def with_prefix(body: bytes) -> bytes:
    return MESSAGE_PREFIX.pack(0, len(body)) + body


def pack_messages(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """Yield messages with their prefixes, joined as far as they fit into one frame; a larger message is alone."""
    parts: list[bytes] = []
    size = 0
    for body in bodies:
        grown = size + MESSAGE_PREFIX_SIZE + len(body)
        if parts and grown > FRAME_SIZE_MAX:
            yield b"".join(parts)
            parts.clear()
            grown = MESSAGE_PREFIX_SIZE + len(body)
        parts += (MESSAGE_PREFIX.pack(0, len(body)), body)
        size = grown
    if parts:
        yield b"".join(parts)


def timeout_s(value: bytes) -> float:
    """Return the seconds of a `grpc-timeout`. Raises BadMessage."""
    digits, unit_s = value[:-1], _UNITS_S.get(value[-1:])
    if unit_s is None or not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS_MAX:
        raise BadMessage(GrpcStatus.INTERNAL, "grpc-timeout is malformed")
    return int(digits) * unit_s


UNPACKED_FREE: Final = 64 * 1024
UNPACKED_RATIO_MAX: Final = 32
"""Bytes that any compressed message may become, and the factor by which larger ones may grow.

Text is compressed to a tenth, zeros to a thousandth.
"""


def plain_body(body: bytes, flag: int, encoding: bytes, size_max: int) -> bytes:
    """Return the uncompressed message of a body with its compressed flag. Raises BadMessage.

    Never more than `size_max` bytes are created, nor more than the body's own size allows.
    """
    if flag == 0:
        return body
    if flag != COMPRESSED or encoding in (b"", b"identity"):
        raise BadMessage(GrpcStatus.INTERNAL, "a message is marked as compressed, but its call is not")
    if encoding != b"gzip":
        raise BadMessage(
            GrpcStatus.UNIMPLEMENTED, f"messages may be compressed with gzip, not {encoding.decode('ascii', 'replace')}"
        )
    inflater = zlib.decompressobj(wbits=31)
    bound = unpacked_bound(len(body), size_max)
    try:
        plain = inflater.decompress(body, bound + 1)
    except zlib.error as error:
        raise BadMessage(GrpcStatus.INTERNAL, "a message is not gzip data") from error
    if len(plain) > size_max:
        raise too_large(len(plain), size_max)
    if len(plain) > bound:
        raise BadMessage(
            GrpcStatus.RESOURCE_EXHAUSTED,
            f"a message that decompresses to more than {UNPACKED_RATIO_MAX} times its {len(body)} bytes",
            "request_size",
        )
    if not inflater.eof or inflater.unused_data:
        raise BadMessage(GrpcStatus.INTERNAL, "the gzip data of a message is incomplete")
    return plain


def unpacked_bound(size: int, size_max: int) -> int:
    """Return the most bytes that a compressed message of that size may become."""
    return min(size_max, max(UNPACKED_FREE, UNPACKED_RATIO_MAX * size))


def too_large(size: int, size_max: int) -> BadMessage:
    return BadMessage(
        GrpcStatus.RESOURCE_EXHAUSTED, f"a message of {size} bytes; at most {size_max} are allowed", "request_size"
    )


def trailers(status: GrpcStatus, message: str) -> bytes:
    """Return the header block that ends a call. The message is percent-encoded UTF-8, cut to fit."""
    if status == GrpcStatus.OK and not message:
        return TRAILERS_OK
    return _trailers(status, message[:_MESSAGE_SIZE_MAX])


@lru_cache(maxsize=256)
def _trailers(status: GrpcStatus, message: str) -> bytes:
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        encoded = quote(message, safe=_PRINTABLE).encode()
        if len(encoded) > _MESSAGE_SIZE_MAX:
            encoded = re.sub(rb"%.?$", b"", encoded[:_MESSAGE_SIZE_MAX])
        fields.append((b"grpc-message", encoded))
    if status == GrpcStatus.UNIMPLEMENTED:
        fields.append((b"grpc-accept-encoding", ACCEPTED_ENCODINGS))
    return encode_fields(fields)


NOT_GRPC_TEXT: Final = b"This port speaks gRPC: POST with content-type application/grpc.\n"


def http_refusal(http_status: int) -> bytes:
    """Return the header block that answers a request which is not a gRPC call; `NOT_GRPC_TEXT` follows."""
    return encode_fields([(b":status", b"%d" % http_status), (b"content-type", b"text/plain")])


class MessageReader:
    """Collects the data of one stream and returns complete messages.

    `size` is the number of bytes it holds, `total_size` the number it ever got, `unpacked_size` the number that
    compressed messages became.
    """

    __slots__ = ("_buffer", "_encoding", "_size_max", "total_size", "unpacked_size")

    def __init__(self, encoding: bytes, size_max: int) -> None:
        self._buffer = bytearray()
        self._encoding = encoding
        self._size_max = size_max
        self.total_size = 0
        self.unpacked_size = 0

    @property
    def size(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> None:
        """Add data. Raises BadMessage as soon as a prefix announces more than is accepted."""
        self._buffer += data
        self.total_size += len(data)
        self._announced()

    def skip(self, data: bytes | memoryview) -> None:
        """Count data that is not needed."""
        self.total_size += len(data)

    def take(self) -> bytes | None:
        """Return the next complete message, or None if there is none yet. Raises BadMessage."""
        size = self._announced()
        end = MESSAGE_PREFIX_SIZE + (size or 0)
        if size is None or len(self._buffer) < end:
            return None
        flag = self._buffer[0]
        with memoryview(self._buffer) as view:
            body = bytes(view[MESSAGE_PREFIX_SIZE:end])
        del self._buffer[:end]
        if not flag:
            return body
        try:
            plain = plain_body(body, flag, self._encoding, self._size_max)
        except BadMessage:
            self.unpacked_size += unpacked_bound(len(body), self._size_max)
            raise
        self.unpacked_size += len(plain)
        return plain

    def _announced(self) -> int | None:
        """Return the length of the incomplete message, or None as long as it is not known."""
        if len(self._buffer) < MESSAGE_PREFIX_SIZE:
            return None
        size: int = MESSAGE_PREFIX.unpack_from(self._buffer)[1]
        if size > self._size_max:
            raise too_large(size, self._size_max)
        return size
