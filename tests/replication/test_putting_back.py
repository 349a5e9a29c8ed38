"""Stores that are put back from a copy while their cluster has gone on."""

from __future__ import annotations

from collections.abc import Sequence

from quarry_mq.store.replication.rows import EVERYTHING
from tests.replication.members import ALL, Member, gathered, member


def put_back(one: Member, rows: dict[str, Sequence[tuple[bytes, bytes]]]) -> None:
    """As from a backup."""
    batch = one.engine.batch()
    for name, pairs in rows.items():
        batch.delete_range(one.engine.family(name), EVERYTHING)
        batch.put_all(one.engine.family(name), pairs)
    one.engine.write(batch, sync=True)
    one.clock.advance(1)
    one.restart()


def rows_to_put_back(one: Member) -> dict[str, Sequence[tuple[bytes, bytes]]]:
    return {name: one.engine.family(name).scan(ALL) for name in ("shared", "topics")}


def test_a_store_that_was_put_back_tells_what_it_changes_then() -> None:
    """Its numbers go by time: what others have read up to lies below."""
    one, two = member("one"), member("two")
    one.topic("before")
    rows = rows_to_put_back(one)
    one.topic("lost")
    two.pull(one)
    put_back(one, rows)
    one.topic("after")
    two.pull(one)
    assert two.tables.topics.get("after") is not None
    one.pull(two)
    assert one.tables.topics.get("lost") is not None


def test_a_store_that_was_put_back_does_not_bring_back_what_others_have_changed_since() -> None:
    one, two = member("one"), member("two")
    for name in ("orders", "gone"):
        one.topic(name, 4)
    two.pull(one)
    rows = rows_to_put_back(one)
    two.clock.advance(1)
    two.topic("orders", 16)
    two.tables.topics.delete("gone")
    one.pull(two)
    one.topic("orders", 32)
    two.pull(one)
    put_back(one, rows)
    gathered(one, two)
    for each in (one, two):
        orders = each.tables.topics.get("orders")
        assert orders is not None
        assert orders.read_queues == 32
        assert each.tables.topics.get("gone") is None
        each.check_whole()


def test_a_store_that_was_put_back_gives_no_version_twice_while_a_clock_that_it_followed_is_ahead() -> None:
    one, two = member("one"), member("two")
    two.clock.advance(1_800)
    two.topic("ahead")
    one.pull(two)
    rows = rows_to_put_back(one)
    one.topic("orders", 4)
    two.pull(one)
    put_back(one, rows)
    one.topic("orders", 9)
    gathered(one, two)
    assert one.content() == two.content()
