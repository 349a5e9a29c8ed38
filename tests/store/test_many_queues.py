"""A store keeps nothing in memory per queue that was ever used (promise 6; rmq#8956, rmq#8915)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import MessageTooLarge
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from tests.memory import grown, kept_alive
from tests.store.assembly import message

CACHED = 32
FEW = 140
"""With light queues more than the 512 files that are kept open."""
QUEUES = 400


def opened(root: Path, mode: QueueMode) -> OpenStore:
    settings = StoreSettings(
        root=root,
        segment_size=1 << 20,
        queue_mode=mode,
        units_per_file=16,
        cached_queues_max=CACHED,
        record_size_max=2_000,
    )
    return open_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None)


def send(store: OpenStore, numbers: range) -> None:
    """To an ordinary queue and three light ones each, all of them new."""
    for number in numbers:
        names = ",".join(f"%LMQ%{number}-{each}" for each in range(3))
        store.messages.append([message(f"topic-{number}", number % 7, INNER_MULTI_DISPATCH=names)])
        store.messages.dispatch(store.messages.appended_up_to)
    store.messages.flush_queues()


def read(store: OpenStore, numbers: range) -> None:
    for number in numbers:
        for queue in (QueueId(f"topic-{number}", number % 7), QueueId(f"%LMQ%{number}-0", 0)):
            assert store.messages.bounds(queue) == (0, 1)
            [entry] = store.messages.entries(queue, QueueOffset(0), 10)
            store.messages.read(entry)
            store.messages.offset_at_time(queue, 0, TimeBoundary.LOWER)


def ask_in_vain(store: OpenStore, numbers: range) -> None:
    """rmq#9792: about queues that do not exist."""
    for number in numbers:
        queue = QueueId(f"ghost-{number}", 0)
        assert store.messages.bounds(queue) == (0, 0)
        assert store.messages.entries(queue, QueueOffset(0), 1) == []


def be_refused(store: OpenStore, numbers: range) -> None:
    """Sends that fail never get as far as a dispatch."""
    for number in numbers:
        with pytest.raises(MessageTooLarge):
            store.messages.append([message(f"refused-{number}", 0, bytes(2_000))])


def delete(store: OpenStore, numbers: range) -> None:
    for number in numbers:
        store.messages.append([message(f"deleted-{number}", 0)])
        store.messages.dispatch(store.messages.appended_up_to)
        assert store.messages.delete_topic(f"deleted-{number}") == 1
    store.messages.flush_queues()


@pytest.mark.parametrize("mode", list(QueueMode))
@pytest.mark.parametrize("use", [send, read, ask_in_vain, be_refused, delete], ids=lambda each: each.__name__)
def test_memory_does_not_grow_with_queues(
    tmp_path: Path, mode: QueueMode, use: Callable[[OpenStore, range], None]
) -> None:
    store = opened(tmp_path, mode)
    if use is read:
        send(store, range(QUEUES))
    use(store, range(FEW))
    parts = (store.messages, store.queues, store.topics, store.groups, store.offsets, store.expiry)
    before = kept_alive(*parts)
    use(store, range(FEW, QUEUES))
    assert grown(before, kept_alive(*parts), more_than=CACHED) == {}
    store.close()


def test_a_start_keeps_nothing_of_the_queues_that_it_recovers(tmp_path: Path) -> None:
    """rmq#5091: a start of two hundred thousand queues took minutes and all of them stayed in memory."""
    sizes = []
    for count in (FEW, QUEUES):
        store = opened(tmp_path / str(count), QueueMode.ROCKSDB)
        send(store, range(count))
        store.close()
        (tmp_path / str(count) / "consumequeue_rocksdb").rename(tmp_path / f"{count}-before")
        again = opened(tmp_path / str(count), QueueMode.ROCKSDB)
        assert len(again.messages.iterate_queues()) == 4 * count
        sizes.append(kept_alive(again.messages, again.queues))
        again.close()
    assert grown(sizes[0], sizes[1], more_than=CACHED) == {}
