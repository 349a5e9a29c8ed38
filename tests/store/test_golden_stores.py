"""Stores written by RocketMQ open, and what they hold is all there."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.protocol.clock import Progress, SystemClock
from quarry_mq.store.consumequeue import FileConsumeQueueReader
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import SEGMENT_SIZE, StoreSettings

GOLDEN = ("file-clean", "file-kill", "rocks-clean", "double-clean")
LIGHT = "%LMQ%"


def opened(root: Path, reports: list[Progress] | None = None, *, segment_size: int = SEGMENT_SIZE) -> OpenStore:
    return open_store(
        StoreSettings(root=root, segment_size=segment_size),
        disk=PosixDisk(),
        clock=SystemClock(),
        report=(reports if reports is not None else []).append,
    )


def records_of(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "messages.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for line in lines if "blank" not in (record := json.loads(line))]


def entries_of(messages: MessageStore, queue: QueueId) -> list[tuple[int, int, int, int]]:
    entries = messages.entries(queue, QueueOffset(0), 100_000)
    return [(each.queue_offset, each.physical_offset, each.size, each.tags_code) for each in entries]


@pytest.mark.parametrize("name", GOLDEN)
def test_every_normal_record_is_in_its_queue(name: str, golden_copy: Callable[[str], Path]) -> None:
    directory = golden_copy(name)
    store = opened(directory / "store")
    try:
        expected: dict[QueueId, dict[int, int]] = defaultdict(dict)
        for record in records_of(directory):
            expected[QueueId(record["topic"], record["queueId"])][record["queueOffset"]] = record["phyOffset"]
        for queue, offsets in expected.items():
            found = {offset: at for offset, at, _, _ in entries_of(store.messages, queue)}
            assert found == offsets, queue
            assert store.messages.bounds(queue) == (min(offsets), max(offsets) + 1)
        normal = {queue for queue in store.messages.iterate_queues() if not queue.topic.startswith(LIGHT)}
        assert normal == set(expected)
    finally:
        store.close()


@pytest.mark.parametrize("name", ["file-clean", "file-kill"])
def test_rebuilt_entries_equal_those_in_the_queue_files(name: str, golden_copy: Callable[[str], Path]) -> None:
    """System topics and light queues included, also those of messages that name a light queue twice."""
    directory = golden_copy(name)
    store = opened(directory / "store")
    try:
        files = FileConsumeQueueReader(PosixDisk(), StorePaths(directory / "store").consume_queue)
        queues = list(files.queues())
        assert set(queues) == set(store.messages.iterate_queues())
        for queue in queues:
            in_file = [
                (each.queue_offset, each.physical_offset, each.size, each.tags_code)
                for each in files.entries(queue, QueueOffset(0), 100_000)
            ]
            assert entries_of(store.messages, queue) == in_file, queue
    finally:
        store.close()


def test_light_queues_of_a_double_write_store_are_complete(golden_copy: Callable[[str], Path]) -> None:
    """The older part of a light queue lies in its file, the newer in RocksDB: both belong to one numbering."""
    directory = golden_copy("double-clean")
    store = opened(directory / "store")
    try:
        files = FileConsumeQueueReader(PosixDisk(), StorePaths(directory / "store").consume_queue)
        by_record: dict[str, set[int]] = defaultdict(set)
        for record in records_of(directory):
            if record["topic"].startswith(("%RETRY%", "SCHEDULE_TOPIC")):
                continue  # a copy, which still carries the names of its original
            if "INNER_MULTI_QUEUE_OFFSET" not in record["properties"]:
                continue  # a half message: its names count when it is committed
            for light in record["properties"].get("INNER_MULTI_DISPATCH", "").split(","):
                if light:
                    by_record[light].add(record["phyOffset"])
        for light, records in by_record.items():
            queue = QueueId(light, 0)
            entries = entries_of(store.messages, queue)
            assert {at for _, at, _, _ in entries} == records, light
            assert len(entries) == len(records), "each record once"
            in_file = [each.physical_offset for each in files.entries(queue, QueueOffset(0), 100_000)]
            assert [at for _, at, _, _ in entries][: len(in_file)] == in_file, light
    finally:
        store.close()


@pytest.mark.parametrize("name", GOLDEN)
def test_a_second_opening_changes_nothing(name: str, golden_copy: Callable[[str], Path]) -> None:
    directory = golden_copy(name)
    store = opened(directory / "store")
    before = {queue: entries_of(store.messages, queue) for queue in store.messages.iterate_queues()}
    store.close()
    store = opened(directory / "store")
    try:
        assert {queue: entries_of(store.messages, queue) for queue in store.messages.iterate_queues()} == before
        assert store.recovery.findings.records == 0, "a clean stop leaves nothing to read again"
    finally:
        store.close()


@pytest.mark.parametrize("name", ["file-clean", "file-kill", "double-clean", "file-kill without queues"])
def test_a_flipped_bit_in_an_old_record_does_not_end_the_log(name: str, golden_copy: Callable[[str], Path]) -> None:
    """All that follows it would be cut off the log: one bit would cost what RocketMQ had kept for weeks."""
    directory = golden_copy(name.partition(" ")[0])
    if name.endswith("without queues"):
        shutil.rmtree(StorePaths(directory / "store").consume_queue)
    commit_log = StorePaths(directory / "store").commit_log
    victim = next(record for record in records_of(directory) if record["phyOffset"] > 100_000)
    segment = commit_log / f"{0:020d}"
    with segment.open("r+b") as file:
        file.seek(victim["phyOffset"] + 4)  # the magic number
        file.write(b"\0")
    before = {path: path.read_bytes() for path in commit_log.iterdir()}
    with pytest.raises(StoreDamaged, match=rf"{segment.name}.* {victim['phyOffset']}"):
        opened(directory / "store")
    assert {path: path.read_bytes() for path in commit_log.iterdir()} == before


def test_a_file_store_that_lost_its_last_segment_is_refused(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("file-clean") / "store"
    max(StorePaths(root).commit_log.iterdir()).unlink()
    with pytest.raises(StoreDamaged, match="the files end there"):
        opened(root)


@pytest.mark.parametrize("name", GOLDEN)
def test_metadata_is_imported(name: str, golden_copy: Callable[[str], Path]) -> None:
    directory = golden_copy(name)
    store = opened(directory / "store")
    try:
        orders = store.topics.get("acme-orders")
        assert orders is not None
        assert orders.read_queues == 4
        assert store.groups.get("acme-cg") is not None
        offsets = [store.offsets.get("acme-cg", QueueId("acme-orders", number)) for number in range(4)]
        assert all(offset is not None and offset > 300 for offset in offsets)
        for queue in store.messages.iterate_queues():
            assert queue.topic.startswith(LIGHT) or store.topics.get(queue.topic) is not None
    finally:
        store.close()
