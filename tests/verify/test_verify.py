"""A store that agrees is told so; each way of disagreeing is found, counted and named."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND,
    CHECKPOINT_KEY,
    ENTRIES_FAMILY,
    ENTRY,
    I64,
    OFFSET_FAMILY,
    entry_key,
    maximum_key,
    minimum_key,
)
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.state.identity import INFLIGHT, TOPICS
from quarry_mq.store.state.in_flight_key import index_key, pack_position, subscription_prefix
from quarry_mq.store.verify import Check, Note
from tests import golden
from tests.store.assembly import message
from tests.verify.stores import (
    LIGHT,
    ORDERS,
    delete,
    differences,
    differing,
    fill,
    get,
    opened,
    put,
    queue_rows,
    send,
    state_rows,
    verified,
)

GoldenStore = Callable[[str], Path]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("name", golden.NAMES)
def test_stores_of_rocketmq_agree(golden_store: GoldenStore, name: str) -> None:
    report = verified(golden_store(name) / "store")
    assert report.differences == []
    assert report.agrees
    expected = golden.records(golden_store(name))
    assert report.counts[Check.LOG].checked == sum("blank" not in line for line in expected)


@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_stores_of_rocketmq_agree_after_a_run_of_ours(golden_copy: GoldenStore, name: str) -> None:
    """The queue files end where RocketMQ stopped; that is no difference."""
    root = golden_copy(name) / "store"
    taken_over = opened(root)
    send(taken_over, 5)
    taken_over.close()
    report = verified(root)
    assert [each for each in report.differences if each.check is not Check.TOPICS] == []


def test_our_own_store_agrees(store: Path) -> None:
    report = verified(store)
    assert report.agrees
    assert report.notes == {}
    assert report.clean_stop
    assert {check: tuple(count) for check, count in report.counts.items()} == {
        Check.LOG: (30, 0),
        Check.RECORDS: (40, 0),
        Check.ENTRIES: (40, 0),
        Check.OFFSETS: (4, 0),
        Check.CHECKPOINT: (1, 0),
        Check.TOPICS: (2, 0),
        Check.GROUPS: (1, 0),
        Check.IN_FLIGHT: (1, 0),
        Check.PENDING: (0, 0),
    }


def test_a_store_whose_broker_was_killed_agrees(tmp_path: Path) -> None:
    """What lies above the check point waits for the next start, offsets of groups that run ahead included."""
    fill(tmp_path)
    running = opened(tmp_path)
    send(running, 5)
    running.messages.dispatch(running.messages.appended_up_to)
    batch = running.state_engine.batch()
    running.offsets.stage(batch, "readers", ORDERS, QueueOffset(15))
    running.state_engine.write(batch, sync=True)
    killed = tmp_path.parent / "killed"
    shutil.copytree(tmp_path, killed)
    running.close()
    report = verified(killed)
    assert report.differences == []
    assert report.notes[Note.UNDISPATCHED] == 15
    assert not report.clean_stop
    with state_rows(killed) as engine:
        tables = engine.batch()
        running.offsets.__class__(engine).stage(tables, "readers", ORDERS, QueueOffset(16))
        engine.write(tables)
    (difference,) = differences(killed)
    assert (difference.check, difference.queue, difference.queue_offset) == (Check.GROUPS, ORDERS, 16)


@pytest.mark.parametrize("queue", [ORDERS, QueueId(LIGHT, 0)])
def test_a_record_without_its_entry(store: Path, queue: QueueId) -> None:
    """rmq#9454 and others: a message that is stored and that nobody can see."""
    with queue_rows(store) as engine:
        delete(engine, ENTRIES_FAMILY, entry_key(queue, QueueOffset(3)))
    (difference,) = differences(store)
    assert difference.check is Check.RECORDS
    assert (difference.queue, difference.queue_offset) == (queue, 3)
    assert "no entry" in difference.found
    assert str(difference.file).endswith("consumequeue_rocksdb")


@pytest.mark.parametrize(
    ("place", "words"),
    [(1, "size"), (2, "tags code"), (3, "store time")],
)
def test_an_entry_that_says_something_else_than_its_record(store: Path, place: int, words: str) -> None:
    key = entry_key(ORDERS, QueueOffset(3))
    with queue_rows(store) as engine:
        fields = list(ENTRY.unpack(get(engine, ENTRIES_FAMILY, key)))
        right = fields[place]
        fields[place] += 1
        put(engine, ENTRIES_FAMILY, key, ENTRY.pack(*fields))
    (difference,) = differences(store)
    assert difference.check is Check.RECORDS
    assert (difference.expected, difference.found) == (f"{words} {right}", f"{words} {right + 1}")


