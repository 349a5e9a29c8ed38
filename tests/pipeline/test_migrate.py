"""File queues taken to RocksDB on Spark, beside `quarry migrate` on the same store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from quarry_mq.pipeline.migrate import migrate
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.consumequeue.files.layout import ENTRY_SIZE
from quarry_mq.store.errors import StoreLocked
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.tools.queue_migration import Migrated, Orders, Target
from quarry_mq.store.tools.queue_migration import migrate as migrate_alone
from tests import golden
from tests.pipeline.test_rebuild import families
from tests.store.assembly import message
from tests.verify.stores import LIGHT, verified

SEGMENT_SIZE = 64 * 1024


def on_spark(spark: SparkSession, root: Path, *, split_bytes: int = 30_000, remove_old: bool = False) -> Migrated:
    return migrate(
        spark,
        PosixDisk(),
        SystemClock(),
        root,
        asked_by="a test",
        report=lambda _: None,
        remove_old=remove_old,
        split_bytes=split_bytes,
    )


def alone(root: Path) -> Migrated:
    orders = Orders(target=Target.ROCKSDB, asked_by="a test")
    return migrate_alone(PosixDisk(), SystemClock(), root, orders, report=lambda _: None)


def opened(root: Path) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=SEGMENT_SIZE, queue_mode=QueueMode.FILE, units_per_file=40)
    return open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)


def send(store: OpenStore, topic: str, count: int) -> None:
    for number in range(count):
        light = {"INNER_MULTI_DISPATCH": f"{LIGHT},{LIGHT}{number % 3}"} if number % 4 == 0 else {}
        store.messages.append([message(topic, number % 2, b"%d " % number * 100, TAGS=f"tag{number % 5}", **light)])
    store.messages.dispatch(store.messages.flush())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A topic that was deleted and made anew, another whose records have all expired, light queues in several."""
    root = tmp_path / "store"
    running = opened(root)
    for name in ("early", "orders", "bills"):
        running.topics.create(Topic(name, TopicType.NORMAL, 2, 2, READ_WRITE, {}))
    send(running, "early", 200)
    send(running, "orders", 150)
    running.messages.flush_queues()
    running.messages.delete_topic("orders")
    send(running, "orders", 60)
    send(running, "bills", 300)
    running.close()
    (StorePaths(root).commit_log / f"{0:020}").unlink()
    return root


def copied(root: Path) -> Path:
    return Path(shutil.copytree(root, root.with_name("copy")))


@pytest.mark.parametrize("name", ["file-clean", pytest.param("file-kill", marks=pytest.mark.slow)])
def test_a_store_of_rocketmq_comes_to_the_same(spark: SparkSession, tmp_path: Path, name: str) -> None:
    ours, theirs = (golden.unpack(name, tmp_path / each) / "store" for each in ("ours", "theirs"))
    done, expected = on_spark(spark, ours, split_bytes=300_000), alone(theirs)
    assert done.phase is QueuePhase.ROCKSDB
    assert done.report is not None
    assert expected.report is not None
    assert (done.report.agrees, done.report.units) == (True, expected.report.units)
    assert families(ours) == families(theirs)
    assert done.aside == ours / "consumequeue.set-aside-0"
    assert verified(ours).agrees


@pytest.mark.parametrize("split_bytes", [20_000, pytest.param(64 << 20, marks=pytest.mark.slow)])
def test_deleted_expired_and_light_queues_come_to_the_same(spark: SparkSession, store: Path, split_bytes: int) -> None:
    other = copied(store)
    done, expected = on_spark(spark, store, split_bytes=split_bytes), alone(other)
    assert done.report is not None
    assert expected.report is not None
    assert (done.phase, done.report.units) == (QueuePhase.ROCKSDB, expected.report.units)
    assert families(store) == families(other)
    assert verified(store).agrees


def test_it_may_be_run_again_and_old_queues_removed(spark: SparkSession, store: Path) -> None:
    done = on_spark(spark, store, remove_old=True)
    assert (done.origin, done.phase, done.aside) == (QueuePhase.FILE, QueuePhase.ROCKSDB, None)
    before = families(store)
    again = on_spark(spark, store)
    assert (again.origin, again.report) == (QueuePhase.ROCKSDB, None)
    assert families(store) == before
    assert not [each for each in store.iterdir() if "migrating" in each.name]


def test_an_entry_that_says_something_else_than_the_log_is_told_and_nothing_changes(
    spark: SparkSession, store: Path
) -> None:
    file = StorePaths(store).consume_queue / "bills" / "0" / f"{0:020}"
    octets = bytearray(file.read_bytes())
    octets[7 * ENTRY_SIZE + 11] ^= 1
    file.write_bytes(octets)
    done = on_spark(spark, store)
    assert (done.origin, done.phase) == (QueuePhase.FILE, QueuePhase.FILE)
    assert done.report is not None
    (first,) = done.report.first
    assert (first.kind, first.topic, first.queue_number, first.queue_offset) == ("size", "bills", 0, 7)
    assert file.read_bytes() == octets


def test_damage_in_the_log_ends_it_and_leaves_the_files(spark: SparkSession, store: Path) -> None:
    opened(store).close()
    segment = StorePaths(store).commit_log / f"{SEGMENT_SIZE:020}"
    octets = bytearray(segment.read_bytes())
    octets[octets.index(b" 199 199 ") + 2] ^= 1
    segment.write_bytes(octets)
    with pytest.raises(PySparkException, match=f"{segment.name}.*the body does not match its CRC"):
        on_spark(spark, store)
    running = opened(store)
    assert running.queues.phase is QueuePhase.FILE
    running.close()


def test_a_store_that_a_broker_runs_on_is_refused(spark: SparkSession, store: Path) -> None:
    lock = PosixDisk().lock(StorePaths(store).lock)
    with pytest.raises(StoreLocked):
        on_spark(spark, store)
    lock.release()
