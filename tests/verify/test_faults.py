"""Twelve faults, each planted in a store that agrees: all are found, and the place is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.errors import StoreDamaged
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
