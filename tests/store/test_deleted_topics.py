"""Marks of deleted topics go with their messages, and never cover messages that come after."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.deleted_topics import DeletedTopics
from quarry_mq.store.state.identity import FAMILIES
from tests.store.assembly import message


def opened(root: Path) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=64 * 1024)
    return open_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None)


def test_rows_leave_with_the_messages_and_fall_with_the_logs_end() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    topics = DeletedTopics(engine)
    for name, end in (("a", 100), ("b", 200), ("ü", 300)):
        topics.deleted(name, PhysicalOffset(end))
    topics.settle(PhysicalOffset(100), PhysicalOffset(250))
    assert [topics.below(name) for name in ("a", "b", "ü", "none")] == [0, 200, 250, 0]
    topics.deleted("b", PhysicalOffset(260))
    assert DeletedTopics(engine).below("b") == 260


def test_a_topic_without_messages_leaves_nothing_after(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.messages.append([message("bills")])
    store.messages.delete_topic("orders")
    assert DeletedTopics(store.state_engine).below("orders") == 0
    store.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_once_its_segments_have_expired_nothing_is_known_of_it(tmp_path: Path, is_restarted: bool) -> None:
    store = opened(tmp_path)
    at = store.messages.append([message("orders")])[0].physical_offset
    store.messages.delete_topic("orders")
    end = store.messages.appended_up_to
    assert DeletedTopics(store.state_engine).below("orders") == end
    with pytest.raises(OffsetOutOfRange, match="deleted together with its topic orders"):
        store.messages.existing_record_at(at)
    new = store.messages.append([message("orders", body=b"new")])[0].physical_offset
    assert store.messages.existing_record_at(new).body.tobytes() == b"new"
    while len(store.segments) < 2 or store.messages.appended_up_to < store.segments.bases[1]:
        store.messages.append([message("bills", body=bytes(8_000))])
    if is_restarted:
        store.close()
        store = opened(tmp_path)
        assert DeletedTopics(store.state_engine).below("orders") == end
    store.expiry.announce(store.segments.bases[1])
    assert DeletedTopics(store.state_engine).below("orders") == 0
    store.close()
