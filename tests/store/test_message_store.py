from __future__ import annotations

from itertools import pairwise

import pytest

from quarry_mq.kv import EngineFull
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import Invalid, MessageTooLarge, StoreDamaged, StorePoisoned
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from tests.faults.disk import FaultyDisk
from tests.store.assembly import Assembly, assemble, message, queue_engine


@pytest.fixture
def opened() -> Assembly:
    return assemble(FaultyDisk(), queue_engine())


def dispatch_all(opened: Assembly) -> None:
    opened.store.dispatch(opened.store.appended_up_to)


def test_offsets_count_per_queue_and_records_lie_one_after_the_other(opened: Assembly) -> None:
    places = opened.store.append([message("a", 0), message("a", 1), message("a", 0), message("b", 0), message("a", 1)])
    assert [place.queue_offset for place in places] == [0, 0, 1, 0, 1]
    for before, after in pairwise(places):
        assert after.physical_offset == before.physical_offset + before.size


def test_a_message_is_visible_after_dispatch_and_not_before(opened: Assembly) -> None:
    queue = QueueId("orders", 0)
    opened.store.append([message()])
    assert opened.store.bounds(queue) == (0, 0)
    assert opened.store.entries(queue, QueueOffset(0), 10) == []
    dispatched = opened.store.dispatch(opened.store.appended_up_to)
    assert [request.queue_offset for request in dispatched] == [0]
    assert opened.store.bounds(queue) == (0, 1)


def test_dispatch_stops_at_the_given_offset(opened: Assembly) -> None:
    """rmq#8239: under `sync` nothing beyond the flushed offset may be seen."""
    first, second = opened.store.append([message(body=b"1"), message(body=b"2")])
    assert len(opened.store.dispatch(second.physical_offset)) == 1
    assert opened.store.dispatched_up_to == first.physical_offset + first.size
    assert len(opened.store.dispatch(PhysicalOffset(second.physical_offset + second.size))) == 1


def test_a_failed_append_leaves_log_and_offsets_as_they_were(opened: Assembly) -> None:
    end = opened.store.appended_up_to
    with pytest.raises(MessageTooLarge, match="70117"):
        opened.store.append([message(body=b"fits"), message(body=bytes(70_000))])
    with pytest.raises(Invalid, match="properties"):
        opened.store.append([message(body=b"fits"), message(big="x" * 40_000)])
    assert opened.store.appended_up_to == end
    assert opened.store.append([message()])[0].queue_offset == 0


def test_after_a_failed_flush_nothing_is_accepted_any_more() -> None:
    """A second fsync would report success over pages that are gone."""
    disk = FaultyDisk()
    opened = assemble(disk, queue_engine())
    opened.store.append([message()])
    disk.fail("flush")
    with pytest.raises(StorePoisoned):
        opened.store.flush()
    with pytest.raises(StorePoisoned):
        opened.store.flush()
    with pytest.raises(StorePoisoned):
        opened.store.append([message()])


def test_store_times_never_go_back(opened: Assembly) -> None:
    opened.clock.advance(10)
    first = opened.store.append([message()])[0]
    opened.clock.advance(-10)
    assert opened.store.append([message()])[0].store_timestamp_ms == first.store_timestamp_ms


def test_a_message_goes_to_each_light_queue_it_names_once(opened: Assembly) -> None:
    opened.store.append([message(INNER_MULTI_DISPATCH="%LMQ%x,%LMQ%y", WAIT="true")])
    opened.store.append([message(INNER_MULTI_DISPATCH="%LMQ%y,%LMQ%z,%LMQ%y,other")])
    opened.store.append([message(INNER_MULTI_DISPATCH="%LMQ%y")])
    dispatch_all(opened)
    for name, count in (("%LMQ%x", 1), ("%LMQ%y", 3), ("%LMQ%z", 1)):
        assert opened.store.bounds(QueueId(name, 0)) == (0, count)
    entries = opened.store.entries(QueueId("%LMQ%y", 0), QueueOffset(0), 10)
    properties = [opened.store.read(entry).properties for entry in entries]
    assert [each["INNER_MULTI_QUEUE_OFFSET"] for each in properties] == ["0,0", "1,0,1,", "2"]
    assert "WAIT" not in properties[0]


