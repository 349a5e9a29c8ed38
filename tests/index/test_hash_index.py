"""RocketMQ's key index against a plain model: over files, reopened, after power cuts, expired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import Disk
from quarry_mq.store.index.hash.index import HashIndex, HashIndexState
from quarry_mq.store.index.hash.layout import shape_of
from quarry_mq.store.index.keys import KeyItems, key_hash, key_hashes
from quarry_mq.store.message import PhysicalOffset
from tests.faults.disk import FaultyDisk, PowerCut

DIRECTORY: Final = Path("/store/index")
SHAPE: Final = shape_of(slots=13, items=40)
TEXTS: Final = [f"orders#{number}" for number in range(30)]
ALWAYS: Final = (0, 2**62)


def index_on(disk: Disk, *, shape: object = SHAPE, writable: bool = True) -> HashIndex:
    assert shape is SHAPE
    return HashIndex(disk, DIRECTORY, SHAPE, ManualClock(), writable=writable)


@dataclass
class Model:
    """Records and their texts, in log order."""

    random: Random
    records: list[tuple[int, int, list[str]]] = field(default_factory=list)
    """Physical offset, store time, texts."""

    def grow(self, count: int) -> KeyItems:
        at, now_ms = (self.records[-1][0], self.records[-1][1]) if self.records else (0, 1_000_000)
        added = []
        for _ in range(count):
            at += self.random.randrange(100, 200)
            now_ms += self.random.randrange(0, 3_000)
            added.append((at, now_ms, self.random.choices(TEXTS, k=self.random.randrange(0, 4))))
        self.records += added
        return items_from(added)

    def hits(self, text: str, begin_ms: int, end_ms: int, *, above: int = 0) -> list[int]:
        return [
            at
            for at, stored_ms, texts in reversed(self.records)
            for each in texts
            if each == text and begin_ms <= stored_ms <= end_ms and at >= above
        ]


def items_from(records: Sequence[tuple[int, int, list[str]]]) -> KeyItems:
    rows = [(text, at, stored_ms) for at, stored_ms, texts in records for text in texts]
    offsets = np.array([at for _, at, _ in rows], np.int64)
    times = np.array([stored_ms for _, _, stored_ms in rows], np.int64)
    return KeyItems(key_hashes([text for text, _, _ in rows]), offsets, times)


def found(index: HashIndex, text: str, begin_ms: int = 0, end_ms: int = 2**62) -> list[int]:
    return [hit.physical_offset for hit in index.hits(text, begin_ms, end_ms)]


def check(index: HashIndex, model: Model, *, above: int = 0) -> None:
    assert len({key_hash(text) for text in TEXTS}) == len(TEXTS), "no hash means two texts here"
    for text in TEXTS:
        assert [at for at in found(index, text) if at >= above] == model.hits(text, *ALWAYS, above=above)


def filled(disk: Disk, seed: int, rounds: int = 40) -> tuple[HashIndex, Model]:
    index, model = index_on(disk), Model(Random(seed))
    for _ in range(rounds):
        index.put(model.grow(model.random.randrange(0, 9)))
    return index, model


@pytest.mark.parametrize("seed", range(5))
def test_items_are_found_newest_first_over_all_files(seed: int) -> None:
    disk = FaultyDisk()
    index, model = filled(disk, seed)
    assert len(index.files) > 3
    check(index, model)
    index.flush()
    index.close()
    again = index_on(disk)
    check(again, model)
    again.put(model.grow(20))
    check(again, model)
    check(index_on(disk, writable=False), model)


@pytest.mark.parametrize("seed", range(5))
def test_a_range_of_times_loses_nothing_to_the_rounding(seed: int) -> None:
    index, model = filled(FaultyDisk(), seed)
    times = [stored_ms for _, stored_ms, _ in model.records]
    for text in TEXTS:
        begin_ms, end_ms = sorted(model.random.sample(times, 2))
        wanted = model.hits(text, begin_ms, end_ms)
        hits = list(index.hits(text, begin_ms, end_ms))
        offsets = [hit.physical_offset for hit in hits]
        assert [at for at in offsets if at in wanted] == wanted
        nearly = model.hits(text, begin_ms - 1_000, end_ms + 1_000)
        assert set(offsets) <= set(nearly)
        stored = {at: stored_ms for at, stored_ms, _ in model.records}
        assert all(0 <= stored[hit.physical_offset] - hit.stored_ms < 1_000 for hit in hits)


def test_a_file_that_begins_before_the_range_is_looked_at() -> None:
    index, model = index_on(FaultyDisk()), Model(Random(1))
    model.records = [(100, 1_000_000, ["orders#1"]), (200, 9_000_000, ["orders#1"])]
    index.put(items_from(model.records))
    assert found(index, "orders#1", 8_000_000, 9_500_000) == [200]


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_takes_no_more_than_what_was_not_flushed(seed: int) -> None:
    random = Random(seed)
    disk = FaultyDisk(crash_at=random.randrange(1, 700))
    model, durable, state = Model(random), 0, None
    try:
        index = index_on(disk)
        for _ in range(60):
            before = len(model.records)
            index.put(model.grow(random.randrange(0, 9)))
            if random.random() < 0.2:
                index.flush()
                state, durable = index.state, len(model.records)
            assert before <= len(model.records)
    except PowerCut:
        pass
    again = index_on(disk.power_loss(seed))
    again.go_back(state)
    # as a start reads the log again from where the state was taken
    again.put(items_from(model.records[durable:]))
    check(again, model)


def test_nothing_is_kept_without_a_state() -> None:
    disk = FaultyDisk()
    index, _ = filled(disk, 1)
    index.close()
    again = index_on(disk)
    again.go_back(None)
    assert again.files == ()
    assert found(again, TEXTS[0]) == []


def test_a_state_whose_file_is_gone_keeps_the_files_before() -> None:
    disk = FaultyDisk()
    index, model = filled(disk, 2)
    index.flush()
    first, *_, last = index.files
    index.close()
    disk.remove(DIRECTORY / last.name)
    again = index_on(disk)
    again.go_back(last)
    assert first in again.files
    kept = again.files[-1].header.end_offset
    assert all(offset <= kept for text in TEXTS for offset in found(again, text))
    assert model.records[-1][0] > kept


def test_after_a_crash_of_rocketmq_full_files_stay() -> None:
    index, _ = filled(FaultyDisk(), 3)
    *kept, _, _ = index.files
    index.keep_until(kept[-1].header.end_ms)
    assert list(index.files) == kept


def test_files_after_the_log_expire() -> None:
    index, model = filled(FaultyDisk(), 4)
    files = index.files
    minimum = PhysicalOffset(files[2].header.end_offset)
    assert index.expire(minimum) == 2
    assert index.files == files[2:]
    check(index, model, above=files[2].header.begin_offset + 1)
    assert index.expire(PhysicalOffset(2**62)) == len(files) - 3
    assert index.files == files[-1:], "the newest one is added to"


def test_a_query_goes_on_while_its_file_expires() -> None:
    index, model = filled(FaultyDisk(), 5)
    text = TEXTS[0]
    hits = index.hits(text, *ALWAYS)
    first = next(hits)
    index.expire(PhysicalOffset(2**62))
    rest = [hit.physical_offset for hit in hits]
    wanted = model.hits(text, *ALWAYS)
    assert [first.physical_offset, *rest] == wanted[: 1 + len(rest)]


def test_a_file_of_other_settings_is_refused_by_name() -> None:
    disk = FaultyDisk()
    index, _ = filled(disk, 6)
    index.close()
    with pytest.raises(StoreDamaged, match=r"13 slots|14 slots"):
        HashIndex(disk, DIRECTORY, shape_of(slots=14, items=40), ManualClock())


def test_foreign_names_are_left_alone() -> None:
    disk = FaultyDisk()
    disk.make_directories(DIRECTORY)
    disk.replace_atomically(DIRECTORY / "readme", b"mine")
    assert index_on(disk).files == ()
    assert disk.read(DIRECTORY / "readme") == b"mine"


def test_names_ascend_though_the_clock_stands() -> None:
    index, _ = filled(FaultyDisk(), 7)
    names = [each.name for each in index.files]
    assert names == sorted(set(names))
    assert isinstance(index.files[0], HashIndexState)
