"""The module reads the progress of pending messages from RocketMQ's files when its store is first opened, and exports
it.

| what               | where                                                                  |
|--------------------|------------------------------------------------------------------------|
| delay levels       | `config/delayOffset.json`: by level, the next offset of its queue      |
| timers             | `config/timercheck`, below                                             |
| half messages      | the offset of group `CID_RMQ_SYS_TRANS` in their queue                 |

`timercheck`, big-endian:

| field           | offset | bytes | meaning                                                          |
|-----------------|--------|-------|------------------------------------------------------------------|
| read time       | 0      | 8     | i64, ms: timers of earlier times were delivered                  |
| timer log       | 8      | 8     | i64: how far its own log was flushed                             |
| queue offset    | 16     | 8     | i64: the next record of the timer topic that it had not read     |
| of the master   | 24     | 8     | i64: how far the master had read it, or the end of the queue     |
| version         | 32     | 24    | i64 state version, i64 time in ms, i64 counter                   |

RocketMQ maps the file, which is 4,096 bytes long. If its `timerlog/` has entries, it continues after the last of them
instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from quarry_mq.protocol.names import HALF_TOPIC
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import QueueId
from quarry_mq.store.pending import PendingBefore
from quarry_mq.store.rocketmq.model import ConsumerOffset, DataVersion, Warnings, format_json
from quarry_mq.store.rocketmq.sources import read_json_file

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
HALVES_RESOLVED: Final = (TRANSACTION_GROUP, QueueId(HALF_TOPIC, 0))
"""The group and the queue of the offset that says how far half messages were resolved."""
TIMER_CHECK: Final = "timercheck"
TIMER_STATE: Final = ("timerlog", "timerwheel")
"""Names beside the log: the timers that RocketMQ was waiting for. If they exist, RocketMQ ignores `timercheck`."""
DELAY_OFFSETS: Final = "delayOffset.json"
TIMER_CHECK_SIZE: Final = 4096
TIMER_CHECK_SENT: Final = 56
"""Bytes of the file that a master sends to its slave: the fields."""
_TIMER_CHECK: Final = Struct(">qqq")
_WRITTEN: Final = Struct(">qqqqqqq")
_NOTHING: Final = (0, 0, 0)

assert _WRITTEN.size == TIMER_CHECK_SENT, "timercheck: table and struct disagree"


def read_pending_progress(
    disk: Disk, paths: StorePaths, offsets: Iterable[ConsumerOffset], warnings: Warnings
) -> PendingBefore:
    """Read the progress. Missing or invalid files count as no progress: messages may then come twice,
    but none is lost.
    """
    read_ms, _, read = _timer_check(disk, paths)
    return PendingBefore(
        scheduled=_delay_offsets(disk, paths, warnings),
        timers_read=max(0, read),
        timers_read_ms=max(0, read_ms),
        halves=max(
            (each.offset for each in offsets if (each.group, each.queue) == HALVES_RESOLVED),
            default=0,
        ),
    )


def pending_files(progress: PendingBefore, version: DataVersion, *, timers_end: int) -> dict[str, bytes]:
    """Return RocketMQ's files for this progress, by name. Its transaction group's offset is among the offsets.

    `timers_end` is the end of the queue of timers. A broker of RocketMQ that was a slave of this one has the timers in
    its `timerlog/` already: it goes on behind those, and not beyond the end.
    """
    levels = {number + 1: offset for number, offset in sorted(progress.scheduled.items())}
    document = {"dataVersion": version.row, "offsetTable": levels}
    times = (version.state_version, version.timestamp_ms, version.counter)
    check = _WRITTEN.pack(progress.timers_read_ms, 0, progress.timers_read, timers_end, *times)
    return {
        DELAY_OFFSETS: format_json(document).encode(),
        TIMER_CHECK: check.ljust(TIMER_CHECK_SIZE, b"\0"),
    }


def _timer_check(disk: Disk, paths: StorePaths) -> tuple[int, int, int]:
    path = paths.config / TIMER_CHECK
    if not disk.exists(path):
        return _NOTHING
    content = disk.read(path)
    if len(content) < _TIMER_CHECK.size:
        return _NOTHING
    return _TIMER_CHECK.unpack_from(content)


def _delay_offsets(disk: Disk, paths: StorePaths, warnings: Warnings) -> dict[int, int]:
    path = paths.config / DELAY_OFFSETS
    document = read_json_file(disk, path, warnings)
    table = {} if document is None else document.get("offsetTable")
    if not isinstance(table, dict):
        warnings.add(f"{path}: offsetTable is not an object")
        return {}
    found = {}
    for level, offset in table.items():
        if level.isascii() and level.isdecimal() and int(level) > 0 and isinstance(offset, int) and offset >= 0:
            found[int(level) - 1] = offset
        else:
            warnings.add(f"{path}: the row of level {level} is not valid and was ignored")
    return found