def test_copies_on_their_way_through_the_broker_do_not_go_to_light_queues(opened: Assembly) -> None:
    for topic in ("%RETRY%group", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
        opened.store.append([message(topic, INNER_MULTI_DISPATCH="%LMQ%x", INNER_MULTI_QUEUE_OFFSET="7")])
    dispatch_all(opened)
    assert opened.store.bounds(QueueId("%LMQ%x", 0)) == (0, 0)


def test_a_prepared_message_takes_no_offset_and_is_not_visible(opened: Assembly) -> None:
    prepared = message()._replace(system_flag=0x4)
    opened.store.append([prepared, message(body=b"normal")])
    dispatch_all(opened)
    entries = opened.store.entries(QueueId("orders", 0), QueueOffset(0), 10)
    assert [bytes(opened.store.read(entry).body) for entry in entries] == [b"normal"]
    assert opened.store.dispatched_up_to == opened.store.appended_up_to


def test_assigned_offsets_are_right_with_far_more_queues_than_the_cache_holds() -> None:
    """Promise 6: nothing is kept per queue, also not the queues whose records wait for dispatch."""
    opened = assemble(FaultyDisk(), queue_engine(), cached_queues_max=16)
    for turn in range(3):
        for number in range(200):
            place = opened.store.append([message("wide", number)])[0]
            assert place.queue_offset == turn
            if number % 7 == 0:
                dispatch_all(opened)


@pytest.mark.parametrize("part", [b"the body", b"some value"], ids=["body", "properties"])
def test_a_record_with_a_flipped_bit_is_reported_and_never_handed_out(opened: Assembly, part: bytes) -> None:
    """Promise 3. A consumer could not tell: the digest it gets is made of the bytes that were read."""
    store = opened.store
    store.append([message(body=b"the body", name="some value"), message(body=b"whole")])
    store.dispatch(store.flush())
    damaged, whole = store.entries(QueueId("orders", 0), QueueOffset(0), 2)
    segment = opened.segments.open_for_writing(PhysicalOffset(0))
    at = bytes(segment.view()).index(part)
    segment.write(at, bytes([part[0] ^ 1]))
    with pytest.raises(StoreDamaged, match=f"offset {damaged.physical_offset}.*CRC"):
        store.read(damaged)
    assert bytes(store.read(whole).body) == b"whole"


def test_an_entry_that_points_out_of_the_log_is_damage_and_no_fault_of_the_client(opened: Assembly) -> None:
    opened.store.append([message()])
    beyond = ConsumeQueueEntry(QueueOffset(7), PhysicalOffset(1 << 40), 100, 0, 0)
    with pytest.raises(StoreDamaged, match=f"entry 7 points at offset {1 << 40}"):
        opened.store.read(beyond)


def test_a_deleted_topic_is_gone_and_may_begin_again(opened: Assembly) -> None:
    opened.store.append([message("gone"), message("kept")])
    dispatch_all(opened)
    opened.store.append([message("gone")])
    opened.store.delete_topic("gone")
    dispatch_all(opened)
    assert opened.store.iterate_queues() == [QueueId("kept", 0)]
    assert opened.store.append([message("gone")])[0].queue_offset == 0


def test_what_was_only_in_the_log_of_a_deleted_topic_does_not_come_back_after_a_clean_stop(opened: Assembly) -> None:
    opened.store.append([message("kept"), message("gone")])
    opened.store.delete_topic("gone")
    opened.store.dispatch(opened.store.flush())
    opened.store.flush_queues()
    again = assemble(opened.disk, opened.engine, clean_shutdown=True)
    assert again.report.findings.records == 0
    assert again.store.iterate_queues() == [QueueId("kept", 0)]


def test_a_topic_that_could_not_be_deleted_loses_no_message(opened: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that waited for dispatch were once dropped before the deletion failed: acknowledged, and never seen."""
    store = opened.store
    store.append([message("kept", 0)])
    store.dispatch(store.flush())
    store.append([message("kept", 0)])

    def write(*_: object, **__: object) -> None:
        raise EngineFull("IO error: No space left on device")

    with monkeypatch.context() as full:
        full.setattr(opened.engine, "write", write)
        with pytest.raises(EngineFull):
            store.delete_topic("kept")
    store.flush()
    assert len(store.dispatch(store.flushed_up_to)) == 1
    assert store.bounds(QueueId("kept", 0)) == (0, 2)
