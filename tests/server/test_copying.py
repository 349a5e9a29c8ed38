"""Copies fit their records, and say which properties they go without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from quarry_mq.protocol.messages.property_names import (
    DELIVER_AT_MS,
    DEQUEUED_MS,
    KEYS,
    LIGHT_QUEUES,
    REAL_TOPIC,
    ROLL_TIMES,
    TAGS,
    UNIQUE_KEY,
)
from quarry_mq.server.append.copies import SIZE_MAX, Copies, fitted, is_final
from quarry_mq.server.append.group_commit import Stored
from quarry_mq.server.observability.metrics.instruments import PendingMetrics
from quarry_mq.server.pending.copies import carried_over, delivered, recall, scheduled
from quarry_mq.store.errors import Busy, DiskRefused, Invalid, MessageTooLarge, StorePoisoned
from quarry_mq.store.message import Message, MessageCopy, PhysicalOffset
from quarry_mq.store.pending.rows import TIMER_TOPIC
from quarry_mq.store.record import StoredMessage, decode_record, encode_properties, encode_record
from tests.store.assembly import HOST, message

DEAD = {
    UNIQUE_KEY: "id",
    TAGS: "red",
    KEYS: "k",
    "colour": "red",
    "DLQ_ORIGIN_TOPIC": "orders",
    "DLQ_ORIGIN_MESSAGE_ID": "id",
}


def filled(size: int, **properties: str) -> dict[str, str]:
    """The properties, and some of a user that make them as large as that."""
    rest = size - len(encode_properties(properties)) - len("large\x01\x02larger\x01\x02")
    return {**properties, "large": "x" * (rest // 2), "larger": "y" * (rest - rest // 2)}


def test_what_fits_is_left_alone() -> None:
    properties = filled(SIZE_MAX, **DEAD)
    assert len(encode_properties(properties)) == SIZE_MAX
    assert fitted("%DLQ%g", properties) == (properties, [])


@pytest.mark.parametrize(
    ("above", "left_out"),
    [
        (1, ["DLQ_ORIGIN_MESSAGE_ID"]),
        (27, ["DLQ_ORIGIN_MESSAGE_ID", "larger"]),
    ],
)
def test_what_is_said_elsewhere_goes_first_and_then_the_largest_of_the_user(above: int, left_out: list[str]) -> None:
    properties = filled(SIZE_MAX + above, **DEAD)
    kept, names = fitted("%DLQ%g", properties)
    assert sorted(names) == sorted(left_out)
    assert list(kept) == [name for name in properties if name not in names]
    assert len(encode_properties(kept)) <= SIZE_MAX


@pytest.mark.parametrize("bad", ["a\0b", "a\x01b", "a\x02b", "\ud800"])
def test_what_cannot_be_written_is_left_out(bad: str) -> None:
    """Records of others hold what this encoder refuses."""
    assert fitted("%DLQ%g", {**DEAD, "odd": bad}) == (DEAD, ["odd"])
    assert fitted("%DLQ%g", {**DEAD, bad: "odd"}) == (DEAD, [bad])


def test_offsets_of_light_queues_are_made_room_for() -> None:
    names = ",".join(f"%LMQ%{number}" for number in range(1_000))
    properties = {UNIQUE_KEY: "id", LIGHT_QUEUES: names, "large": "x" * 12_000}
    assert fitted("orders", properties)[1] == ["large"]
    assert fitted("%RETRY%g_orders", properties)[1] == [], "there it names none"
    too_many = ",".join(f"%LMQ%{number}" for number in range(1_800))
    assert fitted("orders", {UNIQUE_KEY: "id", LIGHT_QUEUES: too_many})[1] == [LIGHT_QUEUES]


NAMES = st.sampled_from(
    [*DEAD, "a", "b", "c", REAL_TOPIC, "REAL_QID", "TIMER_OUT_MS", DELIVER_AT_MS, DEQUEUED_MS, ROLL_TIMES, LIGHT_QUEUES]
)
SIZES = st.sampled_from([1, 5, 100, 8_000, 16_000, 32_000, 40_000])


@settings(max_examples=300)
@given(st.dictionaries(NAMES, SIZES), st.sampled_from(["%DLQ%g", "orders", TIMER_TOPIC]))
def test_whatever_a_record_held_a_copy_is_made_of_it(sizes: Mapping[str, int], topic: str) -> None:
    small = {DEQUEUED_MS, ROLL_TIMES, DELIVER_AT_MS, "DLQ_ORIGIN_TOPIC", REAL_TOPIC, "REAL_QID", UNIQUE_KEY}
    properties = {name: "v" * (min(size, 255) if name in small else size) for name, size in sizes.items()}
    kept, left_out = fitted(topic, properties)
    assert len(encode_properties(kept)) <= SIZE_MAX
    assert set(kept) | set(left_out) == set(properties)
    needed = {DEQUEUED_MS, ROLL_TIMES, DELIVER_AT_MS, "DLQ_ORIGIN_TOPIC"}
    assert needed & properties.keys() <= kept.keys()


def recorded(taken: Message) -> StoredMessage:
    raw = encode_properties(taken.properties)
    record = encode_record(taken, 0, PhysicalOffset(0), 1, raw)  # type: ignore[arg-type]
    found = decode_record(memoryview(record), 0, PhysicalOffset(0))
    assert isinstance(found, StoredMessage)
    return found


@pytest.mark.parametrize("id_size", [10, 32_600])
def test_delayed_messages_that_fill_their_records_are_delivered_and_recalled_and_carried_on(id_size: int) -> None:
    """What ends their wait is kept: the id that tells whose copy it is, and the mark of a delivery."""
    waiting = scheduled(message("orders", UNIQ_KEY="i" * id_size), 1_700_000_000_000)
    size = SIZE_MAX - len(encode_properties(waiting.properties))
    if size > 100:
        waiting = waiting._replace(properties={**waiting.properties, "large": "x" * (size - 8)})
    record = recorded(waiting)
    for copy, needed in (
        (delivered(record, store_host=HOST, now_ms=1_700_000_000_001), {UNIQUE_KEY, DEQUEUED_MS}),
        (carried_over(record, due_ms=1_700_000_000_000, store_host=HOST), {UNIQUE_KEY, ROLL_TIMES, REAL_TOPIC}),
        (recall(record, due_ms=1_700_000_000_000, store_host=HOST), {"TIMER_DEL_UNIQKEY", DELIVER_AT_MS}),
    ):
        kept, _ = fitted(copy.topic, copy.properties)
        assert needed <= kept.keys()
        assert len(encode_properties(kept)) <= SIZE_MAX


def test_what_is_sent_is_marked_as_copies_and_what_they_lack_is_told() -> None:
    sent: list[Message] = []
    metrics = PendingMetrics(CollectorRegistry())

    class Commit:
        def send(self, messages: Sequence[Message], _stored: Stored) -> None:
            sent.extend(messages)

        send_durably = send

    copies = Copies(Commit(), lambda: HOST, metrics)
    whole, large = message(a="b"), message(a="b", c="d" * 40_000)
    copies.send([whole, large], lambda *_: None)
    assert [type(each) for each in sent] == [MessageCopy, MessageCopy]
    assert sent == [whole, large._replace(properties={"a": "b"})]
    assert metrics._left_out._value.get() == 1


def test_what_is_refused_for_now_is_not_refused_for_ever() -> None:
    assert is_final(Invalid("x"))
    assert is_final(MessageTooLarge("x"))
    assert is_final(OverflowError())
    for error in (DiskRefused("full"), Busy("x"), StorePoisoned("x"), OSError(), MemoryError()):
        assert not is_final(error)
