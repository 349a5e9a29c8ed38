"""After a start, queues, numbering, topics and groups agree with the log that is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quarry_mq.kv import KeyValueEngine
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks_layout import BOUND, ENTRIES_FAMILY, OFFSET_FAMILY, entry_key, minimum_key
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.offline import OfflineStore
from tests.store.assembly import message
from tests.store.test_golden_stores import opened

SEGMENT = 64 * 1024
QUIET = QueueId("quiet", 0)
BUSY = QueueId("busy", 0)


def filled(root: Path) -> None:
    """A quiet queue whose messages all lie in the first segment, and a busy one that goes on."""
    store = opened(root, segment_size=SEGMENT)
    store.messages.append([message("quiet", 0, b"%d" % number) for number in range(5)])
    for _ in range(12):
        store.messages.append([message("busy", 0, bytes(20_000))])
    batch = store.state_engine.batch()
    store.offsets.stage(batch, "billing", QUIET, QueueOffset(3))
    store.offsets.stage(batch, "billing", BUSY, QueueOffset(2))
    store.state_engine.write(batch, sync=True)
    store.close()


def put_row(root: Path, family: str, key: bytes, value: bytes | None) -> None:
    engine: KeyValueEngine = open_consume_queue_engine(StorePaths(root).consume_queue_rocksdb, create=False)
    batch = engine.batch()
    if value is None:
        batch.delete(engine.family(family), key)
    else:
        batch.put(engine.family(family), key, value)
    engine.write(batch)
    engine.flush((ENTRIES_FAMILY, OFFSET_FAMILY))
    engine.close()


@pytest.mark.parametrize(
    "stored",
    [(0, 9), (1 << 40, 2), (0, (1 << 63) - 1), ((1 << 63) - 1, (1 << 63) - 1), (-1, -1), (0, -5)],
    ids=str,
)
def test_a_wrong_minimum_does_not_keep_the_store_from_starting(stored: tuple[int, int], tmp_path: Path) -> None:
    """rmq#9728: a start was given up when the minimum of one queue could not be corrected."""
    filled(tmp_path)
    put_row(tmp_path, OFFSET_FAMILY, minimum_key(QUIET), BOUND.pack(*stored))
    store = opened(tmp_path)
    bounds = store.messages.bounds(QUIET)
    assert 0 <= bounds.minimum <= bounds.maximum == 5
    assert store.messages.append([message("quiet", 0, b"next")])[0].queue_offset == 5
    store.close()


def test_a_queue_that_lost_all_its_entries_does_not_keep_the_store_from_starting(tmp_path: Path) -> None:
    """rmq#10108: correcting a queue without files ended the start. Numbering goes on, nothing is given twice."""
    filled(tmp_path)
    for number in range(5):
        put_row(tmp_path, ENTRIES_FAMILY, entry_key(QUIET, QueueOffset(number)), None)
    store = opened(tmp_path)
    bounds = store.messages.bounds(QUIET)
    assert bounds.minimum == bounds.maximum == 5
    assert store.messages.entries(QUIET, QueueOffset(0), 10) == []
    assert store.messages.append([message("quiet", 0, b"next")])[0].queue_offset == 5
    store.close()


def test_the_minimum_of_a_queue_moves_when_all_its_messages_are_gone(tmp_path: Path) -> None:
    """rmq#8753: it stayed where it was when all files of the queue were gone, and the lag never ended.

    rmq#4215: numbering began at 0 again, so consumers were set back, and days of messages came anew.
    """
    filled(tmp_path)
    (StorePaths(tmp_path).commit_log / f"{0:020d}").unlink()
    store = opened(tmp_path)
    bounds = store.messages.bounds(QUIET)
    assert bounds.minimum == bounds.maximum == 5
    assert store.offsets.get("billing", QUIET) == 3, "a position is not thrown back"
    assert store.messages.append([message("quiet", 0, b"next")])[0].queue_offset == 5
    store.messages.dispatch(store.messages.flush())
    (entry,) = store.messages.entries(QUIET, QueueOffset(3), 10)
    assert entry.queue_offset == 5, "a group that stands below goes on with the first message there is"
    store.close()


def test_groups_keep_their_places_over_a_kill(tmp_path: Path) -> None:
    """rmq#4215: after an unclean stop a group was taken to be ahead of its queue, and set to 0."""
    filled(tmp_path)
    StorePaths(tmp_path).abort.write_text("1")
    store = opened(tmp_path)
    assert (store.offsets.get("billing", QUIET), store.offsets.get("billing", BUSY)) == (3, 2)
    assert store.messages.bounds(BUSY) == (0, 12)
    store.close()


def test_what_rocketmq_left_inverted_hides_nothing_from_the_first_start_on(golden_copy: Callable[[str], Path]) -> None:
    """rmq#10417: minima above their maxima. Messages that were there, and those that come, are below them."""
    root = golden_copy("rocks-clean") / "store"
    with OfflineStore.open(PosixDisk(), root) as before:
        queues = [(queue, bounds) for queue, bounds in before.queues() if not is_light_queue(queue.topic)]
    found = {queue: bounds for queue, bounds in queues if bounds.minimum < bounds.maximum}
    assert len(found) > 3
    engine = open_consume_queue_engine(StorePaths(root).consume_queue, create=False)
    batch = engine.batch()
    for queue, bounds in found.items():
        batch.put(engine.family(OFFSET_FAMILY), minimum_key(queue), BOUND.pack(0, bounds.maximum + 7))
    engine.write(batch)
    engine.flush((ENTRIES_FAMILY, OFFSET_FAMILY))
    engine.close()
    with capture_logs() as lines:
        store = opened(root)
    (line,) = [line for line in lines if "minimum above their maximum" in line["event"]]
    assert line["queues"] == len(found)
    for queue, bounds in found.items():
        entries = store.messages.entries(queue, bounds.minimum, 1_000)
        assert [entry.queue_offset for entry in entries] == list(range(bounds.minimum, bounds.maximum)), queue
    queue, bounds = next(iter(found.items()))
    store.messages.append([message(queue.topic, queue.number, b"next")])
    store.messages.dispatch(store.messages.flush())
    (entry,) = store.messages.entries(queue, bounds.maximum, 10)
    assert store.messages.read(entry).body.tobytes() == b"next"
    assert store.messages.bounds(queue) == (bounds.minimum, bounds.maximum + 1)
    store.close()
    with capture_logs() as lines:
        opened(root).close()
    assert not [line for line in lines if "minimum above their maximum" in line["event"]]
