"""The set of pending messages is a function of the log: live, after a crash, and read again from its beginning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import Progress
from quarry_mq.protocol.messages.property_names import DEQUEUED_MS
from quarry_mq.protocol.messages.system_flag import TransactionState
from quarry_mq.protocol.names import HALF_TOPIC, OPERATION_TOPIC, SCHEDULE_TOPIC
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.consumequeue.dispatch import StoredAssignment
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.pending import (
    FAMILY,
    PendingBefore,
    PendingMessages,
    Resolution,
    progress_now,
    reading,
    slot_before,
)
from quarry_mq.store.pending.messages import (
    HALVES,
    RESOLUTIONS_DELETED,
    RESOLUTIONS_KEPT,
    TIMERS,
    may_any_change,
    may_change,
)
from quarry_mq.store.pending.rows import OPERATION_DONE, TIMER_TOPIC
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.record.properties import EncodedProperties
from quarry_mq.store.recovery.recovery import bring_up_to, whole_batches
from quarry_mq.store.rocketmq.model import ConsumerOffset, DataVersion, Warnings
from quarry_mq.store.rocketmq.pending_progress import HALVES_RESOLVED, pending_files, read_pending_progress
from quarry_mq.store.scan import found_in, pending_requests
from tests.faults.disk import FaultyDisk
from tests.pending.histories import History
from tests.store.assembly import Assembly, assemble, message, queue_engine

GoldenStore = Callable[[str], Path]
GOLDEN = ("file-clean", "rocks-clean", "double-clean", "file-kill")


def dispatch(assembly: Assembly) -> None:
    assembly.store.dispatch(assembly.store.flush())


def read_again(assembly: Assembly, engine: MemoryEngine | None = None) -> PendingMessages:
    pending = PendingMessages(engine or MemoryEngine((FAMILY,)), reading(assembly.reader))
    bring_up_to(pending, assembly.segments, assembly.store.appended_up_to, lambda _: None)
    return pending


@pytest.mark.parametrize("seed", range(20))
def test_live_and_read_again_it_is_what_the_words_say(seed: int) -> None:
    random = Random(seed)
    assembly = assemble(FaultyDisk(), queue_engine())
    history = History(random, assembly.store)
    for _ in range(20):
        for _ in range(random.randrange(1, 20)):
            history.step()
        dispatch(assembly)
        history.model.check(assembly.store.pending)
    again = read_again(assembly)
    history.model.check(again)
    assert again.up_to == assembly.store.pending.up_to == assembly.store.appended_up_to
    assert min(len(history.model.timers), len(history.model.resolved)) > 5, "it was about something"


@pytest.mark.parametrize("seed", range(10))
def test_a_crash_at_any_moment_is_made_up_for_from_the_watermark_on(seed: int) -> None:
    random = Random(seed)
    assembly = assemble(FaultyDisk(), queue_engine())
    engine = MemoryEngine((FAMILY,))
    pending = PendingMessages(engine, reading(assembly.reader))
    history = History(random, assembly.store)
    for _ in range(10):
        for _ in range(5):
            for _ in range(random.randrange(1, 20)):
                history.step()
            end = assembly.store.flush()
            pending.put(assembly.store.dispatch(end), end)
            if random.random() < 0.3:
                pending.flush()
        engine.crash(random.randrange(8))
        pending = read_again(assembly, engine)
        history.model.check(pending)


def test_what_rests_on_records_that_a_power_cut_took_is_made_again() -> None:
    """A timer was delivered, and the copy has gone with the end of the log: it has to be delivered again."""
    assembly = assemble(FaultyDisk(), queue_engine())
    [timer] = assembly.store.append([message(TIMER_TOPIC, TIMER_OUT_MS="5000", UNIQ_KEY="a")])
    end = assembly.store.appended_up_to
    copy = message("orders", TIMER_DEQUEUE_MS="1", UNIQ_KEY="a")
    assembly.store.append([copy._replace(prepared_transaction_offset=timer.physical_offset)])
    dispatch(assembly)
    engine = MemoryEngine((FAMILY,))
    ahead = read_again(assembly, engine)
    assert not ahead.due(5_000, 1)
    bring_up_to(ahead, assembly.segments, end, lambda _: None)
    assert [each.physical_offset for each in ahead.due(5_000, 1)] == [timer.physical_offset]
    assert ahead.up_to == end


def test_reading_again_is_told_of_and_survives_being_killed() -> None:
    assembly = assemble(FaultyDisk(), queue_engine())
    history = History(Random(3), assembly.store)
    for _ in range(2_000):
        history.step()
    dispatch(assembly)
    told: list[Progress] = []
    pending = PendingMessages(MemoryEngine((FAMILY,)), reading(assembly.reader))
    bring_up_to(pending, assembly.segments, assembly.store.appended_up_to, told.append)
    history.model.check(pending)
    assert told[-1].percent == 100
    assert len(told) > 2
    assert all(each.phase == "looking for held messages" for each in told)
    told.clear()
    bring_up_to(pending, assembly.segments, assembly.store.appended_up_to, told.append)
    assert not [each for each in told if each.total_bytes], "there is nothing left to read"


def test_columns_pick_exactly_the_records_that_matter() -> None:
    assembly = assemble(FaultyDisk(), queue_engine())
    history = History(Random(4), assembly.store)
    for _ in range(1_000):
        history.step()
    dispatch(assembly)
    picked: list[DispatchRequest] = []
    wanted: list[DispatchRequest] = []
    segments = assembly.segments
    for batch in whole_batches(segments, segments.minimum, assembly.store.appended_up_to):
        picked.extend(pending_requests(batch))
        requests = found_in(batch, segments.minimum, StoredAssignment()).requests
        of_batch = [each for each in requests if may_change(each)]
        assert may_any_change(requests) or not of_batch
        wanted.extend(of_batch)
    assert picked == wanted
    assert len(wanted) > 500


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": TIMER_TOPIC},
        {"topic": SCHEDULE_TOPIC},
        {"system_flag": TransactionState.COMMIT},
        {"properties": EncodedProperties(f"a\x01b\x02{DEQUEUED_MS}\x017\x02".encode())},
        {"properties": {DEQUEUED_MS: "7"}},
    ],
    ids=["timer", "schedule", "commit", "dequeued, encoded", "dequeued"],
)
@pytest.mark.parametrize("place", [0, 3, 7])
def test_one_message_with_an_effect_is_found_in_a_batch_of_others(changed: dict[str, Any], place: int) -> None:
    properties = EncodedProperties(b"TAGS\x01red\x02")
    plain = DispatchRequest("orders", 0, QueueOffset(0), PhysicalOffset(0), 100, 0, 0, 0, properties, ())
    requests = [plain] * 8
    assert not may_any_change(requests)
    requests[place] = plain._replace(**changed)
    assert may_change(requests[place])
    assert may_any_change(requests)


def test_how_transactions_ended_is_forgotten_in_the_end() -> None:
    assembly = assemble(FaultyDisk(), queue_engine())
    pending = assembly.store.pending
    last = RESOLUTIONS_KEPT + 2 * RESOLUTIONS_DELETED
    for offset in (5, last - 1, last):
        body = b"%d," % offset
        assembly.store.append([message(OPERATION_TOPIC, body=body, TAGS=OPERATION_DONE)])
        dispatch(assembly)
    assert pending.resolution(QueueOffset(5)) is None
    assert pending.resolution(QueueOffset(last - 1)) is Resolution.ROLLED_BACK


@pytest.mark.parametrize(
    ("body", "tags"),
    [(b"0,", "other"), (b"zero,", "d"), (b"", "d"), (b"-1,99999999999999999999,,", "d"), (b"\xff", "d")],
)
def test_an_operation_that_makes_no_sense_resolves_nothing(body: bytes, tags: str) -> None:
    assembly = assemble(FaultyDisk(), queue_engine())
    assembly.store.append([message(HALF_TOPIC, UNIQ_KEY="a"), message(OPERATION_TOPIC, body=body, TAGS=tags)])
    dispatch(assembly)
    assert assembly.store.pending.half_of("a") is not None


@pytest.mark.parametrize("wrong", ["", "soon", "-5", "1e9", "9" * 30])
def test_a_time_that_is_none_is_due_at_once(wrong: str) -> None:
    assembly = assemble(FaultyDisk(), queue_engine())
    assembly.store.append([message(TIMER_TOPIC, TIMER_OUT_MS=wrong, UNIQ_KEY="a")])
    dispatch(assembly)
    [waiting] = assembly.store.pending.due(0, 10)
    assert assembly.store.pending.first_due() == waiting


@pytest.mark.parametrize("name", GOLDEN)
def test_a_store_of_rocketmq_goes_on_where_it_was(golden_store: GoldenStore, name: str) -> None:
    """Its delay levels from `delayOffset.json`, its timers from `timercheck`; all its transactions were resolved."""
    root = golden_store(name)
    warnings = Warnings()
    before = read_pending_progress(PosixDisk(), StorePaths(root / "store"), [], warnings)
    assert not warnings.texts()
    records = [json.loads(line) for line in (root / "messages.jsonl").read_text().splitlines()]
    records = [each for each in records if "phyOffset" in each]
    waiting = {
        each["phyOffset"]
        for each in records
        if each["topic"] == "SCHEDULE_TOPIC_XXXX" and each["queueOffset"] >= before.scheduled.get(each["queueId"], 0)
    }
    assert before.timers_read == sum(each["topic"] == TIMER_TOPIC for each in records)
    end = PhysicalOffset(max(each["phyOffset"] + each["storeSize"] for each in records))
    segments = SegmentList(PosixDisk(), root / "store" / "commitlog", None, mapped_max=4)
    log = CommitLogReader(segments)
    pending = PendingMessages(MemoryEngine((FAMILY,)), reading(log), before=before)
    bring_up_to(pending, segments, end, lambda _: None)
    due = pending.due(2**62, 10_000)
    assert {each.physical_offset for each in due} == waiting
    assert not pending.halves(QueueOffset(0), 10)
    assert all(pending.resolution(QueueOffset(number)) for number in (0, 1, 3, 12))
    for each in due:
        record = log.decode(each.physical_offset)
        assert isinstance(record, StoredMessage)
        assert record.size == each.size
    log.let_go()
    segments.close()


@pytest.mark.parametrize("seed", range(10))
def test_rocketmq_is_told_where_the_first_that_waits_is(seed: int, tmp_path: Path) -> None:
    assembly = assemble(FaultyDisk(), queue_engine())
    history = History(Random(seed), assembly.store)
    for _ in range(100):
        history.step()
    dispatch(assembly)
    ends: dict[QueueId, QueueOffset] = {}
    waiting: dict[QueueId, set[QueueOffset]] = {}
    places = {each.physical_offset for each in history.model.timers.values()}
    for decoded in assembly.reader.scan(PhysicalOffset(0)):
        if isinstance(decoded, StoredMessage):
            queue = QueueId(decoded.topic, decoded.queue_number)
            ends[queue] = QueueOffset(decoded.queue_offset + 1)
            if decoded.physical_offset in places:
                waiting.setdefault(queue, set()).add(decoded.queue_offset)
    if history.model.halves:
        waiting[HALVES] = {half.queue_offset for half in history.model.halves.values()}
    expected = {queue: min(waiting.get(queue, {end})) for queue, end in ends.items()}
    found = progress_now(
        assembly.store.pending, reading(assembly.reader), lambda queue: ends.get(queue, QueueOffset(0)), 5_000
    )
    assert found.timers_read == expected[TIMERS]
    assert found.halves == expected[HALVES]
    of_levels = {queue.number: offset for queue, offset in expected.items() if queue.topic == SCHEDULE_TOPIC}
    assert found.scheduled == {number: offset for number, offset in of_levels.items() if offset}
    assert waiting, "something waits"
    (tmp_path / "config").mkdir()
    for name, content in pending_files(found, DataVersion(0, 7, 1_795_000_000_000), timers_end=ends[TIMERS]).items():
        (tmp_path / "config" / name).write_bytes(content)
    check = (tmp_path / "config" / "timercheck").read_bytes()
    read_ms, timers_read, end = (int.from_bytes(check[at : at + 8], signed=True) for at in (0, 16, 24))
    assert (timers_read, end) == (found.timers_read, ends[TIMERS])
    read = reading(assembly.reader)
    slots = [
        slot_before(each.due_ms)
        for each in assembly.store.pending.waiting_messages()
        if (record := read(each.physical_offset)) is not None and record.topic == TIMER_TOPIC
    ]
    assert read_ms == min([5_000, *slots])
    offsets = [ConsumerOffset(*HALVES_RESOLVED, QueueOffset(found.halves))]
    assert read_pending_progress(PosixDisk(), StorePaths(tmp_path), offsets, Warnings()) == found


@pytest.mark.parametrize("seed", range(10))
def test_what_another_broker_delivers_meanwhile_is_dropped_as_if_it_had_been_known_at_once(seed: int) -> None:
    random = Random(seed)
    assembly = assemble(FaultyDisk(), queue_engine())
    engine = MemoryEngine((FAMILY,))
    pending = PendingMessages(engine, reading(assembly.reader))
    history = History(random, assembly.store)
    before = PendingBefore()
    for _ in range(10):
        for _ in range(random.randrange(1, 60)):
            history.step()
        end = assembly.store.flush()
        pending.put(assembly.store.dispatch(end), end)

        def reached(topic: str, number: int, known: int) -> int:
            return random.randint(known, max(known, assembly.store.maximum(QueueId(topic, number))))

        before = PendingBefore(
            scheduled={
                number: reached(SCHEDULE_TOPIC, number, before.scheduled.get(number, 0)) for number in range(18)
            },
            timers_read=reached(TIMER_TOPIC, 0, before.timers_read),
            timers_read_ms=200_000,
            halves=reached(HALF_TOPIC, 0, before.halves),
        )
        if random.random() < 0.7:
            pending.settle(before, 1_800_000_000_000)
        if random.random() < 0.3:
            pending.flush()
        if random.random() < 0.3:
            engine.crash(random.randrange(8))
            pending = PendingMessages(engine, reading(assembly.reader))
            bring_up_to(pending, assembly.segments, assembly.store.appended_up_to, lambda _: None)
    pending.settle(before, 1_800_000_000_000)
    at_once = PendingMessages(MemoryEngine((FAMILY,)), reading(assembly.reader), before=before)
    bring_up_to(at_once, assembly.segments, assembly.store.appended_up_to, lambda _: None)
    assert list(pending.waiting_messages()) == list(at_once.waiting_messages()) != []
    assert pending.halves(QueueOffset(0), 1_000) == at_once.halves(QueueOffset(0), 1_000)
    assert PendingMessages(engine, reading(assembly.reader)).before == before


def test_notes_of_rocketmq_about_messages_in_flight_are_not_delivered() -> None:
    assembly = assemble(FaultyDisk(), queue_engine())
    for real_topic in ("orders", "rmq_sys_REVIVE_LOG_DefaultCluster"):
        assembly.store.append([message(TIMER_TOPIC, TIMER_OUT_MS="5000", UNIQ_KEY="a", REAL_TOPIC=real_topic)])
    dispatch(assembly)
    pending = PendingMessages(MemoryEngine((FAMILY,)), reading(assembly.reader), before=PendingBefore())
    bring_up_to(pending, assembly.segments, assembly.store.appended_up_to, lambda _: None)
    assert len(pending.due(5_000, 10)) == 1


def test_what_rocketmq_had_done_is_kept_as_a_row() -> None:
    before = PendingBefore(scheduled={0: 7, 17: 1}, timers_read=3, timers_read_ms=1_795_000_000_000, halves=4)
    assert PendingBefore.unpack(before.pack()) == before


@pytest.mark.parametrize("digits", [18, 19, 400])
@pytest.mark.parametrize(
    ("topic", "names"),
    [
        (HALF_TOPIC, ["CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES"]),
        (TIMER_TOPIC, ["TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES"]),
        (SCHEDULE_TOPIC, ["DELAY"]),
        ("orders", ["TIMER_DEQUEUE_MS"]),
    ],
    ids=["half", "timer", "schedule", "delivered"],
)
def test_no_number_in_a_record_is_too_large_for_its_row(topic: str, names: list[str], digits: int) -> None:
    """A row that cannot be written stops a store, now and at each start."""
    assembly = assemble(FaultyDisk(), queue_engine())
    for sign in ("", "-"):
        properties = dict.fromkeys(names, sign + "9" * digits)
        assembly.store.append([message(topic)._replace(properties={"UNIQ_KEY": "id", **properties})])
    dispatch(assembly)
    read_again(assembly)
