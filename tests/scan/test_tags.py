"""Tags and light queues found in the properties of many records, beside what reading each record's properties gives."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES, TAGS
from quarry_mq.store.record import decode_properties, java_hash
from quarry_mq.store.scan.tags import StoredProperties
from tests.scan.logs import odd_properties

PIECES = [b"TAGS", b"INNER_MULTI_DISPATCH", b"\x01", b"\x02", b"\x01", b"\x02", b"x", b"\xff", b"\xc3", b"a tag", b"\0"]
stored = st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)


def assert_same(texts: list[bytes], gap: bytes, tail: bytes) -> None:
    """`gap` lies before each record's properties, `tail` behind the last one's."""
    segment = bytearray()
    starts = []
    for text in texts:
        segment += gap
        starts.append(len(segment))
        segment += text
    segment += tail
    found = StoredProperties(
        memoryview(segment),
        np.frombuffer(segment, np.uint8),
        np.array(starts, np.int64),
        np.array([len(text) for text in texts], np.int64),
    )
    expected = [decode_properties(text) for text in texts]
    assert found.tags_hashes().tolist() == [java_hash(each.get(TAGS, "")) for each in expected]
    marked = found.may_name_light_queues().tolist()
    assert all(mark for mark, each in zip(marked, expected, strict=True) if LIGHT_QUEUES in each)
    assert not any(mark for mark, text in zip(marked, texts, strict=True) if LIGHT_QUEUES.encode() not in text)


@settings(max_examples=400)
@given(
    st.lists(stored, max_size=8),
    st.sampled_from([b"", b"\x02", b"TAGS\x01", b"\x02TAGS\x01of a neighbour\x02", bytes(3)]),
    st.sampled_from([b"", b"TAGS\x01behind\x02", bytes(4096)]),
)
def test_any_properties(texts: list[bytes], gap: bytes, tail: bytes) -> None:
    assert_same(texts, gap, tail)


@pytest.mark.parametrize("longest", [0, 300, 30_000])
@pytest.mark.parametrize("seed", range(5))
def test_properties_of_very_different_lengths(seed: int, longest: int) -> None:
    """Copied as rows of one length, or one by one where a long one would make most of that padding."""
    random = Random(seed)
    texts = [odd_properties(random) for _ in range(200)]
    texts[random.randrange(200)] += b"\x02long\x01" + b"v" * longest + b"\x02TAGS\x01at the end\x02"
    assert_same(texts, b"TAGS\x01gap\x02", bytes(random.choice([0, 40_000])))


def test_no_records() -> None:
    assert_same([], b"", b"")
    assert_same([b""], b"", b"")
