"""Light queues: one message in many of them at once, crashes, and removal of those that are empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue import LastEntry
from quarry_mq.store.consumequeue.dispatch import StoredAssignment, light_queues
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from tests.faults.disk import FaultyDisk
from tests.store.assembly import Assembly, assemble, message, queue_engine

ORDERS = QueueId("orders", 0)
SEGMENT_SIZE = 64 * 1024


def light(number: int) -> QueueId:
    return QueueId(f"%LMQ%client-{number}", 0)


def to_light(assembly: Assembly | OpenStore, *numbers: int, body: bytes = b"body") -> None:
    """One message that is also in these light queues, made visible."""
    store = assembly.store if isinstance(assembly, Assembly) else assembly.messages
    store.append([message(body=body, INNER_MULTI_DISPATCH=",".join(light(number).topic for number in numbers))])
    store.dispatch(store.flush())


def stored_at(assembly: Assembly, queue: QueueId) -> list[PhysicalOffset]:
    return [each.physical_offset for each in assembly.store.entries(queue, QueueOffset(0), 1_000)]


@pytest.mark.parametrize("kept", range(11))
def test_a_message_is_in_all_of_its_light_queues_or_in_none(kept: int) -> None:
    """rmq#7511, rmq#7525, rmq#8762: some of the queues lost the message. Here one batch holds all entries, and another
    one all maxima, which make them visible.
    """
    disk, engine = FaultyDisk(), queue_engine()
    first = assemble(disk, engine)
    for _ in range(5):
        to_light(first, *range(100))
        engine.settle()
    everywhere = stored_at(first, ORDERS)
    engine.crash(surviving_batches=kept)
    bare = {
        tuple(
            entry.physical_offset
            for entry in first.queues.__class__(engine, minimum_physical_offset=PhysicalOffset(0)).entries(
                queue, QueueOffset(0), 10
            )
        )
        for queue in (ORDERS, *map(light, range(100)))
    }
    assert bare == {tuple(everywhere[: kept // 2])}, "what the database holds right after the crash"
    again = assemble(disk, engine)
    assert {tuple(stored_at(again, queue)) for queue in (ORDERS, *map(light, range(100)))} == {tuple(everywhere)}


def test_light_queues_of_one_batch_get_offsets_one_after_the_other() -> None:
    assembly = assemble(FaultyDisk(), queue_engine())
    named = [[0, 1], [1], [1, 2], [0]]
    assembly.store.append(
        [message(INNER_MULTI_DISPATCH=",".join(light(each).topic for each in numbers)) for numbers in named]
    )
    assembly.store.dispatch(assembly.store.flush())
    records = [assembly.store.read(entry) for entry in assembly.store.entries(ORDERS, QueueOffset(0), 10)]
    assert [record.properties["INNER_MULTI_QUEUE_OFFSET"] for record in records] == ["0,0", "1", "2,0", "1"]
    assert [assembly.store.bounds(light(number)) for number in range(3)] == [(0, 2), (0, 3), (0, 1)]


# -- removal


def opened(root: Path, clock: ManualClock | None = None, mode: QueueMode | None = None) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=SEGMENT_SIZE, queue_mode=mode, units_per_file=16)
    return open_store(settings, disk=PosixDisk(), clock=clock or ManualClock(), report=lambda _: None)


def crash(store: OpenStore) -> None:
    """Leave the store as the death of the process does: nothing is flushed, dispatched or marked any more."""
    store._ending.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def expire_all(store: OpenStore) -> PhysicalOffset:
    """Let the log begin behind what was written so far."""
    while store.expiry.segment_count < 2 or store.messages.appended_up_to < store.expiry.end - SEGMENT_SIZE + 100:
        store.messages.append([message("filler", body=bytes(8_000))])
    store.messages.dispatch(store.messages.flush())
    store.messages.flush_queues()
    begin = store.expiry.retire(store.expiry.latest_beginning)
    store.expiry.remover.run()
    return begin


def ended(store: OpenStore) -> list[LastEntry]:
    step = store.messages.light_queues_ended(store.expiry.minimum, b"")
    assert step.next_key is None
    return store.messages.still_ended(step.ended)


def test_an_empty_light_queue_is_removed_and_its_numbers_never_come_again(tmp_path: Path) -> None:
    """rocketmq-mqtt#287: light queues only ever grew in number."""
    store = opened(tmp_path)
    for _ in range(7):
        to_light(store, 1)
    to_light(store, 2)
    assert ended(store) == []
    expire_all(store)
    to_light(store, 3)
    found = ended(store)
    assert [each.queue for each in found] == [light(1), light(2)]
    store.messages.remove_ended(found)
    assert {light(1), light(2)}.isdisjoint(store.messages.iterate_queues())
    for number in (2, 1, 4):
        to_light(store, number)
    # a reader of queue 1 has seen the numbers 0 to 6; one that comes back with 7 misses nothing
    assert [store.messages.bounds(light(number)) for number in (1, 2, 3, 4)] == [(7, 8), (7, 8), (0, 1), (7, 8)]
    to_light(store, 1, 3)
    assert [store.messages.bounds(light(number)) for number in (1, 3)] == [(7, 9), (0, 2)]
    store.close()
    again = opened(tmp_path)
    assert [again.messages.bounds(light(number)) for number in (1, 2, 3, 4)] == [(7, 9), (7, 8), (0, 2), (7, 8)]
    to_light(again, 5)
    assert again.messages.bounds(light(5)) == (7, 8)
    again.close()


