"""Entries that the native part makes of units are those that Python makes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.consumequeue.rocks.entries import entries_of
from quarry_mq.store.native import Native

UNITS = st.tuples(st.binary(min_size=8, max_size=300), st.binary(min_size=28, max_size=28))


@given(units=st.lists(UNITS, max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_they_are_the_same(native: Native, units: list[tuple[bytes, bytes]]) -> None:
    made = native.EntryMaker(ConsumeQueueEntry).make(units)
    assert made == entries_of(units)
    assert {type(entry) for entry in made} <= {ConsumeQueueEntry}


@pytest.mark.parametrize("unit", [(b"key of a unit", b"\0" * 27), (b"key of a unit", b"\0" * 29), (b"key", b"\0" * 28)])
def test_what_is_no_unit_is_refused(native: Native, unit: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="28 bytes"):
        native.EntryMaker(ConsumeQueueEntry).make([unit])


def test_entries_of_another_kind_are_refused(native: Native) -> None:
    with pytest.raises(TypeError, match="no tuple"):
        native.EntryMaker(dict)  # type: ignore[arg-type]
