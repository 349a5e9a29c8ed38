"""The changes of a primary are numbered in their order; a copy gets exactly those that it lacks, or all rows."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.kv import KvError, WriteBatch
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.kv.recording import Change, ChangeKind, RecordingEngine
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.state.identity import FAMILIES, META, OFFSETS, TOPICS
from quarry_mq.store.state.state_log import (
    NO_CURSOR,
    StateCursor,
    StateLog,
    all_rows,
    decode_changes,
    encode_changes,
    is_own_row,
    read_cursor,
)

changes = st.lists(
    st.builds(Change, st.sampled_from(ChangeKind), st.sampled_from(FAMILIES), st.binary(max_size=40), st.binary()),
    max_size=8,
)


class Primary:
    """A database whose changes are recorded."""

    def __init__(self, engine: MemoryEngine | None = None, *, kept_size_max: int = 1 << 20) -> None:
        self.plain = engine or MemoryEngine(FAMILIES, write_ahead_log=True)
        self.log = StateLog(self.plain, kept_size_max=kept_size_max)
        self.engine = RecordingEngine(self.plain, self.log)
        self.dispatched = PhysicalOffset(0)
        self.log.rest_on(lambda: self.dispatched)

    def put(self, family: str, key: bytes, value: bytes = b"v") -> None:
        batch = self.engine.batch()
        batch.put(self.engine.family(family), key, value)
        self.engine.write(batch)


def numbers(primary: Primary, cursor: StateCursor, limit: int = 100) -> list[int] | None:
    found = primary.log.since(cursor, limit)
    return None if found is None else [each.number for each in found]


@given(changes)
def test_changes_come_back_as_they_were(sent: list[Change]) -> None:
    assert decode_changes(encode_changes(sent)) == sent


@given(changes, st.data())
def test_bytes_that_are_no_changes_are_refused(sent: list[Change], data: st.DataObject) -> None:
    encoded = encode_changes(sent)
    with pytest.raises(Invalid):
        decode_changes(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(Invalid):
        decode_changes(encoded + b"x")


def test_changes_of_a_family_of_a_later_version_are_passed_over() -> None:
    later = bytearray(encode_changes([Change(ChangeKind.PUT, TOPICS, b"a", b"b")]))
    later[5] = len(FAMILIES)
    assert decode_changes(bytes(later)) == []


def test_batches_are_numbered_and_rest_on_what_was_dispatched() -> None:
    primary = Primary()
    primary.put(TOPICS, b"a")
    primary.dispatched = PhysicalOffset(100)
    primary.put(OFFSETS, b"b")
    run = primary.log.cursor.run
    found = primary.log.since(StateCursor(run, 0, PhysicalOffset(0)), 10)
    assert found is not None
    assert [(each.number, each.position) for each in found] == [(1, 0), (2, 100)]
    assert [decode_changes(each.data)[0].key for each in found] == [b"a", b"b"]
    assert primary.log.cursor == (run, 2, 100)
    assert read_cursor(primary.plain) == (run, 2, -1)


def test_rows_of_the_store_itself_are_not_sent_and_get_no_number() -> None:
    primary = Primary()
    for key in (b"flushed_up_to", b"migration/step/x", b"verification/1", b"replicated"):
        assert is_own_row(META, key)
        primary.put(META, key)
    assert not is_own_row(TOPICS, b"flushed_up_to")
    assert primary.log.cursor.number == 0
    primary.put(META, b"live_settings")
    assert primary.log.cursor.number == 1


def test_every_row_of_meta_is_known() -> None:
    """A new row has to be sorted: does a copy get it, or is it about one store alone?"""
    sent = {b"handle_key", b"light_floor", b"held_before", b"log_begins", b"message_groups", b"live_settings"}
    prefixes = (b"deleted:", b"removed:", b"job/", b"own:", b"owner:")
    assert not any(is_own_row(META, key) for key in sent)
    assert not any(is_own_row(META, prefix + b"x") for prefix in prefixes)


def test_a_copy_gets_what_it_lacks_and_all_rows_if_that_is_not_kept() -> None:
    primary = Primary(kept_size_max=1_000)
    for number in range(20):
        primary.put(OFFSETS, b"%d" % number)
    run = primary.log.cursor.run

    def at(number: int, of: bytes = run) -> StateCursor:
        return StateCursor(of, number, PhysicalOffset(0))

    assert numbers(primary, at(20)) == []
    assert numbers(primary, at(18)) == [19, 20]
    assert numbers(primary, at(18), limit=1) == [19]
    assert numbers(primary, at(0)) is None, "not kept any more"
    assert numbers(primary, at(21)) is None, "the copy is ahead"
    assert numbers(primary, at(20, of=b"x" * 16)) is None, "another history"
    assert numbers(primary, NO_CURSOR) is None


def test_what_is_kept_takes_as_much_memory_as_it_may() -> None:
    size_max = 2 << 20
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    log = StateLog(engine, kept_size_max=size_max)
    position = count()
    log.rest_on(lambda: PhysicalOffset(10_000 + next(position)))  # an integer of its own for each batch
    tracemalloc.start()
    try:
        for number in range(20_000):
            log.stage([Change(ChangeKind.PUT, OFFSETS, b"%06d" % number, b"x" * 8)], engine.batch())
            log.written()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = log.since(log.cursor._replace(number=19_000), 100)
    assert kept is not None
    assert [each.number for each in kept] == list(range(19_001, 19_101))
    assert log.since(log.cursor._replace(number=1), 100) is None, "not kept any more"
    assert 0.8 * size_max < used < 1.2 * size_max


def test_batches_in_the_middle_cost_as_little_as_the_first_ones() -> None:
    """A copy that is far away from both ends asks fifty times a second, and writers wait for the answer."""
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    log = StateLog(engine)
    change = Change(ChangeKind.PUT, OFFSETS, b"k", b"v")
    for _ in range(100_000):
        log.stage([change], engine.batch())
        log.written()

    def cost_s(number: int) -> float:
        cursor = log.cursor._replace(number=number)
        costs_s = []
        for _ in range(20):
            begun_s = time.thread_time()
            log.since(cursor, 1_000)
            costs_s.append(time.thread_time() - begun_s)
        return min(costs_s)

    assert cost_s(50_000) < 10 * cost_s(0)


def test_numbers_go_on_after_a_restart_for_copies_that_had_everything() -> None:
    before = Primary()
    before.put(TOPICS, b"a")
    before.put(TOPICS, b"b")
    run = before.log.cursor.run
    primary = Primary(before.plain)
    primary.put(TOPICS, b"c")
    assert primary.log.cursor.run != run
    assert numbers(primary, StateCursor(run, 2, PhysicalOffset(0))) == [3]
    assert numbers(primary, StateCursor(run, 1, PhysicalOffset(0))) is None
    assert numbers(primary, StateCursor(run, 3, PhysicalOffset(0))) is None, "a power cut took the copy's last batch"


def test_the_first_copies_of_a_store_take_all_rows() -> None:
    """No batch has the rows that a store without copies wrote, though its numbers begin like those of an empty copy."""
    primary = Primary()
    assert numbers(primary, NO_CURSOR) is None
    primary.put(TOPICS, b"a")
    assert numbers(primary, NO_CURSOR) is None
    assert numbers(primary, StateCursor(primary.log.cursor.run, 0, PhysicalOffset(0))) == [1]


def test_a_batch_that_cannot_be_written_gets_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    primary = Primary()

    def refuse(batch: WriteBatch, *, sync: bool = False) -> None:
        raise KvError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(primary.plain, "write", refuse)
        with pytest.raises(KvError):
            primary.put(TOPICS, b"a")
    primary.put(TOPICS, b"b")
    found = primary.log.since(primary.log.cursor._replace(number=0), 10)
    assert found is not None
    assert [(each.number, decode_changes(each.data)[0].key) for each in found] == [(1, b"b")]


def test_all_rows_are_those_of_one_moment() -> None:
    primary = Primary()
    for number in range(2_000):
        primary.put(OFFSETS, b"%04d" % number, b"x" * 1_000)
    primary.put(META, b"flushed_up_to")
    primary.dispatched = PhysicalOffset(500)
    cursor, parts = all_rows(primary.engine, primary.log)
    primary.put(OFFSETS, b"later")
    found: list[Change] = []
    count = 0
    for part in parts:
        found += decode_changes(part)
        count += 1
    assert cursor == (primary.log.cursor.run, 2_000, 500)
    assert count > 1
    assert [each.key for each in found] == [b"%04d" % number for number in range(2_000)]


def test_a_row_that_is_being_written_holds_the_position_back() -> None:
    """A copy must not be shown what is dispatched while a batch is written before it has the batch."""
    primary = Primary()
    cursors: list[StateCursor] = []

    class Slow(StateLog):
        def stage(self, changes: Sequence[Change], batch: WriteBatch) -> None:
            super().stage(changes, batch)
            primary.dispatched = PhysicalOffset(900)
            cursors.append(self.cursor)

    log = Slow(primary.plain)
    log.rest_on(lambda: primary.dispatched)
    engine = RecordingEngine(primary.plain, log)
    batch = engine.batch()
    batch.put(engine.family(TOPICS), b"a", b"v")
    engine.write(batch)
    assert [each.position for each in cursors] == [0]
    assert log.cursor.position == 900
