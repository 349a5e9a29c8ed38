"""The HA protocol of RocketMQ, by which a slave copies the log of its master; both sides, without I/O.

Without a controller:

    report    i64                                the end of the slave's log; the first report says where to begin
    push      i64 offset, i32 size, size bytes   bytes of the master's log; size 0: a heartbeat

In controller mode (RocketMQ 5.1 and newer) each frame begins with a state, 1 for the handshake and 2 for transfer:

    hello     i32 1, i16 0, i16 learner, i64 broker id   a learner is never elected, and no send waits for it
    answer    i32 1, i32 size, i64 end of the log, i32 epoch, size bytes
    report    i32 2, i64
    push      i32 2, i32 size, i64 offset, i32 epoch, i64 start of the epoch, i64 confirmed end, size bytes

All integers are big-endian. A push ends anywhere, also inside a record. To a first report of 0 a master without a
controller answers from the beginning of its last segment, so a slave that wants all of a log that begins at 0 reports
1: the byte at 0 is the highest byte of the size of the first record, which is always 0.

The master's side here is one without a controller.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

PUSH_SIZE_MAX: Final = 64 << 20
"""Bytes of a push at most. RocketMQ's default is 32 KiB (`haTransferBatchSize`)."""

_PUSH: Final = Struct(">qi")
_REPORT: Final = Struct(">q")
_HELLO: Final = Struct(">ihhq")
_ANSWER: Final = Struct(">iiqi")
_STATE_PUSH: Final = Struct(">iiqiqq")
_STATE_REPORT: Final = Struct(">iq")
_HANDSHAKE: Final = 1
_TRANSFER: Final = 2
_LEARNER: Final = 1
_NO_BROKER: Final = -1


class PushMalformed(ValueError):
    """The bytes that were received are no push."""


class ReportMalformed(ValueError):
    """The bytes that were received are no report."""


def push_head(offset: int, size: int) -> bytes:
    """Return the head of a push of `size` bytes, which follow it."""
    return _PUSH.pack(offset, size)


class Reports:
    """Takes what a slave sends, in pieces of any size."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> list[int]:
        """Add received bytes, and return the offsets of the reports that are complete. Raises ReportMalformed."""
        data = self._kept + data
        whole = len(data) - len(data) % _REPORT.size
        self._kept = data[whole:]
        offsets = [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]
        if offsets and min(offsets) < 0:
            raise ReportMalformed(f"a report of offset {min(offsets)}")
        return offsets


class Push(NamedTuple):
    """Bytes of the master's log; empty for a heartbeat."""

    offset: int
    data: bytes


class _Head(NamedTuple):
    head_size: int
    offset: int
    size: int
    is_push: bool


class SlaveSide:
    """Makes what a slave sends, and takes what was received in pieces of any size."""

    def __init__(self, *, is_controlled: bool) -> None:
        """`is_controlled`: the master is in controller mode."""
        self._is_controlled = is_controlled
        self._kept = bytearray()
        self.is_greeted = not is_controlled
        """True once the master may be sent reports."""

    def hello(self) -> bytes:
        """Return the bytes that a slave sends first; in controller mode they make it a learner."""
        return _HELLO.pack(_HANDSHAKE, 0, _LEARNER, _NO_BROKER) if self._is_controlled else b""

    def report(self, end: int) -> bytes:
        """Return the bytes that report the end of the slave's log to the master."""
        return _STATE_REPORT.pack(_TRANSFER, end) if self._is_controlled else _REPORT.pack(end)

    def feed(self, data: bytes) -> list[Push]:
        """Add received bytes, and return the pushes that are complete. Raises PushMalformed."""
        self._kept += data
        found: list[Push] = []
        at = 0
        while (head := self._head(at)) is not None:
            if head.offset < 0 or not 0 <= head.size <= PUSH_SIZE_MAX:
                raise PushMalformed(f"a push of {head.size} bytes at offset {head.offset}")
            end = at + head.head_size + head.size
            if len(self._kept) < end:
                break
            if head.is_push:
                found.append(Push(head.offset, bytes(self._kept[end - head.size : end])))
            else:
                self.is_greeted = True
            at = end
        del self._kept[:at]
        return found

    def _head(self, at: int) -> _Head | None:
        """Return the head of the frame at a position of the kept bytes; None if it is not complete."""
        left = len(self._kept) - at
        if not self._is_controlled:
            if left < _PUSH.size:
                return None
            offset, size = _PUSH.unpack_from(self._kept, at)
            return _Head(_PUSH.size, offset, size, is_push=True)
        if left < _ANSWER.size:
            return None
        state, size, offset, _ = _ANSWER.unpack_from(self._kept, at)
        if state == _HANDSHAKE:
            return _Head(_ANSWER.size, offset, size, is_push=False)
        if state != _TRANSFER:
            raise PushMalformed(f"a frame of state {state}")
        return _Head(_STATE_PUSH.size, offset, size, is_push=True) if left >= _STATE_PUSH.size else None
