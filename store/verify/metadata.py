"""The module verifies topics, groups and deliveries against the queues."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.protocol.names import is_light_queue, is_system_topic
from quarry_mq.store.consumequeue import EntryColumns
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata import ConsumerOffsetTable, TopicTable
from quarry_mq.store.offline import OfflineStore, QueueReader
from quarry_mq.store.rocketmq import RocketmqMetadata
from quarry_mq.store.state.deletions import Deletions
from quarry_mq.store.state.identity import INFLIGHT
from quarry_mq.store.state.in_flight_key import INDEX_BEGIN, ROWS, index_key, parse_key
from quarry_mq.store.verify.report import Check, Difference, Findings, Note
from quarry_mq.store.verify.sources import entry_at


class Claim(NamedTuple):
    """A claim is what metadata says about a queue: it has (or had) messages below `end`."""

    check: Check
    holder: str
    queue: QueueId
    end: QueueOffset


class Metadata(Protocol):
    """The protocol gives the topics and claims of a store, from Quarry's rows or RocketMQ's."""

    def has_topic(self, name: str) -> bool: ...

    def deleted_below(self, topic: str) -> PhysicalOffset:
        """Return the offset below which the topic was deleted; see `Deletions.topic_deleted_at`."""

    def group_claims(self) -> Iterator[Claim]: ...

    def deliveries(self) -> Iterator[Delivery]:
        """Yield the messages that are delivered and not acknowledged."""


class Delivery(NamedTuple):
    """A delivery is a message that is delivered and not acknowledged. `is_timed`: the index says when it is visible
    again.
    """

    group: str
    queue: QueueId
    offset: QueueOffset
    is_timed: bool


class QuarryMetadata:
    """The class reads metadata from the rows of `quarry/`."""

    def __init__(self, engine: KeyValueEngine, directory: Path) -> None:
        self._directory = directory
        self._topics = TopicTable(engine)
        self._offsets = ConsumerOffsetTable(engine)
        self._in_flight = engine.family(INFLIGHT)
        self._deletions = Deletions(engine)

    def has_topic(self, name: str) -> bool:
        return self._topics.get(name) is not None

    def deleted_below(self, topic: str) -> PhysicalOffset:
        return self._deletions.topic_deleted_at(topic)

    def group_claims(self) -> Iterator[Claim]:
        with self._naming_damage():
            for row in self._offsets.all_rows():
                yield Claim(Check.GROUPS, *row)

    def deliveries(self) -> Iterator[Delivery]:
        # a store of an earlier version has no index; its next start makes one
        is_indexed = bool(self._in_flight.scan(KeyRange(INDEX_BEGIN, None), limit=1))
        with self._naming_damage():
            for key, value in self._in_flight.iterate(ROWS):
                is_timed = not is_indexed or self._in_flight.get(index_key(key, value)) is not None
                yield Delivery(*parse_key(key), is_timed)

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, struct.error) as error:
            raise StoreDamaged(self._directory, f"an invalid row: {error}") from error


class RocketmqRows:
    """The class reads metadata from RocketMQ's `config/`."""

    def __init__(self, metadata: RocketmqMetadata) -> None:
        self._metadata = metadata
        self._names: Final = {topic.name for topic in metadata.topics}

    def has_topic(self, name: str) -> bool:
        return name in self._names

    def deleted_below(self, _topic: str) -> PhysicalOffset:
        """Return 0: RocketMQ does not record deletions."""
        return PhysicalOffset(0)

    def group_claims(self) -> Iterator[Claim]:
        for rows in (self._metadata.offsets, self._metadata.light_offsets):
            for group, queue, offset in rows:
                yield Claim(Check.GROUPS, group, queue, offset)

    def deliveries(self) -> Iterator[Delivery]:
        return iter(())


