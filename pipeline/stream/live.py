"""The queues of live brokers: which there are, where they begin and end, and their messages.

A topic of a cluster has queues at each member. They are read at the addresses in the topic's route.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from pyspark.sql.datasource import InputPartition

from quarry_mq.client.queues import Start
from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.stream.brokers import Brokers, GrpcBrokers
from quarry_mq.pipeline.stream.offsets import FIRST, Offsets, Queue, Range, parts, queue_named
from quarry_mq.pipeline.stream.options import MessagesLost
from quarry_mq.pipeline.stream.remoting_brokers import RemotingBrokers
from quarry_mq.pipeline.stream.source_options import Positions, SourceOptions, place_of

SAMPLED_QUEUES_MAX: Final = 8
"""Queues of which some messages are read to estimate the size of messages."""


@dataclass(frozen=True)
class QueueRanges(InputPartition):
    """The ranges of offsets that one task reads, and the addresses of the brokers that have them."""

    ranges: tuple[Range, ...]
    addresses: Mapping[str, str]


def brokers_of(options: SourceOptions, addresses: Mapping[str, str] | None = None) -> Brokers:
    """Return the brokers of a query, which must be closed. Raises OSError for a file that cannot be read.

    `addresses` are those of brokers that are known already.
    """
    kind = RemotingBrokers if options.connection.name_servers else GrpcBrokers
    return kind(options, addresses or {})


class LiveQueues:
    """The queues that a query reads, as the brokers are now. It must be closed."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._brokers = brokers_of(options)
        self._having: dict[str, list[str]] = {}
        """The names of the brokers that have a topic, by topic."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._brokers.close()

    def find(self) -> list[Queue]:
        """Return the queues that are to be read now.

        Raises InvalidOption for a queue that does not exist, and the error of the protocol for a topic that may not be
        read: CallRefused or RemotingFailed.
        """
        options = self._options
        if options.pattern is None:
            routes = self._brokers.routes(options.topics or tuple(options.assigned))
        else:
            routes = self._brokers.matching(options.pattern)
        self._having = {topic: sorted({queue.broker for queue in route}) for topic, route in routes.items()}
        found = {
            topic: [Queue(topic, queue.broker, queue.number) for queue in route] for topic, route in routes.items()
        }
        if options.assigned:
            return [self._assigned(topic, name, found) for topic, names in options.assigned.items() for name in names]
        return [queue for queues in found.values() for queue in queues]

    def _assigned(self, topic: str, name: str, found: Mapping[str, list[Queue]]) -> Queue:
        queue = queue_named("assign", topic, name, self._having[topic])
        if queue not in found[topic]:
            there_are = ", ".join(each.name for each in found[topic])
            raise InvalidOption(f"option 'assign': topic {topic} has no queue {name}; there are {there_are}")
        return queue

    # -- offsets

    def parse(self, kept: Mapping[str, Mapping[str, int]], option: str) -> Offsets:
        """Return offsets that Spark has kept, or those of an option. Raises InvalidOption."""
        if any("/" not in name for names in kept.values() for name in names) and not self._having:
            self.find()
        return {
            queue_named(option, topic, name, self._having.get(topic, [])): offset
            for topic, offsets in kept.items()
            for name, offset in offsets.items()
        }

    def offsets(self, queues: Iterable[Queue], where: Start | int) -> Offsets:
        """Return the first offset of each queue, its end, or its offset at a time in ms."""
        by_broker: dict[str, list[Queue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker, []).append(queue)
        found: Offsets = {}
        for broker, some in by_broker.items():
            self.address(broker)
            offsets = self._brokers.offsets_of(broker, [(queue.topic, queue.number) for queue in some], where)
            found |= {queue: offsets[queue.topic, queue.number] for queue in some}
        return found

    def positions(self, wanted: Positions, queues: list[Queue], *, is_time_required: bool = False) -> Offsets:
        """Return the offsets at which the queues begin or end.

        Raises InvalidOption if some of the queues are not among those of the option, or if a queue has no message since
        its time and the option requires one.
        """
        if wanted.everywhere is not None:
            places = dict.fromkeys(queues, wanted.everywhere)
        else:
            numbers = self.parse(wanted.by_queue, wanted.option)
            _check_complete(wanted.option, numbers, queues)
            places = {queue: number if wanted.is_time else place_of(number) for queue, number in numbers.items()}
        found: Offsets = {}
        by_place: dict[Start | int, list[Queue]] = {}
        for queue, place in places.items():
            if isinstance(place, Start) or wanted.is_time:
                by_place.setdefault(place, []).append(queue)
            else:
                found[queue] = place
        for place, some in by_place.items():
            found |= self.offsets(some, place)
        if wanted.is_time and is_time_required:
            ends = self.offsets(queues, Start.LATEST)
            late = [queue for queue in queues if found[queue] >= ends[queue]]
            if late:
                raise InvalidOption(
                    f"option {wanted.option!r}: {late[0]}: no message since {places[late[0]]}; "
                    "startingOffsetsByTimestampStrategy=latest begins at its end"
                )
        return found

    def body_bytes(self, start: Offsets, ends: Offsets) -> float:
        """Return the mean size of some of the next bodies, in bytes; at least 1."""
        queues = [queue for queue in sorted(ends) if start.get(queue, FIRST) < ends[queue]]
        sizes: list[int] = []
        for queue in queues[:: max(1, -(-len(queues) // SAMPLED_QUEUES_MAX))]:
            self.address(queue.broker)
            sizes += self._brokers.body_sizes(queue, start.get(queue, FIRST))
        return max(1.0, sum(sizes) / len(sizes)) if sizes else 1.0

    def plan(self, start: Offsets, end: Offsets) -> list[QueueRanges]:
        """Return the messages between the offsets as what each task reads."""
        made = parts(start, end, messages_max=self._options.records_max, count_min=self._options.partitions_min)
        return [
            QueueRanges(part, {each.queue.broker: self.address(each.queue.broker) for each in part}) for part in made
        ]

    def address(self, broker: str) -> str:
        """Return the address of a broker that has queues of the query. Raises MessagesLost if none are left."""
        addresses = self._brokers.addresses
        if broker not in addresses:
            self.find()
        if broker not in addresses:
            raise MessagesLost(f"broker {broker}: no topic of the query is there any more, but its messages are needed")
        return addresses[broker]


def _check_complete(option: str, given: Iterable[Queue], queues: Iterable[Queue]) -> None:
    """Raise InvalidOption unless all queues are given and no other is, as Spark's source for Kafka does."""
    missing, unknown = set(queues) - set(given), set(given) - set(queues)
    if unknown:
        raise InvalidOption(f"option {option!r}: {min(unknown)} is not read")
    if missing:
        raise InvalidOption(f"option {option!r}: {min(missing)} is missing: all queues that are read are needed")
