"""Protobuf's timestamps and durations as milliseconds."""

from __future__ import annotations

from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, where protobuf's timestamps end. Beyond it the record's field could overflow."""


def to_ms(time: Duration | Timestamp) -> int:
    """Return the milliseconds, rounded down: a negative span stays negative however short it is."""
    return time.seconds * 1000 + time.nanos // 1_000_000


def fill_ms(time: Duration | Timestamp, milliseconds: int) -> None:
    """Write a non-negative number of milliseconds into the message."""
    seconds, rest = divmod(milliseconds, 1000)
    time.seconds = seconds
    time.nanos = rest * 1_000_000


def duration(milliseconds: int) -> Duration:
    """Return a duration of a non-negative number of milliseconds."""
    return Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)
