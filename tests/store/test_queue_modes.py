"""A store that keeps its consume queues in files, in RocksDB, or in both: new, taken over, and asked to change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import Disk, PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import QUEUES_MAX, READ_WRITE, Topic, TopicType
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.opening.preview import preview
from quarry_mq.store.opening.repair import NO_ORDERS, Orders
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.identity import StoreIdentity, open_state_engine
from quarry_mq.store.verify import verify
from tests.pipeline.logs import write_store
from tests.store.assembly import message

GoldenStore = Callable[[str], Path]
ORDERS = QueueId("orders", 0)
LITE = QueueId("%LMQ%lite", 0)
SEGMENT_SIZE = 64 * 1024


def opened(root: Path, mode: QueueMode | None = None, disk: Disk | None = None) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=SEGMENT_SIZE, queue_mode=mode, units_per_file=16)
    return open_store(settings, disk=disk or PosixDisk(), clock=ManualClock(), report=lambda _: None)


def crash(store: OpenStore) -> None:
    """Leave the store as the death of the process does: nothing is flushed, dispatched or marked any more."""
    store._ending.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def send(store: OpenStore, count: int) -> None:
    for number in range(count):
        sent = message(body=b"%d" % number)
        if number % 3 == 0:
            sent = message(body=b"%d" % number, INNER_MULTI_DISPATCH=LITE.topic)
        store.messages.append([sent])
    store.messages.dispatch(store.messages.flush())


def entries(store: OpenStore, queue: QueueId) -> list[ConsumeQueueEntry]:
    found = store.messages.entries(queue, QueueOffset(0), 100_000)
    return [each._replace(store_timestamp_ms=None) for each in found]


def bodies(store: OpenStore, queue: QueueId) -> list[bytes]:
    return [bytes(store.messages.read(each).body) for each in entries(store, queue)]


class Killed(BaseException):
    pass


class DiesWhenNamesAreSynced(PosixDisk):
    """The end of a process that is about to make the first names of its queue files durable."""

    def sync_directory(self, path: Path) -> None:
        if "consumequeue" in path.parts:
            raise Killed
        super().sync_directory(path)


class NotesSyncs(PosixDisk):
    """Notes which directories below `consumequeue` were synced, and with `*` whole file systems, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def sync_directory(self, path: Path) -> None:
        if "consumequeue" in path.parts:
            self.synced.append(path.name)
        super().sync_directory(path)

    def sync_file_system(self, directory: Path) -> None:
        self.synced.append(f"{directory.name}/*")
        super().sync_file_system(directory)


SENT = [b"%d" % number for number in range(40)]
LIGHT = [b"%d" % number for number in range(0, 40, 3)]


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
@pytest.mark.parametrize("mode", list(QueueMode))
def test_what_is_sent_is_there_after_a_restart(tmp_path: Path, mode: QueueMode, crashed: bool) -> None:
    store = opened(tmp_path, mode)
    send(store, 40)
    assert (bodies(store, ORDERS), bodies(store, LITE)) == (SENT, LIGHT)
    crash(store) if crashed else store.close()
    again = opened(tmp_path)
    assert again.queues.phase.mode is mode, "a store keeps what it has"
    assert (bodies(again, ORDERS), bodies(again, LITE)) == (SENT, LIGHT)
    assert again.messages.append([message()])[0].queue_offset == 40
    again.close()
    assert (tmp_path / "consumequeue" / "orders").exists() is (mode is not QueueMode.ROCKSDB)
    assert (tmp_path / "consumequeue_rocksdb").exists() is (mode is not QueueMode.FILE)


@pytest.mark.parametrize("mode", [QueueMode.FILE, QueueMode.DOUBLE_WRITE])
def test_queue_files_that_are_gone_are_made_again_from_the_log(tmp_path: Path, mode: QueueMode) -> None:
    store = opened(tmp_path, mode)
    send(store, 40)
    store.close()
    (tmp_path / "consumequeue").rename(tmp_path / "elsewhere")
    again = opened(tmp_path)
    assert (bodies(again, ORDERS), bodies(again, LITE)) == (SENT, LIGHT)
    again.close()


@pytest.mark.parametrize("mode", [QueueMode.FILE, QueueMode.DOUBLE_WRITE])
def test_killed_while_it_makes_them_again_it_begins_again(tmp_path: Path, mode: QueueMode) -> None:
    """The few files that a power cut leaves of them are not all."""
    store = opened(tmp_path, mode)
    send(store, 40)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    with pytest.raises(Killed):
        open_store(
            StoreSettings(root=tmp_path, segment_size=SEGMENT_SIZE, units_per_file=16),
            disk=DiesWhenNamesAreSynced(),
            clock=ManualClock(),
            report=lambda _: None,
        )
    shutil.rmtree(tmp_path / "consumequeue" / LITE.topic)
    again = opened(tmp_path)
    assert (bodies(again, ORDERS), bodies(again, LITE)) == (SENT, LIGHT)
    again.close()


