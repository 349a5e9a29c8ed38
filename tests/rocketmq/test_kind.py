"""The kind of store that a directory holds, and the one-line reason when it is no store."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.store.errors import NotAStore
from quarry_mq.store.fs import DirectoryEntry, PosixDisk
from quarry_mq.store.layout.kind import StoreKind, inspect_store

SEGMENT = "00000000000000000000"


def fill(root: Path, *names: str) -> Path:
    """Make the files; a name that ends with `/` is a directory."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
    return root


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("lost+found/",),
        ("lock",),
        ("lock", "abort", "commitlog/", "consumequeue_rocksdb/", "quarry/"),
        ("tls/certificate.pem", "tls/key.pem"),
    ],
)
def test_an_empty_directory_is_new(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A fresh volume holds `lost+found`; a first opening that was killed early leaves empty directories."""
    found = inspect_store(PosixDisk(), fill(tmp_path, *names))
    assert (found.kind, found.layout) == (StoreKind.NEW, StoreKind.NEW)
    assert found.rocksdb_directory == tmp_path / "consumequeue_rocksdb"
    assert not found.has_rocksdb
    assert found.has_abort == ("abort" in names)


def test_an_absent_directory_is_new_and_stays_absent(tmp_path: Path) -> None:
    assert inspect_store(PosixDisk(), tmp_path / "a" / "b").kind is StoreKind.NEW
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "kind", "database"),
    [
        ((f"commitlog/{SEGMENT}",), StoreKind.ROCKETMQ_FILE, None),
        (("commitlog/", "config/topics.json"), StoreKind.ROCKETMQ_FILE, None),
        ((f"commitlog/{SEGMENT}", f"consumequeue/t/0/{SEGMENT}"), StoreKind.ROCKETMQ_FILE, None),
        ((f"commitlog/{SEGMENT}", "consumequeue/CURRENT"), StoreKind.ROCKETMQ_ROCKSDB, "consumequeue"),
        (
            (f"commitlog/{SEGMENT}", "consumequeue_rocksdb/CURRENT"),
            StoreKind.ROCKETMQ_ROCKSDB,
            "consumequeue_rocksdb",
        ),
        (
            (f"commitlog/{SEGMENT}", "consumequeue/CURRENT", "consumequeue/t/0/"),
            StoreKind.ROCKETMQ_ROCKSDB,
            "consumequeue",
        ),
        (
            (f"commitlog/{SEGMENT}", "consumequeue/CURRENT", f"consumequeue/t/x/{SEGMENT}"),
            StoreKind.ROCKETMQ_ROCKSDB,
            "consumequeue",
        ),
        (
            (f"commitlog/{SEGMENT}", "consumequeue/CURRENT", f"consumequeue/t/0/{SEGMENT}"),
            StoreKind.ROCKETMQ_DOUBLE_WRITE,
            "consumequeue",
        ),
        (
            (f"commitlog/{SEGMENT}", "consumequeue_rocksdb/CURRENT", f"consumequeue/t/0/{SEGMENT}"),
            StoreKind.ROCKETMQ_DOUBLE_WRITE,
            "consumequeue_rocksdb",
        ),
        (
            (f"commitlog/{SEGMENT}", "consumequeue_rocksdb/CURRENT", "consumequeue/CURRENT"),
            StoreKind.ROCKETMQ_ROCKSDB,
            "consumequeue",
        ),
    ],
)
def test_stores_of_rocketmq(tmp_path: Path, names: tuple[str, ...], kind: StoreKind, database: str | None) -> None:
    """rmq#10174: queues on files and in RocksDB share a directory; the CURRENT file tells."""
    found = inspect_store(PosixDisk(), fill(tmp_path, *names))
    assert (found.kind, found.layout) == (kind, kind)
    assert found.has_rocksdb == (database is not None)
    assert found.rocksdb_directory == tmp_path / (database or "consumequeue_rocksdb")


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        (("quarry/CURRENT",), StoreKind.NEW),
        (("quarry/CURRENT", "abort"), StoreKind.NEW),
        (("quarry/CURRENT", "config/topics.json"), StoreKind.ROCKETMQ_FILE),
        (("quarry/CURRENT", f"commitlog/{SEGMENT}", f"consumequeue/t/0/{SEGMENT}"), StoreKind.ROCKETMQ_FILE),
        (("quarry/CURRENT", f"commitlog/{SEGMENT}", "consumequeue/CURRENT"), StoreKind.ROCKETMQ_ROCKSDB),
    ],
)
def test_a_store_is_ours_by_its_database(tmp_path: Path, names: tuple[str, ...], layout: StoreKind) -> None:
    """`layout` still tells what RocketMQ had left when a first opening was interrupted."""
    found = inspect_store(PosixDisk(), fill(tmp_path, *names))
    assert (found.kind, found.layout) == (StoreKind.QUARRY, layout)
    assert found.has_abort == ("abort" in names)


@pytest.mark.parametrize(
    ("names", "at", "reason"),
    [
        (("photo.jpg", "z"), "", "holds 'photo.jpg' but no commitlog/"),
        (("config/topics.json",), "", "holds 'config' but no commitlog/"),
        (("broker.conf", f"store/commitlog/{SEGMENT}"), "", "did you mean .*store"),
        ((SEGMENT, "00000000001073741824"), "", "not a store but its segments"),
        (("commitlog",), "commitlog", "a file where a store has a directory"),
        ((f"commitlog/{SEGMENT}", "consumequeue"), "consumequeue", "a file where a store has a directory"),
        ((f"commitlog/{SEGMENT}", "quarry"), "quarry", "a file where a store has a directory"),
        (("commitlog/notes.txt",), "commitlog/notes.txt", "no commit log segment"),
        (("commitlog/0000000000000000000",), "commitlog/0000000000000000000", "no commit log segment"),
    ],
)
def test_what_is_no_store_is_refused_in_one_line(tmp_path: Path, names: tuple[str, ...], at: str, reason: str) -> None:
    with pytest.raises(NotAStore, match=reason) as caught:
        inspect_store(PosixDisk(), fill(tmp_path, *names))
    assert caught.value.path == tmp_path / at
    assert "\n" not in str(caught.value)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    file = fill(tmp_path, "file") / "file"
    with pytest.raises(NotAStore, match="a file, not a directory") as caught:
        inspect_store(PosixDisk(), file)
    assert caught.value.path == file


class ForbiddingDisk(PosixDisk):
    """A disk that lets nobody into one directory. (Permission bits do not stop the root user that tests may be.)"""

    def __init__(self, forbidden: Path) -> None:
        self._forbidden = forbidden

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        if path == self._forbidden:
            raise PermissionError(13, "Permission denied", str(path))
        return super().list_directory(path)

    def exists(self, path: Path) -> bool:
        if path.parent == self._forbidden:
            raise PermissionError(13, "Permission denied", str(path))
        return super().exists(path)


@pytest.mark.parametrize("name", ["", "commitlog", "consumequeue", "consumequeue/t/0", "quarry"])
def test_an_unreadable_directory_is_named(tmp_path: Path, name: str) -> None:
    fill(tmp_path, f"commitlog/{SEGMENT}", "consumequeue/t/0/", "quarry/")
    with pytest.raises(NotAStore, match="cannot be read: Permission denied") as caught:
        inspect_store(ForbiddingDisk(tmp_path / name), tmp_path)
    assert caught.value.path.is_relative_to(tmp_path / name)
