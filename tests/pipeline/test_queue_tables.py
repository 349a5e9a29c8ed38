"""The tables `units` and `queues` beside what the offline store reads of the same queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In

from quarry_mq.kv import FamilyOptions, RocksEngine
from quarry_mq.pipeline.source.derived.entries import Stretch, _cut
from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.store.errors import NotAStore, StoreDamaged, StoreLocked
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.offline import OfflineStore, QueueSource
from tests.conftest import GoldenStore
from tests.pipeline.tables import Row, reader, rows_of, table

SOURCES = [
    ("file-clean", "file"),
    ("file-kill", "file"),
    ("rocks-clean", "rocksdb"),
    ("double-clean", "rocksdb"),
    ("double-clean", "file"),
]


def expected_entries(root: Path, source: str) -> Iterator[Row]:
    with OfflineStore.open(PosixDisk(), root) as store:
        for queue, bounds in store.queues(QueueSource(source)):
            if bounds.minimum < bounds.maximum:
                for entry in store.entries(queue, source=QueueSource(source)):
                    yield {
                        "topic": queue.topic,
                        "queueId": queue.number,
                        "queueOffset": entry.queue_offset,
                        "phyOffset": entry.physical_offset,
                        "size": entry.size,
                        "tagsCode": entry.tags_code,
                        "storeTimestamp": entry.store_timestamp_ms,
                    }


def by_place(rows: Iterator[Row] | list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


@pytest.mark.parametrize("split_bytes", [64 * 40, 1 << 30])
@pytest.mark.parametrize(("name", "source"), SOURCES)
def test_entries_are_those_of_the_queues(golden_store: GoldenStore, name: str, source: str, split_bytes: int) -> None:
    root = golden_store(name) / "store"
    found = table(root, table="units", source=source, splitBytes=split_bytes)
    expected = by_place(expected_entries(root, source))
    assert by_place(found) == expected
    assert len(expected) > 100


@pytest.mark.parametrize(("name", "source"), SOURCES)
def test_entries_of_some_topics_read_no_others(golden_store: GoldenStore, name: str, source: str) -> None:
    root = golden_store(name) / "store"
    everything = by_place(expected_entries(root, source))
    topics = sorted({row["topic"] for row in everything})
    for some in (topics[:1], topics[-3:], ["no such topic"], [topics[0], "no such topic", topics[-1]]):
        for split_bytes in (64 * 40, 1 << 30):
            narrowed = reader(root, table="units", source=source, splitBytes=split_bytes)
            assert not list(
                narrowed.pushFilters([In(("topic",), tuple(some)), GreaterThanOrEqual(("queueOffset",), 1)])
            )
            read = sum(len(rows) for part in narrowed.partitions() for rows in narrowed.rows(part))
            assert read == sum(row["topic"] in some for row in everything)
            found = by_place(rows_of(narrowed))
            assert found == [row for row in everything if row["topic"] in some and row["queueOffset"] >= 1]


@pytest.mark.parametrize(("name", "source"), SOURCES)
def test_queues_have_the_bounds_that_the_store_tells(golden_store: GoldenStore, name: str, source: str) -> None:
    root = golden_store(name) / "store"
    with OfflineStore.open(PosixDisk(), root) as store:
        expected = [
            {
                "topic": queue.topic,
                "queueId": queue.number,
                "minOffset": bounds.minimum,
                "maxOffset": bounds.maximum,
            }
            for queue, bounds in store.queues(QueueSource(source))
        ]
    assert table(root, table="queues", source=source) == expected
    some = expected[0]["topic"]
    assert table(root, EqualTo(("topic",), some), table="queues", source=source) == [
        row for row in expected if row["topic"] == some
    ]


def test_queues_are_read_where_a_broker_would_read_them(golden_store: GoldenStore) -> None:
    root = golden_store("rocks-clean") / "store"
    assert table(root, table="queues") == table(root, table="queues", source="rocksdb")
    with pytest.raises(NotAStore, match="no file queues"):
        table(root, table="queues", source="file")


@pytest.mark.parametrize("name", ["units", "queues"])
def test_a_store_that_a_broker_runs_on_is_refused(golden_copy: GoldenStore, name: str) -> None:
    root = golden_copy("rocks-clean") / "store"
    lock = PosixDisk().lock(StorePaths(root).lock)
    try:
        with pytest.raises(StoreLocked):
            table(root, table=name)
    finally:
        lock.release()


def test_columns_may_be_chosen(golden_store: GoldenStore) -> None:
    root = golden_store("rocks-clean") / "store"
    assert list(table(root, table="units", columns="phyOffset,topic")[0]) == ["phyOffset", "topic"]
    with pytest.raises(InvalidOption, match="no column 'body'; there are topic, queueId, queueOffset,"):
        table(root, table="units", columns="body")


def test_what_is_no_entry_is_reported(golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    with OfflineStore.open(PosixDisk(), root) as store:
        directory = store.found.rocksdb_directory
    families = {name: FamilyOptions() for name in ("default", "offset")}
    engine = RocksEngine.open(directory, families, create=False, write_ahead_log=False)
    batch = engine.batch()
    batch.put(engine.family("default"), b"no unit", b"short")
    engine.write(batch)
    engine.flush(["default", "offset"])
    engine.close()
    with pytest.raises(StoreDamaged, match=f"{directory}: 5 bytes under the key {b'no unit'.hex()}"):
        table(root, table="units")


def test_long_queues_are_divided_and_short_ones_share_a_task() -> None:
    lengths = [1, 2, 25, 4]
    stretches = [Stretch(QueueId("a", 0), QueueOffset(3), QueueOffset(3 + length)) for length in lengths]
    parts = list(_cut(stretches, 10))
    assert [[(begin, end) for _, begin, end in part] for part in parts] == [
        [(3, 4), (3, 5), (3, 10)],
        [(10, 20)],
        [(20, 28), (3, 5)],
        [(5, 7)],
    ]
