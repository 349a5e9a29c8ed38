"""An index file tells how many slots it has by what is in it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.index.hash.index import HashIndex
from quarry_mq.store.index.hash.layout import find_shape, shape_of
from quarry_mq.store.settings import HASH_ITEMS, HASH_SLOTS
from tests import golden
from tests.conftest import GoldenStore
from tests.faults.disk import FaultyDisk
from tests.index.test_hash_index import DIRECTORY, Model

USUAL = shape_of(HASH_SLOTS, HASH_ITEMS)


@pytest.mark.parametrize("name", golden.NAMES)
def test_golden_files_of_unusual_settings(golden_store: GoldenStore, name: str) -> None:
    for path in (golden_store(name) / "store" / "index").iterdir():
        file = memoryview(path.read_bytes())
        assert find_shape(file, USUAL) == shape_of(5_000, 20_000)
        assert find_shape(file, shape_of(5_000, 20_000)) == shape_of(5_000, 20_000)
        assert find_shape(file, shape_of(5_005, 19_999)) == shape_of(5_000, 20_000), "the same size"
        assert find_shape(file[:-1], USUAL) is None


@settings(max_examples=50)
@given(
    slots=st.integers(min_value=1, max_value=300),
    items=st.integers(min_value=20, max_value=400),
    rounds=st.integers(min_value=4, max_value=30),
    random=st.randoms(use_true_random=False),
)
def test_any_file_with_some_items(slots: int, items: int, rounds: int, random: Random) -> None:
    disk = FaultyDisk()
    index = HashIndex(disk, DIRECTORY, shape_of(slots, items), ManualClock())
    model = Model(random)
    for _ in range(rounds):
        index.put(model.grow(5))
    for each in index.files:
        file = memoryview(disk.read(DIRECTORY / each.name))
        assert find_shape(file, USUAL) in {shape_of(slots, items), None}
        assert find_shape(file, shape_of(slots, items)) == shape_of(slots, items)
    index.close()


def test_a_file_without_items_has_the_likely_shape_or_none() -> None:
    shape = shape_of(10, 20)
    assert find_shape(memoryview(bytes(shape.file_size)), shape) == shape
    assert find_shape(memoryview(bytes(shape.file_size)), USUAL) is None
