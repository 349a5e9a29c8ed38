"""File queues and RocksDB queues, compared unit by unit while they may change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue import DoubleWriteConsumeQueues
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY, entry_key
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.migration.comparison import (
    AgreementReport,
    EntryComparison,
    Kind,
    Note,
    QueueDifference,
    Scope,
    begin_comparison,
)
from quarry_mq.store.retention.queue_expiry import FileSweep, RocksSweep
from tests.consumequeue.backings import DoubleBacking, files_of, rocks_of
from tests.consumequeue.samples import A0, A1, B0, LITE, RECORD_SIZE, physical, put, queues_over, request

SLASH = QueueId("%LMQ%a/b", 0)


@pytest.fixture
def backing(tmp_path: Path) -> DoubleBacking:
    return DoubleBacking(tmp_path, read_rocks=False)


@pytest.fixture
def both(backing: DoubleBacking) -> DoubleWriteConsumeQueues:
    return backing.open()


def scope_of(both: DoubleWriteConsumeQueues, minimum: int = 0, below: int | None = None, **more: object) -> Scope:
    end = both.dispatched_up_to() or PhysicalOffset(0)
    return Scope(
        below=end if below is None else PhysicalOffset(below),
        minimum=lambda: PhysicalOffset(minimum),
        removals=lambda: both.removals,
        **{"is_doubled": both.is_doubled, **more},  # type: ignore[arg-type]
    )


def comparison(both: DoubleWriteConsumeQueues, scope: Scope | None = None, **more: int) -> EntryComparison:
    return EntryComparison(
        files_of(both).entry_reader(),
        rocks_of(both).entry_reader(),
        scope or scope_of(both),
        ManualClock(),
        asked_by="operator",
        **more,
    )


def finished(work: EntryComparison) -> AgreementReport:
    while work.step():
        pass
    work.close()
    return work.report()


def compared(both: DoubleWriteConsumeQueues, scope: Scope | None = None, **more: int) -> AgreementReport:
    return finished(comparison(both, scope, **more))


def fill(both: DoubleWriteConsumeQueues, count: int = 30, seed: int = 1) -> None:
    """`count` records in three queues, every third also in a light queue, where every fifth is named twice."""
    chance, ends = random.Random(seed), Counter[QueueId]()
    for number in range(count):
        queue = chance.choice([A0, A1, B0])
        lights = [(LITE.topic, ends[LITE])] if number % 3 == 0 else []
        put(both, [request(number, queue, ends[queue], *lights)])
        ends[queue] += 1
        ends[LITE] += (2 if number % 5 == 0 else 1) * len(lights)


def entry(number: int, size: int = RECORD_SIZE, tags_code: int | None = None) -> str:
    return f"{size} bytes at offset {physical(number)}, tags code {-number if tags_code is None else tags_code}"


def told(kind: Kind, queue: QueueId, queue_offset: int | None, text: str) -> QueueDifference:
    return QueueDifference(kind.value, queue.topic, queue.number, queue_offset, text)


def test_a_comparison_of_what_both_hold_now(both: DoubleWriteConsumeQueues) -> None:
    """rocketmq-dashboard#4451: progress can be asked for, and the report says who asked, when, and for how long."""
    fill(both)
    clock = ManualClock()
    began_at_ms = clock.wall_ms()
    work = begin_comparison(both, clock, asked_by="operator")
    put(both, [request(30, A0, both.next_offset(A0))])
    clock.advance(2)
    while work.step():
        assert work.progress().queues <= 4
    clock.advance(60)
    report = work.report()
    work.close()
    work.close()
    assert report.agrees
    assert (report.asked_by, report.began_at_ms, report.ended_at_ms) == ("operator", began_at_ms, began_at_ms + 2000)
    assert (report.log_begin, report.log_end, report.queues, report.units) == (0, 3000, 4, 40)


@pytest.mark.parametrize("entries_per_step", [1, 3, 4096])
def test_queues_that_were_written_together_agree(both: DoubleWriteConsumeQueues, entries_per_step: int) -> None:
    fill(both)
    report = compared(both, entries_per_step=entries_per_step)
    assert report.agrees
    assert not report.notes
    assert (report.queues, report.units) == (4, 40), "30 records, 10 of them in the light queue too"


