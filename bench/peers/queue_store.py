"""Quarry's message store in its own process, without a broker around it: `python -m bench.peers.queue_store KIND`.

It executes commands from standard input, as `QueueStore.java` does for RocketMQ's store; see there. KIND is `file` or
`rocksdb`. Messages are appended and dispatched in batches, as a broker does with messages that come together.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Final

from bench.peers.async_flush import AsyncFlush
from bench.scattered import scattered
from quarry_mq.kv import KeyRange
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages.property_names import TAGS, UNIQUE_KEY
from quarry_mq.server.process.garbage import look_for_garbage_seldom
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import EncodedMessage, Host, QueueId, QueueOffset
from quarry_mq.store.native import NATIVE
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.record import encode_properties, java_hash
from quarry_mq.store.settings import Durability, StoreSettings

QUEUES_PER_TOPIC: Final = 8
ROUND: Final = 64
PORTION: Final = 512 * ROUND
RANGE: Final = 32
BODY_SIZE: Final = 200
SEGMENT_SIZE: Final = 256 * MIB
_HOST: Final = Host(b"\x7f\0\0\1", 10_911)
_BORN_AT_MS: Final = 1_700_000_000_000
_TAGS_CODE: Final = java_hash("created")


def read_ahead(warm: Callable[[bytes], bytes | None]) -> None:
    """Read all bounds of queues into memory, as a broker does after a start (`server.maintenance.maintenance`)."""
    after: bytes | None = b""
    while after is not None:
        after = warm(after)


class Stopwatch:
    """Measures wall time and CPU time of all threads."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the block.

        Objects that were prepared before are not searched for garbage: see `bench.harness.measure`.
        """
        gc.collect()
        gc.freeze()
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        yield
        for name, taken in (("wall_s", time.perf_counter() - wall_s), ("cpu_s", time.process_time() - cpu_s)):
            self.times[name] = self.times.get(name, 0.0) + taken
        gc.unfreeze()


class QueueStore:
    """Execute commands on one store at a time. If the last command took its own times, they are in `watch`."""

    def __init__(self, mode: QueueMode) -> None:
        self._mode = mode
        self._store: OpenStore | None = None
        self._queues = self._entries = 0
        self._body = b""
        self.watch = Stopwatch()

    def open(self, root: str, queues: int, entries: int, body: int = BODY_SIZE) -> int:
        settings = StoreSettings(
            root=Path(root), durability=Durability.ASYNC, segment_size=SEGMENT_SIZE, queue_mode=self._mode
        )
        with self.watch.running():
            self._store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
            if NATIVE is not None:
                self._store.messages.use(NATIVE)
                self._store.queues.use(NATIVE)
        self._queues, self._entries = queues, entries
        self._body = Random(1).randbytes(body)
        return 1

    def settle(self) -> int:
        """Read ahead what a broker reads after a start."""
        read_ahead(self._open_store.queues.warm)
        return 1

    def put(self, first: int, count: int) -> int:
        messages = self._open_store.messages
        end = first + count
        for begin in range(first, end, ROUND):
            messages.append_encoded([self._message(number) for number in range(begin, min(begin + ROUND, end))])
            messages.dispatch(messages.appended_up_to)
        return count

    def append(self, first: int, count: int) -> int:
        messages, end = self._open_store.messages, first + count
        with closing(AsyncFlush(messages, StoreSettings(root=Path()))) as flush:
            for begin in range(first, end, PORTION):
                portion = [self._message(number) for number in range(begin, min(begin + PORTION, end))]
                rounds = [portion[at : at + ROUND] for at in range(0, len(portion), ROUND)]
                with self.watch.running():
                    for each in rounds:
                        messages.append_encoded(each)
                        messages.dispatch(messages.appended_up_to)
                        flush.after_round()
        return count

    def get(self, seed: int, count: int) -> int:
        random, messages = Random(seed), self._open_store.messages
        for _ in range(count):
            offset = QueueOffset(random.randrange(self._entries))
            [entry] = messages.entries(self._queue(random.randrange(self._queues)), offset, 1)
            if messages.read(entry).queue_offset != offset:
                raise RuntimeError(f"another message at {offset}")
        return count

    def units(self, seed: int, count: int) -> int:
        random, entries = Random(seed), self._open_store.messages.entries
        places = [
            (self._queue(random.randrange(self._queues)), QueueOffset(random.randrange(self._entries)))
            for _ in range(count)
        ]
        with self.watch.running():
            for queue, offset in places:
                [entry] = entries(queue, offset, 1)
                if entry.queue_offset != offset:
                    raise RuntimeError(f"another entry at {offset} of {queue}")
        return count

    def ranges(self, first: int, count: int) -> int:
        entries, queues = self._open_store.messages.entries, self._scattered(first, count)
        with self.watch.running():
            for queue in queues:
                offset = 0
                while offset < self._entries:
                    found = entries(queue, QueueOffset(offset), RANGE)
                    if found[0].queue_offset != offset:
                        raise RuntimeError(f"another entry at {offset} of {queue}")
                    offset += len(found)
        return count * self._entries

    def records(self, first: int, count: int, decoded: int) -> int:  # noqa: ARG002 - they always are, CRCs included
        messages, queues = self._open_store.messages, self._scattered(first, count)
        with self.watch.running():
            for queue in queues:
                offset = 0
                while offset < self._entries:
                    records = messages.read_all(messages.entries(queue, QueueOffset(offset), RANGE)) or ()
                    if not records or any(each.queue_offset != at for at, each in enumerate(records, offset)):
                        raise RuntimeError(f"another message at {offset} of {queue}")
                    offset += len(records)
        return count * self._entries

    def compact(self) -> int:
        store = self._open_store
        store.messages.flush()
        store.messages.flush_queues()
        if (engine := store.queues.engine) is not None:
            for name in (ENTRIES_FAMILY, OFFSET_FAMILY):
                engine.compact(engine.family(name), KeyRange(b"", None))
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

    def _scattered(self, first: int, count: int) -> Sequence[QueueId]:
        return [self._queue(scattered(number, self._queues)) for number in range(first, first + count)]

    def _message(self, number: int) -> EncodedMessage:
        """Return a message with its properties in stored form, as sends bring them to either store."""
        topic, queue_number = self._queue(scattered(number, self._queues))
        properties = encode_properties({TAGS: "created", UNIQUE_KEY: f"{number:032X}"})
        return EncodedMessage(topic, queue_number, self._body, properties, _BORN_AT_MS, _HOST, _HOST, 0, _TAGS_CODE)


def main() -> None:
    store = QueueStore(QueueMode(sys.argv[1]))
    look_for_garbage_seldom()
    for line in sys.stdin:
        name, *words = line.split()
        named = dict(word.split("=", 1) for word in words)
        numbers = {key: int(value) for key, value in named.items() if key != "root"}
        paths = {key: value for key, value in named.items() if key == "root"}
        store.watch = Stopwatch()
        try:
            answer: dict[str, object] = {"done": getattr(store, name)(**paths, **numbers), **store.watch.times}
        except Exception as error:  # noqa: BLE001 - the answer says so, whoever asked ends the run
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
