"""Reading ahead: in portions, in order, never further than asked for and a bounded bit more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event, Thread

import pytest

from quarry_mq.store.scan.log import AHEAD_BYTES, PORTION_BYTES, ReadAhead
from tests.commitlog.records import SameThread

SEGMENT_BYTES = 1 << 30


class Loads:
    def __init__(self, broken_from: int = SEGMENT_BYTES) -> None:
        self.portions: list[tuple[int, int]] = []
        self._broken_from = broken_from

    def __call__(self, begin: int, end: int) -> None:
        if end > self._broken_from:
            raise OSError("the device does not answer")
        self.portions.append((begin, end))


@pytest.mark.parametrize("seed", range(5))
def test_portions_follow_each_other_and_stay_within_bounds(seed: int) -> None:
    random = Random(seed)
    begin = random.randrange(SEGMENT_BYTES // 2)
    loads = Loads()
    ahead = ReadAhead(SameThread(), loads, begin, SEGMENT_BYTES)
    position = begin
    while position < SEGMENT_BYTES:
        position = min(position + random.randrange(1, 3 * PORTION_BYTES), SEGMENT_BYTES)
        ahead.await_bytes(position)
        loaded = loads.portions[-1][1]
        assert position <= loaded <= position + AHEAD_BYTES + PORTION_BYTES
    ends = [end for _, end in loads.portions]
    assert [start for start, _ in loads.portions] == [begin, *ends[:-1]]
    assert ends[-1] == SEGMENT_BYTES


def test_a_short_scan_loads_little() -> None:
    loads = Loads()
    ReadAhead(SameThread(), loads, 100, SEGMENT_BYTES).await_bytes(200)
    assert loads.portions == [(100, 100 + PORTION_BYTES)]


def test_an_error_comes_out_where_its_bytes_are_waited_for() -> None:
    """What was read before it can still be used: recovery may end before the place that cannot be read."""
    with ThreadPoolExecutor(1) as executor:
        ahead = ReadAhead(executor, Loads(broken_from=3 * PORTION_BYTES), 0, SEGMENT_BYTES)
        for number in (1, 2, 3):
            ahead.await_bytes(number * PORTION_BYTES)
        with pytest.raises(OSError, match="does not answer"):
            ahead.await_bytes(3 * PORTION_BYTES + 1)


def test_loads_that_have_begun_are_waited_for_and_no_others() -> None:
    begun, goes_on = Event(), Event()
    loads: list[int] = []

    def load(begin: int, _end: int) -> None:
        if begin == 3 * PORTION_BYTES:
            begun.set()
            assert goes_on.wait(20)
        loads.append(begin // PORTION_BYTES)

    executor = ThreadPoolExecutor(1)
    ahead = ReadAhead(executor, load, 0, SEGMENT_BYTES)
    for position in (1, PORTION_BYTES + 1, 3 * PORTION_BYTES):
        ahead.await_bytes(position)
    assert begun.wait(20)
    executor.shutdown(wait=False, cancel_futures=True)
    settling = Thread(target=ahead.settle)
    settling.start()
    settling.join(0.05)
    assert settling.is_alive()
    goes_on.set()
    settling.join(20)
    assert not settling.is_alive()
    assert loads == [0, 1, 2, 3]


def test_the_loading_thread_does_not_wait_for_itself() -> None:
    """The collector may run there too."""
    settled = Event()

    def load(_begin: int, _end: int) -> None:
        ahead.settle()
        settled.set()

    with ThreadPoolExecutor(1) as executor:
        ahead = ReadAhead(executor, load, 0, SEGMENT_BYTES)
        ahead.await_bytes(1)
    assert settled.is_set()
