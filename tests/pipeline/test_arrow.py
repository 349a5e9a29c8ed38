"""Texts and properties of many records as Arrow arrays, beside what the exact decoder makes of each."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.pipeline.source.arrow import binaries, hex_texts, picked, property_maps, texts
from quarry_mq.store.record import decode_properties, encode_properties
from tests.scan.logs import odd_properties

FILLER = b"\x02 between "


def laid_out(stored: list[bytes]) -> tuple[memoryview, np.ndarray, np.ndarray]:
    """The pieces one behind the other with something between them: memory, starts, lengths."""
    memory, starts = bytearray(FILLER), []
    for piece in stored:
        starts.append(len(memory))
        memory += piece + FILLER
    return memoryview(bytes(memory)), np.array(starts, np.int64), np.array([len(piece) for piece in stored], np.int64)


def maps_of(stored: list[bytes]) -> list[dict[str, str]]:
    array = property_maps(*laid_out(stored))
    array.validate(full=True)
    return [dict(row) for row in array.to_pylist()]


NAMES = st.text(st.characters(exclude_characters="\x00\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=9)


@given(st.lists(st.dictionaries(NAMES, NAMES, max_size=5), max_size=20))
def test_properties_that_a_writer_stores(properties: list[dict[str, str]]) -> None:
    assert maps_of([encode_properties(each) for each in properties]) == properties


@given(st.lists(st.binary(max_size=12).map(lambda octets: bytes(each % 5 for each in octets)), max_size=6))
def test_properties_of_nothing_but_separators_and_letters(stored: list[bytes]) -> None:
    assert maps_of(stored) == [decode_properties(each) for each in stored]


@pytest.mark.parametrize("seed", range(20))
def test_properties_that_nobody_should_store(seed: int) -> None:
    random = Random(seed)
    stored = [odd_properties(random) for _ in range(seed)]
    assert maps_of(stored) == [decode_properties(each) for each in stored]


@pytest.mark.parametrize(
    "stored",
    [
        [b"a\x01b\x02", b"a\x011\x02a\x012\x02"],
        [b"a\x01b", b"", b"c\x01d\x02"],
        [b"a\x01\xff\x02"],
        [b"".join(b"n%d\x01v\x02" % number for number in range(70))],
        [b"a\x01b\x01c\x02"],
        [],
    ],
    ids=["a name twice", "no last end", "no UTF-8", "many names", "a value with a separator", "nothing"],
)
def test_unusual_properties(stored: list[bytes]) -> None:
    assert maps_of(stored) == [decode_properties(each) for each in stored]


def test_texts_that_are_no_utf_8_are_replaced_and_absent_ones_are_null() -> None:
    memory, starts, lengths = laid_out([b"plain", b"\xff\xfe", b"gr\xc3\xb6\xc3\x9fe", b""])
    present = np.array([True, True, True, False])
    assert texts(memory, starts, lengths, present).to_pylist() == ["plain", "��", "größe", None]
    assert texts(memory, starts, lengths).to_pylist() == ["plain", "��", "größe", ""]
    assert binaries(memory, starts, lengths, present).to_pylist() == [b"plain", b"\xff\xfe", "größe".encode(), None]


def test_hex_and_picked_texts() -> None:
    octets = np.array([[0, 171], [255, 16]], np.uint8)
    assert hex_texts(octets).to_pylist() == ["00AB", "FF10"]
    assert picked(["a", "b"], np.array([1, 0, 1])).to_pylist() == ["b", "a", "b"]
