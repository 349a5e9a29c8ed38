"""Hashes of keys: one by one as Java makes them, many at once the same."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quarry_mq.store.index.keys import items_of, key_hash, key_hashes, key_text, keys_of, tag_text
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueOffset
from quarry_mq.store.record.properties import java_hash

SMALLEST = "polygenelubricants"
"""A text whose hash in Java is the smallest integer."""


@pytest.mark.parametrize(
    ("text", "hashed"), [("", 0), ("a", 97), ("acme-payments#T#支付", 1_729_247_835), (SMALLEST, 0)]
)
def test_hashes(text: str, hashed: int) -> None:
    assert key_hash(text) == hashed


def test_the_smallest_integer_has_no_positive_one() -> None:
    assert java_hash(SMALLEST) == -(2**31)
    assert key_hashes([SMALLEST, "a"]).tolist() == [0, 97]


@given(st.lists(st.text(max_size=300)))
@example(["x" * 256, "y" * 257, "", "ü" * 300])
@example(["𝄞", "\ud800", "a"])
def test_many_at_once_are_hashed_as_one_by_one(texts: list[str]) -> None:
    assert key_hashes(texts).tolist() == [key_hash(text) for text in texts]


def test_keys_of_a_message() -> None:
    assert list(keys_of({"UNIQ_KEY": "id", "KEYS": " a  b a ", "TAGS": "t"})) == ["id", "a", "b", "a"]
    assert list(keys_of({})) == []


def test_items_of_messages() -> None:
    def request(at: int, **properties: str) -> DispatchRequest:
        return DispatchRequest("orders", 0, QueueOffset(0), PhysicalOffset(at), 10, 0, 5 * at, 0, properties, ())

    requests = [request(100, UNIQ_KEY="id", KEYS="k l", TAGS="t"), request(200), request(300, KEYS="k")]
    plain = items_of(requests, with_tags=False)
    assert plain.physical_offset.tolist() == [100, 100, 100, 300]
    assert plain.stored_ms.tolist() == [500, 500, 500, 1500]
    assert plain.hashes.tolist() == [key_hash(key_text("orders", key)) for key in ("id", "k", "l", "k")]
    tagged = items_of(requests, with_tags=True)
    assert tagged.hashes.tolist() == [*plain.hashes[:3], key_hash(tag_text("orders", "t")), plain.hashes[3]]
    assert tagged.after(PhysicalOffset(101)).physical_offset.tolist() == [300]
    assert len(items_of([request(1)], with_tags=True)) == 0
