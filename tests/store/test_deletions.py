"""Notes on deletions go with the deleted messages, and never cover messages that come after."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from quarry_mq.kv import KeyRange, KvError
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import ConsumeQueueEntry, Message, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.deletions import Deletions
from quarry_mq.store.state.identity import FAMILIES
from tests.store.assembly import message


def opened(root: Path, mode: QueueMode | None = None) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=64 * 1024, queue_mode=mode, units_per_file=16)
    return open_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None)


def test_rows_leave_with_the_messages_and_fall_with_the_logs_end() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    deletions = Deletions(engine)
    for name, end in (("a", 100), ("b", 200), ("ü", 300)):
        deletions.topic_deleted(name, PhysicalOffset(end))
        deletions.light_queues_removed([f"%LMQ%{name}", f"%LMQ%{name}2"], PhysicalOffset(end))
    assert deletions.since(PhysicalOffset(200)) == {"b", "ü", "%LMQ%b", "%LMQ%b2", "%LMQ%ü", "%LMQ%ü2"}
    deletions.light_queues_removed(["%LMQ%ü"], PhysicalOffset(320))  # removed twice: both notes have to fall
    deletions.drop_below(PhysicalOffset(101))
    deletions.lower_to(PhysicalOffset(250))
    assert [deletions.topic_deleted_at(name) for name in ("a", "b", "ü", "none")] == [0, 200, 250, 0]
    left = {"%LMQ%b": 200, "%LMQ%b2": 200, "%LMQ%ü": 250, "%LMQ%ü2": 250}
    assert deletions.light_queues_since(PhysicalOffset(0)) == left
    deletions.topic_deleted("b", PhysicalOffset(260))
    deletions.light_queues_removed(["%LMQ%b"], PhysicalOffset(260))
    assert Deletions(engine).topic_deleted_at("b") == 260
    assert Deletions(engine).light_queues_since(PhysicalOffset(0)) == {**left, "%LMQ%b": 260}


def test_a_topic_without_messages_leaves_nothing_after(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.messages.append([message("bills")])
    store.messages.delete_topic("orders")
    assert Deletions(store.state_engine).topic_deleted_at("orders") == 0
    store.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_once_its_segments_have_expired_nothing_is_known_of_it(tmp_path: Path, is_restarted: bool) -> None:
    store = opened(tmp_path)
    at = store.messages.append([message("orders")])[0].physical_offset
    store.messages.delete_topic("orders")
    end = store.messages.appended_up_to
    assert Deletions(store.state_engine).topic_deleted_at("orders") == end
    with pytest.raises(OffsetOutOfRange, match="deleted together with its topic orders"):
        store.messages.existing_record_at(at)
    new = store.messages.append([message("orders", body=b"new")])[0].physical_offset
    assert store.messages.existing_record_at(new).body.tobytes() == b"new"
    while len(store.segments) < 2 or store.messages.appended_up_to < store.segments.bases[1]:
        store.messages.append([message("bills", body=bytes(8_000))])
    if is_restarted:
        store.close()
        store = opened(tmp_path)
        assert Deletions(store.state_engine).topic_deleted_at("orders") == end
    store.messages.dispatch(store.messages.flush())
    store.messages.flush_queues()
    minimum = store.segments.bases[1]
    store.expiry.announce(minimum)
    assert Deletions(store.state_engine).topic_deleted_at("orders") == end  # the file is still there
    store.expiry.retire(minimum)
    store.expiry.announce(minimum)
    assert Deletions(store.state_engine).topic_deleted_at("orders") == end  # it waits to be moved
    store.expiry.remover.run()
    store.expiry.announce(minimum)
    assert Deletions(store.state_engine).topic_deleted_at("orders") == 0
    store.close()


def light_message(number: int, *names: str) -> Message:
    return message("rooms", body=b"%d" % number, INNER_MULTI_DISPATCH=",".join(names))


def live_through_deletions(store: OpenStore) -> None:
    """Topics and light queues are deleted and made again; some records are not dispatched when their topic goes."""
    messages = store.messages

    def dispatch() -> None:
        messages.dispatch(messages.flush())

    messages.append([message("orders", number, body=b"old") for number in (0, 0, 1)])
    messages.append([message("gone"), light_message(0, "%LMQ%a", "%LMQ%b"), light_message(1, "%LMQ%a", "%LMQ%c")])
    dispatch()
    messages.append([message("orders", body=b"not dispatched"), light_message(2, "%LMQ%c", "%LMQ%d")])
    messages.delete_topic("gone")
    messages.delete_topic("orders")
    messages.delete_topic("rooms")
    messages.append([message("orders", 1, body=b"new"), light_message(3, "%LMQ%b"), message("bills")])
    dispatch()
    found = messages.light_queues_ended(messages.appended_up_to, b"").ended
    messages.remove_ended([each for each in found if each.queue.topic in {"%LMQ%a", "%LMQ%b"}])
    messages.append([light_message(4, "%LMQ%b"), message("orders", 1, body=b"newer")])
    dispatch()


def entries_of(store: OpenStore, name: str, number: int = 0) -> list[ConsumeQueueEntry]:
    return store.messages.entries(QueueId(name, number), QueueOffset(0), 100)


def rows_of(store: OpenStore) -> dict[str, dict[bytes, bytes]]:
    engine = store.queues.engine
    assert engine is not None
    return {name: dict(engine.family(name).iterate(KeyRange(b"", None))) for name in (ENTRIES_FAMILY, OFFSET_FAMILY)}


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_rebuild_does_not_bring_back_what_was_deleted(tmp_path: Path, is_clean: bool) -> None:
    store = opened(tmp_path / "store")
    live_through_deletions(store)
    before = rows_of(store)
    bodies = [store.messages.read(each).body.tobytes() for each in entries_of(store, "orders", 1)]
    assert bodies == [b"new", b"newer"]
    assert not entries_of(store, "orders", 0)
    counts = {name: len(entries_of(store, f"%LMQ%{name}")) for name in "abcd"}
    assert counts == {"a": 0, "b": 1, "c": 2, "d": 1}, "light queues keep the messages of a deleted topic"
    if is_clean:
        store.close()
    root = tmp_path / "copy"
    shutil.copytree(tmp_path / "store", root)  # of a running broker: what a kill leaves
    if not is_clean:
        store.close()
    shutil.rmtree(root / "consumequeue_rocksdb")
    store = opened(root)
    assert rows_of(store) == before
    store.close()


def test_after_a_kill_the_queues_are_those_of_before(tmp_path: Path) -> None:
    """The queues of a killed broker are as old as their last flush: deletions since then are repeated."""
    store = opened(tmp_path / "store")
    store.messages.append([message("orders", number) for number in (0, 0, 0, 1)])
    store.messages.dispatch(store.messages.flush())
    store.messages.flush_queues()
    live_through_deletions(store)
    store.messages.flush_entries()  # the entries alone are newer
    before = rows_of(store)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    store.close()
    store = opened(tmp_path / "copy")
    assert rows_of(store) == before
    store.close()


def test_a_deletion_that_fails_leaves_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    store.messages.append([message("orders")])
    store.messages.dispatch(store.messages.flush())

    def refuse(_: str) -> None:
        raise KvError("no space left")

    with monkeypatch.context() as full:
        full.setattr(store.queues.store, "delete_topic", refuse)
        with pytest.raises(KvError):
            store.messages.delete_topic("orders")
    assert Deletions(store.state_engine).topic_deleted_at("orders") == 0
    store.close()


@pytest.mark.parametrize("mode", [QueueMode.ROCKSDB, QueueMode.FILE, QueueMode.DOUBLE_WRITE])
def test_a_queue_whose_messages_have_expired_goes_on_after_a_rebuild(tmp_path: Path, mode: QueueMode) -> None:
    """A group that has read five messages would miss the next five if the queue began at 0 again."""
    store = opened(tmp_path, mode)
    queue, light = QueueId("orders", 0), QueueId("%LMQ%a", 0)
    store.topics.create(Topic("orders", TopicType.NORMAL, 2, 2))
    store.messages.append([message("orders", INNER_MULTI_DISPATCH=light.topic) for _ in range(5)])
    while len(store.segments) < 3 or store.messages.appended_up_to < store.segments.bases[2]:
        store.messages.append([message("bills", body=bytes(8_000))])
    store.messages.dispatch(store.messages.flush())
    store.messages.flush_queues()
    batch = store.state_engine.batch()
    store.offsets.stage(batch, "readers", queue, QueueOffset(5))
    store.offsets.stage(batch, "readers", light, QueueOffset(5))
    store.offsets.stage(batch, "readers", QueueId("unknown", 0), QueueOffset(5))
    store.offsets.stage(batch, "mistaken", QueueId("orders", 1), QueueOffset(1 << 40))
    store.state_engine.write(batch)
    minimum = store.segments.bases[2]
    store.expiry.announce(minimum)
    store.expiry.retire(minimum)
    store.expiry.remover.run()
    assert store.messages.bounds(queue) == (5, 5)
    store.close()
    for name in ("consumequeue", "consumequeue_rocksdb"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    store = opened(tmp_path, mode)
    assert store.messages.bounds(queue) == (5, 5)
    assert store.messages.bounds(light) == (5, 5)
    assert store.messages.bounds(QueueId("orders", 1)) == (0, 0), "no log of this size had so many messages"
    assert store.messages.bounds(QueueId("unknown", 0)) == (0, 0)
    assert store.messages.append([message("orders")])[0].queue_offset == 5
    store.close()


def test_queues_of_rocketmq_without_messages_go_on_where_their_groups_are(
    golden_copy: Callable[[str], Path],
) -> None:
    """RocketMQ's queue files know the next offset, the log does not: the groups' positions do, too."""
    root = golden_copy("file-clean") / "store"
    offsets = root / "config" / "consumerOffset.json"
    table = json.loads(offsets.read_text()) if offsets.exists() else {"offsetTable": {}}
    table["offsetTable"]["bills@readers"] = {"3": 7}
    offsets.write_text(json.dumps(table))
    topics = root / "config" / "topics.json"
    known = json.loads(topics.read_text())
    like = next(iter(known["topicConfigTable"].values()))
    known["topicConfigTable"]["bills"] = {**like, "topicName": "bills", "readQueueNums": 4, "writeQueueNums": 4}
    topics.write_text(json.dumps(known))
    store = opened(root)
    assert store.offsets.get("readers", QueueId("bills", 3)) == 7
    assert store.messages.bounds(QueueId("bills", 3)) == (7, 7)
    store.close()


def test_a_deletion_while_expired_notes_are_removed_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expiry removes notes on a thread of its own, which may have read the note before the topic is deleted again."""
    deletions = Deletions(MemoryEngine(FAMILIES, write_ahead_log=True))
    deletions.topic_deleted("orders", PhysicalOffset(100))
    has_read, begun = Event(), Event()
    topics = Deletions.topics

    def read(table: Deletions) -> dict[str, PhysicalOffset]:
        found = topics(table)
        has_read.set()
        begun.wait(5)
        return found

    monkeypatch.setattr(Deletions, "topics", read)
    with ThreadPoolExecutor(2) as threads:
        settled = threads.submit(deletions.drop_below, PhysicalOffset(200))
        assert has_read.wait(5)
        deleted = threads.submit(deletions.topic_deleted, "orders", PhysicalOffset(300))
        with pytest.raises(TimeoutError):
            deleted.result(0.2)
        begun.set()
        settled.result(5)
        deleted.result(5)
    assert deletions.topic_deleted_at("orders") == 300
