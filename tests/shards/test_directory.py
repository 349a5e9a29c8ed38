"""Shards start only on a directory that is theirs, and a single broker only on one that is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.server.shards.plan import require_directory_of_shards
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import StoreKind, inspect_store


def problem(root: Path, count: int) -> str:
    with pytest.raises(StoreUnusable) as caught:
        require_directory_of_shards(PosixDisk(), root, count)
    return str(caught.value)


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def test_a_directory_that_is_new_or_holds_no_more_shards_than_wanted_is_fine(tmp_path: Path) -> None:
    for root in (tmp_path / "missing", make(tmp_path / "some", "shard-0", "shard-1", "lost+found")):
        require_directory_of_shards(PosixDisk(), root, 2)
        require_directory_of_shards(PosixDisk(), root, 5)


@pytest.mark.parametrize("name", ["commitlog", "quarry", "restoring"])
def test_the_store_of_one_broker_is_refused(tmp_path: Path, name: str) -> None:
    text = problem(make(tmp_path, name), 2)
    assert text.startswith(f"{tmp_path}: is the store of a single broker")
    assert "without --shards" in text


def test_shards_that_would_be_left_out_are_named(tmp_path: Path) -> None:
    text = problem(make(tmp_path, *(f"shard-{number}" for number in (0, 1, 2, 10))), 2)
    assert "--shards 2 would leave out shard-2, shard-10: start it with --shards 11" in text


def test_a_single_broker_is_refused_on_a_directory_of_shards(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable) as caught:
        inspect_store(PosixDisk(), make(tmp_path, "shard-0", "shard-1"))
    assert f"{tmp_path}: contains the stores of shards, {tmp_path / 'shard-0'}" in str(caught.value)
    assert "--shards 2" in str(caught.value)
    assert inspect_store(PosixDisk(), tmp_path / "shard-0").kind is StoreKind.NEW


def test_names_that_are_no_shards_do_not_count(tmp_path: Path) -> None:
    require_directory_of_shards(PosixDisk(), make(tmp_path, "shard-07", "shard-x", "my-shard-9"), 1)