def test_an_entry_that_points_into_the_middle_of_a_record(store: Path) -> None:
    key = entry_key(ORDERS, QueueOffset(3))
    with queue_rows(store) as engine:
        place, *rest = ENTRY.unpack(get(engine, ENTRIES_FAMILY, key))
        put(engine, ENTRIES_FAMILY, key, ENTRY.pack(place + 1, *rest))
    record, entry = differences(store)
    assert (record.check, record.physical_offset) == (Check.RECORDS, place)
    assert f"offset {place + 1}" in record.found
    assert (entry.check, entry.queue_offset, entry.physical_offset) == (Check.ENTRIES, 3, place + 1)


def test_two_entries_in_each_others_place(store: Path) -> None:
    third, fourth = (entry_key(ORDERS, QueueOffset(at)) for at in (3, 4))
    with queue_rows(store) as engine:
        values = get(engine, ENTRIES_FAMILY, third), get(engine, ENTRIES_FAMILY, fourth)
        put(engine, ENTRIES_FAMILY, third, values[1])
        put(engine, ENTRIES_FAMILY, fourth, values[0])
    assert differing(store) == {Check.RECORDS, Check.ENTRIES}
    assert verified(store).counts[Check.RECORDS].differences == 2


def test_an_entry_of_no_record(store: Path) -> None:
    """One entry more than the log has messages: a consumer would be given nothing, or something else."""
    key = entry_key(ORDERS, QueueOffset(9))
    with queue_rows(store) as engine:
        last = ENTRY.unpack(get(engine, ENTRIES_FAMILY, key))
        beyond = (1 << 40, *last[1:])
        put(engine, ENTRIES_FAMILY, entry_key(ORDERS, QueueOffset(10)), ENTRY.pack(*beyond))
        put(engine, OFFSET_FAMILY, maximum_key(ORDERS), BOUND.pack(1 << 40, 10))
    (difference,) = differences(store)
    assert (difference.check, difference.queue_offset) == (Check.ENTRIES, 10)


def test_a_maximum_that_hides_messages(store: Path) -> None:
    with queue_rows(store) as engine:
        place, *_ = ENTRY.unpack(get(engine, ENTRIES_FAMILY, entry_key(ORDERS, QueueOffset(6))))
        put(engine, OFFSET_FAMILY, maximum_key(ORDERS), BOUND.pack(place, 6))
    found = differences(store)
    assert {each.check for each in found} == {Check.RECORDS}
    assert [each.queue_offset for each in found] == [7, 8, 9]
    assert verified(store).notes[Note.ABOVE_MAXIMUM] == 3


def test_a_maximum_beyond_the_last_entry(store: Path) -> None:
    with queue_rows(store) as engine:
        put(engine, OFFSET_FAMILY, maximum_key(ORDERS), BOUND.pack(1 << 40, 12))
    (difference,) = differences(store)
    assert difference.check is Check.OFFSETS
    assert "entry 9" in difference.expected
    assert "entry 12" in difference.found


def test_a_queue_without_its_maximum(store: Path) -> None:
    with queue_rows(store) as engine:
        delete(engine, OFFSET_FAMILY, maximum_key(ORDERS))
    assert {Check.OFFSETS, Check.RECORDS} <= differing(store)


def test_a_minimum_above_the_maximum(store: Path) -> None:
    """rmq#10417."""
    with queue_rows(store) as engine:
        put(engine, OFFSET_FAMILY, minimum_key(ORDERS), BOUND.pack(0, 11))
    assert [each.expected for each in differences(store) if each.check is Check.OFFSETS] == ["a minimum of at most 10"]


def test_a_minimum_that_hides_messages(store: Path) -> None:
    with queue_rows(store) as engine:
        put(engine, OFFSET_FAMILY, minimum_key(ORDERS), BOUND.pack(0, 2))
    assert Check.OFFSETS in differing(store)


def test_a_check_point_beyond_the_log(store: Path) -> None:
    with queue_rows(store) as engine:
        put(engine, OFFSET_FAMILY, CHECKPOINT_KEY, I64.pack(1 << 40))
    (difference,) = differences(store)
    assert (difference.check, difference.found) == (Check.CHECKPOINT, str(1 << 40))


