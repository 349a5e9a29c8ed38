"""Messages that come while the broker checks whether all is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.cluster.reading_order import ReadingOrder
from quarry_mq.server.errors import OrderWouldBreak
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.message import QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Topic, TopicType

ORDERS = Topic("orders", TopicType.FIFO, 2, 2)


class Bench:
    """A topic that has been read, and what happens in the midst of the look."""

    def __init__(self, happens: Callable[[Bench], None]) -> None:
        self.end = 5
        self.readers = ["billing"]
        self.is_storing = False
        self.fifo = True
        self._happens = happens

    def bounds(self, queue: QueueId) -> QueueBounds:
        return QueueBounds(QueueOffset(0), QueueOffset(self.end if queue.number == 0 else 0))

    def iterate_queues(self, topic: str) -> list[QueueId]:
        return [QueueId(topic, 0)]

    def readers_of(self, _topic: str) -> Iterator[str]:
        return iter(self.readers)

    async def left(self, _group: str, _topic: Topic, _slice: TimeSlice) -> int:
        self._happens(self)
        return 0

    def look(self) -> None:
        order = ReadingOrder(
            self,
            topic=lambda _: ORDERS,
            group=lambda name: Group(name, fifo=self.fifo),
            readers_of=self.readers_of,
            left=self.left,
            is_storing=lambda _: self.is_storing,
        )
        asyncio.run(order.require_read(ORDERS, TimeSlice(ManualClock())))


def a_message_comes(bench: Bench) -> None:
    bench.end += 1


def a_group_comes(bench: Bench) -> None:
    bench.readers.append("audit")


def a_message_is_on_its_way(bench: Bench) -> None:
    bench.is_storing = True


@pytest.mark.parametrize("happens", [a_message_comes, a_group_comes, a_message_is_on_its_way])
def test_what_comes_meanwhile_is_unread(happens: Callable[[Bench], None]) -> None:
    with pytest.raises(OrderWouldBreak, match="topic orders is receiving messages"):
        Bench(happens).look()


def test_nothing_comes() -> None:
    Bench(lambda _: None).look()


def test_sends_to_a_topic_that_nobody_reads_in_order_are_no_matter() -> None:
    bench = Bench(lambda _: None)
    bench.fifo, bench.is_storing = False, True
    bench.look()
