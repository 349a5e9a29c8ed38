"""A tiny store of every kind of content on the real disk, and a look at all of it: the model of damage tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.server.delivery.state.inflight import InFlight, InFlightTable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import Host, Message, QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.in_flight_key import subscription_prefix

SEGMENT_SIZE = 64 * 1024
HOST = Host(bytes([127, 0, 0, 1]), 8081)
TOPICS = ("bills", "orders")
GROUPS = ("audit", "billing")
Content = dict[str, Any]


def opened(root: Path) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=SEGMENT_SIZE)
    return open_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None)


def write(store: OpenStore, first: int, count: int) -> None:
    """Store some of everything, acknowledged as the broker does it."""
    messages = store.messages
    for number in range(first, first + count):
        topic = TOPICS[number % 2]
        properties = {"TAGS": "blue"} | ({LIGHT_QUEUES: "%LMQ%lite"} if number % 3 == 0 else {})
        body = b"body %d " % number * 4
        messages.append([Message(topic, number % 2, body, properties, 1_700_000_000_000, HOST, HOST)])
    messages.flush()
    messages.dispatch(messages.flushed_up_to)
    inflight = InFlightTable(store.state_engine)
    batch = store.state_engine.batch()
    for group in GROUPS:
        for number, topic in enumerate(TOPICS):
            inflight.put(batch, subscription_prefix(group, topic), number, first // 2, InFlight(1, 2, 3, 4, "client"))
            store.offsets.stage(batch, group, QueueId(topic, number), QueueOffset((first + count) // 2))
    store.state_engine.write(batch, sync=True)


def build(root: Path) -> None:
    """Two lives: what the second one wrote lies in tables of its own."""
    for life in range(2):
        store = opened(root)
        if life == 0:
            for name in TOPICS:
                store.topics.create(Topic(name, TopicType.NORMAL, 2, 2))
            for name in GROUPS:
                store.groups.create(Group(name))
        write(store, 10 * life, 10)
        store.close()


def build_killed(root: Path, scratch: Path) -> None:
    """A third life that ended by a kill: its rows are in the write-ahead log, its entries nowhere."""
    build(scratch)
    store = opened(scratch)
    write(store, 20, 10)
    store.topics.create(Topic("late", TopicType.NORMAL, 1, 1))
    store.checkpoint.save()
    shutil.copytree(scratch, root)
    store.close()


def content(store: OpenStore) -> Content:
    """Everything a broker could hand out or tell. Raises what a broker would be told."""
    messages = store.messages
    queues = {}
    for queue in messages.iterate_queues():
        entries = messages.entries(queue, QueueOffset(0), 1000)
        bodies = [(int(each.queue_offset), bytes(messages.read(each).body)) for each in entries]
        queues[queue] = (tuple(messages.bounds(queue)), bodies)
    rows = InFlightTable(store.state_engine).all_rows()
    return {
        "queues": queues,
        "topics": list(store.topics.list()),
        "groups": list(store.groups.list()),
        "offsets": {group: list(store.offsets.of_group(group)) for group in GROUPS},
        "in flight": [(group, queue, offset, row.encode()) for group, queue, offset, row in rows],
        "log": int(messages.appended_up_to),
    }
