"""Stores that RocketMQ 5.5.0 wrote: what is in their queues is what their log says, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.kv import FamilyOptions, KeyRange, RocksEngine, list_families
from quarry_mq.store.consumequeue import (
    ConsumeQueueEntry,
    FileConsumeQueueReader,
    RocksConsumeQueues,
    open_consume_queue_engine,
)
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND_SIZE,
    ENTRIES_FAMILY,
    OFFSET_FAMILY,
    parse_entry_key,
    parse_maximum_key,
)
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.record import tags_code
from tests import golden

ALL = KeyRange(b"", None)
FROM_START = QueueOffset(0)
NEVER = 100_000
GoldenStore = Callable[[str], Path]


def is_queued(record: dict[str, Any]) -> bool:
    """Prepared and rolled back transaction records are in no consume queue."""
    return "blank" not in record and record["sysFlag"] & 0xC in (0, 0x8)


def light_queues(record: dict[str, Any]) -> list[tuple[str, QueueOffset]]:
    """Name and number as RocketMQ stored them, doubled names and all."""
    properties, topic = record["properties"], record["topic"]
    if topic.startswith(("%RETRY%", "rmq_sys_")) or topic == "SCHEDULE_TOPIC_XXXX":
        return []
    names = properties.get("INNER_MULTI_DISPATCH", "").split(",")
    numbers = properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
    return [(name, QueueOffset(int(number))) for name, number in zip(names, numbers, strict=True) if name]


def requests_of(store: Path) -> list[DispatchRequest]:
    return [
        DispatchRequest(
            topic=record["topic"],
            queue_number=record["queueId"],
            queue_offset=QueueOffset(record["queueOffset"]),
            physical_offset=PhysicalOffset(record["phyOffset"]),
            size=record["storeSize"],
            tags_code=tags_code(record["topic"], record["properties"], record["storeTimestamp"]),
            store_timestamp_ms=record["storeTimestamp"],
            system_flag=record["sysFlag"],
            properties=record["properties"],
            light_queues=tuple(dict(light_queues(record)).items()),
        )
        for record in golden.records(store)
        if is_queued(record)
    ]


def entry_of(request: DispatchRequest, at: int, *, stamped: bool = True) -> ConsumeQueueEntry:
    stored_ms = request.store_timestamp_ms if stamped else None
    return ConsumeQueueEntry(QueueOffset(at), request.physical_offset, request.size, request.tags_code, stored_ms)


@pytest.fixture
def rocks_clean(golden_store: GoldenStore) -> Iterator[tuple[RocksEngine, RocksConsumeQueues, list[DispatchRequest]]]:
    store = golden_store("rocks-clean")
    engine = open_consume_queue_engine(store / "store/consumequeue", create=False, read_only=True)
    yield engine, RocksConsumeQueues(engine, minimum_physical_offset=PhysicalOffset(0)), requests_of(store)
    engine.close()


Opened = tuple[RocksEngine, RocksConsumeQueues, list[DispatchRequest]]


def test_rocksdb_entries_are_what_the_log_says(rocks_clean: Opened) -> None:
    _, queues, requests = rocks_clean
    expected: dict[QueueId, dict[int, ConsumeQueueEntry]] = {}
    for request in requests:
        own = QueueId(request.topic, request.queue_number)
        expected.setdefault(own, {})[request.queue_offset] = entry_of(request, request.queue_offset)
        for name, number in request.light_queues:
            expected.setdefault(QueueId(name, 0), {})[number] = entry_of(request, number)
    found = {queue: queues.entries(queue, FROM_START, NEVER) for queue in queues.queues()}
    assert found == {queue: [entries[at] for at in sorted(entries)] for queue, entries in expected.items()}
    for queue, entries in expected.items():
        assert queues.bounds(queue) == (0, max(entries) + 1)


def test_quarry_writes_the_same_bytes_as_rocketmq(rocks_clean: Opened, tmp_path: Path) -> None:
    """Promise 1 across brokers: queues are a function of the log, whoever computes it."""
    theirs, _, requests = rocks_clean
    ours = open_consume_queue_engine(tmp_path / "ours", create=True)
    queues = RocksConsumeQueues(ours, minimum_physical_offset=PhysicalOffset(0), cached_queues_max=16)
    end = RocksConsumeQueues(theirs, minimum_physical_offset=PhysicalOffset(0)).dispatched_up_to()
    assert end is not None
    for start in range(0, len(requests), 64):
        queues.put(requests[start : start + 64], end)
    assert ours.family(ENTRIES_FAMILY).scan(ALL) == theirs.family(ENTRIES_FAMILY).scan(ALL)
    min_offsets = [
        (key, value)
        for key, value in theirs.family(OFFSET_FAMILY).scan(ALL)
        if len(value) == BOUND_SIZE and parse_maximum_key(key) is None
    ]
    assert min_offsets, "RocketMQ stored minima when it was asked for them; Quarry finds them without"
    assert sorted(ours.family(OFFSET_FAMILY).scan(ALL) + min_offsets) == theirs.family(OFFSET_FAMILY).scan(ALL)
    ours.close()


def test_every_golden_key_is_parsed_back(rocks_clean: Opened) -> None:
    engine, queues, _ = rocks_clean
    entries: dict[QueueId, list[int]] = {}
    for key, _ in engine.family(ENTRIES_FAMILY).iterate(ALL):
        queue, at = parse_entry_key(key)
        entries.setdefault(queue, []).append(at)
    assert list(entries) == list(queues.queues())
    assert all(each == sorted(each) for each in entries.values())


def test_a_copy_opens_for_writing_in_place(golden_copy: GoldenStore) -> None:
    """RocketMQ's options name a merge operator that we do not have; it never used it."""
    directory = golden_copy("rocks-clean") / "store/consumequeue"
    engine = open_consume_queue_engine(directory, create=False)
    queues = RocksConsumeQueues(engine, minimum_physical_offset=PhysicalOffset(0))
    listed = list(queues.queues())
    queue = QueueId("acme-orders", 0)
    before = queues.next_offset(queue)
    end = queues.dispatched_up_to()
    assert end is not None
    request = DispatchRequest("acme-orders", 0, before, end, 100, 0, 1_795_219_999_999, 0, {}, ())
    queues.put([request], PhysicalOffset(end + 100))
    engine.compact(engine.family(ENTRIES_FAMILY), ALL)
    queues.close()
    engine = open_consume_queue_engine(directory, create=True)
    queues = RocksConsumeQueues(engine, minimum_physical_offset=PhysicalOffset(0))
    assert queues.next_offset(queue) == before + 1
    assert queues.entries(queue, before, 1) == [entry_of(request, before)]
    assert list(queues.queues()) == listed
    queues.close()


