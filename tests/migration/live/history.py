"""A store with file queues that was in use for long: what it holds is known by place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES, TAGS, UNIQUE_KEY
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import Host, Message
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import Durability, StoreSettings

QUEUES_PER_TOPIC: Final = 5
LIVE_TOPICS: Final = 3
"""To how many of the topics is still sent."""
LIGHT_EVERY: Final = 40
"""One message in so many is in two light queues, too."""
ROUND: Final = 50
"""Messages that go to one queue in a row. The queues take turns, so that each is spread over the whole log."""
_HOST: Final = Host(b"\x7f\0\0\1", 40_000)


@dataclass(frozen=True, slots=True)
class History:
    """`messages` evenly in `queues`. Files are small enough for each queue to have several."""

    messages: int
    queues: int
    segment_size: int
    units_per_file: int

    @property
    def topics(self) -> list[str]:
        return [f"orders-{number}" for number in range(self.queues // QUEUES_PER_TOPIC)]

    @property
    def live_topics(self) -> list[str]:
        return self.topics[:LIVE_TOPICS]

    @property
    def per_queue(self) -> int:
        return self.messages // self.queues

    def fill(self, root: Path) -> None:
        """Make the store, as a broker would have in time, and stop it in good order."""
        settings = StoreSettings(
            root=root,
            durability=Durability.ASYNC,
            segment_size=self.segment_size,
            queue_mode=QueueMode.FILE,
            units_per_file=self.units_per_file,
        )
        clock = SystemClock()
        store = open_store(settings, disk=PosixDisk(), clock=clock, report=lambda _: None)
        try:
            for topic in self.topics:
                store.topics.create(Topic(topic, TopicType.NORMAL, QUEUES_PER_TOPIC, QUEUES_PER_TOPIC))
            for first in range(0, self.per_queue, ROUND):
                offsets = range(first, min(first + ROUND, self.per_queue))
                for number, topic in enumerate(self.topics):
                    store.messages.append(list(_messages(number, topic, offsets, clock.wall_ms())))
                store.messages.dispatch(store.messages.appended_up_to)
        finally:
            store.close()


def body_at(topic: str, queue: int, offset: int) -> str:
    """What lies there, up to 90 bytes."""
    return f"{topic}/{queue}/{offset}/" + "." * (offset * 7 % 64)


def _messages(number: int, topic: str, offsets: range, now_ms: int) -> Iterator[Message]:
    for queue in range(QUEUES_PER_TOPIC):
        for offset in offsets:
            properties = {UNIQUE_KEY: f"01{number:012X}{queue:04X}{offset:016X}", TAGS: "old"}
            if offset % LIGHT_EVERY == 0:
                properties[LIGHT_QUEUES] = f"%LMQ%inbox-{number % 7},%LMQ%all-{queue}"
            body = body_at(topic, queue, offset).encode()
            yield Message(topic, queue, body, properties, now_ms, _HOST, _HOST)
