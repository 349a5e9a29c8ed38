"""Damaged files of the tiered index: noticed, told, and made anew from what is indexed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import pytest

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.index.tiered.chain_file import Found, IndexItems
from quarry_mq.store.index.tiered.folders import Gap, Stage
from quarry_mq.store.index.tiered.layout import SPAN_MAX_MS
from quarry_mq.store.index.tiered.tiered_index import TieredIndex
from tests.faults.disk import FaultyDisk, PowerCut
from tests.index.objects import FaultyObjects
from tests.index.test_tiered_index import HASHES, PAYLOAD, ROOT, SHAPE

KEYS_PER_RECORD: Final = 4
"""So that files end in the middle of a record: they hold 25 items."""


class Records:
    """What is indexed: each record has some keys, whose items lie at its place."""

    def __init__(self, random: Random, *, pause_ms: int = 50) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self._random = random
        self._pause_ms = pause_ms

    def grow(self, count: int) -> IndexItems:
        begin = len(self.rows)
        for _ in range(count):
            now_ms = (self.rows[-1][1] if self.rows else 1_000_000) + self._random.randrange(self._pause_ms)
            place = 100 * len(self.rows)
            self.rows += ((hashed, now_ms, place) for hashed in self._random.sample(HASHES, KEYS_PER_RECORD))
        return items_of(self.rows[begin:])

    def of(self, gap: Gap) -> Iterator[IndexItems]:
        """In batches, as a log is read, and with some behind the gap."""
        rows = [row for row in self.rows if gap.begin_place <= row[2] <= gap.end_place + 500]
        for begin in range(0, len(rows), 7):
            yield items_of(rows[begin : begin + 7])
        yield items_of([])

    def wanted(self, hashed: int) -> list[int]:
        return [place for each, _, place in reversed(self.rows) if each == hashed]


def items_of(rows: list[tuple[int, int, int]]) -> IndexItems:
    payloads = np.zeros(len(rows), PAYLOAD)
    payloads["at"] = [place for _, _, place in rows]
    hashes, times = (np.array([row[column] for row in rows], np.int64) for column in (0, 1))
    return IndexItems(hashes.astype(np.int32), times, payloads)


def places_of(index: TieredIndex, hashed: int) -> tuple[list[int], set[str]]:
    """What is found, and which files could not be read."""

    def place(item: Found) -> int:
        return int(item.payload["at"])

    answer = index.search(hashed, begin_ms=0, end_ms=2**62, limit=10_000, accept=place)
    return answer.found, {each.name for each in answer.unread}


def check_all(index: TieredIndex, records: Records) -> None:
    for hashed in HASHES:
        assert places_of(index, hashed) == (records.wanted(hashed), set()), f"hash {hashed}"
    for file in index.files[:-1]:
        index.check(file.name)


def repair_all(index: TieredIndex, records: Records) -> int:
    count = 0
    while gap := next(iter(index.gaps), None):
        index.rebuild(gap, lambda gap=gap: records.of(gap))  # type: ignore[misc]
        count += 1
    return count


class Filled:
    """An index with files in all stages: two uploaded, two compacted, the others sealed but for the last."""

    def __init__(self, disk: FaultyDisk, records: Records, *, keep_uploaded: bool) -> None:
        self.disk, self.records, self.objects = disk, records, FaultyObjects()
        self.keep_uploaded = keep_uploaded
        self.index = self.opened()
        for _ in range(9):
            self.index.put(records.grow(6))
        self.index.flush()
        self.index.settle(self.index.state)
        for _ in range(4):
            assert self.index.compact_one()
        for _ in range(2):
            assert self.index.upload_one()
        assert [each.stage for each in self.index.files] == [
            *[Stage.UPLOADED] * 2,
            *[Stage.COMPACTED] * 2,
            *[Stage.SEALED] * 4,
            Stage.FILLING,
        ]

    def opened(self, disk: FaultyDisk | None = None) -> TieredIndex:
        return TieredIndex(disk or self.disk, ROOT, SHAPE, objects=self.objects, keep_uploaded=self.keep_uploaded)

    def reopen(self) -> None:
        state = self.index.state
        self.index.close()
        self.index = self.opened()
        self.index.settle(state)

    def path(self, place: int) -> Path:
        """Of the file at a place in the order of files."""
        file = self.index.files[place]
        return ROOT / file.stage.value / file.name

    def flip(self, place: int, position: int) -> None:
        content = self.disk.files[self.path(place)]
        content.change(position, bytes([content.live[position] ^ 0x10]))


def filled(seed: int = 1, *, keep_uploaded: bool = False, pause_ms: int = 50) -> Filled:
    return Filled(FaultyDisk(), Records(Random(seed), pause_ms=pause_ms), keep_uploaded=keep_uploaded)


def test_whole_files_are_found_to_be_whole() -> None:
    all_there = filled()
    check_all(all_there.index, all_there.records)
    assert all_there.index.gaps == []
    all_there.index.close()


@pytest.mark.parametrize(
    "places", [[0], [1], [2], [4], [7], [0, 1], [1, 2], [2, 3, 4], [0, 3, 5, 6], list(range(8))], ids=str
)
@pytest.mark.parametrize("keep_uploaded", [True, False], ids=["kept", "dropped"])
def test_files_whose_header_is_damaged_are_made_again(places: list[int], keep_uploaded: bool) -> None:
    some = filled(keep_uploaded=keep_uploaded)
    names = {some.index.files[place].name for place in places}
    for place in places:
        some.flip(place, 20)
        if place < 2 and keep_uploaded:
            some.disk.remove(ROOT / "compacted" / some.index.files[place].name)
    some.reopen()
    assert {each.name for each in some.index.damaged} == names
    assert all(places_of(some.index, hashed)[1] == names for hashed in HASHES)
    assert repair_all(some.index, some.records) > 0
    assert some.index.damaged == []
    check_all(some.index, some.records)
    while some.index.compact_one() or some.index.upload_one():
        pass
    some.reopen()
    assert some.index.damaged == []
    check_all(some.index, some.records)
    some.index.close()


def test_a_file_that_is_set_aside_during_a_search_is_told_once() -> None:
    some = filled()
    name = some.index.files[4].name
    some.flip(4, 20)

    def accept(_: Found) -> int | None:
        some.index._catalog.set_aside(name)  # as a rebuild does, on another thread
        return None

    for hashed in HASHES:
        answer = some.index.search(hashed, begin_ms=0, end_ms=2**62, limit=10_000, accept=accept)
        assert [each.name for each in answer.unread] == [name]
    assert [each.name for each in some.index.damaged] == [name]
    some.index.close()


@pytest.mark.parametrize("place", range(8))
def test_every_wrong_byte_is_noticed_by_a_check(place: int) -> None:
    """And by a search that comes upon it, which tells of it; the rest of the file is searched still."""
    some = filled()
    name = some.index.files[place].name
    if place < 2:
        stored = some.index.files[place].object_name
        content = bytearray(some.objects.objects[stored])
        some.objects.objects[stored] = bytes(content[:-6] + bytes([content[-6] ^ 1]) + content[-5:])
    else:
        file = some.disk.files[some.path(place)]
        for position in range(64, len(file.live), 5):
            some.flip(place, position)
            with pytest.raises(StoreDamaged, match=name):
                some.index.check(some.index.files[place].name)
            some.flip(place, position)
        some.flip(place, len(file.live) - 6)
    with pytest.raises(StoreDamaged, match=name):
        some.index.check(some.index.files[place].name)
    assert [each.name for each in some.index.damaged] == [name]
    assert repair_all(some.index, some.records) == 1
    check_all(some.index, some.records)
    some.index.close()


@pytest.mark.parametrize("places", [[1], [3, 4], [7]], ids=str)
def test_a_file_that_is_missing_is_noticed_and_made_again(places: list[int]) -> None:
    some = filled()
    names = [some.index.files[place].name for place in places]
    for path in [some.path(place) for place in places]:
        some.disk.remove(path)
    some.reopen()
    assert [(each.name, each.reason) for each in some.index.damaged] == [(name, "it is missing") for name in names]
    repair_all(some.index, some.records)
    check_all(some.index, some.records)
    some.reopen()
    assert some.index.damaged == []
    some.index.close()


def test_a_search_that_comes_upon_damage_tells_of_it_and_has_it_mended() -> None:
    some = filled()
    name = some.index.files[2].name
    content = some.disk.files[some.path(2)]
    some.flip(2, len(content.live) - 6)
    unread = [hashed for hashed in HASHES if places_of(some.index, hashed)[1] == {name}]
    assert 0 < len(unread) < len(HASHES), "what is not in that slot is found still"
    assert [gap.names for gap in some.index.gaps] == [(name,)]
    assert some.index.upload_one() is True, "the next one"
    assert some.index.files[2].stage is Stage.COMPACTED, "it is not uploaded as it is"
    repair_all(some.index, some.records)
    check_all(some.index, some.records)
    some.index.close()


def test_what_may_be_taken_back_or_has_nothing_whole_after_it_waits() -> None:
    some = filled()
    state = some.index.state
    some.flip(7, 20)
    some.index.close()
    some.index = some.opened()
    assert some.index.gaps == [], "where a crash would go back to is not known yet"
    some.index.settle(state)
    assert len(some.index.gaps) == 1
    some.disk.remove(some.path(-1))
    some.index.close()
    some.index = some.opened()
    some.index.settle(state)
    assert some.index.gaps == []
    some.index.close()


def test_long_pauses_between_items_take_more_than_one_file() -> None:
    """A file spans 49 days at most."""
    records = Records(Random(3), pause_ms=SPAN_MAX_MS // 3)
    some = filled_with_pauses(records)
    names = [each.name for each in some.index.files]
    for place in range(1, len(names) - 1):
        some.flip(place, 20)
    some.reopen()
    assert [gap.names for gap in some.index.gaps] == [tuple(names[1:-1])]
    repair_all(some.index, records)
    assert len(some.index.files) > 5
    check_all(some.index, records)
    some.index.close()


def filled_with_pauses(records: Records) -> Filled:
    some = Filled.__new__(Filled)
    some.disk, some.records, some.objects, some.keep_uploaded = FaultyDisk(), records, FaultyObjects(), True
    some.index = some.opened()
    for _ in range(12):
        some.index.put(records.grow(5))
    some.index.flush()
    some.index.settle(some.index.state)
    return some


def test_a_gap_of_which_nothing_is_left_goes() -> None:
    some = filled()
    some.flip(0, 20)
    some.flip(2, 20)
    names = [each.name for each in some.index.files]
    objects = [each.object_name for each in some.index.files if each.object_name]
    assert [*some.objects.objects] == objects
    some.reopen()
    gone = some.index.gaps[0].end_place
    some.records.rows = [row for row in some.records.rows if row[2] > gone]
    some.index.rebuild(some.index.gaps[0], lambda: some.records.of(some.index.gaps[0]))
    assert [each.name for each in some.index.damaged] == [names[2]]
    some.index.upload_one()
    assert objects[0] not in some.objects.objects
    assert objects[1] in some.objects.objects
    index = some.index
    assert index.expire(index.files[2].header.begin_place) >= 1
    assert index.damaged == [], "nor is a damaged file kept that is older than one that goes"
    index.close()


def test_an_error_while_it_is_made_again_leaves_it_as_it_was() -> None:
    some = filled()
    some.flip(3, 20)
    some.reopen()
    [gap] = some.index.gaps

    def fails() -> Iterator[IndexItems]:
        yield from some.records.of(gap)
        raise OSError("the log cannot be read")

    with pytest.raises(OSError, match="the log"):
        some.index.rebuild(gap, fails)
    some.disk.fail("create")
    with pytest.raises(OSError, match="Input"):
        some.index.rebuild(gap, lambda: some.records.of(gap))
    assert some.index.gaps == [gap]
    repair_all(some.index, some.records)
    check_all(some.index, some.records)
    some.index.close()


@pytest.mark.parametrize("keep_uploaded", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize(
    "broken", [(2, 3), *(pytest.param(each, marks=pytest.mark.slow) for each in ((0,), (5,), (0, 1, 4)))], ids=str
)
def test_a_crash_while_files_are_made_again(broken: tuple[int, ...], keep_uploaded: bool) -> None:
    step, was_cut = 1, True
    while was_cut:
        some = filled(keep_uploaded=keep_uploaded)
        state = some.index.state
        for place in broken:
            some.flip(place, 20)
            if place < 2 and keep_uploaded:
                some.disk.remove(ROOT / "compacted" / some.index.files[place].name)
        some.reopen()
        some.disk.crash_at = some.disk.operations + step
        was_cut = False
        try:
            repair_all(some.index, some.records)
        except PowerCut:
            was_cut = True
        survivor = some.disk.power_loss(step) if step % 2 else some.disk.process_death()
        again = some.opened(survivor)
        again.settle(state)
        repair_all(again, some.records)
        assert again.damaged == []
        check_all(again, some.records)
        assert survivor.list_directory(ROOT / "rebuilding") == []
        again.close()
        step += 1
    assert step > 15