def test_a_copy_cut_in_the_middle_agrees_with_the_shorter_log(golden_copy: GoldenStore) -> None:
    """rmq#10417: after a truncation no minimum is above its maximum, though RocketMQ stored minima."""
    store = golden_copy("rocks-clean")
    requests = requests_of(store)
    end = requests[len(requests) // 3].physical_offset
    engine = open_consume_queue_engine(store / "store/consumequeue", create=False)
    queues = RocksConsumeQueues(engine, minimum_physical_offset=PhysicalOffset(0))
    queues.truncate(end)
    expected: dict[QueueId, list[int]] = {}
    for request in requests:
        if request.physical_offset < end:
            expected.setdefault(QueueId(request.topic, request.queue_number), []).append(request.queue_offset)
            for name, number in request.light_queues:
                expected.setdefault(QueueId(name, 0), []).append(number)
    assert set(queues.queues()) == set(expected)
    for queue, offsets in expected.items():
        assert [each.queue_offset for each in queues.entries(queue, FROM_START, NEVER)] == offsets
        assert queues.bounds(queue) == (offsets[0], offsets[-1] + 1)
    queues.close()


# -- file queues


@pytest.mark.parametrize("name", ["file-clean", "file-kill", "double-clean"])
def test_file_entries_are_what_the_log_says(golden_store: GoldenStore, name: str) -> None:
    """A light queue named twice has its unit once, but its number twice: index and stored number differ from there.

    From double write on, light queues are in RocksDB only.
    """
    store = golden_store(name)
    reader = FileConsumeQueueReader(PosixDisk(), store / "store/consumequeue")
    expected: dict[QueueId, list[ConsumeQueueEntry]] = {}
    for request in requests_of(store):
        own = QueueId(request.topic, request.queue_number)
        expected.setdefault(own, []).append(entry_of(request, request.queue_offset, stamped=False))
        for light, _ in request.light_queues:
            entries = expected.setdefault(QueueId(light, 0), [])
            entries.append(entry_of(request, len(entries), stamped=False))
    assert set(reader.queues()) == set(expected)
    for queue, entries in expected.items():
        found = reader.entries(queue, FROM_START, NEVER)
        in_files = len(found) if name == "double-clean" and queue.topic.startswith("%LMQ%") else len(entries)
        assert found == entries[:in_files]
        assert found
        assert reader.bounds(queue, PhysicalOffset(0)) == (0, in_files)


def test_file_bounds_follow_the_logs_minimum(golden_store: GoldenStore) -> None:
    reader = FileConsumeQueueReader(PosixDisk(), golden_store("file-clean") / "store/consumequeue")
    queue = QueueId("acme-orders", 0)
    entries = reader.entries(queue, FROM_START, NEVER)
    middle = entries[len(entries) // 2]
    assert reader.bounds(queue, middle.physical_offset) == (middle.queue_offset, len(entries))
    assert reader.bounds(queue, PhysicalOffset(middle.physical_offset + 1)) == (middle.queue_offset + 1, len(entries))
    assert reader.bounds(queue, PhysicalOffset(entries[-1].physical_offset + 1)) == (len(entries), len(entries))


# -- double write


def test_double_write_rocksdb_holds_a_late_part_and_can_be_completed(golden_copy: GoldenStore) -> None:
    """rmq#8600: what came before double write began is only in the files; nothing of it may be lost."""
    store = golden_copy("double-clean")
    requests = requests_of(store)
    engine = open_consume_queue_engine(store / "store/consumequeue", create=False)
    queues = RocksConsumeQueues(engine, minimum_physical_offset=PhysicalOffset(0))
    normal = [each for each in requests if not each.topic.startswith("%LMQ%")]
    kept = sum(
        len(queues.entries(queue, FROM_START, NEVER))
        for queue in queues.queues()
        if not queue.topic.startswith("%LMQ%")
    )
    assert 0 < kept < len(normal)
    watermark = queues.dispatched_up_to()
    queues.delete_min_offsets()
    for start in range(0, len(normal), 256):
        queues.put_missing([each._replace(light_queues=()) for each in normal[start : start + 256]])
    by_queue: dict[QueueId, int] = {}
    for request in normal:
        queue = QueueId(request.topic, request.queue_number)
        by_queue[queue] = by_queue.get(queue, 0) + 1
    for queue, count in by_queue.items():
        assert queues.bounds(queue) == (0, count)
        assert len(queues.entries(queue, FROM_START, NEVER)) == count
    assert queues.dispatched_up_to() == watermark
    queues.close()


# -- RocketMQ's other databases


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("topics", ["default", "kvDataVersion"]),
        ("subscriptionGroups", ["default", "kvDataVersion"]),
        ("consumerOffsets", ["default"]),
    ],
)
def test_metadata_databases_open_for_reading(golden_store: GoldenStore, name: str, families: list[str]) -> None:
    directory = golden_store("rocks-clean") / "store/config" / name
    listed = list_families(directory)
    assert set(families) <= set(listed)
    engine = RocksEngine.open(
        directory, {each: FamilyOptions() for each in listed}, create=False, read_only=True, write_ahead_log=True
    )
    assert engine.family("default").scan(ALL)
    engine.close()
