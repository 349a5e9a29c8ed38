"""Quarry's message store in a process of its own, without a broker around it: `python -m bench.peers.queue_store KIND`.

Works off commands from standard input, as `QueueStore.java` does for RocketMQ's; see there. KIND is `file` or
`rocksdb`. Messages are appended and dispatched in rounds, as a broker takes in what came together.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Final

from kv import KeyRange
from server.garbage import look_for_garbage_seldom
from store.clock import SystemClock
from store.consumequeue.rocks_layout import UNITS_FAMILY
from store.disk import PosixDisk
from store.message import Host, Message
from store.offsets import QueueId, QueueOffset
from store.opening import OpenStore, open_store
from store.queue_phase import QueueMode
from store.record.properties import TAGS, UNIQUE_KEY
from store.settings import MIB, Durability, StoreSettings

STEP: Final = 1_000_003
QUEUES_PER_TOPIC: Final = 8
ROUND: Final = 64
BODY: Final = Random(1).randbytes(200)
SEGMENT_SIZE: Final = 256 * MIB
_HOST: Final = Host(b"\x7f\0\0\1", 10_911)
_BORN_AT_MS: Final = 1_700_000_000_000


class QueueStore:
    """One store at a time, and what is done to it."""

    def __init__(self, mode: QueueMode) -> None:
        self._mode = mode
        self._store: OpenStore | None = None
        self._queues = self._entries = 0

    def open(self, root: str, queues: int, entries: int) -> int:
        settings = StoreSettings(
            root=Path(root), durability=Durability.ASYNC, segment_size=SEGMENT_SIZE, queue_mode=self._mode
        )
        self._store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
        self._queues, self._entries = queues, entries
        return 1

    def put(self, first: int, count: int) -> int:
        messages = self._open_store.messages
        end = first + count
        for begin in range(first, end, ROUND):
            messages.append([self._message(number) for number in range(begin, min(begin + ROUND, end))])
            messages.dispatch(messages.appended_up_to)
        return count

    def get(self, seed: int, count: int) -> int:
        random, messages = Random(seed), self._open_store.messages
        for _ in range(count):
            offset = QueueOffset(random.randrange(self._entries))
            [entry] = messages.entries(self._queue(random.randrange(self._queues)), offset, 1)
            if messages.read(entry).queue_offset != offset:
                raise RuntimeError(f"another message at {offset}")
        return count

    def compact(self) -> int:
        store = self._open_store
        store.messages.flush()
        store.messages.flush_queues()
        if store.queues.engine is not None:
            store.queues.engine.compact(store.queues.engine.family(UNITS_FAMILY), KeyRange(b"", None))
        return 1

    def close(self) -> int:
        self._open_store.close()
        self._store = None
        return 1

    @property
    def _open_store(self) -> OpenStore:
        assert self._store is not None, "no store is open"
        return self._store

    def _queue(self, number: int) -> QueueId:
        return QueueId(f"bench-{number // QUEUES_PER_TOPIC:07d}", number % QUEUES_PER_TOPIC)

    def _message(self, number: int) -> Message:
        queue = self._queue(number * STEP % self._queues)
        properties = {TAGS: "created", UNIQUE_KEY: f"{number:032X}"}
        return Message(queue.topic, queue.number, BODY, properties, _BORN_AT_MS, _HOST, _HOST)


def main() -> None:
    store = QueueStore(QueueMode(sys.argv[1]))
    look_for_garbage_seldom()
    for line in sys.stdin:
        name, *words = line.split()
        named = dict(word.split("=", 1) for word in words)
        numbers = {key: int(value) for key, value in named.items() if key != "root"}
        paths = {key: value for key, value in named.items() if key == "root"}
        try:
            answer: dict[str, object] = {"done": getattr(store, name)(**paths, **numbers)}
        except Exception as error:  # noqa: BLE001 - the answer says so, whoever asked ends the run
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
