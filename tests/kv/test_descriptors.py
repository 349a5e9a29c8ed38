"""A database that finds no file descriptor refuses what it is asked, and goes on once there is one again.

RocksDB itself does not: once it could not open a file to write it refuses all writes until it is opened anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.kv import EngineStarved, FamilyOptions, KeyRange, RocksEngine
from quarry_mq.kv.rocks_directory import SHARE_MIN, descriptor_share, require_descriptors
from tests.descriptors import in_own_process, starved

FAMILIES = {name: FamilyOptions(memtable_bytes=64 * 1024) for name in ("default", "first")}
ALL = KeyRange(b"", None)


def put(engine: RocksEngine, number: int) -> None:
    batch = engine.batch()
    batch.put(engine.family("first"), b"%08d" % number, bytes(1_000))
    engine.write(batch)


@pytest.mark.parametrize("write_ahead_log", [True, False])
@in_own_process
def test_a_flush_without_descriptors_is_refused_and_succeeds_later(tmp_path: Path, *, write_ahead_log: bool) -> None:
    engine = RocksEngine.open(tmp_path / "db", FAMILIES, create=True, write_ahead_log=write_ahead_log)
    put(engine, 1)
    with starved(), pytest.raises(EngineStarved, match="Too many open files"):
        engine.flush(["default", "first"])
    put(engine, 2)
    engine.flush(["default", "first"])
    engine.close()
    reopened = RocksEngine.open(tmp_path / "db", FAMILIES, create=False, write_ahead_log=write_ahead_log)
    assert len(list(reopened.family("first").scan(ALL))) == 2
    reopened.close()


@pytest.mark.parametrize("write_ahead_log", [True, False])
@in_own_process
def test_writes_are_refused_before_a_full_memtable_meets_no_descriptor(
    tmp_path: Path, *, write_ahead_log: bool
) -> None:
    engine = RocksEngine.open(tmp_path / "db", FAMILIES, create=True, write_ahead_log=write_ahead_log)
    written, refused = set[int](), 0
    with starved():
        for number in range(200):
            try:
                put(engine, number)
            except EngineStarved:
                refused += 1
            else:
                written.add(number)
    assert refused > 150
    for number in range(1_000, 1_200):
        put(engine, number)
        written.add(number)
    engine.flush(["default", "first"])
    assert {int(key) for key, _ in engine.family("first").scan(ALL)} == written
    engine.close()


def test_a_part_of_the_descriptors_is_bounded_on_both_sides() -> None:
    assert [descriptor_share(1_024, limit) for limit in (256, 1_024, 4_096, 16_384, 1 << 20)] == [
        SHARE_MIN,
        64,
        256,
        1_024,
        1_024,
    ]


@in_own_process
def test_descriptors_that_were_asked_for_are_given_back() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    require_descriptors(20)
    with starved(), pytest.raises(OSError, match="Too many open files"):
        require_descriptors(20)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
