"""The store remembers where the log began in the past (store/commitlog/segments.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.store.commitlog.segments import NOTES_MAX, LogBegins
from quarry_mq.store.message import PhysicalOffset


class Kept:
    """The stored notes, and who reads them after a restart."""

    def __init__(self) -> None:
        self.packed = b""
        self.saves = 0

    def open(self) -> LogBegins:
        return LogBegins(self.packed, self._save)

    def _save(self, packed: bytes) -> None:
        self.packed = packed
        self.saves += 1


def test_nothing_is_known_before_the_first_note() -> None:
    kept = Kept()
    begins = kept.open()
    assert begins.at(1_000) is None
    begins.note(1_000, PhysicalOffset(0), since_ms=0)
    assert begins.at(999) is None
    assert begins.at(1_000) == 0


def test_only_changes_are_stored() -> None:
    kept = Kept()
    for hour in range(100):
        kept.open().note(hour, PhysicalOffset(hour // 50 * 4096), since_ms=0)
    assert kept.saves == 2
    assert [kept.open().at(hour) for hour in (0, 49, 50, 99, 500)] == [0, 0, 4096, 4096, 4096]


def test_what_nobody_asks_for_any_more_is_forgotten() -> None:
    kept = Kept()
    begins = kept.open()
    for hour in range(1_000):
        begins.note(hour, PhysicalOffset(hour), since_ms=hour - 24)
    assert len(kept.packed) <= 26 * 16
    assert kept.open().at(1_000 - 24) == 976


def test_the_number_of_notes_is_bounded_and_errs_to_the_safe_side() -> None:
    kept = Kept()
    begins = kept.open()
    for minute in range(5 * NOTES_MAX):
        begins.note(minute, PhysicalOffset(minute), since_ms=0)
    assert len(kept.packed) <= NOTES_MAX * 16
    assert all((begins.at(minute) or 0) <= minute for minute in range(0, 5 * NOTES_MAX, 97))
    assert begins.at(5 * NOTES_MAX) == 5 * NOTES_MAX - 1


def test_notes_of_a_clock_that_was_ahead_or_of_another_log_go() -> None:
    kept = Kept()
    begins = kept.open()
    begins.note(10, PhysicalOffset(100), since_ms=0)
    begins.note(9_999, PhysicalOffset(200), since_ms=0)
    begins.note(20, PhysicalOffset(300), since_ms=0)
    assert [begins.at(time) for time in (10, 20, 9_999)] == [100, 300, 300]
    begins.note(30, PhysicalOffset(50), since_ms=0)  # the store was put back from a backup
    assert [begins.at(time) for time in (20, 30)] == [None, 50]


@given(steps=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), max_size=60), idle=st.integers(1, 100))
def test_it_never_says_more_than_was_so(steps: list[tuple[int, int]], idle: int) -> None:
    """A queue must never seem to be empty for longer than it is."""
    kept = Kept()
    now, begin = 0, 0
    history: list[tuple[int, int]] = []
    for elapsed, grown in steps:
        now, begin = now + elapsed, begin + grown
        history.append((now, begin))
        begins = kept.open()
        begins.note(now, PhysicalOffset(begin), since_ms=now - idle)
        told = begins.at(now - idle)
        was = [place for time, place in history if time <= now - idle]
        assert told == (was[-1] if was else None)
