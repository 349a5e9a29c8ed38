"""The HA protocol of RocketMQ without a controller, seen from the slave; without I/O.

    report    i64                                the end of the slave's log; the first report says where to begin
    push      i64 offset, i32 size, size bytes   bytes of the master's log; size 0: a heartbeat

All integers are big-endian. A push ends anywhere, also inside a record. To a first report of 0 the master answers from
the beginning of its last segment, so a slave that wants all of a log that begins at 0 reports 1: the byte at 0 is the
highest byte of the size of the first record, which is always 0.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from quarry_mq.store.message import PhysicalOffset

_PUSH: Final = Struct(">qi")
_REPORT: Final = Struct(">q")
PUSH_SIZE_MAX: Final = 64 << 20
"""Bytes of a push at most. RocketMQ's default is 32 KiB (`haTransferBatchSize`)."""


class PushMalformed(ValueError):
    """The bytes that were received are no push."""


class Push(NamedTuple):
    """Bytes of the master's log; empty for a heartbeat."""

    offset: PhysicalOffset
    data: bytes


class PushReader:
    """Takes what was received in pieces of any size, and returns whole pushes."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def feed(self, data: bytes) -> list[Push]:
        """Add received bytes, and return the pushes that are complete. Raises PushMalformed."""
        self._kept += data
        found: list[Push] = []
        at = 0
        while len(self._kept) - at >= _PUSH.size:
            offset, size = _PUSH.unpack_from(self._kept, at)
            if offset < 0 or not 0 <= size <= PUSH_SIZE_MAX:
                raise PushMalformed(f"a push of {size} bytes at offset {offset}")
            if len(self._kept) - at - _PUSH.size < size:
                break
            at += _PUSH.size
            found.append(Push(PhysicalOffset(offset), bytes(self._kept[at : at + size])))
            at += size
        del self._kept[:at]
        return found


def report(end: PhysicalOffset) -> bytes:
    """Return the bytes that report the end of the slave's log to the master."""
    return _REPORT.pack(end)
