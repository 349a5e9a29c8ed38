"""Light queues whose names no file can have: files leave them out, and everything else knows that."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY, entry_key, maximum_key, minimum_key
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.tools.queue_migration import Orders, Target, migrate
from quarry_mq.store.verify import Check, Note
from tests.store.assembly import message
from tests.store.test_queue_modes import opened
from tests.verify.stores import delete, differences, differing, queue_rows, verified

NAMES = ("%LMQ%" + "x" * 300, "%LMQ%" + "ü" * 126, "%LMQ%a/b")
FITS = "%LMQ%" + "y" * 250
ORDERS = QueueId("orders", 0)


def send(store: OpenStore, count: int) -> None:
    for number in range(count):
        names = ",".join((FITS, *NAMES))
        store.messages.append([message("orders", 0, b"%d" % number, INNER_MULTI_DISPATCH=names)])
    store.messages.dispatch(store.messages.flush())


def filled(root: Path, mode: QueueMode) -> Path:
    store = opened(root, mode)
    store.topics.create(Topic("orders", TopicType.NORMAL, 1, 1, READ_WRITE, {}))
    send(store, 5)
    store.close()
    return root


def migrated(root: Path, target: Target, **more: bool) -> None:
    orders = Orders(target=target, asked_by="operator", remove_old=False, **more)
    done = migrate(PosixDisk(), ManualClock(), root, orders, report=lambda _: None)
    assert done.phase is target.phase


def test_a_store_with_queues_in_files_agrees_without_them(tmp_path: Path) -> None:
    root = filled(tmp_path, QueueMode.FILE)
    report = verified(root)
    assert report.differences == []
    assert report.notes == {Note.NO_FILE_NAME: 5 * len(NAMES)}
    store = opened(root)
    assert sorted(queue.topic for queue in store.messages.iterate_queues()) == [FITS, "orders"]
    assert [store.messages.may_have_queue(name) for name in (FITS, *NAMES)] == [True] + [False] * len(NAMES)
    for name in NAMES:
        assert store.messages.bounds(QueueId(name, 0)) == (0, 0)
        assert store.messages.entries(QueueId(name, 0), QueueOffset(0), 10) == []
        assert store.messages.delete_topic(name) == 0
    store.close()


def test_a_store_that_came_to_rocksdb_has_them_from_then_on(tmp_path: Path) -> None:
    root = filled(tmp_path, QueueMode.FILE)
    migrated(root, Target.ROCKSDB)
    assert verified(root).differences == []
    store = opened(root)
    assert all(map(store.messages.may_have_queue, NAMES))
    send(store, 3)
    for name in NAMES:
        queue = QueueId(name, 0)
        bodies = [
            store.messages.read(entry).body.tobytes() for entry in store.messages.entries(queue, QueueOffset(0), 9)
        ]
        assert bodies == [b"0", b"1", b"2"]
    store.close()
    report = verified(root)
    assert report.differences == []
    assert report.notes[Note.NO_FILE_NAME] == 5 * len(NAMES)
    with queue_rows(root) as engine:
        delete(engine, ENTRIES_FAMILY, entry_key(QueueId(NAMES[0], 0), QueueOffset(1)))
    (difference,) = [each for each in differences(root) if each.check is Check.RECORDS]
    assert (difference.queue, difference.queue_offset) == (QueueId(NAMES[0], 0), 1)


def test_a_store_that_never_had_files_misses_them(tmp_path: Path) -> None:
    root = filled(tmp_path, QueueMode.ROCKSDB)
    queue = QueueId(NAMES[0], 0)
    with queue_rows(root) as engine:
        for key in (maximum_key(queue), minimum_key(queue)):
            delete(engine, OFFSET_FAMILY, key)
        for offset in range(5):
            delete(engine, ENTRIES_FAMILY, entry_key(queue, QueueOffset(offset)))
    assert Check.RECORDS in differing(root)


@pytest.mark.parametrize("phase", [None, QueuePhase.VERIFIED, QueuePhase.READING_ROCKSDB])
def test_a_way_to_files_that_would_lose_them_names_them(tmp_path: Path, phase: QueuePhase | None) -> None:
    root = filled(tmp_path, QueueMode.ROCKSDB if phase is None else QueueMode.DOUBLE_WRITE)
    if phase is not None:
        store = opened(root)
        store.identity.queue_phase = phase.value
        store.close()
    with pytest.raises(
        StoreUnusable, match=r"3 light queues have names that are not possible as file names \(.*%LMQ%a/b.*\)"
    ):
        migrated(root, Target.FILE)
    assert verified(root).differences == []
    migrated(root, Target.FILE, leave_out_names=True)
    report = verified(root)
    assert report.differences == []
    assert report.notes[Note.NO_FILE_NAME] == 5 * len(NAMES)


def test_a_migration_that_is_taken_back_tells_which_are_gone(tmp_path: Path) -> None:
    filled(tmp_path, QueueMode.DOUBLE_WRITE)
    store = opened(tmp_path)
    assert store.queues.phase is QueuePhase.DOUBLE_WRITE
    assert all(map(store.messages.may_have_queue, NAMES))
    with capture_logs() as lines:
        store.migration.switch(QueuePhase.FILE, "operator", None)()
    (line,) = [line for line in lines if "no file can have" in line["event"]]
    assert (sorted(line["names"]), line["count"]) == (sorted(NAMES), len(NAMES))
    assert not any(map(store.messages.may_have_queue, NAMES))
    store.close()
    assert verified(tmp_path).differences == []
