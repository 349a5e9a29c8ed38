"""Findings of a record of a load."""

from __future__ import annotations

from tests.e2e.clients import Delivery
from tests.e2e.load_record import LoadRecord, body_of


def record_of(*came: tuple[str, int, int]) -> LoadRecord:
    """Of one message group: consumer, number, and when it came."""
    record = LoadRecord()
    record.message_groups.add("group")
    for number in range(4):
        record.note_acknowledged("group", number)
    for who, number, at_ms in came:
        record.note_delivered(who, [delivery(number, at_ms)])
    return record


def delivery(number: int, at_ms: int) -> Delivery:
    return Delivery(
        message_id="",
        topic="ledger",
        body=body_of("group", number).encode(),
        tag=None,
        keys=(),
        properties={},
        message_group="group",
        priority=None,
        lite_topic=None,
        attempt=1,
        at_ms=at_ms,
        number=None,
    )


def test_what_came_in_order_is_no_break_whatever_came_again() -> None:
    record = record_of(("a", 0, 1), ("a", 1, 1), ("b", 2, 2), ("a", 1, 5), ("b", 0, 6), ("a", 3, 6))
    assert (record.lost(), record.breaks()) == ([], [])


def test_what_never_came_is_lost() -> None:
    assert record_of(("a", 0, 1), ("b", 2, 2)).lost() == ["group 1", "group 3"]


def test_each_first_delivery_before_one_of_a_lower_number_is_a_break() -> None:
    record = record_of(("b", 0, 9), ("a", 1, 7), ("a", 3, 10), ("a", 2, 10))
    assert record.breaks() == ["group 1 came to a 2 ms before 0 to b", "group 3 came to a 0 ms before 2 to a"]
