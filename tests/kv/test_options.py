"""Settings of a family are checked, and change nothing of what is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quarry_mq.kv.options import FamilyOptions
from quarry_mq.kv.rocks import RocksEngine


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memtable_bytes", 1),
        ("memtables_max", 1),
        ("level_zero_tables", 0),
        ("target_file_bytes", 1),
        ("block_bytes", 1),
        ("bloom_bits_per_key", -1),
        ("block_cache_bytes", -1),
        ("memtable_filter_share", -0.1),
        ("memtable_filter_share", 0.3),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        FamilyOptions(**{name: value})  # type: ignore[arg-type]


def test_a_memtable_with_a_filter_finds_what_it_holds_and_what_it_does_not(tmp_path: Path) -> None:
    options = {"default": FamilyOptions(memtable_filter_share=0.02)}
    engine = RocksEngine.open(tmp_path / "db", options, create=True, write_ahead_log=False)
    family = engine.family("default")
    keys = [b"%06d" % number for number in range(5_000)]
    for part in (keys[::2], keys[::3]):
        batch = engine.batch()
        batch.put_all(family, ((key, b"value of " + key) for key in part))
        engine.write(batch)
    kept = {*keys[::2], *keys[::3]}
    assert {key for key in keys if family.get(key) is not None} == kept
    batch = engine.batch()
    batch.delete(family, keys[0])
    engine.write(batch)
    assert family.get(keys[0]) is None
    engine.flush(["default"])
    assert family.get(keys[0]) is None
    assert family.get(keys[2]) == b"value of " + keys[2]
    engine.close()


def test_an_open_starts_no_threads_for_tables_that_are_not_there(tmp_path: Path) -> None:
    """RocksDB starts sixteen for each family by itself, even if the family has no table."""
    RocksEngine.open(tmp_path / "db", {"default": FamilyOptions()}, create=True, write_ahead_log=False).close()
    told = max((tmp_path / "db").glob("OPTIONS-*")).read_text()
    assert "\n  max_file_opening_threads=1\n" in told


KEYS = 60_000


def test_no_filter_and_no_index_is_larger_than_a_shard_of_the_cache(tmp_path: Path) -> None:
    """A block that does not fit is read again for every key: with a million queues a look-up took ten times as long.

    The complaint is rmq#8915.
    """
    engine = RocksEngine.open(tmp_path / "db", {"default": FamilyOptions()}, create=True, write_ahead_log=False)
    family = engine.family("default")
    batch = engine.batch()
    batch.put_all(family, ((b"%08d" % number, b"value") for number in range(KEYS)))
    engine.write(batch)
    engine.flush(["default"])
    for number in range(0, KEYS, 100):
        assert family.get(b"%08d" % number) is not None
    cached = family.native().property_value("rocksdb.block-cache-entry-stats")
    for kind in ("FilterBlock", "IndexBlock"):
        [(count, kibibytes)] = re.findall(kind + r"\((\d+),([\d.]+) KB", cached)
        assert int(count) > 10
        assert float(kibibytes) / int(count) < 8
    engine.close()
