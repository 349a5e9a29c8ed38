"""Entries from before double write come from queue files into RocksDB, and nothing else does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.migration import AgreementReport, Backfill
from quarry_mq.store.opening.open_store import OpenStore
from tests.migration.test_machine import opened
from tests.migration.walking import advance, backfill
from tests.store.assembly import message
from tests.store.test_queue_modes import LITE, ORDERS, crash, entries, send

GoldenStore = Callable[[str], Path]
BILLS = QueueId("bills", 0)


def append(store: OpenStore, queue: QueueId, count: int, *, size: int = 10, light: str = "") -> None:
    properties = {LIGHT_QUEUES: light} if light else {}
    for _ in range(count):
        store.messages.append([message(queue.topic, queue.number, b"x" * size, **properties)])
    store.messages.dispatch(store.messages.flush())


def backfilling(store: OpenStore) -> OpenStore:
    while store.migration.phase is not QueuePhase.BACKFILLING:
        advance(store)
    return store


def in_rocks(store: OpenStore, queue: QueueId) -> list[ConsumeQueueEntry]:
    assert store.queues.rocks is not None
    return store.queues.rocks.entries(queue, QueueOffset(0), 100_000)


def compared(store: OpenStore) -> AgreementReport:
    comparison = store.migration.comparison("test")
    while comparison.step():
        pass
    comparison.close()
    return comparison.report()


def begun(store: OpenStore) -> Backfill:
    work = store.migration.backfill()
    assert work is not None
    return work


@pytest.fixture
def old(tmp_path: Path) -> OpenStore:
    """A store in files with forty messages, opened again without the setting that made it so."""
    store = opened(tmp_path, QueueMode.FILE)
    send(store, 40)
    append(store, BILLS, 20, light="%LMQ%other")
    store.close()
    return opened(tmp_path)


def test_all_that_the_files_have_is_in_rocksdb_then(old: OpenStore) -> None:
    store = backfilling(old)
    send(store, 5)
    assert [each.queue_offset for each in in_rocks(store, ORDERS)] == [*range(40, 45)]
    backfill(store)
    for queue in (ORDERS, BILLS, LITE, QueueId("%LMQ%other", 0)):
        found = in_rocks(store, queue)
        assert [each._replace(store_timestamp_ms=None) for each in found] == entries(store, queue)
        assert all(each.store_timestamp_ms for each in found)
    assert store.migration.is_backfilled
    assert compared(store).agrees
    store.close()


def test_a_topic_that_was_deleted_does_not_come_back(old: OpenStore) -> None:
    """The log still has its records."""
    old.messages.delete_topic("bills")
    store = backfilling(old)
    append(store, BILLS, 3)
    backfill(store)
    assert [each.queue_offset for each in in_rocks(store, BILLS)] == [0, 1, 2]
    assert compared(store).agrees
    store.close()


def test_a_topic_that_is_deleted_and_begins_again_before_double_write(old: OpenStore) -> None:
    for topic in ("bills", "%LMQ%other", LITE.topic):
        old.messages.delete_topic(topic)
    append(old, BILLS, 7, light="%LMQ%other")
    store = backfilling(old)
    backfill(store)
    for queue in (BILLS, QueueId("%LMQ%other", 0)):
        assert [each.queue_offset for each in in_rocks(store, queue)] == [*range(7)]
    assert in_rocks(store, LITE) == []
    assert compared(store).agrees
    store.close()


@pytest.mark.parametrize("restart_at", [False, True])
def test_a_topic_that_is_deleted_between_the_look_and_the_put(old: OpenStore, restart_at: bool) -> None:
    store = backfilling(old)
    work = begun(store)
    portion = work.read()
    assert portion is not None
    store.messages.delete_topic("bills")
    if restart_at:
        append(store, BILLS, 2)
    assert work.is_stale(portion)
    work.look_up_again(portion)
    assert not work.is_stale(portion)
    while work.put(portion):
        pass
    work.close()
    assert [each.queue_offset for each in in_rocks(store, BILLS)] == ([0, 1] if restart_at else [])
    backfill(store)
    assert compared(store).agrees
    store.close()


def test_a_queue_whose_records_have_all_expired_goes_on_where_it_did(tmp_path: Path) -> None:
    """rmq#8753: the log alone does not tell where it does."""
    store = opened(tmp_path, QueueMode.FILE)
    append(store, BILLS, 9)
    while len(store.segments) < 3:
        append(store, ORDERS, 10, size=2000)
    store.messages.flush_queues()
    expired = store.segments.bases[1]
    store.expiry.announce(expired)
    assert store.expiry.retire(expired) == expired
    store.expiry.remover.run()
    store.close()
    store = backfilling(opened(tmp_path))
    backfill(store)
    assert store.queues.rocks is not None
    assert store.queues.rocks.bounds(BILLS) == store.messages.bounds(BILLS) == (9, 9)
    assert compared(store).agrees
    while store.migration.phase is not QueuePhase.ROCKSDB:
        advance(store)
    append(store, BILLS, 1)
    assert [each.queue_offset for each in entries(store, BILLS)] == [9]
    store.close()


