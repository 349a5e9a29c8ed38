"""The log read in bulk gives what the exact decoder gives, damage included."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.record import Blank, Corrupt, StoredMessage, Torn
from quarry_mq.store.verify.log import entries_in, entries_of, scan, walk
from tests import golden

GoldenStore = Callable[[str], Path]
Entry = tuple[object, ...]


def in_bulk(store: OfflineStore) -> tuple[list[Entry], list[tuple[str, PhysicalOffset]]]:
    entries: list[Entry] = []
    damage = []
    for found in scan(store):
        if isinstance(found, Torn | Corrupt):
            damage.append((type(found).__name__, found.physical_offset))
            continue
        columns = entries_in(found)
        fields = (columns.queue_offset, columns.physical_offset, columns.size, columns.tags_code)
        rows = zip(*(each.tolist() for each in (columns.queue_index, *fields, columns.store_timestamp_ms)), strict=True)
        entries += [(columns.queues[index], *rest) for index, *rest in rows]
    return entries, damage


def one_by_one(store: OfflineStore) -> tuple[list[Entry], list[tuple[str, PhysicalOffset]]]:
    entries: list[Entry] = []
    damage = []
    for found in walk(store, store.minimum):
        match found:
            case StoredMessage():
                entries += [(queue, *entry) for queue, entry in entries_of(found)]
            case Blank():
                pass
            case _:
                damage.append((type(found).__name__, found.physical_offset))
    return entries, damage


@pytest.mark.parametrize("name", golden.NAMES)
def test_whole_stores(golden_store: GoldenStore, name: str) -> None:
    with OfflineStore.open(PosixDisk(), golden_store(name) / "store") as store:
        entries, damage = in_bulk(store)
        assert damage == []
        assert len(entries) > 5_000
        assert (entries, damage) == one_by_one(store)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_stores(golden_copy: GoldenStore, seed: int) -> None:
    """Bits flipped and stretches zeroed, in every segment."""
    chance = random.Random(seed)
    root = golden_copy("rocks-clean") / "store"
    for segment in sorted(StorePaths(root).commit_log.glob("0*")):
        with segment.open("r+b") as file:
            file.seek(chance.randrange(200_000))
            file.write(chance.choice((b"\xff", bytes(5_000), chance.randbytes(3))))
    with OfflineStore.open(PosixDisk(), root) as store:
        assert in_bulk(store) == one_by_one(store), f"replay with {seed=}"
