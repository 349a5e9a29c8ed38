"""The directory that holds the stores of shards, looked at before anything is started on it."""

from __future__ import annotations

from pathlib import Path

from store.disk import Disk
from store.errors import NotAStore, StoreUnusable
from store.paths import StorePaths, parse_shard_name, shard_name


def require_directory_of_shards(disk: Disk, root: Path, count: int) -> None:
    """Only looks. Shards that are not there yet are no fault: their stores are made when they start.

    Raises StoreUnusable for the store of a single broker, and where there are more shards than `count`; OSError.
    """
    names = [entry.name for entry in disk.list_directory(root)]
    paths = StorePaths(root)
    for path in (paths.commit_log, paths.quarry, paths.restoring):
        if path.name in names:
            raise NotAStore(
                root,
                f"is the store of one broker, it holds {path.name}: "
                "start it without --shards, or name another directory for the shards",
            )
    there = [number for name in names if (number := parse_shard_name(name)) is not None]
    left_out = sorted(number for number in there if number >= count)
    if left_out:
        raise StoreUnusable(
            root,
            f"--shards {count} would leave out {', '.join(map(shard_name, left_out))}: "
            f"start it with --shards {left_out[-1] + 1}, or move away what is not wanted",
        )