def test_each_kind_of_difference_is_named(both: DoubleWriteConsumeQueues) -> None:
    """rocketmq-dashboard#4451 asks for a comparison that says what differs, and where."""
    for number in range(6):
        put(both, [request(number, A0, number)])
    put(files_of(both), [request(6, A0, 6)])
    put(rocks_of(both), [request(6, B0, 0)])
    rocks_of(both).put_missing(
        [
            request(1, A0, 1)._replace(size=7),
            request(2, A0, 2)._replace(tags_code=8),
            request(9, A0, 3),
        ]
    )
    report = compared(both, scope_of(both, below=700))
    assert report.first == (
        told(Kind.MISSING_IN_ROCKSDB, A0, 6, entry(6)),
        told(Kind.PHYSICAL_OFFSET, A0, 3, f"files have {entry(3)}; RocksDB has {entry(9)}"),
        told(Kind.SIZE, A0, 1, f"files have {entry(1)}; RocksDB has {entry(1, size=7)}"),
        told(Kind.TAGS_CODE, A0, 2, f"files have {entry(2)}; RocksDB has {entry(2, tags_code=8)}"),
        told(Kind.MAXIMUM, A0, None, "the next offset is 7 in files, 6 in RocksDB"),
        told(Kind.MISSING_IN_FILES, B0, 0, entry(6)),
        told(Kind.MAXIMUM, B0, None, "the next offset is 0 in files, 1 in RocksDB"),
    )
    assert {kind.value for kind in Kind if kind is not Kind.MINIMUM} == set(report.differences)
    assert AgreementReport.decode(report.encode()) == report


def test_of_many_differences_the_first_are_kept_and_all_counted(both: DoubleWriteConsumeQueues) -> None:
    put(files_of(both), [request(number, A0, number) for number in range(1000)])
    put(rocks_of(both), [request(999, B0, 0)])
    report = compared(both, differences_kept=5)
    assert [each.queue_offset for each in report.first] == [0, 1, 2, 3, 4]
    assert report.differences["missing_in_rocksdb"] == 1000


def test_an_entry_that_is_no_entry_is_missing(both: DoubleWriteConsumeQueues, backing: DoubleBacking) -> None:
    fill(both, 5)
    engine = backing.rocks.engine
    batch = engine.batch()
    batch.put(engine.family(ENTRIES_FAMILY), entry_key(LITE, QueueOffset(0)), b"torn")
    engine.write(batch)
    assert [(each.kind, each.topic) for each in compared(both).first] == [("missing_in_rocksdb", LITE.topic)]


@pytest.mark.parametrize("missing", [0, 2, 4])
def test_a_window_has_what_is_around_a_hole_and_nothing_of_the_next_queue(missing: int) -> None:
    engine = MemoryEngine((ENTRIES_FAMILY, OFFSET_FAMILY))
    queues = queues_over(engine)
    put(queues, [*(request(at, A0, at) for at in range(5)), request(5, A1, 0)])
    batch = engine.batch()
    batch.delete(engine.family(ENTRIES_FAMILY), entry_key(A0, QueueOffset(missing)))
    engine.write(batch)
    queue = queues.entry_reader().open(A0)
    assert queue.window(0, 100).queue_offset.tolist() == [at for at in range(5) if at != missing]
    assert len(queue.window(5, 100)) == len(queue.window(3, 3)) == 0


def test_what_the_log_no_longer_has_is_not_compared(both: DoubleWriteConsumeQueues) -> None:
    fill(both)
    files_of(both).put_missing([request(0, A0, 50)])  # no record of [1000, …) tells of it
    both.set_minimum_physical_offset(PhysicalOffset(1000))
    found = rocks_of(both).expired_entries().step()
    assert found.entries
    assert rocks_of(both).drop(found.ranges, removals=0)
    report = compared(both, scope_of(both, minimum=1000))
    assert set(report.differences) == {"maximum"}


def test_an_expired_queue_keeps_its_next_offset(both: DoubleWriteConsumeQueues) -> None:
    """rmq#8753: numbering goes on although nothing of the queue is left. The log alone cannot tell of it."""
    put(files_of(both), [request(number, A0, number) for number in range(9)])
    put(rocks_of(both), [request(9, B0, 0)])
    put(files_of(both), [request(9, B0, 0)])
    scope = scope_of(both, minimum=900)
    assert compared(both, scope).first == (told(Kind.MAXIMUM, A0, None, "the next offset is 9 in files, 0 in RocksDB"),)
    rocks_of(both).reserve(A0, QueueOffset(9))
    assert compared(both, scope).agrees
    assert rocks_of(both).next_offset(A0) == files_of(both).next_offset(A0) == 9
    both.set_minimum_physical_offset(PhysicalOffset(900))
    assert rocks_of(both).bounds(A0) == files_of(both).bounds(A0) == (9, 9)