@pytest.mark.parametrize("mode", list(QueueMode))
def test_topics_that_were_all_deleted_stay_so(tmp_path: Path, mode: QueueMode) -> None:
    """rmq#9792. That no queue file is left is no reason to make all of them again."""
    store = opened(tmp_path, mode)
    send(store, 40)
    for topic in (ORDERS.topic, LITE.topic):
        store.messages.delete_topic(topic)
    for _ in range(3):
        store.close()
        store = opened(tmp_path)
        assert list(store.queues.store.queues()) == []
    send(store, 3)
    crash(store)
    again = opened(tmp_path)
    assert bodies(again, ORDERS) == SENT[:3]
    again.close()


@pytest.mark.parametrize("mode", [QueueMode.ROCKSDB, QueueMode.FILE])
def test_a_record_of_a_topic_or_queue_that_cannot_be_keeps_no_store_closed(tmp_path: Path, mode: QueueMode) -> None:
    """RocketMQ's records have no checksum over topic and queue number: one flipped bit is not noticed."""
    write_store(
        tmp_path,
        [
            (message("or\x07ders"), 1_700_000_000_000),
            (message("orders", 2**30), 1_700_000_000_000),
            (message("orders", 1), 1_700_000_000_000),
        ],
    )
    for _ in range(2):
        store = open_store(
            StoreSettings(root=tmp_path, segment_size=1 << 22, units_per_file=16, queue_mode=mode),
            disk=PosixDisk(),
            clock=ManualClock(),
            report=lambda _: None,
        )
        adopted = store.topics.get("orders")
        assert adopted is not None
        assert adopted.read_queues == QUEUES_MAX
        assert store.topics.get("or\x07ders") is None
        assert len(bodies(store, QueueId("orders", 1))) == 1
        store.close()


@pytest.mark.parametrize(
    ("had", "asked"),
    [
        (QueueMode.FILE, QueueMode.ROCKSDB),
        (QueueMode.DOUBLE_WRITE, QueueMode.ROCKSDB),
        (QueueMode.DOUBLE_WRITE, QueueMode.FILE),
        (QueueMode.ROCKSDB, QueueMode.FILE),
        (QueueMode.ROCKSDB, QueueMode.DOUBLE_WRITE),
    ],
)
def test_a_mode_that_the_store_does_not_have_is_refused(tmp_path: Path, had: QueueMode, asked: QueueMode) -> None:
    """rmq#8600: a store switched straight to RocksDB seemed to have lost its older messages."""
    store = opened(tmp_path, had)
    send(store, 3)
    store.close()
    with pytest.raises(StoreUnusable, match=rf"in `{had.value}` mode .* says `{asked.value}`"):
        opened(tmp_path, asked)
    again = opened(tmp_path)
    assert bodies(again, ORDERS) == SENT[:3]
    again.close()


def test_double_write_begins_on_a_file_store_with_what_comes_then(tmp_path: Path) -> None:
    store = opened(tmp_path, QueueMode.FILE)
    send(store, 10)
    before = store.messages.dispatched_up_to
    store.close()
    store = opened(tmp_path, QueueMode.DOUBLE_WRITE)
    assert store.queues.phase is QueuePhase.DOUBLE_WRITE
    assert (store.identity.backfilled_to, store.identity.backfill_end) == (0, before)
    send(store, 5)
    assert len(entries(store, ORDERS)) == 15
    assert store.queues.rocks is not None
    assert [each.queue_offset for each in store.queues.rocks.entries(ORDERS, QueueOffset(0), 100)] == [*range(10, 15)]
    crash(store)
    again = opened(tmp_path, QueueMode.DOUBLE_WRITE)
    assert len(entries(again, ORDERS)) == 15
    assert (again.identity.backfilled_to, again.identity.backfill_end) == (0, before)
    again.close()


