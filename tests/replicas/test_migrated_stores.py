"""A store whose queues went from files to RocksDB gets copies that equal it; one with queues in files is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.tools.queue_migration import Orders, Target
from quarry_mq.store.tools.queue_migration import migrate as quarry_migrate
from tests.conftest import GoldenStore
from tests.migration.walking import advance, remove_files, roll_back
from tests.replicas.test_copies import SEEDS, Copy, Primary, require_equal_at_the_end, settings

TO_FILES: Final = Orders(target=Target.FILE, asked_by="test")


def live(primary: Primary, steps: int) -> None:
    for _ in range(steps):
        primary.live()


def migrate(primary: Primary, chance: Random) -> None:
    """The store goes to RocksDB and now and then back, while it is used and restarted."""
    while primary.store.migration.phase is not QueuePhase.ROCKSDB:
        if primary.store.migration.phase is not QueuePhase.FILE and chance.random() < 0.2:
            roll_back(primary.store)
        else:
            advance(primary.store)
        live(primary, chance.randrange(8))
        if chance.random() < 0.3:
            primary.restart()
    if chance.random() < 0.7:  # otherwise the files are removed later, or never
        remove_files(primary.store)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_copy_equals_a_primary_whose_queues_were_in_files(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    files = settings(tmp_path / "primary", has_copies=False, queue_mode=QueueMode.FILE)
    primary = Primary(tmp_path / "primary", chance, store_settings=files)
    live(primary, 30)
    primary.settings = replace(files, queue_mode=None)
    primary.restart()
    migrate(primary, chance)
    primary.settings = replace(files, queue_mode=None, has_copies=True)
    primary.restart()
    copy = Copy(tmp_path / "copy", primary)
    for _ in range(40):
        primary.live()
        if chance.random() < 0.5:
            copy.send(commits=chance.random() < 0.7)
        if chance.random() < 0.05:
            copy.restart()
    require_equal_at_the_end(primary, copy)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["file-clean", "file-kill", "rocks-clean"])
def test_a_copy_equals_a_primary_that_began_as_a_store_of_rocketmq(
    golden_copy: GoldenStore, tmp_path: Path, name: str, seed: int
) -> None:
    """Light queues are numbered by place or as records say, and are removed and used again.

    Of a store that had queue files the log does not expire here: these have messages that name a light queue twice, and
    places count from the log's beginning. docs/replicas.md says so, and the same of a store that has double write.
    """
    chance = Random(seed)
    root = golden_copy(name) / "store"
    primary = Primary(root, chance, store_settings=settings(root), expires=name == "rocks-clean")
    copy = Copy(tmp_path / "copy", primary)
    for _ in range(60):
        primary.live()
        if chance.random() < 0.7:
            copy.send()
        if chance.random() < 0.05:
            copy.restart()
    require_equal_at_the_end(primary, copy)


def test_a_store_with_queues_in_files_is_no_copy(tmp_path: Path) -> None:
    primary = Primary(tmp_path / "primary", Random(1))
    live(primary, 20)
    copy = Copy(tmp_path / "copy", primary)
    copy.send()
    copy.store.close()
    done = quarry_migrate(PosixDisk(), ManualClock(), tmp_path / "copy", TO_FILES, report=lambda _: None)
    assert done.phase is QueuePhase.FILE
    with pytest.raises(StoreUnusable, match="finish the migration of the queues first"):
        Copy(tmp_path / "copy", primary)
    primary.store.close()
