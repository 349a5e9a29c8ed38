"""The table of stored maxima: what it tells is what was stored last, whatever it has no room for."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.consumequeue.rocks_layout import CHECKPOINT_TOPIC, keys_of
from store.native import MaximaTable, Native

QUEUES = st.tuples(st.sampled_from(["a", "orders", "%RETRY%billing", "x" * 255, "é"]), st.integers(0, 3))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.tuples(QUEUES, st.integers(0, 2**64 - 1)))),
        st.tuples(st.just("discard"), QUEUES),
        st.tuples(st.just("clear"), st.none()),
    )
)


def stored(number: int) -> bytes:
    return number.to_bytes(16, "big")


def found(table: MaximaTable, queue: tuple[str, int]) -> bytes | None:
    rows = table.find([queue])
    assert rows is not None
    [(prefix, key, value)] = rows
    assert (prefix, key) == keys_of(queue)
    return value


@given(steps=STEPS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_tells_what_was_stored_last(native: Native, steps: list[tuple[str, object]]) -> None:
    table = native.MaximaTable(1_000)
    model: dict[tuple[str, int], bytes] = {}
    for what, about in steps:
        if what == "put":
            assert isinstance(about, list)
            model.update((queue, stored(number)) for queue, number in about)
            table.put_all([(keys_of(queue)[1], stored(number)) for queue, number in about])
        elif what == "discard":
            assert isinstance(about, tuple)
            model.pop(about, None)
            table.discard(keys_of(about)[1])
        else:
            model.clear()
            table.clear()
        for queue in [*model, ("never", 0)]:
            assert found(table, queue) == model.get(queue)


def test_of_more_queues_than_it_has_room_for_it_forgets_some_and_never_errs(native: Native) -> None:
    table = native.MaximaTable(1_000)
    queues = [(f"topic-{number // 8}", number % 8) for number in range(20_000)]
    for turn in range(2):
        for number, queue in enumerate(queues):
            table.put_all([(keys_of(queue)[1], stored(number + turn))])
    values = [value for queue in queues if (value := found(table, queue)) is not None]
    told = {queue: value for queue in queues if (value := found(table, queue)) is not None}
    assert told == {queue: stored(number + 1) for number, queue in enumerate(queues) if queue in told}
    assert 1_000 <= len(values) <= 4_096


def test_nearly_all_of_those_that_it_has_room_for_are_there(native: Native) -> None:
    table = native.MaximaTable(100_000)
    queues = [(f"topic-{number}", 0) for number in range(100_000)]
    table.put_all([(keys_of(queue)[1], stored(number)) for number, queue in enumerate(queues)])
    rows = table.find([*queues])
    assert rows is not None
    assert sum(value is not None for _, _, value in rows) > 99_000


@pytest.mark.parametrize("queue", [(CHECKPOINT_TOPIC, 0), ("x" * 256, 0), ("\ud800", 0)])
def test_names_that_no_topic_can_have_are_left_to_python(native: Native, queue: tuple[str, int]) -> None:
    assert native.MaximaTable(8).find([("orders", 0), queue]) is None


def test_what_is_no_maximum_is_refused(native: Native) -> None:
    table = native.MaximaTable(8)
    with pytest.raises(ValueError, match="16 bytes"):
        table.put_all([(keys_of(("orders", 0))[1], b"\0" * 8)])
    assert found(table, ("orders", 0)) is None
