"""Opening a store: new, Quarry's own, or one that RocketMQ wrote.

What each needs on the way from "the lock is ours" to "ready":

| origin                | queues in                | on the first opening |
|-----------------------|--------------------------|----------------------|
| new                   | `consumequeue_rocksdb/`  | nothing |
| RocketMQ, RocksDB     | `consumequeue/`, in place| metadata imported |
| RocketMQ, file queues | `consumequeue_rocksdb/`  | metadata imported; all entries rebuilt from the log |
| RocketMQ, double write| `consumequeue/`, in place| metadata imported; entries from before double write began are added |

Every step is repeatable and picks up where it was killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog

from store.commitlog import SegmentList
from store.disk import Disk, DiskLock
from store.identity import StoreIdentity
from store.message_store import MessageStore
from store.metadata import ConsumerOffsetTable, GroupTable, TopicTable
from store.paths import StorePaths
from store.recovery import RecoveryReport

log = structlog.get_logger(__name__)

ABORT_TEXT: Final = b"quarry"


@dataclass(slots=True)
class OpenStore:
    """An open store and what belongs to it. `close` ends it cleanly; dropping it is a crash."""

    messages: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsetTable
    identity: StoreIdentity
    recovery: RecoveryReport
    _parts: _Parts

    @property
    def state_engine(self) -> RocksEngine:
        return self._parts.state_engine

    @property
    def queue_engine(self) -> RocksEngine:
        return self._parts.queue_engine

    def close(self) -> None:
        """Flush the log, dispatch and flush the rest, release everything, say that the stop was clean."""
        flushed = self.messages.flush()
        self.messages.dispatch(flushed)
        self.messages.flush_queues()
        self.identity.flushed_up_to = flushed
        self._parts.release()
        self._parts.disk.remove(self._parts.paths.abort)
        self._parts.lock.release()


@dataclass(slots=True)
class _Parts:
    """What has to be released, in the order of `release`."""

    disk: Disk
    paths: StorePaths
    lock: DiskLock
    segments: SegmentList
    queue_engine: RocksEngine
    state_engine: RocksEngine

    def release(self) -> None:
        self.queue_engine.close()
        self.state_engine.close()
        self.segments.close()
