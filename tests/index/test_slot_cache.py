"""Parts of slot tables in memory: what is asked for again is not read again, and no more is held than is allowed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from quarry_mq.store.index.tiered.layout import PART_SIZE, PART_SLOTS, SLOT, Slots
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStoreError, SlotCache
from quarry_mq.store.index.tiered.runs import LoadPart
from quarry_mq.store.index.tiered.tiered_index import TieredIndex
from tests.faults.disk import FaultyDisk
from tests.index.objects import FaultyObjects
from tests.index.test_tiered_index import HASHES, ROOT, SHAPE, Items, all_moved_on, check, search, settled


class Loads:
    """A function for each object that loads parts of its slots."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def of(self, name: str) -> LoadPart:
        def load(number: int) -> Slots:
            self.asked.append((name, number))
            return np.full(PART_SLOTS, number, SLOT)

        return load


def ask(cache: SlotCache, loads: Loads, name: str, number: int) -> None:
    assert cache.part(name, number, loads.of(name))["position"].tolist() == [number] * PART_SLOTS


@pytest.mark.parametrize("parts", [0, 1, 2, 5])
def test_what_was_not_asked_for_the_longest_goes_first(parts: int) -> None:
    cache, loads, random = SlotCache(parts * PART_SIZE + 100), Loads(), Random(parts)
    kept: list[tuple[str, int]] = []
    for _ in range(500):
        name, number = random.choice("abc"), random.randrange(3)
        before = len(loads.asked)
        ask(cache, loads, name, number)
        assert (len(loads.asked) == before) is ((name, number) in kept)
        kept = [*(each for each in kept if each != (name, number)), (name, number)][-parts:] if parts else []
        assert cache.size_bytes == len(kept) * PART_SIZE


def test_an_object_that_is_replaced_is_read_again() -> None:
    cache, loads = SlotCache(10 * PART_SIZE), Loads()
    ask(cache, loads, "a", 0)
    ask(cache, loads, "b", 0)
    cache.evict("a")
    assert cache.size_bytes == PART_SIZE
    ask(cache, loads, "b", 0)
    ask(cache, loads, "a", 0)
    assert loads.asked == [("a", 0), ("b", 0), ("a", 0)]


def test_an_error_leaves_nothing_after() -> None:
    cache, loads = SlotCache(10 * PART_SIZE), Loads()

    def fails(_number: int) -> Slots:
        raise ObjectStoreError("no answer")

    with pytest.raises(ObjectStoreError):
        cache.part("object", 0, fails)
    assert cache.size_bytes == 0
    ask(cache, loads, "object", 0)


def test_searches_of_hot_files_spare_requests() -> None:
    objects, items = FaultyObjects(), Items(Random(3))
    index = TieredIndex(FaultyDisk(), ROOT, SHAPE._replace(slots=100), objects=objects, keep_uploaded=False)
    index.put(items.grow(26))
    settled(index)
    all_moved_on(index)
    wanted = items.rows[0][0]
    unused = 99
    counts = []
    for hashed in (wanted, wanted, unused):
        before = len(objects.reads)
        search(index, hashed)
        counts.append(len(objects.reads) - before)
    assert counts == [2, 1, 0], "with its part; without; a slot without a run"
    check(index, items)
    index.close()


def test_a_file_that_is_uploaded_again_is_not_read_by_its_old_slots() -> None:
    """As after it was made anew: its object has the same name."""
    objects, items = FaultyObjects(), Items(Random(4))
    disk = FaultyDisk()
    index = TieredIndex(disk, ROOT, SHAPE, objects=objects, keep_uploaded=False)
    for _ in range(4):
        index.put(items.grow(20))
    settled(index)
    all_moved_on(index)
    for hashed in HASHES:
        search(index, hashed)
    # other items in the same file of the same index
    other = Items(Random(5))
    index.go_back(None)
    for _ in range(4):
        index.put(other.grow(20))
    settled(index)
    all_moved_on(index)
    check(index, other)
    index.close()
