"""What the blocks of tables cost that are not data."""

from __future__ import annotations

import re
from pathlib import Path

from quarry_mq.kv import FamilyOptions, RocksEngine

KEYS = 60_000


def test_no_filter_and_no_index_is_larger_than_a_shard_of_the_cache(tmp_path: Path) -> None:
    """One that is, is read anew for every key: with a million queues a look-up took ten times as long (rmq#8915)."""
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
