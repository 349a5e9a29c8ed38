"""The tiered index against a plain list of items: in every stage, over crashes anywhere, with a store that fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.index.key_files import Answer
from quarry_mq.store.index.tiered.chain_file import Found, IndexItems, IndexShape
from quarry_mq.store.index.tiered.folders import Stage
from quarry_mq.store.index.tiered.layout import HEADER_SIZE, PART_SIZE
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStoreError
from quarry_mq.store.index.tiered.tiered_index import TieredIndex, TieredState
from tests.faults.disk import FaultyDisk, PowerCut
from tests.faults.kernel import Kernel
from tests.index.objects import FaultyObjects

ROOT: Final = Path("/store/key_index")
PAYLOAD: Final = np.dtype([("at", ">i8"), ("size", ">i4")])
SHAPE: Final = IndexShape(slots=7, items_max=25, payload=PAYLOAD)
HASHES: Final = range(30)
ALWAYS: Final = (0, 2**62)


@dataclass
class Items:
    """All items there are, the oldest first: hash, time, payload."""

    random: Random
    rows: list[tuple[int, int, int]] = field(default_factory=list)

    def grow(self, count: int) -> IndexItems:
        begin, now_ms = len(self.rows), self.rows[-1][1] if self.rows else 1_000_000
        for _ in range(count):
            now_ms += self.random.randrange(0, 50)
            self.rows.append((self.random.choice(HASHES), now_ms, len(self.rows)))
        return self.since(begin)

    def since(self, begin: int) -> IndexItems:
        rows = self.rows[begin:]
        payloads = np.zeros(len(rows), PAYLOAD)
        payloads["at"] = [at for _, _, at in rows]
        hashes, times = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
        return IndexItems(hashes.astype(np.int32), times, payloads)

    def wanted(self, hashed: int, begin_ms: int, end_ms: int) -> list[int]:
        return [at for each, time_ms, at in reversed(self.rows) if each == hashed and begin_ms <= time_ms <= end_ms]


def place_of(item: Found) -> int:
    return int(item.payload["at"])


def search(index: TieredIndex, hashed: int, begin_ms: int = 0, end_ms: int = 2**62, limit: int = 10_000) -> Answer[int]:
    return index.search(hashed, begin_ms=begin_ms, end_ms=end_ms, limit=limit, accept=place_of)


def check(index: TieredIndex, items: Items) -> None:
    for hashed in HASHES:
        answer = search(index, hashed)
        assert (answer.found, answer.unread) == (items.wanted(hashed, *ALWAYS), []), f"hash {hashed}"


def stages(index: TieredIndex) -> list[Stage]:
    return [each.stage for each in index.files]


def settled(index: TieredIndex) -> None:
    index.flush()
    index.settle(index.state)


def all_moved_on(index: TieredIndex) -> None:
    while index.compact_one() or index.upload_one():
        pass


@pytest.fixture(params=[True, False], ids=["kept", "dropped"])
def keep_uploaded(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("seed", range(4))
def test_items_are_found_in_every_stage(seed: int, keep_uploaded: bool) -> None:
    disk, objects, items = FaultyDisk(), FaultyObjects(), Items(Random(seed))
    index = TieredIndex(disk, ROOT, SHAPE, objects=objects, keep_uploaded=keep_uploaded)
    for number in range(30):
        index.put(items.grow(items.random.randrange(5, 20)))
        settled(index)
        if number % 5 == 4:
            index.compact_one()
        if number % 10 == 9:
            index.upload_one()
        check(index, items)
    assert set(stages(index)) == set(Stage)
    all_moved_on(index)
    assert stages(index) == [Stage.UPLOADED] * (len(index.files) - 1) + [Stage.FILLING]
    check(index, items)
    assert bool(objects.reads) is not keep_uploaded
    local = disk.list_directory(ROOT / "compacted")
    assert len(local) == (len(index.files) - 1 if keep_uploaded else 0)
    index.close()
    again = TieredIndex(disk, ROOT, SHAPE, objects=objects, keep_uploaded=keep_uploaded)
    check(again, items)
    again.put(items.grow(60))
    check(again, items)
    again.close()


def test_what_can_still_be_taken_back_is_not_compacted() -> None:
    index, items = TieredIndex(FaultyDisk(), ROOT, SHAPE), Items(Random(1))
    state = None
    for _ in range(10):
        index.put(items.grow(20))
        if state is None:
            state = index.state
    assert not index.compact_one()
    index.settle(state)
    assert not index.compact_one(), "the file that the state tells of may be cut"
    index.settle(index.state)
    assert index.compact_one()
    index.close()


def test_a_search_for_one_looks_into_few_files() -> None:
    """The author of a tiered index: a query reads every file even after it has enough."""
    disk, objects, items = FaultyDisk(), FaultyObjects(), Items(Random(2))
    index = TieredIndex(disk, ROOT, SHAPE, objects=objects, keep_uploaded=False)
    for _ in range(60):
        index.put(items.grow(20))
        settled(index)
    all_moved_on(index)
    assert len(index.files) > 40
    everything = search(index, 3)
    assert everything.files == len(index.files)
    one = search(index, 3, limit=1)
    assert one.found == everything.found[:1]
    assert one.files < 12
    for limit in (2, 5, 20, 10_000):
        assert search(index, 3, limit=limit).found == everything.found[:limit]
    index.close()


def test_one_read_for_the_slot_and_one_for_its_run() -> None:
    disk, objects, items = FaultyDisk(), FaultyObjects(), Items(Random(3))
    index = TieredIndex(disk, ROOT, SHAPE, objects=objects, keep_uploaded=False)
    index.put(items.grow(26))
    settled(index)
    all_moved_on(index)
    search(index, items.rows[0][0])
    [(_, position, size), (_, next_position, _)] = objects.reads
    assert (position, size) == (HEADER_SIZE, PART_SIZE)
    assert next_position >= HEADER_SIZE + PART_SIZE
    index.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_range_of_times(seed: int) -> None:
    index, items = TieredIndex(FaultyDisk(), ROOT, SHAPE), Items(Random(seed))
    for _ in range(20):
        index.put(items.grow(20))
    for hashed in HASHES:
        begin_ms, end_ms = sorted(items.random.choice(items.rows)[1] for _ in range(2))
        assert search(index, hashed, begin_ms, end_ms).found == items.wanted(hashed, begin_ms, end_ms)
    index.close()


def test_only_what_is_accepted_counts() -> None:
    index, items = TieredIndex(FaultyDisk(), ROOT, SHAPE), Items(Random(4))
    for _ in range(20):
        index.put(items.grow(20))
    wanted = [at for at in items.wanted(5, *ALWAYS) if at % 2]
    found = index.search(
        5, begin_ms=0, end_ms=2**62, limit=4, accept=lambda item: place_of(item) if place_of(item) % 2 else None
    )
    assert found.found == wanted[:4]
    index.close()


def test_an_error_of_who_asks_is_told_to_him() -> None:
    index, items = TieredIndex(FaultyDisk(), ROOT, SHAPE), Items(Random(5))
    index.put(items.grow(20))

    def refuse(_: Found) -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        index.search(items.rows[0][0], begin_ms=0, end_ms=2**62, limit=4, accept=refuse)
    index.close()


def test_a_full_disk_leaves_all_or_nothing() -> None:
    disk, items = FaultyDisk(), Items(Random(6))
    index = TieredIndex(disk, ROOT, SHAPE)
    index.put(items.grow(20))
    before = index.state
    disk.fail("create")
    more = items.grow(20)
    with pytest.raises(OSError, match="Input"):
        index.put(more)
    assert index.state == before
    index.put(more)
    check(index, items)
    index.close()


def test_files_expire_wherever_they_are() -> None:
    disk, objects, items = FaultyDisk(), FaultyObjects(), Items(Random(7))
    index = TieredIndex(disk, ROOT, SHAPE, objects=objects, keep_uploaded=False)
    for _ in range(12):
        index.put(items.grow(20))
        settled(index)
    for _ in range(3):
        index.compact_one()
    index.upload_one()
    assert len(objects.objects) == 1
    fifth = index.files[4]
    objects.is_down = True
    assert index.expire(fifth.header.begin_place) == 4
    objects.is_down = False
    index.upload_one()
    assert objects.objects == {}
    assert index.files[0].name == fifth.name
    items.rows = [(-1, *row[1:]) if row[2] < fifth.header.begin_place else row for row in items.rows]
    check(index, items)
    index.close()


def test_what_expires_while_it_is_uploaded_leaves_no_object() -> None:
    objects, items = FaultyObjects(), Items(Random(11))
    index = TieredIndex(FaultyDisk(), ROOT, SHAPE, objects=objects, keep_uploaded=False)
    index.put(items.grow(60))
    settled(index)
    assert index.compact_one()
    second = index.files[1].header.begin_place

    def expire() -> None:
        assert index.expire(second) == 1

    objects.before_put = expire
    assert index.upload_one()
    objects.before_put = lambda: None
    assert len(objects.objects) == 1
    index.upload_one()
    assert objects.objects == {}
    assert [each.stage for each in index.files] == [Stage.SEALED, Stage.FILLING]
    index.close()


def test_two_indexes_may_share_an_object_store() -> None:
    """A restored copy of a store, with the settings of the first: neither may replace what is the other's."""
    objects, filled = FaultyObjects(), []
    for seed in range(2):
        items = Items(Random(seed))
        index = TieredIndex(FaultyDisk(), ROOT, SHAPE, objects=objects, keep_uploaded=False)
        index.put(items.grow(60))
        settled(index)
        all_moved_on(index)
        filled.append((index, items))
    for index, items in filled:
        check(index, items)
        index.go_back(None)
        index.upload_one()
    assert objects.objects == {}
    for index, _ in filled:
        index.close()


