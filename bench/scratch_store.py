"""Makes a real store in a scratch directory, and messages as sends make them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages import property_names as reserved
from quarry_mq.protocol.messages.property_names import TAGS, UNIQUE_KEY
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import Host, Message
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import Durability, StoreSettings

TOPIC: Final = "bench-orders"
QUEUES: Final = 8
BODY_SIZE: Final = 1024
SEGMENT_SIZE: Final = 256 * MIB
"""Bytes of a segment: smaller than a broker's, so that a run does not wait for gigabytes of blocks to be allocated."""

_CLIENT: Final = Host(b"\x7f\0\0\1", 40_000)
_BROKER: Final = Host(b"\x7f\0\0\1", 8081)
_BORN_AT_MS: Final = 1_700_000_000_000


@contextmanager
def scratch_store(root: Path, durability: Durability) -> Iterator[OpenStore]:
    """Give a new store with a broker's settings; it is closed at the end."""
    settings = StoreSettings(root=root, durability=durability, segment_size=SEGMENT_SIZE)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    try:
        yield store
    finally:
        store.close()


def make_messages(random: Random, count: int, *, body_sizes: range = range(BODY_SIZE, BODY_SIZE + 1)) -> list[Message]:
    """Make messages round robin over the queues, with the properties that a send of a tagged message has."""
    bodies = [random.randbytes(random.choice(body_sizes)) for _ in range(QUEUES)]
    messages = []
    for number in range(count):
        born_ms = _BORN_AT_MS + number
        properties = {
            TAGS: "created",
            UNIQUE_KEY: f"01{random.getrandbits(96):024X}{number:08X}",  # 34 characters, as clients make them
            reserved.PRODUCER_GROUP: TOPIC,
            reserved.BORN_TIMESTAMP: str(born_ms),
            reserved.BORN_HOST: "127.0.0.1:40000",
        }
        queue = number % QUEUES
        messages.append(Message(TOPIC, queue, bodies[queue], properties, born_ms, _CLIENT, _BROKER))
    return messages
