"""Measures whether sends are delayed while half a million lite topics expire.

A broker in its own process runs on a store with very many lite topics of one topic, which a group has read. Every
fourth one got a message just now, so that expiring ones lie between others that stay. Connections send 1 KiB messages
to another topic, one call at a time on each. After a quiet stretch the topic is given an expiration, and the broker
finds the old lite topics by itself; the measured stretch lasts until they are gone. Another quiet stretch follows. Then
the store is opened, and every lite topic and offset is checked.

The target is at most twice the 99th percentile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from bench.harness import Case, Options, Scale, require_room
from bench.peers.quarry import Quarry
from bench.scratch_store import make_messages
from bench.send_load import (
    admin_channel,
    await_stats,
    disturbed,
    percentiles,
)
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.lite_attributes import EXPIRATION
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as admin
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import Message, QueueId, QueueOffset
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.metadata.lite import light_queue_name, parse_light_queue_name
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import Durability, StoreSettings

QUESTION: Final = "How much longer do sends take while half a million lite topics expire?"
CLIENTS: Final = 16
PARENT: Final = "sessions"
GROUP: Final = "agents"
AGE_MS: Final = 86_400_000
NAMES_PER_MESSAGE: Final = 500
MESSAGES: Final = 3
"""Messages of each lite topic."""

STAYING: Final = 4
"""Interval of the lite topics that got a message just now: every fourth one."""

CALL_TIMEOUT_S: Final = 10.0
REMOVED: Final = 'quarry_queues_removed_total{cause="lite_expired"}'
SETTINGS: Final = {"QUARRY_LITE_EXPIRY_INTERVAL_MS": "500"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale.

    `quiet_s` is the length of a stretch without expiry, `requests` the most sends of one connection.
    """

    lite_topics: int
    quiet_s: float
    requests: int

    @property
    def expiring(self) -> int:
        return self.lite_topics - len(range(0, self.lite_topics, STAYING))


SIZES: Final = {
    Scale.FULL: Sizes(lite_topics=700_000, quiet_s=20, requests=200_000),
    Scale.QUICK: Sizes(lite_topics=100_000, quiet_s=5, requests=60_000),
    Scale.TINY: Sizes(lite_topics=2_000, quiet_s=0.5, requests=6_000),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    require_room(options.scratch, 512 * MIB + sizes.lite_topics * 2048)
    with closing(Quarry(options.scratch / "quarry", Durability.SYNC, SETTINGS)) as broker:
        _fill(broker.store, Random(options.seed), sizes)
        broker.start()
        case = _case(broker, Random(options.seed), sizes)
    _check(broker.store, sizes)
    return [case]


def _names(sizes: Sizes, step: int = 1) -> list[str]:
    return [f"session-{number:08d}" for number in range(0, sizes.lite_topics, step)]


def _open(root: Path, clock: ManualClock) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=256 * MIB, cached_queues_max=1_000_000)
    return open_store(settings, disk=PosixDisk(), clock=clock, report=lambda _: None)


def _fill(root: Path, random: Random, sizes: Sizes) -> None:
    """Fill the store. All messages are a day old, but for the last ones."""
    clock = ManualClock(time.time_ns() // 1_000_000 - AGE_MS)
    store = _open(root, clock)
    store.topics.create(Topic(PARENT, TopicType.LITE, 8, 8))
    template = make_messages(random, 1)[0]._replace(topic=PARENT, body=b"")
    for _ in range(MESSAGES):
        _send(store, template, _names(sizes))
    clock.advance(AGE_MS / 1000)
    _send(store, template, _names(sizes, STAYING))
    names = _names(sizes)
    for begin in range(0, len(names), NAMES_PER_MESSAGE):
        batch = store.state_engine.batch()
        for name in names[begin : begin + NAMES_PER_MESSAGE]:
            store.offsets.stage(batch, GROUP, QueueId(light_queue_name(PARENT, name), 0), QueueOffset(1))
        store.state_engine.write(batch)
    store.close()


def _send(store: OpenStore, template: Message, names: Sequence[str]) -> None:
    for begin in range(0, len(names), NAMES_PER_MESSAGE):
        light = ",".join(light_queue_name(PARENT, name) for name in names[begin : begin + NAMES_PER_MESSAGE])
        store.messages.append([template._replace(properties={**template.properties, LIGHT_QUEUES: light})])
        store.messages.dispatch(store.messages.appended_up_to)


def _case(broker: Quarry, random: Random, sizes: Sizes) -> Case:
    load = disturbed(
        broker, random, partial(_expire, broker, sizes), clients=CLIENTS, requests=sizes.requests, quiet_s=sizes.quiet_s
    )
    total_s = load.during.sample.wall_s
    return Case(
        name=f"{sizes.expiring} of {sizes.lite_topics} lite topics expire, {CLIENTS} clients send",
        unit="messages",
        peer="the same load without expiry",
        ours=load.ours,
        theirs=load.theirs,
        details={
            "total_s": round(total_s, 2),
            "lite_topics_per_s": round(sizes.expiring / total_s),
            **percentiles(quiet=load.quiet, expiry=load.during),
            "p99_ratio": load.p99_ratio,
            "load_1m_after": round(os.getloadavg()[0], 1),
        },
    )


def _expire(broker: Quarry, sizes: Sizes) -> None:
    """Give the topic an expiration, and wait until the old lite topics are gone."""
    request = admin.UpdateTopicRequest(name=PARENT, attributes={EXPIRATION: "60"})
    with admin_channel(broker) as channel:
        AdminServiceStub(channel).UpdateTopic(request, timeout=CALL_TIMEOUT_S)
    await_stats(broker, lambda seen: seen[REMOVED] >= sizes.expiring)


def _check(root: Path, sizes: Sizes) -> None:
    """Check that exactly the lite topics with a new message are left, with the group's offsets. Raises RuntimeError."""
    store = _open(root, ManualClock(time.time_ns() // 1_000_000))
    staying = {light_queue_name(PARENT, name) for name in _names(sizes, STAYING)}
    left = {queue.topic for queue in store.messages.iterate_queues() if parse_light_queue_name(queue.topic)}
    read = {queue.topic for _, queue, _ in store.offsets.all_rows() if parse_light_queue_name(queue.topic)}
    store.close()
    if left != staying or read != staying:
        raise RuntimeError(f"{len(left)} lite topics and {len(read)} positions are left, not {len(staying)}")