@pytest.mark.parametrize("trouble", ["down", "short", "other bytes", "gone"])
def test_an_object_store_in_trouble(trouble: str) -> None:
    """Writes go on, answers say what is missing, and nothing goes here before its upload is verified."""
    disk, objects, items = FaultyDisk(), FaultyObjects(), Items(Random(8))
    index = TieredIndex(disk, ROOT, SHAPE, objects=objects, keep_uploaded=False)
    for _ in range(10):
        index.put(items.grow(20))
        settled(index)
    while index.compact_one():
        pass
    index.upload_one()
    uploaded = index.files[0]
    match trouble:
        case "down":
            objects.is_down = True
        case "short":
            objects.spoil = lambda content: content[: len(content) // 2]
        case "other bytes":
            objects.spoil = lambda content: bytes([content[0] ^ 1]) + content[1:]
        case "gone":
            objects.objects.clear()
    for hashed in HASHES:
        answer = search(index, hashed)
        assert [each.name for each in answer.unread] in ([], [uploaded.name])
        here = [at for at in items.wanted(hashed, *ALWAYS) if at >= uploaded.header.items]
        assert answer.found == here if answer.unread else items.wanted(hashed, *ALWAYS)
    assert search(index, items.rows[0][0]).unread
    if trouble != "gone":
        with pytest.raises(ObjectStoreError):
            index.upload_one()
        assert stages(index).count(Stage.UPLOADED) == 1
    index.put(items.grow(30))
    objects.is_down, objects.spoil = False, None
    settled(index)
    all_moved_on(index)
    if trouble != "gone":
        check(index, items)
    index.close()


def test_a_search_does_not_wait_for_file_after_file_of_a_store_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.index.tiered.tiered_index.REMOTE_READERS", 1)
    objects, items, clock = FaultyObjects(), Items(Random(9)), ManualClock()
    index = TieredIndex(FaultyDisk(), ROOT, SHAPE, objects=objects, keep_uploaded=False, clock=clock)
    for _ in range(20):
        index.put(items.grow(20))
        settled(index)
    all_moved_on(index)
    uploaded = [each.name for each in index.files if each.stage is Stage.UPLOADED]
    assert len(uploaded) > 10

    def slow(content: bytes) -> bytes:
        clock.advance(1.0)
        return content

    objects.spoil = slow
    answer = search(index, 3)
    asked = 6  # two reads each, until ten seconds are over
    assert [each.name for each in answer.unread] == list(reversed(uploaded))[asked:]
    assert answer.found == [at for at in items.wanted(3, *ALWAYS) if at >= 25 * (len(uploaded) - asked)]
    index.close()


def test_an_object_that_is_gone_is_a_damaged_file() -> None:
    objects, items = FaultyObjects(), Items(Random(10))
    index = TieredIndex(FaultyDisk(), ROOT, SHAPE, objects=objects, keep_uploaded=False)
    for _ in range(5):
        index.put(items.grow(20))
        settled(index)
    all_moved_on(index)
    first = index.files[0]
    del objects.objects[first.object_name]
    assert index.gaps == []
    search(index, items.rows[0][0])
    [gap] = index.gaps
    index.rebuild(gap, lambda: iter([items.since(0)]))
    check(index, items)
    objects.is_down = True
    search(index, items.rows[0][0])
    with pytest.raises(ObjectStoreError):
        index.check(index.files[1].name)
    assert index.gaps == [], "a store that does not answer says nothing of its objects"
    index.close()


def work(index: TieredIndex, items: Items, saved: list[tuple[TieredState | None, int]]) -> None:
    for _ in range(40):
        match items.random.randrange(8):
            case 0 | 1 | 2 | 3:
                index.put(items.grow(items.random.randrange(0, 20)))
            case 4 | 5:
                state, count = index.state, len(items.rows)
                index.flush()
                saved.append((state, count))
                index.settle(state)
            case 6:
                index.compact_one()
            case _:
                index.upload_one()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_a_crash_anywhere_loses_no_item_and_doubles_none(seed: int) -> None:
    """rmq#7222: a crash while compacting left a bad file. rmq#10656: times were restored from the wrong field."""
    step, was_cut = 1, True
    while was_cut:
        disk, objects, items = FaultyDisk(crash_at=step), FaultyObjects(), Items(Random(seed))
        saved: list[tuple[TieredState | None, int]] = [(None, 0)]
        keep = seed % 2 == 0
        was_cut = False
        try:
            work(TieredIndex(disk, ROOT, SHAPE, objects=objects, keep_uploaded=keep), items, saved)
        except PowerCut:
            was_cut = True
        state, count = saved[-1]
        survivor = disk.power_loss(step) if step % 2 else disk.process_death()
        again = TieredIndex(survivor, ROOT, SHAPE, objects=objects, keep_uploaded=keep)
        again.go_back(state)
        again.settle(state)
        again.put(items.since(count))
        check(again, items)
        all_moved_on(again)
        check(again, items)
        assert again.damaged == []
        again.close()
        step += 1 + step // 40
    assert step > 100


def test_a_name_that_a_killed_process_made_replaces_nothing_before_it_is_durable() -> None:
    """A start that found a compacted file removed the sealed one, and a power cut then took the name that was left."""
    step, was_cut = 0, True
    while was_cut:
        step, was_cut = step + 1, False
        for seed in range(8):
            kernel, items = Kernel(Random(seed)), Items(Random(seed))
            disk, root, objects = kernel.disk(), kernel.path("/key_index"), FaultyObjects()
            index = TieredIndex(disk, root, SHAPE, objects=objects, keep_uploaded=False)
            index.put(items.grow(40))
            settled(index)
            state = index.state
            kernel.crash_at = kernel.steps + step
            try:
                all_moved_on(index)
            except PowerCut:
                was_cut = True
            kernel.cut()
            kernel.process_death()
            TieredIndex(disk, root, SHAPE, objects=objects, keep_uploaded=False)
            kernel.cut()
            kernel.power_loss()
            again = TieredIndex(disk, root, SHAPE, objects=objects, keep_uploaded=False)
            again.go_back(state)
            again.settle(state)
            check(again, items)
            all_moved_on(again)
            check(again, items)
            again.close()
    assert step > 20
