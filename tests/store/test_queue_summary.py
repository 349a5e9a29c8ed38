"""Counts of all queues (`quarry queues --summary`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue import queue_summary
from quarry_mq.store.consumequeue.queue_summary import (
    CountedQueue,
    KindSummary,
    QueueKind,
    SummarySource,
    kind_of,
    summarize_queues,
)
from quarry_mq.store.errors import Unavailable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import PhysicalOffset, QueueId
from quarry_mq.store.offline import OfflineStore, QueueSource
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from tests.consumequeue.samples import put, queues_over, request
from tests.store.assembly import message, queue_engine

GoldenStore = Callable[[str], Path]
PLACES = {
    QueueMode.FILE: {"file"},
    QueueMode.ROCKSDB: {"rocksdb"},
    QueueMode.DOUBLE_WRITE: {"file", "rocksdb"},
}


def opened(root: Path, mode: QueueMode | None = None) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=64 * 1024, queue_mode=mode, units_per_file=1_000)
    return open_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None)


@pytest.mark.parametrize("mode", list(QueueMode))
def test_a_store_is_counted_by_kind_size_and_room(tmp_path: Path, mode: QueueMode) -> None:
    store = opened(tmp_path, mode)
    for number in range(30):
        store.messages.append([message("orders", number % 3, INNER_MULTI_DISPATCH=f"%LMQ%client-{number % 10}")])
    store.messages.append(
        [message("%RETRY%billing"), message("%DLQ%billing"), message("rmq_sys_SYNC"), message("bills")]
    )
    store.messages.dispatch(store.messages.flush())
    store.close()
    with OfflineStore.open(PosixDisk(), tmp_path) as offline:
        summary = offline.summary(largest_max=4)
    assert summary.kinds == {
        QueueKind.ORDINARY: KindSummary(queues=4, entries=31),
        QueueKind.RETRY: KindSummary(queues=1, entries=1),
        QueueKind.DEAD_LETTER: KindSummary(queues=1, entries=1),
        QueueKind.SYSTEM: KindSummary(queues=1, entries=1),
        QueueKind.LIGHT: KindSummary(queues=10, entries=30),
    }
    assert {each.entries for each in summary.largest[:3]} == {10}
    assert {each.queue for each in summary.largest[:3]} == {QueueId("orders", number) for number in range(3)}
    assert summary.largest[3].entries == 3
    assert set(summary.disk) == PLACES[mode]
    if mode is not QueueMode.ROCKSDB:
        files = summary.disk["file"]
        assert (files.files, files.apparent_bytes) == (17, 17 * 20_000)
        in_blocks = [path.stat().st_blocks * 512 for path in (tmp_path / "consumequeue").rglob("0*") if path.is_file()]
        assert files.allocated_bytes == sum(in_blocks) > 0, "a file with holes takes less room than its size"
    if mode is not QueueMode.FILE:
        folder = tmp_path / "consumequeue_rocksdb"
        sizes = [path.stat().st_size for path in folder.iterdir() if path.is_file()]
        assert summary.disk["rocksdb"][:2] == (len(sizes), sum(sizes))
        assert summary.stats["default.level_tables.0"] >= 1


@pytest.mark.parametrize("name", ["file-clean", "rocks-clean", "double-clean"])
def test_stores_of_rocketmq_are_counted_as_they_are_listed(golden_store: GoldenStore, name: str) -> None:
    with OfflineStore.open(PosixDisk(), golden_store(name) / "store") as offline:
        summary = offline.summary()
        listed = list(offline.queues())
    assert sum(each.queues for each in summary.kinds.values()) == len(listed) > 20
    assert sum(each.entries for each in summary.kinds.values()) == sum(b.maximum - b.minimum for _, b in listed)
    assert summary.kinds[QueueKind.LIGHT].queues == sum(queue.topic.startswith("%LMQ%") for queue, _ in listed)
    assert len(summary.largest) == 10
    assert summary.largest == sorted(summary.largest, key=lambda each: -each.entries)


def test_one_of_two_places_is_counted_on_request(golden_store: GoldenStore) -> None:
    with OfflineStore.open(PosixDisk(), golden_store("double-clean") / "store") as offline:
        by_source = {source: offline.summary(source) for source in QueueSource}
    assert by_source[QueueSource.FILE].disk == by_source[QueueSource.ROCKSDB].disk
    assert set(by_source[QueueSource.FILE].disk) == {"file", "rocksdb"}


def in_memory(tmp_path: Path, queues: int, minimum: int = 0) -> SummarySource:
    engine = queue_engine()
    made = queues_over(engine)
    put(made, [request(number, QueueId(f"topic-{number}", 0), 0) for number in range(queues)])
    missing = tmp_path / "none"
    return SummarySource(PosixDisk(), missing, missing, engine, reads_rocksdb=True, minimum=PhysicalOffset(minimum))


def test_a_queue_without_a_living_message_is_empty(tmp_path: Path) -> None:
    summary = summarize_queues(in_memory(tmp_path, 10, minimum=400), largest_max=3)
    assert summary.kinds[QueueKind.ORDINARY] == KindSummary(queues=10, empty=4, entries=6)


def test_what_an_expiry_removed_does_not_count(tmp_path: Path) -> None:
    engine = queue_engine()
    queues = queues_over(engine)
    put(queues, [request(number, QueueId("orders", 0), number) for number in range(100)])
    queues.set_minimum_physical_offset(PhysicalOffset(9_000))
    source = in_memory(tmp_path, 1)._replace(engine=engine, minimum=PhysicalOffset(9_000))
    assert summarize_queues(source, largest_max=1).largest == [CountedQueue(QueueId("orders", 0), 100)]
    found = queues.expired_entries().step()
    assert queues.drop(found.ranges, removals=queues.removals)
    assert queues.store_min_offsets(found.min_offsets, removals=queues.removals)
    assert summarize_queues(source, largest_max=1).largest == [CountedQueue(QueueId("orders", 0), 10)]


def test_it_goes_in_pages_and_ends_when_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_summary, "ROWS_PER_SCAN", 7)
    source = in_memory(tmp_path, 100)
    asked = 0

    def go_on() -> bool:
        nonlocal asked
        asked += 1
        return asked < 5

    assert summarize_queues(source, largest_max=100).kinds[QueueKind.ORDINARY].queues == 100
    with pytest.raises(Unavailable):
        summarize_queues(source, largest_max=1, go_on=go_on)
    assert asked == 5


def test_kinds_go_by_the_name() -> None:
    names = ["orders", "%RETRY%g", "%DLQ%g", "%LMQ%x", "TBW102", "rmq_sys_x"]
    assert [kind_of(name).value for name in names] == ["ordinary", "retry", "dead_letter", "light", "system", "system"]