def test_segments_that_expire_meanwhile(tmp_path: Path) -> None:
    store = opened(tmp_path, QueueMode.FILE)
    while len(store.segments) < 4:
        append(store, ORDERS, 10, size=2000)
    store.close()
    store = backfilling(opened(tmp_path))
    store.messages.flush_queues()
    work = begun(store)
    assert work.at == 0
    expired = store.segments.bases[2]
    store.expiry.announce(expired)
    assert store.expiry.retire(expired) == expired
    portion = work.read()
    assert portion is not None
    assert int(portion.found.physical_offset.min()) >= expired
    work.close()
    backfill(store)
    assert compared(store).agrees
    store.close()


def test_a_backfill_that_was_killed_goes_on(old: OpenStore, tmp_path: Path) -> None:
    store = backfilling(old)
    work = begun(store)
    portion = work.read()
    assert portion is not None
    work.put(portion)
    work.close()
    crash(store)
    store = opened(tmp_path)
    assert not store.migration.is_backfilled
    backfill(store)
    assert compared(store).agrees
    store.close()
    store = opened(tmp_path)
    assert store.migration.backfill() is None
    store.close()


def test_what_a_power_cut_took_from_the_log_is_not_waited_for(old: OpenStore) -> None:
    store = backfilling(old)
    store.identity.backfill_end = PhysicalOffset(store.messages.dispatched_up_to + 10_000)
    backfill(store)
    assert store.migration.is_backfilled
    store.close()


def test_only_the_topics_that_are_written_twice(tmp_path: Path) -> None:
    """rmq#10450."""
    store = opened(tmp_path, QueueMode.FILE)
    append(store, BILLS, 5)
    append(store, ORDERS, 5)
    store.close()
    store = backfilling(opened(tmp_path, doubled=("bill*",)))
    backfill(store)
    assert (len(in_rocks(store, BILLS)), in_rocks(store, ORDERS)) == (5, [])
    store.close()


@pytest.mark.parametrize("name", ["file-clean", "file-kill"])
def test_a_file_store_of_rocketmq_becomes_what_a_rebuild_makes_of_it(
    golden_store: GoldenStore, tmp_path: Path, name: str
) -> None:
    """Light queues named twice in one message have other numbers in RocketMQ's files than in its records."""
    for copy in ("one", "other"):
        shutil.copytree(golden_store(name) / "store", tmp_path / copy)
    opened(tmp_path / "one", QueueMode.FILE).close()
    store = opened(tmp_path / "one")
    while store.migration.phase is not QueuePhase.ROCKSDB:
        backfill(store)
        if store.migration.phase is QueuePhase.BACKFILLING:
            assert compared(store).agrees
        advance(store)
    other = opened(tmp_path / "other")
    assert other.queues.rocks is not None
    found = {queue: in_rocks(store, queue) for queue in store.messages.iterate_queues()}
    assert found == {queue: in_rocks(other, queue) for queue in other.messages.iterate_queues()}
    assert sum(map(len, found.values())) > 1000
    for queue in found:
        assert store.messages.bounds(queue) == other.messages.bounds(queue)
    store.close()
    other.close()
