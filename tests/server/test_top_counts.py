"""Series in bounded numbers: who has one, and that no count ever goes back or moves."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.server.counters import CANDIDATES_PER_ROW, OTHER, TopCounts


class Key(NamedTuple):
    name: str


def counts(rows_max: int) -> TopCounts[Key]:
    return TopCounts(rows_max, lambda _: Key(OTHER))


def count(table: TopCounts[Key], name: str, messages: int = 1) -> None:
    table.row(Key(name), messages).count(messages, 10 * messages)


def messages(table: TopCounts[Key]) -> dict[str, int]:
    return {key.name: row.messages for key, row in table.rows()}


def test_while_there_is_room_each_name_has_its_own_from_its_first_message() -> None:
    table = counts(2)
    for name in ("a", "b", "a", "c"):
        count(table, name)
    assert messages(table) == {"a": 2, "b": 1, OTHER: 1}


def test_a_busy_name_takes_the_place_of_the_idlest_and_begins_at_zero() -> None:
    table = counts(2)
    count(table, "a", 5)
    count(table, "b", 1)
    count(table, "busy", 100)
    table.review()
    assert messages(table) == {"a": 5, "busy": 0, OTHER: 100}
    count(table, "busy", 7)
    assert messages(table) == {"a": 5, "busy": 7, OTHER: 100}


def test_names_that_are_as_busy_as_each_other_do_not_take_turns() -> None:
    table = counts(1)
    for _ in range(20):
        count(table, "first", 10)
        count(table, "second", 10)
        table.review()
    assert messages(table) == {"first": 200, OTHER: 200}


def test_what_was_busy_once_gives_way_when_it_is_idle() -> None:
    table = counts(1)
    count(table, "once", 1_000_000)
    for _ in range(25):
        count(table, "steady", 10)
        table.review()
    assert "steady" in messages(table)


def test_a_name_that_is_that_of_the_others_has_no_row_of_its_own() -> None:
    """Two series with the same labels would make Prometheus refuse all of them."""
    table = counts(5)
    count(table, OTHER, 3)
    assert [key.name for key, _ in table.rows()] == [OTHER]


def test_hidden_names_never_have_a_row() -> None:
    table = TopCounts[Key](5, lambda _: Key(OTHER), lambda key: key.name.startswith("%LMQ%"))
    for _ in range(3):
        count(table, "%LMQ%light")
        table.review()
    assert messages(table) == {OTHER: 3}


def test_deleted_names_lose_their_row() -> None:
    table = counts(2)
    count(table, "a")
    count(table, "b")
    table.remove_if(lambda key: key.name == "a")
    assert messages(table) == {"b": 1}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 50)) | st.none(), max_size=300))
def test_nothing_is_lost_moved_or_counted_twice_and_the_memory_is_bounded(steps: list[tuple[int, int] | None]) -> None:
    """The sum of all increases of all series is what was counted, and each series only grows while it is there."""
    table = counts(3)
    total = grown = 0
    before: dict[str, int] = {}
    for step in steps:
        if step is None:
            table.review()
        else:
            count(table, str(step[0]), step[1])
            total += step[1]
        now = messages(table)
        assert len(now) <= 4
        for name, value in now.items():
            assert value >= before.get(name, 0)
            grown += value - before.get(name, 0)
        before = now
        assert len(table._candidates) <= 3 * CANDIDATES_PER_ROW
    assert grown == total


def test_names_by_the_thousand_that_are_equally_busy_do_not_come_and_go() -> None:
    """Each new series costs whoever stores them more than a value of one."""
    table = counts(10)
    for turn in range(20):
        for number in range(2_000):
            count(table, f"{(turn * 700 + number) % 5_000}")
        table.review()
    assert set(messages(table)) == {*(str(number) for number in range(10)), OTHER}
