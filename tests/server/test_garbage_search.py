"""Garbage that refers to itself is collected."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import weakref
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.process.garbage import (
    ALL_INTERVAL_S,
    GROWN_LEAST,
    GROWN_LEAST_BYTES,
    GROWTH_LOOKED_AT_S,
    GarbageSearch,
)
from quarry_mq.server.process.process_metrics import own_bytes


class Circle:
    """It refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def search(clock: ManualClock) -> Iterator[GarbageSearch]:
    """Between two looks, of which the first was at all there was."""
    gc.disable()
    search = GarbageSearch(clock, lambda: 0)  # the memory of a test process differs
    search.look()
    yield search
    gc.unfreeze()
    gc.enable()


def test_what_is_new_goes_at_the_next_look(search: GarbageSearch) -> None:
    seen = weakref.ref(Circle())
    assert seen() is not None
    search.look()
    assert seen() is None


def test_what_a_look_found_in_use_goes_when_all_is_looked_at(search: GarbageSearch, clock: ManualClock) -> None:
    circle = Circle()
    seen = weakref.ref(circle)
    search.look()
    del circle
    search.look()
    assert seen() is not None
    clock.advance(ALL_INTERVAL_S)
    search.look()
    assert seen() is None


def test_all_is_looked_at_when_there_is_much_more(search: GarbageSearch, clock: ManualClock) -> None:
    circle = Circle()
    seen = weakref.ref(circle)
    search.look()
    del circle
    much = [object() for _ in range(sys.getallocatedblocks() // 2 + GROWN_LEAST)]
    search.look()
    assert seen() is not None, "that there is more is asked now and then only"
    clock.advance(GROWTH_LOOKED_AT_S)
    search.look()
    assert seen() is None
    del much


def test_all_is_looked_at_when_there_are_many_more_bytes_in_few_pieces(clock: ManualClock) -> None:
    """As soon as they are there: a broker in a small container is ended within seconds."""
    memory = 100 << 20
    gc.disable()
    try:
        search = GarbageSearch(clock, lambda: memory)
        search.look()
        circle = Circle()
        seen = weakref.ref(circle)
        search.look()
        del circle
        memory += GROWN_LEAST_BYTES - 1
        search.look()
        assert seen() is not None
        memory += 1
        search.look()
        assert seen() is None
        circle = Circle()
        seen = weakref.ref(circle)
        search.look()
        del circle
        search.look()
        assert seen() is not None, "what is in use by now is where it counts from"
    finally:
        gc.unfreeze()
        gc.enable()


def test_memory_of_its_own_is_counted_and_that_of_files_is_not(tmp_path: Path) -> None:
    size = 64 << 20
    path = tmp_path / "mapped"
    path.write_bytes(bytes(size))
    before = own_bytes() or 0
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
        assert sum(mapped[::4096]) == 0
        assert (own_bytes() or 0) - before < size // 2
        own = bytearray(os.urandom(1)) * size
        assert (own_bytes() or 0) - before > size // 2
        del own


def test_what_is_in_use_stays(search: GarbageSearch, clock: ManualClock) -> None:
    circle = Circle()
    for seconds in (0.0, 0.25, ALL_INTERVAL_S, 0.25):
        clock.advance(seconds)
        search.look()
    assert circle.itself is circle


def test_python_looks_by_itself_again_after_the_end(clock: ManualClock) -> None:
    async def test() -> None:
        task = asyncio.get_running_loop().create_task(GarbageSearch(clock).run())
        await asyncio.sleep(0)
        assert not gc.isenabled()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(test())
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
