"""The content of the commit log, once nobody writes it any more: the measure for queues, clients and RocketMQ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarry_mq.protocol.messages.property_names import LIGHT_QUEUE_OFFSETS, LIGHT_QUEUES, TAGS
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.record import StoredMessage
from tests.compat.rocketmq_store import DIGESTED_UNIT, QueueDigest
from tests.compat.test_rocketmq_opens_our_store import java_hash
from tests.migration.live.history import History, body_at

Queue = tuple[str, int]


@dataclass(slots=True)
class _Growing:
    """A queue as far as the log has been read."""

    units: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


class LogOracle:
    """All records, read once. Fails where a queue has a gap, or where old history is not what was stored."""

    def __init__(self, root: Path, history: History) -> None:
        self._history = history
        self._queues: dict[Queue, _Growing] = {}
        self._codes: dict[str, int] = {}
        self.records = 0
        self.lived: dict[str, tuple[Queue, int]] = {}
        """Where each message of a live client lies; the last place of one that was stored twice."""
        self.duplicates = 0
        self.disorder: list[str] = []
        self._newest: dict[tuple[Queue, str], int] = {}
        with OfflineStore.open(PosixDisk(), root) as store:
            for record in store.records():
                if isinstance(record, StoredMessage):
                    self._take(record)

    def queues(self) -> Mapping[Queue, QueueDigest]:
        """What RocketMQ has to find."""
        return {
            queue: QueueDigest(0, each.units, each.units, 0, each.digest.hexdigest())
            for queue, each in self._queues.items()
        }

    def misplaced(self, in_order: Iterable[str]) -> list[str]:
        """Messages that a consumer got later than one that stands behind them in the same queue."""
        last: dict[Queue, int] = {}
        found = []
        for body in in_order:
            queue, offset = self.lived[body]
            if offset < last.get(queue, -1):
                found.append(f"{body} at {offset} of {queue} behind {last[queue]}")
            last[queue] = max(offset, last.get(queue, -1))
        return found

    def _take(self, record: StoredMessage) -> None:
        self.records += 1
        body = bytes(record.body)
        properties = record.properties
        tag = properties.get(TAGS, "")
        code = self._codes.get(tag)
        if code is None:
            code = self._codes[tag] = java_hash(tag)
        for queue, offset in _places(record, properties):
            entry = self._queues.setdefault(queue, _Growing())
            assert offset == entry.units, f"{queue} goes on at {offset} instead of {entry.units}"
            entry.units += 1
            entry.digest.update(DIGESTED_UNIT.pack(offset, record.physical_offset, code, record.size))
            entry.digest.update(body)
        queue = record.topic, record.queue_number
        if record.queue_offset < self._history.per_queue:
            assert body.decode() == body_at(*queue, record.queue_offset), f"{queue} at {record.queue_offset}: {body!r}"
        else:
            self._take_live(queue, record.queue_offset, body.decode())

    def _take_live(self, queue: Queue, offset: int, body: str) -> None:
        self.duplicates += body in self.lived
        self.lived[body] = queue, offset
        producer, _, number = body.rpartition("-")
        if int(number) < self._newest.get((queue, producer), 0):
            self.disorder.append(f"{body} at {offset} of {queue} behind {self._newest[queue, producer]}")
        self._newest[queue, producer] = int(number)


def _places(record: StoredMessage, properties: Mapping[str, str]) -> Iterator[tuple[Queue, int]]:
    yield (record.topic, record.queue_number), record.queue_offset
    if LIGHT_QUEUE_OFFSETS in properties:
        names = properties[LIGHT_QUEUES].split(",")
        for name, offset in zip(names, properties[LIGHT_QUEUE_OFFSETS].split(","), strict=True):
            yield (name, 0), int(offset)