def test_a_rebuild_gives_the_numbers_that_the_records_state(tmp_path: Path) -> None:
    """Promise 1: everything but the log is a function of the log, numbers from above a floor among it."""
    store = opened(tmp_path)
    to_light(store, 1)
    expire_all(store)
    store.messages.remove_ended(ended(store))
    to_light(store, 1, 2)
    bounds = {queue: store.messages.bounds(queue) for queue in store.messages.iterate_queues()}
    assert bounds[light(1)] == (1, 2)
    store.close()
    (tmp_path / "consumequeue_rocksdb").rename(tmp_path / "elsewhere")
    again = opened(tmp_path)
    assert {queue: again.messages.bounds(queue) for queue in again.messages.iterate_queues()} == {
        queue: each for queue, each in bounds.items() if each.minimum < each.maximum
    }
    again.close()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_removal_that_a_crash_takes_back_is_done_again(tmp_path: Path, flushed: bool) -> None:
    store = opened(tmp_path)
    to_light(store, 1)
    expire_all(store)
    store.messages.remove_ended(ended(store))
    to_light(store, 1)
    if flushed:
        store.messages.flush_queues()
    assert store.messages.bounds(light(1)) == (1, 2)
    crash(store)
    again = opened(tmp_path)
    assert again.messages.bounds(light(1)) == (1, 2)
    assert [each.queue_offset for each in again.messages.entries(light(1), QueueOffset(0), 9)] == [1]
    assert ended(again) == []
    again.close()


def test_a_queue_that_is_about_to_get_a_message_stays(tmp_path: Path) -> None:
    store = opened(tmp_path)
    to_light(store, 1)
    to_light(store, 2)
    expire_all(store)
    step = store.messages.light_queues_ended(store.expiry.minimum, b"")
    store.messages.append([message(INNER_MULTI_DISPATCH=light(2).topic)])  # numbered, and not dispatched yet
    still = store.messages.still_ended(step.ended)
    assert [each.queue for each in still] == [light(1)]
    store.messages.remove_ended(still)
    store.messages.dispatch(store.messages.flush())
    assert store.messages.bounds(light(2)) == (1, 2)
    store.close()


@pytest.mark.parametrize("mode", [QueueMode.FILE, QueueMode.DOUBLE_WRITE])
def test_light_queues_in_files_stay(tmp_path: Path, mode: QueueMode) -> None:
    """There a queue that begins anew far above 0 has filler before it, 20 bytes for each number."""
    store = opened(tmp_path, mode=mode)
    to_light(store, 1)
    expire_all(store)
    assert ended(store) == []
    assert store.messages.still_ended([LastEntry(light(1), None)]) == []  # type: ignore[arg-type]
    store.messages.remove_ended([])
    assert light(1) in store.messages.iterate_queues()
    store.close()


@pytest.mark.parametrize("digits", [19, 400, 5_000])
def test_an_offset_that_no_key_can_hold_is_none(digits: int) -> None:
    """A record of another broker must not stop a start."""
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": f"{'9' * digits},5"}
    found = light_queues("orders", properties, PhysicalOffset(0), StoredAssignment())
    assert list(found) == [("%LMQ%b", 5)]
