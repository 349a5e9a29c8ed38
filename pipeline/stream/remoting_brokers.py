"""Brokers that are found through name servers and called by the remoting protocol: RocketMQ 4 and 5, and Quarry.

An answer to a pull is stored records, as they are in the log. Many of them become columns at once, like the log itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from quarry_mq.client.queues import Start
from quarry_mq.client.remoting import RemotingFailed
from quarry_mq.client.remoting_queues import PulledRecords, RemotingQueues
from quarry_mq.pipeline.stream.brokers import Routes, bounds_of, gone, lost
from quarry_mq.pipeline.stream.columns import batch_of_records, is_kafka
from quarry_mq.pipeline.stream.offsets import Queue, Range
from quarry_mq.pipeline.stream.options import UnreadableBody
from quarry_mq.pipeline.stream.source_options import SourceOptions
from quarry_mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic
from quarry_mq.protocol.remoting.codes import ResponseCode
from quarry_mq.store.record import Corrupt, Torn
from quarry_mq.store.scan import RecordBatch, scan_apart

BYTES_SCANNED: Final = 4 << 20
MESSAGES_SCANNED: Final = 4_096
"""The size of pulled records that are turned into columns together, at least: many share the cost."""
BODIES_SAMPLED: Final = 32


class RemotingBrokers:
    """Brokers that are called by the remoting protocol."""

    def __init__(self, options: SourceOptions, addresses: Mapping[str, str]) -> None:
        """Raises OSError for a file that cannot be read."""
        connection = options.connection
        self._options = options
        self._queues = RemotingQueues(
            [connection.at(address) for address in connection.name_servers],
            group=options.group,
            addresses=addresses,
            timeout_ms=connection.timeout_ms,
        )
        self.addresses = self._queues.addresses

    def close(self) -> None:
        self._queues.close()

    def routes(self, topics: Sequence[str]) -> Routes:
        """Return the queues of topics. Raises RemotingFailed for one that does not exist."""
        found = self._queues.routes(topics)
        for topic in topics:
            if topic not in found:
                raise RemotingFailed(
                    ResponseCode.TOPIC_NOT_EXIST, "it does not exist, or all its brokers are away", f"topic {topic}"
                )
        return found

    def matching(self, pattern: re.Pattern[str]) -> Routes:
        """Return the queues of the topics whose whole names match; those of brokers themselves are left out."""
        names = [name for name in self._queues.topic_names() if pattern.fullmatch(name) and _is_of_users(name)]
        return {topic: route for topic, route in self._queues.routes(names).items() if route}

    def offsets_of(
        self, broker: str, queues: Sequence[tuple[str, int]], where: Start | int
    ) -> dict[tuple[str, int], int]:
        return self._queues.offsets_of(broker, queues, where)

    def body_sizes(self, queue: Queue, offset: int) -> list[int]:
        pulled = self._queues.pull(queue.broker, queue.topic, queue.number, offset, BODIES_SAMPLED)
        return [size for batch in _records(queue, pulled.records) for size in batch.columns.body_length.tolist()]

    def batches(self, ranges: Iterable[Range], schema: StructType) -> Iterator[pa.RecordBatch]:
        for each in ranges:
            for batch in self._read(each):
                yield batch_of_records(batch, each.queue.broker, schema, is_kafka=is_kafka(self._options))

    def _read(self, wanted: Range) -> Iterator[RecordBatch]:
        queue, offset, end = wanted
        while offset < end:
            some: list[PulledRecords] = []
            size = 0
            for pulled in self._queues.pulls(queue.broker, queue.topic, queue.number, offset, end):
                if pulled.is_outside or pulled.following <= pulled.begin:
                    offset = max(pulled.following, pulled.begin)
                    break
                some.append(pulled)
                size += len(pulled.records)
                offset = pulled.following
                if size >= BYTES_SCANNED or offset - some[0].begin >= MESSAGES_SCANNED:
                    yield from self._scanned(queue, some)
                    some, size = [], 0
            else:
                yield from self._scanned(queue, some)
                return
            yield from self._scanned(queue, some)
            lost(self._options, gone(queue, pulled.begin, end, bounds_of(self, queue)))
            if pulled.following <= pulled.begin:
                return

    def _scanned(self, queue: Queue, pulled: Sequence[PulledRecords]) -> Iterator[RecordBatch]:
        """Yield the records of answers that follow each other. Raises MessagesLost for a gap that expiry has made."""
        if not pulled:
            return
        batches = list(_records(queue, b"".join([each.records for each in pulled])))
        expected = pulled[0].begin
        offsets = (
            np.concatenate([batch.columns.queue_offset for batch in batches]) if batches else np.zeros(0, np.int64)
        )
        if len(offsets) < pulled[-1].following - expected:
            before = np.concatenate([[expected - 1], offsets])
            after = np.concatenate([offsets, [pulled[-1].following]])
            gap = int(np.flatnonzero(after - before > 1)[0])
            self._check_gap(queue, int(before[gap]) + 1, int(after[gap]))
        yield from batches

    def _check_gap(self, queue: Queue, begin: int, end: int) -> None:
        """Check messages that a queue lacks between others.

        Some queues have gaps. But if the queue has nothing before the gap, its messages have expired. A broker that
        has removed a file of the log says only later that the queue begins after it.
        """
        bounds = bounds_of(self, queue)
        if bounds.minimum < begin:
            first = self._queues.pull(queue.broker, queue.topic, queue.number, bounds.minimum, 1)
            found = [int(offset) for batch in _records(queue, first.records) for offset in batch.columns.queue_offset]
            if found and found[0] < begin:
                return
        lost(self._options, gone(queue, begin, end, bounds._replace(minimum=max(bounds.minimum, end))))


def _is_of_users(topic: str) -> bool:
    """Return whether a topic is neither one of the brokers themselves nor one of retries or dead letters."""
    return not is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def _records(queue: Queue, records: bytes) -> Iterator[RecordBatch]:
    """Yield pulled records as columns. Raises UnreadableBody for a record that was damaged on its way."""
    for batch in scan_apart(memoryview(records)):
        if len(batch):
            yield batch
        if batch.ended_by is not None:
            after = f" after offset {batch.columns.queue_offset[-1]}" if len(batch) else ""
            reason = batch.ended_by.reason if isinstance(batch.ended_by, Torn | Corrupt) else "no record"
            raise UnreadableBody(f"{queue}{after}: the broker has sent bytes that cannot be read: {reason}")