@pytest.mark.parametrize("next_offset", [5, 7, 8, 21])
def test_a_reserved_queue_goes_on_there_in_both(both: DoubleWriteConsumeQueues, next_offset: int) -> None:
    for queues in (files_of(both), rocks_of(both)):
        queues.reserve(A0, QueueOffset(next_offset))
        queues.reserve(A0, QueueOffset(1))
    assert compared(both).agrees
    assert files_of(both).next_offset(A0) == rocks_of(both).next_offset(A0) == next_offset
    put(both, [request(1, A0, next_offset)])
    assert files_of(both).bounds(A0) == rocks_of(both).bounds(A0) == (next_offset, next_offset + 1)
    assert compared(both).agrees


def test_names_and_topics_that_one_kind_cannot_have_are_notes(backing: DoubleBacking) -> None:
    """rmq#10450: some topics are written twice, and light queues with a slash have no files."""
    queues = backing.open()
    both = DoubleWriteConsumeQueues(
        files_of(queues),
        rocks_of(queues),
        read_rocks=False,
        assign_rocks=False,
        doubled=lambda topic: topic != "TopicB",
    )
    put(both, [request(0, A0, 0, (SLASH.topic, 0)), request(1, B0, 0)])
    report = compared(both)
    assert report.agrees
    assert report.notes == {Note.NO_FILE_NAME.value: 1, Note.NOT_DOUBLED.value: 1}


def test_light_queues_that_rocketmq_keeps_out_of_the_files(both: DoubleWriteConsumeQueues) -> None:
    put(files_of(both), [request(0, A0, 0)])
    put(rocks_of(both), [request(0, A0, 0, (LITE.topic, 0))])
    assert compared(both).differences == {"missing_in_files": 1, "maximum": 1}
    report = compared(both, scope_of(both, light_in_rocksdb_alone=True))
    assert report.agrees
    assert report.notes == {Note.LIGHT_IN_ROCKSDB_ALONE.value: 1}


Change = Callable[[DoubleWriteConsumeQueues], None]


def append(both: DoubleWriteConsumeQueues) -> None:
    for number in range(100, 110):
        put(both, [request(number, A0, both.next_offset(A0), (LITE.topic, both.next_offset(LITE)))])


def delete_and_begin_again(both: DoubleWriteConsumeQueues) -> None:
    both.delete_topic(A0.topic)
    put(both, [request(200, A0, 0), request(201, A1, 0)])


def expire(both: DoubleWriteConsumeQueues) -> None:
    both.set_minimum_physical_offset(PhysicalOffset(2000))
    for expiry in (FileSweep(files_of(both), PhysicalOffset(2000)), RocksSweep(rocks_of(both), dropped=lambda _: None)):
        while expiry.carry_out() or expiry.prepare():
            pass
        assert expiry.files or expiry.entries


@pytest.mark.parametrize("change", [append, delete_and_begin_again, expire])
@pytest.mark.parametrize("after_steps", range(12))
def test_what_changes_meanwhile_is_not_reported(
    both: DoubleWriteConsumeQueues, change: Change, after_steps: int
) -> None:
    fill(both)
    minimum = PhysicalOffset(0)
    scope = Scope(
        below=both.dispatched_up_to() or PhysicalOffset(0), minimum=lambda: minimum, removals=lambda: both.removals
    )
    work = comparison(both, scope, entries_per_step=2)
    for _ in range(after_steps):
        work.step()
    if change is expire:
        minimum = PhysicalOffset(2000)
    change(both)
    report = finished(work)
    assert report.agrees, report.first


def test_a_queue_is_looked_at_again_while_it_is_being_removed(both: DoubleWriteConsumeQueues) -> None:
    fill(both)
    rocks_of(both).delete_topic(A0.topic)
    both.removals = 1
    work = comparison(both)
    assert all(work.step() for _ in range(50))
    assert work.progress().queues == 0
    files_of(both).delete_topic(A0.topic)
    both.removals = 2
    assert finished(work).agrees
