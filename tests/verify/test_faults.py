"""Twelve faults, each planted in a store that agrees: all are found, and the place is told."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.tiered.chain_file import ChainedFile, IndexShape
from quarry_mq.store.index.tiered_keys import PLACE
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.offline import moving_files
from quarry_mq.store.verify import Check
from tests.verify.faults import FAULTS, Fault, fill_everything
from tests.verify.stores import verified


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill_everything(tmp_path / "store")
    return tmp_path / "store"


def test_the_store_agrees_before(store: Path) -> None:
    report = verified(store)
    assert report.differences == []
    assert {check.value: count.checked for check, count in report.counts.items()} == {
        "log": 240,
        "records": 360,
        "units": 360,
        "offsets": 3,
        "checkpoint": 1,
        "fileRecords": 360,
        "fileUnits": 360,
        "topics": 2,
        "heldMessages": 0,
        "keyIndex": 120 * (3 + 1 + 1) + 120 * (3 + 1),
    }


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_and_its_place_told(store: Path, fault: Fault) -> None:
    fault.plant(store)
    if fault.checks is None:
        with pytest.raises(StoreDamaged, match=fault.words):
            verified(store)
        return
    report = verified(store)
    assert not report.agrees
    print("\n".join(map(str, report.differences)))
    assert {each.check for each in report.differences} == fault.checks
    assert any(fault.words in str(each) for each in report.differences)


def test_index_files_that_cannot_be_read_keep_nobody_from_comparing_the_rest(store: Path) -> None:
    index = StorePaths(store).index
    (first, *_) = sorted(index.iterdir())
    os.truncate(first, 100)
    report = verified(store)
    (difference,) = report.differences
    assert (difference.check, difference.file.parent) == (Check.INDEX, index)
    assert report.counts[Check.RECORDS] == (360, 0)


def test_items_in_every_stage_are_compared(store: Path) -> None:
    with moving_files(PosixDisk(), store, None, keep_uploaded=True) as index:
        while index.compact_one():
            pass
    assert verified(store).agrees
    compacted = min((StorePaths(store).key_index / "compacted").iterdir())
    octets = bytearray(compacted.read_bytes())
    octets[-8] ^= 1  # in the last run
    compacted.write_bytes(octets)
    found = {each.file.name for each in verified(store).differences}
    assert compacted.name in found


def test_an_item_of_no_record_is_told(store: Path) -> None:
    (newest,) = (StorePaths(store).key_index / "filling").iterdir()
    with closing(PosixDisk().open_segment(newest, writable=True)) as segment:
        file = ChainedFile.opened(segment, IndexShape(11, 300, PLACE))
        stored = file.all_items()
        at = newest.stat().st_size - (300 - len(stored)) * stored.itemsize - stored.itemsize
        hashed = int(stored["hash"][-1])
        segment.write(at, (hashed ^ 1).to_bytes(4, "big"))
    missing, extra = verified(store).differences
    assert (missing.check, extra.check) == (Check.INDEX, Check.INDEX)
    assert (missing.found, extra.expected) == ("none", "no other key")
    assert missing.physical_offset == extra.physical_offset
