"""The source reads a topic of a live broker as a stream, each message exactly once by Spark's own checkpoints.

A batch is a range of offsets for each queue, which Spark stores before anything of it is read. Reading it again gives
the same messages; the broker keeps no state of it.

How far a stream has read is the next offset of each queue. Spark keeps the offsets in its checkpoint, as `{"orders":
{"0": 1207, "1": 1198}}`, and takes two for equal when their texts are equal: so queues are written in the order of
their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from quarry_mq.client.queues import QueueClient, Start
from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.source.table import Types, check_schema, chosen
from quarry_mq.pipeline.stream.options import COLUMNS, MessagesLost, SourceOptions, batch_of
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

log = structlog.get_logger(__name__)

Offsets = dict[int, int]
"""Maps a queue number to the next offset."""

FIRST: Final = 0
"""Offset at which the stream begins a queue that appeared after the query had begun."""


class Range(NamedTuple):
    """A range of offsets of one queue."""

    queue: int
    begin: int
    end: int


def to_json(topic: str, offsets: Offsets) -> dict[str, Any]:
    """Return the offsets in the form that Spark keeps in its checkpoint."""
    return {topic: {str(queue): offsets[queue] for queue in sorted(offsets)}}


def of_json(topic: str, kept: Mapping[str, Any]) -> Offsets:
    """Parse the offsets of a checkpoint. Raises InvalidOption for the checkpoint of another topic."""
    if topic not in kept:
        raise InvalidOption(f"option 'topic': the checkpoint is of {', '.join(kept)}, not of {topic}")
    return {int(queue): int(offset) for queue, offset in kept[topic].items()}


def limited(start: Offsets, ends: Offsets, messages_max: int) -> Offsets:
    """Return ends with at most `messages_max` messages before them, spread evenly so that no queue waits long.

    The share that some queues do not need goes to the others. With more queues than messages they take turns.
    """
    waiting = {queue: end - begin for queue, end in ends.items() if (begin := start.get(queue, FIRST)) < end}
    taken = dict.fromkeys(waiting, 0)
    if messages_max < len(waiting):
        queues = sorted(waiting)
        turn = sum(start.values()) % len(queues)  # it moves on with each batch, and is the same after a restart
        taken.update(dict.fromkeys((queues[turn:] + queues[:turn])[:messages_max], 1))
    else:
        left = messages_max
        for done, queue in enumerate(sorted(waiting, key=lambda each: (waiting[each], each))):
            taken[queue] = min(waiting[queue], left // (len(waiting) - done))
            left -= taken[queue]
    return {queue: start.get(queue, FIRST) + taken[queue] if queue in taken else end for queue, end in ends.items()}


def parts(start: Offsets, end: Offsets, messages_max: int) -> Iterator[tuple[Range, ...]]:
    """Yield the messages between the offsets in parts of at most `messages_max`; the same parts at every call."""
    part: list[Range] = []
    room = messages_max
    for queue in sorted(end):
        begin = start.get(queue, FIRST)
        while begin < end[queue]:
            stop = min(begin + room, end[queue])
            part.append(Range(queue, begin, stop))
            room -= stop - begin
            begin = stop
            if room == 0:
                yield tuple(part)
                part, room = [], messages_max
    if part:
        yield tuple(part)


TYPES: Final[Types] = {name: column.type for name, column in COLUMNS.items()}
LOOK_INTERVAL_S: Final = 0.2
"""Seconds between two calls for the end: while no messages come, Spark asks for it a hundred times a second."""
LOOK_PART: Final = 4
"""The pause after a call for the ends, as a multiple of the call's duration: thousands of queues take long."""
PULLED_AT_ONCE: Final = 1_024
"""Messages that one pull asks for: more than any broker gives, which is 32 unless configured otherwise."""
ROWS_PER_BATCH: Final = 1_000
BYTES_PER_BATCH: Final = 8 << 20


def stream_schema(options: SourceOptions) -> StructType:
    """Return the schema of the requested columns, or of all. Raises InvalidOption."""
    return chosen(TYPES, options.columns or TYPES)


