"""The table of stored bounds: what it tells is what was stored last, whatever it has no room for."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.names import CHECKPOINT_TOPIC
from quarry_mq.store.consumequeue.rocks.bounds import NOTHING_STORED
from quarry_mq.store.consumequeue.rocks_layout import BOUND, I64, keys_of
from quarry_mq.store.native import MaxOffsetTable, Native

QUEUES = st.tuples(st.sampled_from(["a", "orders", "%RETRY%billing", "x" * 255, "é"]), st.integers(0, 3))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.tuples(QUEUES, st.integers(0, 2**64 - 1)))),
        st.tuples(st.just("put_min_offsets"), st.lists(st.tuples(QUEUES, st.integers(0, 2**63 - 1)))),
        st.tuples(st.just("remove"), QUEUES),
        st.tuples(st.sampled_from(["clear", "begin_all", "end_all"]), st.none()),
    )
)


def stored(number: int) -> bytes:
    return number.to_bytes(16, "big")


def found(table: MaxOffsetTable, queue: tuple[str, int]) -> tuple[bytes | None, int | None]:
    """The maximum, and where the queue begins."""
    rows = table.find([queue])
    assert rows is not None
    [(prefix, key, value, begin)] = rows
    assert (prefix, key) == keys_of(queue)
    return value, begin


def found_maximum(table: MaxOffsetTable, queue: tuple[str, int]) -> bytes | None:
    return found(table, queue)[0]


@given(steps=STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_tells_what_was_stored_last(native: Native, steps: list[tuple[str, object]]) -> None:
    """Once all was put in, of others that nothing is stored, until it is cleared."""
    table = native.MaxOffsetTable(1_000)
    model: dict[tuple[str, int], bytes] = {}
    begins: dict[tuple[str, int], int] = {}
    fills = has_all = False
    for what, about in steps:
        if what == "put":
            assert isinstance(about, list)
            model.update((queue, stored(number)) for queue, number in about)
            table.put_all([(keys_of(queue)[1], stored(number)) for queue, number in about])
        elif what == "put_min_offsets":
            assert isinstance(about, list)
            begins.update((queue, begin) for queue, begin in about if queue in model)
            table.put_min_offsets([(keys_of(queue)[1], begin) for queue, begin in about])
        elif what == "remove":
            assert isinstance(about, tuple)
            model.pop(about, None)
            begins.pop(about, None)
            table.remove(keys_of(about)[1])
        else:
            getattr(table, what)()
            if what == "clear":
                model.clear()
                begins.clear()
            has_all = what == "end_all" and (fills or has_all)
            fills = what == "begin_all"
        of_others = NOTHING_STORED if has_all else None
        for queue in [*model, ("never", 0)]:
            assert found(table, queue) == (model.get(queue, of_others), begins.get(queue))


def test_of_more_queues_than_it_has_room_for_it_forgets_some_and_never_errs(native: Native) -> None:
    table = native.MaxOffsetTable(1_000)
    queues = [(f"topic-{number // 8}", number % 8) for number in range(20_000)]
    table.begin_all()
    for turn in range(2):
        for number, queue in enumerate(queues):
            table.put_all([(keys_of(queue)[1], stored(number + turn))])
    table.end_all()
    assert found_maximum(table, ("never", 0)) is None, "it may be one that had no room"
    values = [value for queue in queues if (value := found_maximum(table, queue)) is not None]
    told = {queue: value for queue in queues if (value := found_maximum(table, queue)) is not None}
    assert told == {queue: stored(number + 1) for number, queue in enumerate(queues) if queue in told}
    assert 1_000 <= len(values) <= 4_096


def test_all_of_those_that_it_has_room_for_are_there(native: Native) -> None:
    """Also the few whose slots are all in use, wherever they lie after others have gone."""
    table = native.MaxOffsetTable(100_000)
    queues = [(f"topic-{number}", 0) for number in range(100_000)]
    keys = [keys_of(queue)[1] for queue in queues]
    table.begin_all()
    table.put_all([(key, stored(number)) for number, key in enumerate(keys)])
    table.end_all()
    table.put_min_offsets([(key, number) for number, key in enumerate(keys)])
    for key in keys[::2]:
        table.remove(key)
    changed = {number: stored(number + (number % 3 == 1)) for number in range(1, len(keys), 2)}
    table.put_all([(keys[number], value) for number, value in changed.items()])
    rows = table.find(queues)
    assert rows is not None
    assert [value for _, _, value, _ in rows] == [changed.get(number, NOTHING_STORED) for number in range(len(keys))]
    assert [begin for _, _, _, begin in rows] == [number if number % 2 else None for number in range(len(keys))]


@pytest.mark.parametrize("queue", [(CHECKPOINT_TOPIC, 0), ("x" * 256, 0), ("\ud800", 0)])
def test_names_that_no_topic_can_have_are_left_to_python(native: Native, queue: tuple[str, int]) -> None:
    assert native.MaxOffsetTable(8).find([("orders", 0), queue]) is None


def test_what_is_no_maximum_is_refused(native: Native) -> None:
    table = native.MaxOffsetTable(8)
    with pytest.raises(ValueError, match="16 bytes"):
        table.put_all([(keys_of(("orders", 0))[1], b"\0" * 8)])
    assert found_maximum(table, ("orders", 0)) is None


@given(
    last=st.integers(-1, 5),
    physical=st.integers(0, 3),
    begin=st.integers(0, 8),
    start=st.integers(0, 8),
    limit=st.integers(-1, 4),
    minimum=st.integers(0, 3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_tells_where_entries_lie(
    native: Native, *, last: int, physical: int, begin: int, start: int, limit: int, minimum: int
) -> None:
    table, queue = native.MaxOffsetTable(8), ("orders", 3)
    prefix, key = keys_of(queue)
    assert table.place(queue, start, limit, minimum) is None
    table.put_all([(key, BOUND.pack(physical, last))])
    assert table.place(queue, start, limit, minimum) is None, "where it begins is not known"
    table.put_min_offsets([(key, begin)])
    place = table.place(queue, start, limit, minimum)
    assert place is not None
    wanted = range(max(start, begin), last + 1)[: max(limit, 0)] if physical >= minimum else range(0)
    assert place[2] == len(wanted)
    if wanted:
        assert place[:2] == (prefix + I64.pack(wanted[0]), prefix + I64.pack(last + 1))


def test_places_that_cannot_be_told_are_left_to_python(native: Native) -> None:
    table, queue = native.MaxOffsetTable(8), ("orders", 0)
    key = keys_of(queue)[1]
    table.put_all([(key, BOUND.pack(0, 2**63 - 1))])
    table.put_min_offsets([(key, 0)])
    assert table.place(queue, 0, 1, 0) is None, "no key is behind its last entry"
    table.put_all([(key, BOUND.pack(0, 7))])
    assert table.place(queue, 2**63, 1, 0) is None
    assert table.place(("x" * 256, 0), 0, 1, 0) is None
