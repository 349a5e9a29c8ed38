"""Locks a store, for jobs that change it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quarry_mq.store.errors import StoreLocked, StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import StoreKind, inspect_store
from quarry_mq.store.layout.paths import StorePaths


@contextmanager
def locked(disk: Disk, root: Path) -> Iterator[None]:
    """Hold the store's lock, so that no broker can run on it meanwhile.

    Raises StoreUnusable when there is no store, StoreLocked when a broker runs on it.
    """
    if inspect_store(disk, root).kind is StoreKind.NEW:
        raise StoreUnusable(root, "there is no store in this directory")
    path = StorePaths(root).lock
    try:
        lock = disk.lock(path)
    except BlockingIOError as error:
        raise StoreLocked(path, "a broker runs on the store: stop it first") from error
    try:
        yield
    finally:
        lock.release()