def ends_of(entries: EntryColumns, wanted: Set[QueueId]) -> dict[QueueId, QueueOffset]:
    """Return the end of each of the wanted queues, as far as these entries belong to it."""
    found = np.array([queue in wanted for queue in entries.queues], np.bool_)
    if not found.any():
        return {}
    ends: dict[QueueId, QueueOffset] = {}
    entries = entries.select(found[entries.queue_index])
    for index, offset in zip(entries.queue_index.tolist(), entries.queue_offset.tolist(), strict=True):
        queue = entries.queues[index]
        ends[queue] = QueueOffset(max(offset + 1, ends.get(queue, 0)))
    return ends


class MetadataComparison:
    """The class compares metadata with the queues of `reader`.

    Its methods are called in this order: `check_topics`, `read_claims`, `add_undispatched` for the entries that are not
    stored yet, `finish`.
    """

    def __init__(self, store: OfflineStore, metadata: Metadata, reader: QueueReader, findings: Findings) -> None:
        self._paths: Final = StorePaths(store.paths.root)
        self._state = self._paths.config if isinstance(metadata, RocketmqRows) else self._paths.quarry
        self._metadata = metadata
        self._reader = reader
        self._findings = findings
        self._open: dict[QueueId, list[Claim]] = {}
        """The claims on messages that the queues do not have: the log may have them, above the check point."""
        self._ends: dict[QueueId, QueueOffset] = {}

    def check_topics(self) -> None:
        """Check that topics with queues have metadata. Light queues have none, nor have some of
        RocketMQ's own topics.
        """
        for topic, queues in groupby(self._reader.queues(), key=lambda queue: queue.topic):
            if is_light_queue(topic) or is_system_topic(topic):
                continue
            self._findings.count(Check.TOPICS)
            if not self._metadata.has_topic(topic):
                numbers = ", ".join(str(queue.number) for queue in queues)
                self._differ(Check.TOPICS, QueueId(topic, 0), None, "metadata of the topic", f"only queues: {numbers}")

    def read_claims(self) -> None:
        for claim in self._metadata.group_claims():
            self._findings.count(Check.GROUPS)
            self._require(claim)
        for group, queue, offset, is_timed in self._metadata.deliveries():
            self._findings.count(Check.IN_FLIGHT)
            if not is_timed:
                expected = f"an entry with the time at which group {group} gets the message back"
                self._differ(Check.IN_FLIGHT, queue, offset, expected, "none")
            bounds = self._reader.bounds(queue)
            if offset >= bounds.maximum:
                self._require(Claim(Check.IN_FLIGHT, group, queue, QueueOffset(offset + 1)))
            elif offset < bounds.minimum:
                self._findings.note(Note.EXPIRED_IN_FLIGHT)
            elif entry_at(self._reader, queue, offset) is None:
                self._differ(
                    Check.IN_FLIGHT, queue, offset, f"an entry of the message that group {group} has in flight", "none"
                )

    @property
    def open_queues(self) -> frozenset[QueueId]:
        """Return the queues that some claim is ahead of."""
        return frozenset(self._open)

    def add_undispatched(self, ends: Mapping[QueueId, QueueOffset]) -> None:
        """Note that the next start stores entries up to these ends (`ends_of`): claims ahead of the queues may mean
        them.
        """
        for queue, end in ends.items():
            self._ends[queue] = max(end, self._ends.get(queue, end))

    def finish(self) -> None:
        for queue, claims in self._open.items():
            end = max(self._ends.get(queue, 0), self._reader.bounds(queue).maximum)
            for claim in claims:
                if claim.end > end:
                    what = "is at" if claim.check is Check.GROUPS else "has in flight the message before"
                    self._differ(
                        claim.check,
                        queue,
                        claim.end,
                        f"at most {end}, the end of the queue",
                        f"group {claim.holder} {what} {claim.end}",
                    )

    def _require(self, claim: Claim) -> None:
        if claim.end > self._reader.bounds(claim.queue).maximum:
            self._open.setdefault(claim.queue, []).append(claim)

    def _differ(self, check: Check, queue: QueueId, at: QueueOffset | None, expected: str, found: str) -> None:
        self._findings.differ(
            Difference(check=check, file=self._state, expected=expected, found=found, queue=queue, queue_offset=at)
        )