@pytest.mark.parametrize("mode", list(QueueMode))
@pytest.mark.parametrize("name", [pytest.param("file-clean", marks=pytest.mark.slow), "file-kill"])
def test_a_file_store_of_rocketmq_shows_the_same_in_every_mode(
    golden_store: GoldenStore, tmp_path: Path, name: str, mode: QueueMode
) -> None:
    for copy in ("one", "other"):
        shutil.copytree(golden_store(name) / "store", tmp_path / copy)
    store = opened(tmp_path / "one", mode)
    queues = store.messages.iterate_queues()
    found = {queue: entries(store, queue) for queue in queues}
    store.close()
    assert sum(map(len, found.values())) > 1000
    other = opened(tmp_path / "other")
    assert other.queues.phase is QueuePhase.ROCKSDB
    assert {queue: entries(other, queue) for queue in other.messages.iterate_queues()} == found
    other.close()


def test_a_file_store_of_rocketmq_goes_on_in_its_own_files(golden_copy: GoldenStore) -> None:
    root = golden_copy("file-clean") / "store"
    before = {path: path.read_bytes().rstrip(b"\0") for path in (root / "consumequeue").rglob("0*") if path.is_file()}
    store = opened(root, QueueMode.FILE)
    assert store.recovery.findings.records == 0, "a clean stop left nothing to read"
    queue = QueueId("acme-orders", 0)
    end = store.messages.bounds(queue).maximum
    store.messages.append([message("acme-orders", 0)])
    store.messages.dispatch(store.messages.flush())
    store.close()
    after = {path: path.read_bytes().rstrip(b"\0") for path in before}
    changed = {path for path in before if after[path] != before[path]}
    assert [path.parts[-3:-1] for path in changed] == [("acme-orders", "0")]
    assert all(after[path].startswith(before[path]) for path in changed)
    again = opened(root)
    assert again.messages.bounds(queue).maximum == end + 1
    again.close()


@pytest.mark.parametrize("mode", list(QueueMode))
def test_verify_agrees_and_a_rebuild_on_order_gives_the_same(tmp_path: Path, mode: QueueMode) -> None:
    store = opened(tmp_path, mode)
    store.topics.create(Topic("orders", TopicType.NORMAL, 1, 1, READ_WRITE, {}), internal=True)
    send(store, 40)
    store.close()
    disk = PosixDisk()
    with OfflineStore.open(disk, tmp_path) as offline:
        assert verify(offline, lambda _: None).agrees
        before = [(queue, list(offline.entries(queue))) for queue, _ in offline.queues()]
    assert preview(disk, tmp_path, Orders(), lambda _: None).findings.dispatched == 0
    order = Orders(rebuild_queues=True)
    assert preview(disk, tmp_path, order, lambda _: None).findings.dispatched == 40
    settings = StoreSettings(root=tmp_path, segment_size=SEGMENT_SIZE)
    again = open_store(settings, disk=disk, clock=ManualClock(), report=lambda _: None, orders=order)
    assert again.recovery.findings.dispatched == 40
    again.close()
    with OfflineStore.open(disk, tmp_path) as offline:
        assert verify(offline, lambda _: None).agrees
        assert [(queue, list(offline.entries(queue))) for queue, _ in offline.queues()] == before


def test_an_unknown_phase_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.identity.queue_phase = "somewhere else"
    store.close()
    with pytest.raises(StoreUnusable, match="somewhere else"):
        opened(tmp_path)


def test_a_preview_begins_at_the_older_of_two_watermarks(tmp_path: Path) -> None:
    store = opened(tmp_path, QueueMode.DOUBLE_WRITE)
    send(store, 10)
    store.close()
    assert preview(PosixDisk(), tmp_path, NO_ORDERS, lambda _: None).findings.dispatched == 0
    engine = open_state_engine(tmp_path / "quarry", create=False)
    StoreIdentity(engine, tmp_path).clear_file_progress()
    engine.close()
    assert preview(PosixDisk(), tmp_path, NO_ORDERS, lambda _: None).findings.dispatched == 10


@pytest.mark.parametrize("mode", [QueueMode.FILE, QueueMode.DOUBLE_WRITE])
def test_a_start_after_a_kill_makes_durable_what_it_finds_in_one_call(tmp_path: Path, mode: QueueMode) -> None:
    """Not name by name: with thousands of queues the disk would be busy for half a minute."""
    store = opened(tmp_path, mode)
    store.messages.append([message(topic=f"old-{number}") for number in range(50)])
    store.messages.dispatch(store.messages.flush())
    store.messages.flush_queues()
    send(store, 4)
    crash(store)
    disk = NotesSyncs()
    again = opened(tmp_path, disk=disk)
    assert disk.synced == ["consumequeue/*"]
    assert bodies(again, ORDERS) == SENT[:4]
    assert len(list(again.queues.store.queues())) == 52
    again.close()
    disk = NotesSyncs()
    opened(tmp_path, disk=disk).close()
    assert disk.synced == [], "after a clean stop all of it is durable"
