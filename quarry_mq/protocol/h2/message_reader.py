"""Reassembly of gRPC messages that span several frames."""

from __future__ import annotations

from quarry_mq.protocol.h2.grpc_messages import (
    MESSAGE_PREFIX,
    MESSAGE_PREFIX_SIZE,
    BadMessage,
    plain_body,
    too_large,
    unpacked_bound,
)


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