def test_rows_that_are_none(store: Path) -> None:
    with queue_rows(store) as engine:
        put(engine, ENTRIES_FAMILY, b"stranger", b"x")
        put(engine, OFFSET_FAMILY, b"stranger", b"x")
        put(engine, OFFSET_FAMILY, maximum_key(QueueId("odd", 0)), b"seven..")
    assert [each.check for each in differences(store)].count(Check.OFFSETS) == 2
    assert Check.ENTRIES in differing(store)


def test_a_topic_without_metadata(store: Path) -> None:
    with state_rows(store) as engine:
        delete(engine, TOPICS, b"bills")
    (difference,) = differences(store)
    assert (difference.check, difference.queue) == (Check.TOPICS, QueueId("bills", 0))


def test_a_delivery_of_a_message_that_does_not_exist(store: Path) -> None:
    row = subscription_prefix("readers", "orders")
    with state_rows(store) as engine:
        value = get(engine, INFLIGHT, row + pack_position(0, 4))
        for position in (pack_position(0, 10), pack_position(7, 0)):
            put(engine, INFLIGHT, row + position, value)
            put(engine, INFLIGHT, index_key(row + position, value), b"")
    found = differences(store)
    assert [(each.check, each.queue) for each in found] == [
        (Check.IN_FLIGHT, ORDERS),
        (Check.IN_FLIGHT, QueueId("orders", 7)),
    ]


def test_a_delivery_that_never_comes_back(store: Path) -> None:
    row = subscription_prefix("readers", "orders")
    with state_rows(store) as engine:
        value = get(engine, INFLIGHT, row + pack_position(0, 4))
        put(engine, INFLIGHT, row + pack_position(0, 3), value)
    (difference,) = differences(store)
    assert (difference.check, difference.queue, difference.queue_offset) == (Check.IN_FLIGHT, ORDERS, 3)
    with state_rows(store) as engine:  # a store from before there was an index: the next start makes all of it
        delete(engine, INFLIGHT, index_key(row + pack_position(0, 4), value))
    assert differences(store) == []


def test_a_deleted_topic_is_no_difference(store: Path) -> None:
    running = opened(store)
    running.topics.delete("bills")
    running.messages.delete_topic("bills")
    running.close()
    report = verified(store)
    assert report.differences == []
    assert report.notes[Note.DELETED] == 10


def test_a_topic_that_was_deleted_and_made_again_is_no_difference(store: Path) -> None:
    running = opened(store)
    running.messages.delete_topic("bills")
    send(running, 3)
    running.close()
    report = verified(store)
    assert report.differences == []
    assert report.notes[Note.EARLIER_LIFE] == 10


def remove_light_queue(root: Path) -> None:
    running = opened(root)
    end = running.messages.dispatched_up_to
    running.messages.remove_ended(running.messages.light_queues_ended(end, b"").ended)
    running.close()


def test_a_light_queue_that_was_removed_is_no_difference(store: Path) -> None:
    remove_light_queue(store)
    report = verified(store)
    assert report.differences == []
    assert report.notes[Note.REMOVED_LIGHT] == 10
    running = opened(store)
    send(running, 3)  # it begins anew above what was removed
    running.messages.dispatch(running.messages.appended_up_to)
    running.close()
    report = verified(store)
    assert report.differences == []
    assert report.notes[Note.REMOVED_LIGHT] == 10


@pytest.mark.parametrize("lost", [10, 11])
def test_what_a_light_queue_lost_after_another_one_was_removed_is_a_difference(store: Path, lost: int) -> None:
    remove_light_queue(store)
    running = opened(store)
    send(running, 3)
    running.messages.dispatch(running.messages.appended_up_to)
    engine = running.queues.engine
    assert engine is not None
    batch = engine.batch()
    batch.delete(engine.family(ENTRIES_FAMILY), entry_key(QueueId(LIGHT, 0), QueueOffset(lost)))
    engine.write(batch)
    running.close()
    assert [(each.check, each.queue_offset) for each in differences(store) if each.check is Check.RECORDS] == [
        (Check.RECORDS, lost)
    ]


