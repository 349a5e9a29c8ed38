"""The clean-up of consume queues in a running store: it begins when it must, survives what fails, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event

import pytest
from structlog.testing import capture_logs

from quarry_mq.kv import EngineFull, KeyRange
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.maintenance.queue_cleanup import CleaningSettings, QueueCleaning
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, ENTRY
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.verify import verify
from tests.store.assembly import message
from tests.store.test_queue_modes import LITE, ORDERS, SEGMENT_SIZE, crash, entries, opened

BODY = bytes(SEGMENT_SIZE // 20)


class Counted:
    """Every figure that came."""

    def __init__(self) -> None:
        self.sweeps = self.entries = self.files = self.failures = 0
        self.rewrites: list[tuple[int, int]] = []

    def cleaned_queues(self, entries: int, files: int, seconds: float) -> None:
        assert seconds >= 0
        self.sweeps += 1
        self.entries += entries
        self.files += files

    def cleaning_failed(self) -> None:
        self.failures += 1

    def rewrote_tables(self, before_bytes: int, after_bytes: int, seconds: float) -> None:
        assert seconds >= 0
        self.rewrites.append((before_bytes, after_bytes))


class Running:
    """The clean-up of one open store, with small pauses."""

    def __init__(self, store: OpenStore, *, rewrite_ratio: float = 0.2) -> None:
        self.store = store
        self.counted = Counted()
        self.cleaning = QueueCleaning(
            store.queue_expiry,
            store.expiry,
            CleaningSettings(pause_s=0, retry_interval_s=0.001, rewrite_ratio=rewrite_ratio),
            clock=SystemClock(),
            metrics=self.counted,
        )

    def begin_later(self, segments: int = 3, *, moved: bool = True) -> None:
        """The log loses its first segments."""
        minimum = PhysicalOffset(self.store.segments.minimum + segments * SEGMENT_SIZE)
        self.store.expiry.announce(minimum)
        assert self.store.expiry.retire(minimum) == minimum
        if moved:
            self.store.expiry.remover.run()
        self.cleaning.minimum_grew(minimum)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    async def until_clean(self) -> None:
        await self.until(lambda: self.cleaning.lag_bytes == 0 and not self.cleaning.phase)


def run(running: Running, test: Callable[[], Awaitable[None]]) -> None:
    async def within_time() -> None:
        task = asyncio.create_task(running.cleaning.run())
        try:
            await asyncio.wait_for(test(), 60)
        finally:
            task.cancel()
            await asyncio.wait([task])
            await running.cleaning.stop()
        assert task.cancelled()

    asyncio.run(within_time())


def fill(store: OpenStore, count: int = 160) -> None:
    """Every third message goes to a light queue, too: about eight segments, all of it durable."""
    for number in range(count):
        sent = message(body=BODY)
        if number % 3 == 0:
            sent = message(body=BODY, INNER_MULTI_DISPATCH=LITE.topic)
        store.messages.append([sent])
    store.messages.dispatch(store.messages.flush())
    store.messages.flush_queues()


def places_in_rocksdb(store: OpenStore) -> list[int]:
    """Where the records of all units lie."""
    assert store.queues.engine is not None
    entries = store.queues.engine.family(ENTRIES_FAMILY).scan(KeyRange(b"", None))
    return [ENTRY.unpack(value)[0] for _, value in entries]


def queue_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in (root / "consumequeue").rglob("0*") if path.is_file())


@pytest.mark.parametrize("mode", list(QueueMode))
def test_what_expires_leaves_the_queues_and_readers_notice_nothing(tmp_path: Path, mode: QueueMode) -> None:
    store = opened(tmp_path, mode)
    store.topics.create(Topic("orders", TopicType.NORMAL, 1, 1, READ_WRITE, {}), internal=True)
    fill(store)
    running = Running(store)
    before = {queue: entries(store, queue) for queue in (ORDERS, LITE)}
    files_before = queue_files(tmp_path)

    async def test() -> None:
        running.begin_later(6)
        kept = {
            queue: [each for each in all_ if each.physical_offset >= store.segments.minimum]
            for queue, all_ in before.items()
        }
        assert kept[ORDERS] != before[ORDERS]
        assert {queue: entries(store, queue) for queue in kept} == kept, "at once"
        await running.until_clean()
        assert {queue: entries(store, queue) for queue in kept} == kept
        assert store.messages.append([message(body=BODY)])[0].queue_offset == len(before[ORDERS])

    run(running, test)
    if mode is QueueMode.ROCKSDB:
        gone = sum(len(all_) for all_ in before.values()) - len(places_in_rocksdb(store))
        assert min(places_in_rocksdb(store)) >= store.segments.minimum
        assert (running.counted.sweeps, running.counted.entries) == (1, gone)
        assert len(running.counted.rewrites) == 1
    else:
        gone_files = set(files_before) - set(queue_files(tmp_path))
        assert gone_files
        assert (running.counted.sweeps, running.counted.files) == (1, len(gone_files))
        assert running.counted.entries == 16 * len(gone_files)
    if mode is QueueMode.DOUBLE_WRITE:
        # not before all older entries have been brought over: stored minima would hide them
        assert min(places_in_rocksdb(store)) < store.segments.minimum
        assert store.identity.rocksdb_expired_below is None
    store.messages.dispatch(store.messages.flush())
    store.close()
    with OfflineStore.open(PosixDisk(), tmp_path) as offline:
        assert verify(offline, lambda _: None).agrees


def test_a_sweep_that_was_not_finished_is_done_after_the_next_start(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    Running(store).begin_later()
    crash(store)
    again = opened(tmp_path)
    running = Running(again)
    assert running.cleaning.lag_bytes == 3 * SEGMENT_SIZE
    run(running, running.until_clean)
    assert min(places_in_rocksdb(again)) >= again.segments.minimum
    crash(again)
    once_more = opened(tmp_path)
    assert Running(once_more).cleaning.lag_bytes == 0
    assert min(places_in_rocksdb(once_more)) >= once_more.segments.minimum, "what is told is durable"
    once_more.close()


def test_nothing_leaves_the_queues_before_the_files_have_left_the_log(tmp_path: Path) -> None:
    """After a crash the log begins at the first file that is still there: its messages must have their entries."""
    store = opened(tmp_path)
    fill(store)
    running = Running(store)
    entries = len(places_in_rocksdb(store))

    async def test() -> None:
        running.begin_later(moved=False)
        await asyncio.sleep(0.05)
        assert len(places_in_rocksdb(store)) == entries
        store.expiry.remover.run()
        await running.until_clean()
        assert len(places_in_rocksdb(store)) < entries

    run(running, test)
    store.close()


def test_tables_are_rewritten_when_enough_has_gone_or_somebody_asks(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    running = Running(store, rewrite_ratio=0.6)

    async def test() -> None:
        running.begin_later(3)
        await running.until_clean()
        assert not running.counted.rewrites
        running.begin_later(3)  # both together are enough
        await running.until_clean()
        assert len(running.counted.rewrites) == 1
        assert store.identity.rocksdb_entries.gone == 0
        running.cleaning.rewrite_soon()
        await running.until(lambda: len(running.counted.rewrites) == 2)

    run(running, test)
    for before_bytes, after_bytes in running.counted.rewrites:
        assert before_bytes >= after_bytes > 0
    store.close()


def test_what_fails_is_told_once_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is no end of the round, and no flood of log lines."""
    store = opened(tmp_path)
    fill(store)
    running = Running(store)
    assert store.queues.rocks is not None
    flush, failures = store.queues.rocks.flush_entries, iter(range(3))

    def flush_entries() -> None:
        if next(failures, None) is not None:
            raise EngineFull("No space left on device")
        flush()

    monkeypatch.setattr(store.queues.rocks, "flush_entries", flush_entries)

    async def test() -> None:
        running.begin_later()
        await running.until_clean()

    with capture_logs() as logs:
        run(running, test)
    assert running.counted.failures == 3
    told = [each for each in logs if each["log_level"] == "error"]
    assert [each["error"] for each in told] == ["No space left on device"]
    assert min(places_in_rocksdb(store)) >= store.segments.minimum
    store.close()