@dataclass(frozen=True)
class QueueRanges(InputPartition):
    """The ranges of offsets that one task reads."""

    ranges: tuple[Range, ...]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads them in tasks."""

    def __init__(self, options: SourceOptions, schema: StructType, *, clock: Clock | None = None) -> None:
        """Check the schema. Raises InvalidOption for an unknown column."""
        check_schema(schema, TYPES)
        self._options = options
        self._schema = schema
        self._clock = clock or SystemClock()
        self._look_again_s = float("-inf")
        self._seen: Offsets = {}
        self._last: Offsets | None = None
        """The ends at which a query with Trigger.AvailableNow stops."""

    @cached_property
    def _client(self) -> QueueClient:
        return self._options.connection.client()

    # -- planning

    def initialOffset(self) -> dict[str, Any]:
        topic = self._options.topic
        return to_json(topic, self._client.offsets(topic, self._client.queues(topic), self._options.start))

    def getDefaultReadLimit(self) -> ReadLimit:
        batch_max = self._options.batch_max
        return ReadAllAvailable() if batch_max is None else ReadMaxRows(batch_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch.

        Raises MessagesLost when a queue ends before its start, unless losses are ignored by option.
        """
        topic = self._options.topic
        begins = of_json(topic, start)
        ends = {**begins, **(self._look_now_and_then() if self._last is None else self._last)}
        for queue, begin in begins.items():
            if ends[queue] < begin:
                ends[queue] = self._ended_early(queue, begin)
        if isinstance(limit, ReadMaxRows):
            ends = limited(begins, ends, limit.max_rows)
        return to_json(topic, ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._options.topic, self._seen) if self._seen else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        topic, split = self._options.topic, self._options.split_messages
        return [QueueRanges(part) for part in parts(of_json(topic, start), of_json(topic, end), split)]

    def stop(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()

    def _look_now_and_then(self) -> Offsets:
        return self._seen if self._clock.monotonic_s() < self._look_again_s else self._look()

    def _look(self) -> Offsets:
        """Return the current ends of the queues."""
        topic, begun_s = self._options.topic, self._clock.monotonic_s()
        self._seen = self._client.offsets(topic, self._client.queues(topic), Start.LATEST)
        ended_s = self._clock.monotonic_s()
        self._look_again_s = ended_s + max(LOOK_INTERVAL_S, LOOK_PART * (ended_s - begun_s))
        return self._seen

    def _ended_early(self, queue: int, begin: int) -> int:
        """Return where to go on in a queue that seemed to end before the offset that was already reached."""
        topic = self._options.topic
        [end] = self._client.offsets(topic, [queue], Start.LATEST).values()
        if end >= begin:
            return begin  # the ends were asked for before the query began there
        self._lost(
            f"topic {topic}, queue {queue}: read up to offset {begin}, but it ends at {end}: the topic was created "
            "again, or the broker lost its last messages"
        )
        return end

    # -- reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark plans one task with an empty partition where there are no partitions
        if not isinstance(partition, QueueRanges):
            return
        client = self._options.connection.client()
        try:
            for some in _batches(self._messages(client, partition.ranges)):
                yield batch_of(some, self._schema)
        finally:
            client.close()

    def _messages(self, client: QueueClient, ranges: Sequence[Range]) -> Iterator[definition.Message]:
        for queue, begin, end in ranges:
            offset = begin
            while offset < end:
                count = min(end - offset, PULLED_AT_ONCE)
                pulled = client.pull(self._options.group, self._options.topic, queue, offset, count)
                if pulled.is_outside or pulled.following <= offset:
                    self._lost(self._gone(client, queue, offset, end))
                    if pulled.following <= offset:
                        break
                for message in pulled.messages:
                    if message.system_properties.queue_offset < end:
                        yield message
                offset = pulled.following

    def _gone(self, client: QueueClient, queue: int, offset: int, end: int) -> str:
        topic = self._options.topic
        [minimum] = client.offsets(topic, [queue], Start.EARLIEST).values()
        [maximum] = client.offsets(topic, [queue], Start.LATEST).values()
        return (
            f"topic {topic}, queue {queue}: offsets [{offset}, {end}) are to be read, "
            f"but the queue holds [{minimum}, {maximum})"
        )

    def _lost(self, what: str) -> None:
        """Raise MessagesLost, unless losses are ignored by option; then log a warning."""
        if self._options.fail_on_loss:
            raise MessagesLost(f"{what}; failOnDataLoss=false goes on with what there is")
        log.warning("messages were lost to the stream", what=what)


def _batches(messages: Iterator[definition.Message]) -> Iterator[list[definition.Message]]:
    some: list[definition.Message] = []
    size = 0
    for message in messages:
        some.append(message)
        size += len(message.body)
        if len(some) == ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
            yield some
            some, size = [], 0
    if some:
        yield some
