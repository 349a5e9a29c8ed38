"""Queues made anew on Spark, beside what a broker's own dispatch makes of the same log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from quarry_mq.kv import KeyRange
from quarry_mq.pipeline.rebuild import rebuild
from quarry_mq.pipeline.rebuild.log_entries import entry_rows, sample_keys
from quarry_mq.pipeline.rebuild.tables import SortedEntries
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks_layout import (
    CHECKPOINT_KEY,
    ENTRIES_FAMILY,
    ENTRY,
    I64,
    OFFSET_FAMILY,
    entry_prefix,
)
from quarry_mq.store.errors import StoreLocked, StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.pending.rows import TIMER_TOPIC
from quarry_mq.store.record import encode_record
from quarry_mq.store.scan import scan_log
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.tools.queue_migration import Orders, Target
from quarry_mq.store.tools.queue_migration import migrate as migrate_alone
from quarry_mq.store.verify import verify
from quarry_mq.store.verify.log import entries_in
from quarry_mq.store.verify.report import Check
from tests import golden
from tests.conftest import GoldenStore
from tests.pipeline.tables import messages, table
from tests.record.records import message
from tests.scan.logs import random_messages, sent, write_log
from tests.store.assembly import message as to_store
from tests.store.test_deletions import live_through_deletions
from tests.verify.faults import fill_everything
from tests.verify.stores import fill

Pairs = dict[bytes, bytes]


def open_and_close(root: Path, mode: QueueMode | None = None) -> None:
    """A start of the store, which makes what is missing, and a stop in good order."""
    settings_ = StoreSettings(root=root, queue_mode=mode)
    open_store(settings_, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None).close()


def families(root: Path) -> dict[str, Pairs]:
    """Everything in the database of the queues."""
    engine = open_consume_queue_engine(inspect_store(PosixDisk(), root).rocksdb_directory, create=False, read_only=True)
    try:
        everything = KeyRange(b"", None)
        return {name: dict(engine.family(name).iterate(everything)) for name in (ENTRIES_FAMILY, OFFSET_FAMILY)}
    finally:
        engine.close()


def differences(root: Path) -> list[object]:
    with OfflineStore.open(PosixDisk(), root) as store:
        return list(verify(store, lambda _: None).differences)


@pytest.mark.parametrize("split_bytes", [300_000, pytest.param(64 << 20, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "rocks-clean")) for name in golden.NAMES]
)
def test_a_rebuild_is_what_dispatch_makes_of_the_log(
    spark: SparkSession, tmp_path: Path, name: str, split_bytes: int
) -> None:
    ours, theirs = (golden.unpack(name, tmp_path / each) / "store" for each in ("ours", "theirs"))
    for root in (ours, theirs):
        without_database(root)
    open_and_close(theirs)
    rebuilt = rebuild(spark, PosixDisk(), ours, split_bytes=split_bytes)
    expected = families(theirs)
    assert families(ours) == expected
    assert (rebuilt.queues.entries, rebuilt.queues.queues) == (
        len(expected[ENTRIES_FAMILY]),
        len(expected[OFFSET_FAMILY]) - 1,
    )
    assert rebuilt.queues.dispatched_up_to == I64.unpack(expected[OFFSET_FAMILY][CHECKPOINT_KEY])[0]
    assert rebuilt.aside is None
    open_and_close(ours)
    assert families(ours) == expected
    assert differences(ours) == []


def test_messages_that_wait_and_keys_are_found_again(spark: SparkSession, tmp_path: Path) -> None:
    """The databases and the index are gone, as from a backup of the log alone; the broker starts on what was made."""
    root = tmp_path / "store"
    fill_everything(root)
    with closing(opened(root)) as running:
        due_ms = SystemClock().wall_ms() + 3_600_000
        for number in range(5):
            timer = {"TIMER_OUT_MS": str(due_ms + number), "REAL_TOPIC": "orders", "REAL_QID": "0"}
            running.messages.append([to_store(TIMER_TOPIC, 0, b"later", **timer)])
        running.messages.dispatch(running.messages.flush())
        waiting = list(running.messages.pending.waiting_messages())
    assert len(waiting) == 5
    migrate_alone(PosixDisk(), SystemClock(), root, Orders(target=Target.ROCKSDB, asked_by="me"), report=lambda _: None)
    expected = families(root), table_rows(root, "index")
    paths = StorePaths(root)
    for directory in (paths.pending_messages, paths.consume_queue_rocksdb, paths.key_index):
        shutil.rmtree(directory)
    rebuilt = rebuild(spark, PosixDisk(), root, split_bytes=60_000)
    assert rebuilt.waiting == 5
    assert rebuilt.index is not None
    assert (families(root), table_rows(root, "index")) == expected
    assert differences(root) == []
    with closing(opened(root)) as running:
        assert list(running.messages.pending.waiting_messages()) == waiting


@pytest.mark.slow
def test_no_index_is_made_unless_there_was_one_or_it_is_wanted(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root)
    assert rebuild(spark, PosixDisk(), root).index is None
    made = rebuild(spark, PosixDisk(), root, with_index=True).index
    assert made is not None
    assert rebuild(spark, PosixDisk(), root, with_index=False).index is None
    assert rebuild(spark, PosixDisk(), root).index is not None


def opened(root: Path) -> OpenStore:
    return open_store(StoreSettings(root=root), disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)


def table_rows(root: Path, name: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row[each] for each in ("index", "keyHash", "phyOffset")) for row in table(root, table=name))


def without_database(root: Path) -> None:
    """Remove the queues in RocksDB: what lies in the log is all there is."""
    directory = inspect_store(PosixDisk(), root).rocksdb_directory
    for path in directory.iterdir() if directory.exists() else ():
        if path.is_file():
            path.unlink()


@pytest.mark.slow
def test_an_old_database_is_set_aside(spark: SparkSession, golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    open_and_close(root)
    before = families(root)
    found = inspect_store(PosixDisk(), root).rocksdb_directory
    rebuilt = rebuild(spark, PosixDisk(), root)
    assert rebuilt.aside is not None
    assert rebuilt.aside.name.startswith(f"{found.name}.set-aside-")
    after = families(root)
    assert after[ENTRIES_FAMILY] == before[ENTRIES_FAMILY]
    again = rebuild(spark, PosixDisk(), root)
    assert again.aside != rebuilt.aside
    assert families(root) == after


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed(spark: SparkSession, golden_copy: GoldenStore) -> None:
    root = golden_copy("file-clean") / "store"
    for name in ("consumequeue_rocksdb.rebuilding", "consumequeue_rocksdb.rebuilding-tables"):
        (root / name).mkdir()
        (root / name / "000001.sst").write_bytes(b"half")
    rebuild(spark, PosixDisk(), root)
    assert not list(root.glob("*.rebuilding*"))
    open_and_close(root)
    assert differences(root) == []


def test_a_queue_that_began_again_is_rebuilt_across_ranges(spark: SparkSession, tmp_path: Path) -> None:
    """Its topic was deleted: there are two records with each number, and ranges of keys meet between them."""
    log = bytearray()
    each, raw = sent(message(properties={"TAGS": "blue"}))
    for number in [*range(200), *range(150)]:
        log += encode_record(each, QueueOffset(number), PhysicalOffset(len(log)), 1_000, raw, crc_property=True)
    disk = PosixDisk()
    for root in (tmp_path / "ours", tmp_path / "theirs"):
        directory = StorePaths(root).commit_log
        disk.make_directories(directory)
        segment = disk.create_segment(directory / f"{0:020}", 1 << 20)
        segment.write(0, bytes(log))
        segment.close()
    open_and_close(tmp_path / "theirs")
    rebuilt = rebuild(spark, disk, tmp_path / "ours", split_bytes=8_000)
    assert rebuilt.queues.entries == 150
    assert families(tmp_path / "ours") == families(tmp_path / "theirs")


def test_what_was_deleted_does_not_come_back(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with closing(opened(root)) as running:
        live_through_deletions(running)
        queue = QueueId("orders", 1)
        bounds = running.messages.bounds(queue)
    expected = families(root)
    without_database(root)
    rebuild(spark, PosixDisk(), root, split_bytes=500)
    assert families(root) == expected
    with closing(opened(root)) as running:
        assert running.messages.bounds(queue) == bounds
        assert not running.identity.queues_made_again, "where empty queues go on is settled"
    assert families(root) == expected
    with OfflineStore.open(PosixDisk(), root) as store:
        found = verify(store, lambda _: None).differences
    assert {each.check for each in found} == {Check.TOPICS}, "these topics have no metadata"


@pytest.mark.slow
def test_a_log_without_messages(spark: SparkSession, tmp_path: Path) -> None:
    disk, directory = PosixDisk(), StorePaths(tmp_path).commit_log
    disk.make_directories(directory)
    disk.create_segment(directory / f"{0:020}", 1 << 20).close()
    rebuilt = rebuild(spark, disk, tmp_path)
    assert (rebuilt.queues.entries, rebuilt.queues.queues, rebuilt.queues.tables) == (0, 0, 0)
    assert families(tmp_path) == {ENTRIES_FAMILY: {}, OFFSET_FAMILY: {CHECKPOINT_KEY: I64.pack(0)}}
    open_and_close(tmp_path)


def test_damage_ends_it_and_leaves_the_store_as_it_was(spark: SparkSession, golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    open_and_close(root)
    before = families(root)
    wrong = messages(root, columns="phyOffset")[100]["phyOffset"]
    with (StorePaths(root).commit_log / f"{0:020}").open("r+b") as file:
        file.seek(wrong + 89)
        file.write(b"\xff\xfe\xfd")
    with pytest.raises(PySparkException, match=f"offset {wrong}: "):
        rebuild(spark, PosixDisk(), root)
    assert families(root) == before


def test_a_store_that_a_broker_runs_on_is_refused(spark: SparkSession, golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    lock = PosixDisk().lock(StorePaths(root).lock)
    try:
        with pytest.raises(StoreLocked, match="stop it first"):
            rebuild(spark, PosixDisk(), root)
    finally:
        lock.release()


def test_queues_in_files_are_left_to_a_migration(spark: SparkSession, golden_copy: GoldenStore) -> None:
    root = golden_copy("file-clean") / "store"
    open_and_close(root, QueueMode.FILE)
    with pytest.raises(StoreUnusable, match="`quarry pipeline migrate`"):
        rebuild(spark, PosixDisk(), root)


def test_no_store(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="no store"):
        rebuild(spark, PosixDisk(), tmp_path)


# -- sorting

QUEUE = entry_prefix(QueueId("orders", 3))
OTHER = entry_prefix(QueueId("orders", 4))


def one_by_one(records: Sequence[tuple[bytes, int]]) -> Pairs:
    """What a broker holds after these: a number that a queue has given away before means that it began anew."""
    kept: dict[tuple[bytes, int], int] = {}
    for place, (prefix, offset) in enumerate(records):
        for key in [key for key in kept if key[0] == prefix and key[1] >= offset]:
            del kept[key]
        kept[prefix, offset] = place
    return {prefix + I64.pack(offset): ENTRY.pack(place, 1, 2, 3) for (prefix, offset), place in kept.items()}


def sorted_rows(records: Sequence[tuple[bytes, int]]) -> Iterator[tuple[bytes, bytes]]:
    rows = [(prefix + I64.pack(offset), ENTRY.pack(at, 1, 2, 3)) for at, (prefix, offset) in enumerate(records)]
    return iter(sorted(rows))


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from([QUEUE, OTHER]), st.integers(0, 6)), max_size=25))
def test_queues_that_began_again_hold_their_last_life(records: list[tuple[bytes, int]]) -> None:
    entries = SortedEntries()
    pairs = list(entries.pairs(sorted_rows(records)))
    expected = one_by_one(records)
    assert dict(pairs) == expected
    assert [key for key, _ in pairs] == sorted(expected)
    assert entries.entries == len(expected)
    last = {queue.prefix: (queue.last_offset, queue.last_place) for queue in entries.queues}
    assert last == {
        key[:-8]: (I64.unpack(key[-8:])[0], ENTRY.unpack(value)[0]) for key, value in sorted(expected.items())
    }


# -- ranges of keys


@pytest.mark.parametrize("counts_light", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_every_entry_is_in_the_range_of_its_key(tmp_path: Path, seed: int, *, counts_light: bool) -> None:
    random = Random(seed)
    write_log(PosixDisk(), random_messages(random, 200), directory=StorePaths(tmp_path).commit_log).close()
    with OfflineStore.open(PosixDisk(), tmp_path) as store:
        batches = list(scan_log(store.segments, store.minimum))
        keys = sorted(key for batch in batches for key in sample_keys(batch))
        cuts = sorted(set(random.sample(keys, 7)))
        parts: dict[int, list[bytes]] = {}
        for batch in batches:
            for row in entry_rows(entries_in(batch), cuts, counts_light=counts_light).to_pylist():
                parts.setdefault(row["part"], []).append(row["key"])
                if not counts_light:
                    assert row["part"] == sum(cut <= row["key"] for cut in cuts)
        assert sum(map(len, parts.values())) == len(keys)
        if counts_light:
            light = [{key[:-8] for key in keys if b"%LMQ%" in key} for keys in parts.values()]
            assert len(set().union(*light)) == sum(map(len, light)), "all of a light queue is in one range"