def test_damage_in_the_log_is_named_and_reading_goes_on_after_it(golden_copy: GoldenStore) -> None:
    """Corruption is reported, never skipped: of the segment only what a unit points at can still be found."""
    root = golden_copy("rocks-clean") / "store"
    records = golden.records(root.parent)
    victim = next(line for line in records[100:] if "blank" not in line)
    segment = StorePaths(root).commit_log / f"{0:020d}"
    with segment.open("r+b") as file:
        file.seek(victim["phyOffset"] + 95)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    report = verified(root)
    found = {each.check: each for each in report.differences}
    assert found[Check.LOG].physical_offset == victim["phyOffset"]
    assert found[Check.LOG].file == segment
    assert found[Check.ENTRIES].physical_offset == victim["phyOffset"]
    assert report.counts[Check.LOG].differences == 1
    following = [line for line in records if line.get("phyOffset", 0) >= 1 << 20]
    assert report.counts[Check.LOG].checked >= len(following)


def test_everything_is_counted_and_only_the_first_are_told(store: Path) -> None:
    with queue_rows(store) as engine:
        batch = engine.batch()
        for key, _ in engine.family(ENTRIES_FAMILY).scan(KeyRange(b"", None)):
            batch.delete(engine.family(ENTRIES_FAMILY), key)
        engine.write(batch)
    report = verified(store, limit=2)
    assert report.counts[Check.RECORDS].differences == 40
    assert [each.check for each in report.differences].count(Check.RECORDS) == 2


@pytest.mark.parametrize("seed", range(15))
def test_any_single_changed_row_is_found(tmp_path: Path, seed: int) -> None:
    """A row deleted, or one of its bits flipped, in either family: never "agree"."""
    fill(tmp_path, 4)
    chance = random.Random(seed)
    family = chance.choice((ENTRIES_FAMILY, OFFSET_FAMILY))
    with queue_rows(tmp_path) as engine:
        key, value = chance.choice(engine.family(family).scan(KeyRange(b"", None)))
        if chance.random() < 0.3 and key != CHECKPOINT_KEY:
            delete(engine, family, key)
        else:
            bit = chance.randrange(8 * len(value))
            changed = int.from_bytes(value, "big") ^ (1 << bit)
            if key == CHECKPOINT_KEY and changed < int.from_bytes(value, "big"):
                changed = 1 << 62  # lowered, it only makes the next start read more of the log
            put(engine, family, key, changed.to_bytes(len(value), "big"))
    assert not verified(tmp_path).agrees, f"replay with {seed=}"


MODES = [None, QueueMode.FILE, QueueMode.DOUBLE_WRITE]


@pytest.mark.parametrize("mode", MODES, ids=["rocksdb", "file", "both"])
@pytest.mark.parametrize("sent", [(), (0,), (0, 1)], ids=["nothing", "to one queue", "to both"])
@pytest.mark.parametrize("is_dispatched", [True, False])
def test_a_topic_that_was_deleted_and_made_again_agrees(
    tmp_path: Path, mode: QueueMode | None, sent: tuple[int, ...], is_dispatched: bool
) -> None:
    store = opened(tmp_path, mode)
    topic = Topic("orders", TopicType.NORMAL, 2, 2, READ_WRITE, {})
    for _ in range(2):
        store.topics.create(topic)
        for number in (0, 1, 1):
            store.messages.append([message("orders", number)])
        if is_dispatched:
            store.messages.dispatch(store.messages.flush())
        store.messages.delete_topic("orders")
        store.topics.delete("orders")
    store.topics.create(topic)
    for number in sent:
        store.messages.append([message("orders", number)])
    store.close()
    for _ in range(2):
        report = verified(tmp_path)
        assert report.differences == []
        opened(tmp_path, mode).close()
    lost = opened(tmp_path, mode)
    lost.messages.append([message("orders", 0)])
    lost.close()
    assert verified(tmp_path).agrees


def test_a_queue_that_was_lost_after_its_topic_was_made_again_is_found(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.topics.create(Topic("orders", TopicType.NORMAL, 2, 2, READ_WRITE, {}))
    store.messages.append([message("orders", 0)])
    store.messages.dispatch(store.messages.flush())
    store.messages.delete_topic("orders")
    store.messages.append([message("orders", 0), message("orders", 1)])
    store.close()
    with queue_rows(tmp_path) as engine:
        for key in (maximum_key(ORDERS), minimum_key(ORDERS)):
            delete(engine, OFFSET_FAMILY, key)
        for key in [
            key
            for key, _ in engine.family(ENTRIES_FAMILY).scan(
                KeyRange(entry_key(ORDERS, QueueOffset(0)), entry_key(ORDERS, QueueOffset(9)))
            )
        ]:
            delete(engine, ENTRIES_FAMILY, key)
    assert Check.RECORDS in differing(tmp_path)
