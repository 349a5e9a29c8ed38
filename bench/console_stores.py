"""Makes brokers with very many topics, and with groups that are not connected, for pages of the console to show.

The stores are made in this process, so that nothing of them is in the broker's memory: a message in each queue, and
groups that have read ten topics each and one topic together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc

from bench.peers.quarry import Quarry
from bench.scratch_store import SEGMENT_SIZE, scratch_store
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub
from quarry_mq.store.message import Host, Message, QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.settings import Durability

TOPICS_PER_GROUP: Final = 10
BODY: Final = bytes(range(200))
HOST: Final = Host(b"\x7f\0\0\1", 8081)
BATCH: Final = 2_000
SETTINGS: Final = {"QUARRY_STORE_SEGMENT_SIZE": str(SEGMENT_SIZE)}
COUNTED_TIMEOUT_S: Final = 120.0


class ConsoleBroker(Quarry):
    """A broker whose store has this number of topics and groups."""

    def __init__(self, directory: Path, topics: int, queues_per_topic: int, groups: int) -> None:
        super().__init__(directory, Durability.ASYNC, SETTINGS, has_console=True)
        self.topics = topics
        self._queues_per_topic = queues_per_topic
        self._groups = groups

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Make the store and start the broker; the block begins when all topics are counted."""
        with scratch_store(self.store, Durability.ASYNC) as store:
            self._fill(store)
        self.start()
        try:
            self._wait_until_counted()
            yield
        finally:
            self.close()

    def _wait_until_counted(self) -> None:
        """Wait until the broker knows how many topics there are, which its first sweep in the background counts."""
        deadline_s = time.perf_counter() + COUNTED_TIMEOUT_S
        with grpc.insecure_channel(self.admin) as channel:
            service = OverviewServiceStub(channel)
            while not service.GetOverview(pb.GetOverviewRequest()).HasField("topics"):
                if time.perf_counter() > deadline_s:
                    raise RuntimeError("the broker has not counted its topics")
                time.sleep(0.1)

    def _fill(self, store: OpenStore) -> None:
        queues = self._queues_per_topic
        store.topics.add_missing(
            Topic(topic_name(number), TopicType.NORMAL, queues, queues) for number in range(self.topics)
        )
        messages: list[Message] = []
        for number in range(self.topics):
            messages += [Message(topic_name(number), queue, BODY, {}, 0, HOST, HOST) for queue in range(queues)]
            if len(messages) >= BATCH:
                _append(store, messages)
                messages = []
        _append(store, messages)
        store.messages.flush()
        store.groups.add_missing(Group(group_name(number)) for number in range(self._groups))
        for number in range(self._groups):
            batch = store.state_engine.batch()
            for place in range(TOPICS_PER_GROUP):
                topic = topic_name((number * place * 7) % self.topics)
                for queue in range(queues):
                    store.offsets.stage(batch, group_name(number), QueueId(topic, queue), QueueOffset(0))
            store.state_engine.write(batch)


def _append(store: OpenStore, messages: list[Message]) -> None:
    if messages:
        store.messages.append(messages)
        store.messages.dispatch(store.messages.appended_up_to)


def topic_name(number: int) -> str:
    return f"bench-{number:07d}"


def group_name(number: int) -> str:
    return f"readers-{number:04d}"
