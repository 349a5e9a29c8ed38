"""The bytes of docs/formats/delivery-state.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.server.delivery import InFlightTable, ReceiptHandle
from quarry_mq.server.delivery.state.inflight import InFlight
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.store.message import QueueId
from quarry_mq.store.state.identity import FAMILIES, INFLIGHT
from quarry_mq.store.state.in_flight_key import group_prefix, subscription_prefix
from tests.handles import HANDLE_KEY

PAGE = (Path(__file__).parents[2] / "docs/formats/delivery-state.md").read_text()
KEY = "000762696c6c696e6700066f726465727300000003000000000000002a"
VALUE = "0000018bcfe5dd3017979cfe362a0001000000000000000000000002636c69656e742d31"
INDEX_KEY = "ffff000762696c6c696e6700066f72646572730000018bcfe5dd3000000003000000000000002a"
HANDLE = "AgAAAAMAAAAAAAAAKheXnP42KgABAAABi8_l3TAL_QBCLgGjDg=="

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60)
I64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**63 - 1)


def test_the_examples_of_the_page_are_what_the_code_writes() -> None:
    engine = MemoryEngine(FAMILIES)
    batch = engine.batch()
    row = InFlight(1_700_000_030_000, 1_700_000_000_000_000_001, 0, 2, "client-1")
    InFlightTable(engine).put(batch, subscription_prefix("billing", "orders"), 3, 42, row)
    engine.write(batch)
    [(key, value), (index_key, nothing)] = sorted(engine.table(INFLIGHT, None).values.items())
    assert (key.hex(), value.hex()) == (KEY, VALUE)
    assert (index_key.hex(), nothing) == (INDEX_KEY, b"")
    handle = ReceiptHandle(3, 42, 1_700_000_000_000_000_001, 1_700_000_030_000)
    assert handle.encode("billing", "orders", HANDLE_KEY) == HANDLE
    for text in (KEY, VALUE, INDEX_KEY, HANDLE):
        assert text in PAGE


@given(NAMES, NAMES, st.integers(0, 2**31 - 1), OFFSETS, I64, I64, OFFSETS, st.integers(1, 2**31 - 1), NAMES)
def test_rows_come_back_as_they_were_stored(
    group: str, topic: str, number: int, offset: int, visible: int, delivery: int, lease: int, attempt: int, client: str
) -> None:
    engine = MemoryEngine(FAMILIES)
    table = InFlightTable(engine)
    batch = engine.batch()
    table.put(
        batch, subscription_prefix(group, topic), number, offset, InFlight(visible, delivery, lease, attempt, client)
    )
    engine.write(batch)
    [(found_group, queue, found_offset, row)] = table.all_rows()
    assert (found_group, queue, found_offset) == (group, QueueId(topic, number), offset)
    assert (row.visible_at_ms, row.delivery_id, row.lease_until_ms, row.attempt, row.client_id) == (
        visible, delivery, lease, attempt, client,
    )  # fmt: skip


@given(st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=6, unique=True))
def test_deleting_a_group_or_a_subscription_takes_exactly_its_own_rows(pairs: list[tuple[str, str]]) -> None:
    for by_group in (True, False):
        engine = MemoryEngine(FAMILIES)
        table = InFlightTable(engine)
        batch = engine.batch()
        for group, topic in pairs:
            table.put(batch, subscription_prefix(group, topic), 0, 0, InFlight(1, 1, 0, 1, "c"))
        group, topic = pairs[0]
        table.delete_all(batch, group_prefix(group) if by_group else subscription_prefix(group, topic))
        engine.write(batch)
        left = {(found, queue.topic) for found, queue, _, _ in table.all_rows()}
        assert left == {pair for pair in pairs if pair[0] != group or (not by_group and pair[1] != topic)}


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_garbage_is_an_invalid_handle_and_nothing_else(garbage: bytes | str) -> None:
    text = garbage if isinstance(garbage, str) else garbage.hex()
    with pytest.raises(InvalidReceiptHandle):
        ReceiptHandle.decode(text, "billing", "orders", HANDLE_KEY)


@pytest.mark.parametrize("bit", range(37 * 8))
def test_every_flipped_bit_of_a_handle_is_noticed(bit: int) -> None:
    from base64 import urlsafe_b64decode, urlsafe_b64encode

    raw = bytearray(urlsafe_b64decode(HANDLE))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidReceiptHandle):
        ReceiptHandle.decode(urlsafe_b64encode(raw).decode(), "billing", "orders", HANDLE_KEY)
