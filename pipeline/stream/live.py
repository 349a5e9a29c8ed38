"""The queues of live brokers: which there are, where they begin and end, and their messages.

A topic of a cluster has queues at each member. They are read at the addresses in the topic's route. A single broker is
read at the address that the user gave, which may be the only one that leads there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

import structlog
from pyspark.sql.datasource import InputPartition

from quarry_mq.client.admin import AdminClient
from quarry_mq.client.errors import CallRefused
from quarry_mq.client.queues import QueueClient, RoutedQueue, Start
from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.stream.columns import Received
from quarry_mq.pipeline.stream.offsets import FIRST, Offsets, Queue, Range, parts, queue_named
from quarry_mq.pipeline.stream.options import Connection, MessagesLost
from quarry_mq.pipeline.stream.source_options import Positions, SourceOptions, place_of
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

log = structlog.get_logger(__name__)

PULLED_AT_ONCE: Final = 1_024
"""Messages that one pull asks for: more than any broker gives, which is 32 unless configured otherwise."""
SAMPLED_QUEUES_MAX: Final = 8
"""Queues of which some messages are read to estimate the size of messages."""
_LISTED_AGAIN_MAX: Final = 3
"""Attempts to find the queues of topics while topics are deleted."""


@dataclass(frozen=True)
class QueueRanges(InputPartition):
    """The ranges of offsets that one task reads, and the addresses of the brokers that have them."""

    ranges: tuple[Range, ...]
    addresses: Mapping[str, str]


class Clients:
    """Clients by the address of their broker, made on first use. They must be closed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._made: dict[str, QueueClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def at(self, address: str) -> QueueClient:
        """Return the client of the broker at an address. Raises OSError for a file that cannot be read."""
        if address not in self._made:
            self._made[address] = self._connection.client(address)
        return self._made[address]

    def close(self) -> None:
        for client in self._made.values():
            client.close()
        self._made.clear()


class LiveQueues:
    """The queues that a query reads, as the brokers are now. It must be closed."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._clients = Clients(options.connection)
        self._addresses: dict[str, str] = {}
        self._brokers: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._clients.close()

    def find(self) -> list[Queue]:
        """Return the queues that are to be read now.

        Raises InvalidOption for a queue that does not exist, CallRefused for a topic that may not be read.
        """
        routes = self._routes()
        addresses = {queue.broker: queue.address for route in routes.values() for queue in route}
        if len(addresses) == 1:
            addresses = dict.fromkeys(addresses, self._options.connection.endpoint)
        self._addresses |= addresses
        self._brokers = {topic: sorted({queue.broker for queue in route}) for topic, route in routes.items()}
        # the route of an ordered topic lacks queues of some members, but each member has them all
        found = {
            topic: [Queue(topic, broker, number) for broker in self._brokers[topic] for number in numbers]
            for topic, route in routes.items()
            if (numbers := sorted({queue.number for queue in route}))
        }
        if self._options.assigned:
            return [
                self._assigned(topic, name, found) for topic, names in self._options.assigned.items() for name in names
            ]
        return [queue for queues in found.values() for queue in queues]

    def _assigned(self, topic: str, name: str, found: Mapping[str, list[Queue]]) -> Queue:
        queue = queue_named("assign", topic, name, self._brokers[topic])
        if queue not in found[topic]:
            there_are = ", ".join(each.name for each in found[topic])
            raise InvalidOption(f"option 'assign': topic {topic} has no queue {name}; there are {there_are}")
        return queue

    def _routes(self) -> dict[str, list[RoutedQueue]]:
        options = self._options
        client = self._clients.at(options.connection.endpoint)
        if options.pattern is None:
            return client.routes(options.topics or tuple(options.assigned))
        for attempt in range(_LISTED_AGAIN_MAX):
            try:
                return client.routes(self._matching())
            except CallRefused as refused:
                # a topic was deleted since the list was made
                if refused.code != definition.TOPIC_NOT_FOUND or attempt == _LISTED_AGAIN_MAX - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _matching(self) -> list[str]:
        options = self._options
        assert options.admin_endpoint is not None
        assert options.pattern is not None
        with AdminClient(options.connection.at(options.admin_endpoint)) as admin:
            names = admin.topic_names(options.admin_endpoint)
        return [name for name in names if options.pattern.fullmatch(name)]

    # -- offsets

    def parse(self, kept: Mapping[str, Mapping[str, int]], option: str) -> Offsets:
        """Return offsets that Spark has kept, or those of an option. Raises InvalidOption."""
        if any("/" not in name for names in kept.values() for name in names) and not self._brokers:
            self.find()
        return {
            queue_named(option, topic, name, self._brokers.get(topic, [])): offset
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
            client = self._clients.at(self.address(broker))
            offsets = client.offsets_of([(queue.topic, queue.number) for queue in some], where)
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
        sizes = [
            len(message.body)
            for queue in queues[:: max(1, -(-len(queues) // SAMPLED_QUEUES_MAX))]
            for message in self._clients.at(self.address(queue.broker))
            .pull(self._options.group, queue.topic, queue.number, start.get(queue, FIRST), PULLED_AT_ONCE)
            .messages
        ]
        return max(1.0, sum(sizes) / len(sizes)) if sizes else 1.0

    def plan(self, start: Offsets, end: Offsets) -> list[QueueRanges]:
        """Return the messages between the offsets as what each task reads."""
        made = parts(start, end, messages_max=self._options.records_max, count_min=self._options.partitions_min)
        return [
            QueueRanges(part, {each.queue.broker: self.address(each.queue.broker) for each in part}) for part in made
        ]

    def address(self, broker: str) -> str:
        """Return the address of a broker that has queues of the query. Raises MessagesLost if none are left."""
        if broker not in self._addresses:
            self.find()
        if broker not in self._addresses:
            raise MessagesLost(f"broker {broker}: no topic of the query is there any more, but its messages are needed")
        return self._addresses[broker]


def _check_complete(option: str, given: Iterable[Queue], queues: Iterable[Queue]) -> None:
    """Raise InvalidOption unless all queues are given and no other is, as Spark's source for Kafka does."""
    missing, unknown = set(queues) - set(given), set(given) - set(queues)
    if unknown:
        raise InvalidOption(f"option {option!r}: {min(unknown)} is not read")
    if missing:
        raise InvalidOption(f"option {option!r}: {min(missing)} is missing: all queues that are read are needed")


class RangeReader:
    """Reads the ranges of one task."""

    def __init__(self, options: SourceOptions, clients: Clients) -> None:
        self._options = options
        self._clients = clients

    def messages(self, partition: QueueRanges) -> Iterator[Received]:
        """Yield the messages. Raises MessagesLost if some are missing, unless losses are ignored by option."""
        for queue, begin, end in partition.ranges:
            client = self._clients.at(partition.addresses[queue.broker])
            offset = begin
            while offset < end:
                count = min(end - offset, PULLED_AT_ONCE)
                pulled = client.pull(self._options.group, queue.topic, queue.number, offset, count)
                if pulled.is_outside or pulled.following <= offset:
                    lost(self._options, self._gone(client, queue, offset, end))
                    if pulled.following <= offset:
                        break
                for message in pulled.messages:
                    if message.system_properties.queue_offset < end:
                        yield Received(queue.broker, message)
                offset = pulled.following

    def _gone(self, client: QueueClient, queue: Queue, offset: int, end: int) -> str:
        [minimum] = client.offsets(queue.topic, [queue.number], Start.EARLIEST).values()
        [maximum] = client.offsets(queue.topic, [queue.number], Start.LATEST).values()
        return f"{queue}: offsets [{offset}, {end}) are to be read, but the queue holds [{minimum}, {maximum})"


def lost(options: SourceOptions, what: str) -> None:
    """Raise MessagesLost, unless losses are ignored by option; then log a warning."""
    if options.fail_on_loss:
        raise MessagesLost(f"{what}; failOnDataLoss=false goes on with what there is")
    log.warning("messages were lost to the stream", what=what)
