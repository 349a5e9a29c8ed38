"""The engine in memory crashes as RocksDB without a write-ahead log does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quarry_mq.kv import FamilyOptions, KeyRange
from quarry_mq.kv.memory import MemoryEngine

ALL = KeyRange(b"", None)


def engine_with(batches: int, *, write_ahead_log: bool = False) -> MemoryEngine:
    """Each batch writes its number to both families under one key."""
    engine = MemoryEngine(["first", "second"], write_ahead_log=write_ahead_log)
    for number in range(batches):
        write(engine, number)
    return engine


def write(engine: MemoryEngine, number: int) -> None:
    batch = engine.batch()
    for name in ("first", "second"):
        batch.put(engine.family(name), b"key", b"%d" % number)
    engine.write(batch)


def values(engine: MemoryEngine) -> tuple[bytes | None, bytes | None]:
    return engine.family("first").get(b"key"), engine.family("second").get(b"key")


def test_without_a_flush_nothing_survives() -> None:
    engine = engine_with(3)
    engine.crash()
    assert values(engine) == (None, None)


def test_a_flush_of_all_families_survives_and_later_batches_do_not() -> None:
    engine = engine_with(3)
    engine.flush(["first", "second"])
    write(engine, 3)
    engine.crash()
    assert values(engine) == (b"2", b"2")


@pytest.mark.parametrize("surviving", range(4))
def test_any_prefix_of_batches_may_survive_whole(surviving: int) -> None:
    engine = engine_with(3)
    engine.crash(surviving)
    expected = b"%d" % (surviving - 1) if surviving else None
    assert values(engine) == ((expected, expected) if surviving <= 3 else (b"2", b"2"))


def test_a_family_flushed_alone_is_ahead_of_the_other() -> None:
    engine = engine_with(2)
    engine.flush(["first"])
    write(engine, 2)
    engine.crash(1)
    assert values(engine) == (b"1", b"0")


def test_deletes_survive_like_puts() -> None:
    engine = engine_with(1)
    engine.flush(["first", "second"])
    batch = engine.batch()
    batch.delete_range(engine.family("first"), KeyRange(b"a", b"z"))
    engine.write(batch)
    engine.crash()
    assert values(engine) == (b"0", b"0")
    batch = engine.batch()
    batch.delete(engine.family("first"), b"key")
    engine.write(batch)
    engine.flush(["first"])
    engine.crash()
    assert values(engine) == (None, b"0")


def test_with_a_write_ahead_log_nothing_is_lost() -> None:
    engine = engine_with(3, write_ahead_log=True)
    engine.crash()
    assert values(engine) == (b"2", b"2")


def test_it_can_be_used_and_crash_again() -> None:
    engine = engine_with(3)
    engine.crash(2)
    write(engine, 7)
    engine.flush(["first", "second"])
    engine.crash()
    assert values(engine) == (b"7", b"7")


@pytest.mark.parametrize("setting", ["memtable_bytes", "memtables_max", "block_bytes", "target_file_bytes"])
def test_options_that_make_no_sense_are_named(setting: str) -> None:
    senseless: dict[str, Any] = {setting: 0}
    with pytest.raises(ValueError, match=setting):
        replace(FamilyOptions(), **senseless)


@pytest.mark.parametrize("surviving", range(4))
def test_with_a_write_ahead_log_a_power_loss_takes_only_what_follows_the_last_synchronous_write(surviving: int) -> None:
    engine = engine_with(2, write_ahead_log=True)
    batch = engine.batch()
    batch.put(engine.family("first"), b"durable", b"yes")
    engine.write(batch, sync=True)
    for number in range(2, 5):
        write(engine, number)
    engine.crash()
    assert values(engine) == (b"4", b"4")
    engine.crash(surviving, power_loss=True)
    assert engine.family("first").get(b"durable") == b"yes"
    assert values(engine) == (b"%d" % (1 + surviving),) * 2
