"""The brokers of a query: where its topics are, where their queues begin and end, and their messages.

Brokers are called by gRPC here. `remoting_brokers` has those that are found through name servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
import structlog
from pyspark.sql.types import StructType

from quarry_mq.client.admin import AdminClient
from quarry_mq.client.errors import CallRefused
from quarry_mq.client.queues import QueueClient, RoutedQueue, Start
from quarry_mq.pipeline.stream.columns import Received, batch_of, is_kafka
from quarry_mq.pipeline.stream.offsets import Queue, Range
from quarry_mq.pipeline.stream.options import MessagesLost
from quarry_mq.pipeline.stream.source_options import SourceOptions
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

log = structlog.get_logger(__name__)

PULLED_AT_ONCE: Final = 1_024
"""Messages that one pull asks for: more than any broker gives, which is 32 unless configured otherwise."""
ROWS_PER_BATCH: Final = 1_000
BYTES_PER_BATCH: Final = 8 << 20
_LISTED_AGAIN_MAX: Final = 3
"""Attempts to find the queues of topics while topics are deleted."""

Routes = Mapping[str, Sequence[RoutedQueue]]
"""The queues of each topic, in the order of brokers and numbers."""


class Bounds(NamedTuple):
    """The offset of the first message of a queue, and its end."""

    minimum: int
    maximum: int


class Brokers(Protocol):
    """The brokers of a query, by their names. They must be closed.

    Calls are repeated for a while when a broker is away. Then they raise BrokerUnreachable, and the error of their
    protocol if a broker refuses for good.
    """

    addresses: dict[str, str]
    """The addresses of the brokers that are known. Routes add some."""

    def routes(self, topics: Sequence[str]) -> Routes:
        """Return the queues of topics, all of which must exist."""

    def matching(self, pattern: re.Pattern[str]) -> Routes:
        """Return the queues of the topics whose whole names match."""

    def offsets_of(
        self, broker: str, queues: Sequence[tuple[str, int]], where: Start | int
    ) -> dict[tuple[str, int], int]:
        """Return the first offset of queues of a broker, their end, or their offset at a time in ms."""

    def body_sizes(self, queue: Queue, offset: int) -> list[int]:
        """Return the sizes of the next bodies of a queue."""

    def batches(self, ranges: Iterable[Range], schema: StructType) -> Iterator[pa.RecordBatch]:
        """Yield the messages as rows. Raises MessagesLost if some are missing, unless losses are ignored by option."""

    def close(self) -> None:
        """Close all connections."""


class GrpcBrokers:
    """Brokers that are called at the messaging port: Quarry's, and the proxies of RocketMQ 5."""

    def __init__(self, options: SourceOptions, addresses: Mapping[str, str]) -> None:
        self.addresses = dict(addresses)
        self._options = options
        self._clients: dict[str, QueueClient] = {}

    def _at(self, address: str) -> QueueClient:
        """Return the client of the broker at an address. Raises OSError for a file that cannot be read."""
        if address not in self._clients:
            self._clients[address] = self._options.connection.client(address)
        return self._clients[address]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def routes(self, topics: Sequence[str]) -> Routes:
        """Return the queues of topics. Raises CallRefused for one that does not exist."""
        address = self._options.connection.address()
        found = self._at(address).routes(topics)
        addresses = {queue.broker: queue.address for route in found.values() for queue in route}
        if len(addresses) == 1:
            # a broker alone is read at the address that the user gave, which may be the only one that leads there
            addresses = dict.fromkeys(addresses, address)
        self.addresses |= addresses
        # the route of an ordered topic lacks queues of some members, but each member has them all
        return {
            topic: [
                RoutedQueue(broker, number, addresses[broker])
                for broker in sorted({queue.broker for queue in route})
                for number in sorted({queue.number for queue in route})
            ]
            for topic, route in found.items()
        }

    def matching(self, pattern: re.Pattern[str]) -> Routes:
        for attempt in range(_LISTED_AGAIN_MAX):
            try:
                return self.routes([name for name in self._topic_names() if pattern.fullmatch(name)])
            except CallRefused as refused:
                # a topic was deleted since the list was made
                if refused.code != definition.TOPIC_NOT_FOUND or attempt == _LISTED_AGAIN_MAX - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _topic_names(self) -> list[str]:
        address = self._options.admin_endpoint
        assert address is not None
        with AdminClient(self._options.connection.at(address)) as admin:
            return admin.topic_names(address)

    def offsets_of(
        self, broker: str, queues: Sequence[tuple[str, int]], where: Start | int
    ) -> dict[tuple[str, int], int]:
        return self._at(self.addresses[broker]).offsets_of(queues, where)

    def commit_offsets(self, broker: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Store the offsets of the group in queues of a broker."""
        self._at(self.addresses[broker]).commit_offsets(self._options.group, offsets)

    def body_sizes(self, queue: Queue, offset: int) -> list[int]:
        client = self._at(self.addresses[queue.broker])
        pulled = client.pull(self._options.group, queue.topic, queue.number, offset, PULLED_AT_ONCE)
        return [len(message.body) for message in pulled.messages]

    def batches(self, ranges: Iterable[Range], schema: StructType) -> Iterator[pa.RecordBatch]:
        some: list[Received] = []
        size = 0
        for received in self._messages(ranges):
            some.append(received)
            size += len(received.message.body)
            if len(some) == ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
                yield batch_of(some, schema, is_kafka=is_kafka(self._options))
                some, size = [], 0
        if some:
            yield batch_of(some, schema, is_kafka=is_kafka(self._options))

    def _messages(self, ranges: Iterable[Range]) -> Iterator[Received]:
        for queue, begin, end in ranges:
            client = self._at(self.addresses[queue.broker])
            offset = begin
            while offset < end:
                count = min(end - offset, PULLED_AT_ONCE)
                pulled = client.pull(self._options.group, queue.topic, queue.number, offset, count)
                if pulled.is_outside or pulled.following <= offset:
                    lost(self._options, gone(queue, offset, end, bounds_of(self, queue)))
                    if pulled.following <= offset:
                        break
                for message in pulled.messages:
                    if message.system_properties.queue_offset < end:
                        yield Received(queue.broker, message)
                offset = pulled.following


def bounds_of(brokers: Brokers, queue: Queue) -> Bounds:
    """Return what a queue holds now."""
    wanted = [(queue.topic, queue.number)]
    [minimum] = brokers.offsets_of(queue.broker, wanted, Start.EARLIEST).values()
    [maximum] = brokers.offsets_of(queue.broker, wanted, Start.LATEST).values()
    return Bounds(minimum, maximum)


def gone(queue: Queue, offset: int, end: int, bounds: Bounds) -> str:
    """Return which messages are missing, for an error."""
    return (
        f"{queue}: offsets [{offset}, {end}) are to be read, but the queue holds [{bounds.minimum}, {bounds.maximum})"
    )


def lost(options: SourceOptions, what: str) -> None:
    """Raise MessagesLost, unless losses are ignored by option; then log a warning."""
    if options.fail_on_loss:
        raise MessagesLost(f"{what}; failOnDataLoss=false goes on with what there is")
    log.warning("messages were lost to the stream", what=what)
