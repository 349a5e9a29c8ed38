"""Leases that keep segments while they are copied."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.commitlog.segments import SegmentPins
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import PhysicalOffset


def test_the_lowest_of_all_pins_counts() -> None:
    pins = SegmentPins(ManualClock())
    assert pins.lowest() is None
    pins.pin("first", PhysicalOffset(2_000), 60)
    pins.pin("second", PhysicalOffset(1_000), 60)
    assert pins.lowest() == 1_000
    pins.release("second")
    assert pins.lowest() == 2_000
    pins.release("first")
    pins.release("first")
    assert pins.lowest() is None


def test_a_pin_whose_holder_died_is_gone_when_its_lease_is_over() -> None:
    """A backup that is killed must not fill the disk."""
    clock = ManualClock()
    pins = SegmentPins(clock)
    pins.pin("backup", PhysicalOffset(0), 60)
    clock.advance(59)
    pins.renew("backup", 60)
    clock.advance(59)
    assert pins.lowest() == 0
    clock.advance(1)
    assert pins.lowest() is None
    with pytest.raises(Invalid, match="backup"):
        pins.renew("backup", 60)


def test_a_wall_clock_that_is_set_changes_nothing() -> None:
    clock = ManualClock()
    pins = SegmentPins(clock)
    pins.pin("backup", PhysicalOffset(0), 60)
    clock.jump(86_400)
    assert pins.lowest() == 0