def test_without_room_for_new_tables_the_old_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    fill(store)
    running = Running(store)
    room = [1 << 20]
    monkeypatch.setattr(PosixDisk, "free_bytes", lambda *_: room[0])

    async def test() -> None:
        running.begin_later()
        await running.until(lambda: running.counted.failures > 2)
        assert running.cleaning.lag_bytes == 0, "the round itself was done once"
        assert running.counted.sweeps == 1
        room[0] = 1 << 40
        await running.until(lambda: len(running.counted.rewrites) == 1)

    with capture_logs() as logs:
        run(running, test)
    assert [each["error"] for each in logs if each["log_level"] == "error"] == [
        "the disk has no space for new tables of queue entries beside the old ones"
    ]
    store.close()


def test_a_stop_does_not_wait_for_a_rewrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take minutes; closing the engine ends it (`tests/kv/test_rocks_traps.py`)."""
    store = opened(tmp_path)
    fill(store)
    running = Running(store)
    begun, end = Event(), Event()

    def rewrite_tables() -> None:
        begun.set()
        assert end.wait(20)

    monkeypatch.setattr(store.queue_expiry, "rewrite_tables", rewrite_tables)

    async def test() -> None:
        running.begin_later()
        await asyncio.to_thread(begun.wait, 20)
        assert running.cleaning.phase == "rewrite"

    run(running, test)
    end.set()
    store.close()


def test_a_stop_in_the_middle_of_a_sweep_is_gone_on_from(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    running = Running(store)

    async def test() -> None:
        running.begin_later()
        await running.until(lambda: running.cleaning.phase == "rocksdb")

    run(running, test)
    store.close()
    again = opened(tmp_path)
    running = Running(again)
    run(running, running.until_clean)
    assert min(places_in_rocksdb(again)) >= again.segments.minimum
    assert len(entries(again, ORDERS)) == 160 - again.messages.bounds(ORDERS).minimum
    again.close()


def test_a_sweep_ends_when_a_migration_takes_its_queues_and_begins_again_with_them(tmp_path: Path) -> None:
    """A RocksDB that is being filled must get no minima, and what is dropped is not to be called clean."""
    store = opened(tmp_path)
    fill(store)
    running = Running(store)
    running.begin_later()
    rocks, entries = store.queues.rocks, len(places_in_rocksdb(store))
    assert rocks is not None
    due = store.queue_expiry.due(store.segments.minimum, lambda: False)
    assert due is not None
    assert due.prepare()
    rocks.is_complete = False
    assert not due.carry_out()
    assert not due.prepare()
    assert not due.finish()
    assert store.identity.rocksdb_expired_below is None
    assert store.queue_expiry.due(store.segments.minimum, lambda: False) is None
    assert len(places_in_rocksdb(store)) == entries
    rocks.is_complete = True
    run(running, running.until_clean)
    assert min(places_in_rocksdb(store)) >= store.segments.minimum
    store.close()
