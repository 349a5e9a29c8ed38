"""The table `index` beside the items that the log asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, LessThan

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.keys import key_hash, keys_of, tag_text
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.offline import OfflineStore, moving_files
from quarry_mq.store.record import StoredMessage
from tests.conftest import GoldenStore
from tests.pipeline.tables import Row, table
from tests.verify.faults import fill_everything

Item = tuple[int, int]


def items_of_log(root: Path, *, with_tags: bool) -> list[Item]:
    found = []
    with OfflineStore.open(PosixDisk(), root) as store:
        for record in store.records():
            if not isinstance(record, StoredMessage) or record.system_flag & 0x0C not in (0, 8):
                continue
            texts = [f"{record.topic}#{key}" for key in keys_of(record.properties)]
            if with_tags and record.properties.get("TAGS"):
                texts.append(tag_text(record.topic, record.properties["TAGS"]))
            found += [(key_hash(text), record.physical_offset) for text in texts]
    return sorted(found)


def items(rows: list[Row], index: str) -> list[Item]:
    return sorted((row["keyHash"], row["phyOffset"]) for row in rows if row["index"] == index)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill_everything(tmp_path / "store")
    return tmp_path / "store"


def test_items_of_rocketmq_are_those_of_its_log(golden_store: GoldenStore) -> None:
    root = golden_store("file-clean") / "store"
    found = table(root, table="index")
    assert items(found, "hash") == items_of_log(root, with_tags=True)
    times = {row["phyOffset"]: row["storeTimestamp"] for row in found}
    stored = {row["phyOffset"]: row["storeTimestamp"] for row in table(root, columns="phyOffset,storeTimestamp")}
    assert all(0 <= stored[place] - time_ms < 1000 for place, time_ms in times.items() if place > min(times))


@pytest.mark.parametrize("compacted", [False, True])
def test_items_of_both_indexes_in_every_stage(store: Path, compacted: bool) -> None:
    if compacted:
        with moving_files(PosixDisk(), store, None, keep_uploaded=True) as index:
            while index.compact_one():
                pass
        assert list((StorePaths(store).key_index / "compacted").iterdir())
    found = table(store, table="index")
    assert items(found, "hash") == items_of_log(store, with_tags=True)
    assert items(found, "tiered") == items_of_log(store, with_tags=False)
    times = {row["phyOffset"]: row["storeTimestamp"] for row in found if row["index"] == "tiered"}
    stored = {row["phyOffset"]: row["storeTimestamp"] for row in table(store, columns="phyOffset,storeTimestamp")}
    assert times == {place: stored[place] for place in times}


def test_conditions_choose_files_and_items(store: Path) -> None:
    everything = table(store, table="index")
    middle = sorted(row["phyOffset"] for row in everything)[len(everything) // 2]
    some = table(
        store, GreaterThan(("phyOffset",), middle), EqualTo(("index",), "tiered"), table="index", columns="phyOffset"
    )
    expected = [row["phyOffset"] for row in everything if row["phyOffset"] > middle and row["index"] == "tiered"]
    assert sorted(row["phyOffset"] for row in some) == sorted(expected)
    assert table(store, LessThan(("storeTimestamp",), 1), table="index") == []


def test_a_damaged_file_is_named(store: Path) -> None:
    with moving_files(PosixDisk(), store, None, keep_uploaded=True) as index:
        while index.compact_one():
            pass
    file = min((StorePaths(store).key_index / "compacted").iterdir())
    octets = bytearray(file.read_bytes())
    octets[70] ^= 1
    file.write_bytes(octets)
    with pytest.raises(StoreDamaged, match=f"{file.name}.*slots differs from what was written"):
        table(store, table="index")
