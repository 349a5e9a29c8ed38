"""The rows of the database of pending messages, and the names of RocketMQ's topics for them.

All rows are in one family (docs/formats/held-messages.md):

| key                                    | value                      | meaning |
|----------------------------------------|----------------------------|---------|
| `t`, i64 due (ms), i64 physical offset | i32 size                   | a delayed message, due then |
| `h`, i64 offset in the half queue      | i64 physical offset,       | an unresolved half message |
|                                        | i32 size, i64 check from   | |
|                                        | (ms),                      | |
|                                        | message id (UTF-8)         | |
| `i`, message id (UTF-8)                | i64 offset in the half     | where the half message with this id waits |
|                                        | queue                      | |
| `c`, i64 check at (ms), i64 offset in  | i32 checks so far          | when its producer is asked; if it was resolved |
| the half queue                         |                            | after a check, the row goes only then |
| `r`, i64 offset in the half queue      | ASCII `C` or `R`           | it was committed or rolled back, not long ago |
| `n`, i64 due (ms), i64 physical offset | i64 offset in the queue of | a note of RocketMQ about messages in flight |
|                                        | timers                     | |
| `p`                                    | JSON                       | what another broker has delivered of them |
| `w`                                    | i64                        | all records below are in the rows above |

Big-endian, so that keys sort by time and by offset. Times before 1970 count as 1970.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from quarry_mq.kv import KeyRange
from quarry_mq.kv.options import KIB, MIB, CompactionStyle, Compression, FamilyOptions
from quarry_mq.kv.rocks import RocksEngine
from quarry_mq.protocol.names import HALF_TOPIC, OPERATION_TOPIC, SCHEDULE_TOPIC
from quarry_mq.store.message import PhysicalOffset, QueueOffset

FAMILY: Final = "default"
FAMILY_OPTIONS: Final = {
    FAMILY: FamilyOptions(
        memtable_bytes=16 * MIB,
        memtables_max=3,
        compaction_style=CompactionStyle.LEVEL,
        level_zero_tables=2,
        target_file_bytes=32 * MIB,
        compression=Compression.LZ4,
        bottommost_compression=Compression.LZ4,
        block_bytes=8 * KIB,
        bloom_bits_per_key=0,
        block_cache_bytes=16 * MIB,
    )
}


def open_pending_engine(directory: Path, *, create: bool, read_only: bool = False) -> RocksEngine:
    """Open the database. It needs no write-ahead log, as it is derived from the log.

    Raises kv.EngineMissing, kv.EngineLocked or kv.EngineCorrupt.
    """
    return RocksEngine.open(directory, FAMILY_OPTIONS, create=create, read_only=read_only, write_ahead_log=False)


PROGRESS_KEY: Final = b"p"
WATERMARK_KEY: Final = b"w"
ALL_TIMERS: Final = KeyRange(b"t", b"u")
ALL_HALVES: Final = KeyRange(b"h", b"i")
ALL_NOTES: Final = KeyRange(b"n", b"o")
EVERYTHING: Final = KeyRange(b"", b"x")

_OFFSET: Final = Struct(">q")
_TIMER_KEY: Final = Struct(">cqq")
_TIMER: Final = Struct(">i")
_CHECK_KEY: Final = Struct(">cqq")
_CHECK: Final = Struct(">i")
_HALF_KEY: Final = Struct(">cq")
_HALF: Final = Struct(">qiq")
assert _TIMER_KEY.size == 17
assert _HALF.size == 20


class Resolution(Enum):
    """The resolution of a transaction says how it ended."""

    COMMITTED = b"C"
    ROLLED_BACK = b"R"


class DueMessage(NamedTuple):
    """A delayed message has a due time, and a record in the log."""

    due_ms: int
    physical_offset: PhysicalOffset
    size: int

    @property
    def key(self) -> bytes:
        return timer_key(self.due_ms, self.physical_offset)

    @property
    def row(self) -> bytes:
        return _TIMER.pack(self.size)

    @property
    def following(self) -> DueMessage:
        """Return the key position right after this one, where no message is."""
        return DueMessage(self.due_ms, PhysicalOffset(self.physical_offset + 1), 0)

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> DueMessage:
        _, due_ms, at = _TIMER_KEY.unpack(key)
        return cls(due_ms, PhysicalOffset(at), *_TIMER.unpack(value))


class Note(NamedTuple):
    """A note of RocketMQ about messages in flight is a timer that RocketMQ delivers to itself."""

    due_ms: int
    physical_offset: PhysicalOffset
    queue_offset: QueueOffset

    @property
    def key(self) -> bytes:
        return _TIMER_KEY.pack(b"n", max(0, self.due_ms), self.physical_offset)

    @property
    def row(self) -> bytes:
        return _OFFSET.pack(self.queue_offset)

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> Note:
        _, due_ms, at = _TIMER_KEY.unpack(key)
        return cls(due_ms, PhysicalOffset(at), QueueOffset(*_OFFSET.unpack(value)))


class HalfMessage(NamedTuple):
    """A half message has a queue offset in the queue of half messages, a physical offset in the log, and a time from
    which it is checked.
    """

    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int
    check_from_ms: int
    message_id: str

    @property
    def key(self) -> bytes:
        return half_key(self.queue_offset)

    @property
    def row(self) -> bytes:
        return _HALF.pack(self.physical_offset, self.size, self.check_from_ms) + self.message_id.encode()

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> HalfMessage:
        _, queue_offset = _HALF_KEY.unpack(key)
        at, size, check_from_ms = _HALF.unpack_from(value)
        return cls(QueueOffset(queue_offset), PhysicalOffset(at), size, check_from_ms, value[_HALF.size :].decode())


class CheckDue(NamedTuple):
    """A due check names a half message whose producer is to be asked, and how often it has been asked."""

    at_ms: int
    queue_offset: QueueOffset
    checks: int

    @property
    def key(self) -> bytes:
        return check_key(self.at_ms, self.queue_offset)

    @property
    def row(self) -> bytes:
        return _CHECK.pack(self.checks)

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> CheckDue:
        _, at_ms, queue_offset = _CHECK_KEY.unpack(key)
        return cls(at_ms, QueueOffset(queue_offset), *_CHECK.unpack(value))


def check_key(at_ms: int, queue_offset: int) -> bytes:
    return _CHECK_KEY.pack(b"c", max(0, at_ms), queue_offset)


def checks_between(from_ms: int, at_ms: int) -> KeyRange:
    """Return the range of the checks that are due between these times, both included."""
    return KeyRange(check_key(from_ms, 0), check_key(at_ms + 1, 0))


def timer_key(due_ms: int, at: int) -> bytes:
    return _TIMER_KEY.pack(b"t", max(0, due_ms), at)


def timers_until(due_ms: int) -> KeyRange:
    """Return the range of the messages that are due by then."""
    return KeyRange(ALL_TIMERS.start, timer_key(due_ms + 1, 0))


def half_key(queue_offset: int) -> bytes:
    return _HALF_KEY.pack(b"h", queue_offset)


def id_key(message_id: str) -> bytes:
    return b"i" + message_id.encode()


def resolved_key(queue_offset: int) -> bytes:
    return _HALF_KEY.pack(b"r", queue_offset)


def pack_offset(offset: int) -> bytes:
    return _OFFSET.pack(offset)


def unpack_offset(value: bytes) -> PhysicalOffset:
    return PhysicalOffset(_OFFSET.unpack(value)[0])


TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
PENDING_TOPICS: Final = frozenset({TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC})

OPERATION_DONE: Final = "d"
"""Tag of a record whose body lists half messages that are resolved."""
