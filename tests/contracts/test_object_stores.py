"""What the tiered index expects of an object store, on every kind of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore

from store.disk import PosixDisk
from store.errors import Invalid
from store.index.tiered.cloud import CloudObjects
from store.index.tiered.folder_objects import FolderObjects
from store.index.tiered.objects import ObjectStore, ObjectStoreError
from tests.index.objects import FaultyObjects

STORES: dict[str, Callable[[Path], ObjectStore]] = {
    "memory of tests": lambda _: FaultyObjects(),
    "folder": lambda folder: FolderObjects(PosixDisk(), folder),
    "obstore, memory": lambda _: CloudObjects("memory://", MemoryStore()),
    "obstore, files": lambda folder: CloudObjects("file://", LocalStore(folder, mkdir=True)),
}


@pytest.fixture(params=STORES)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return STORES[request.param](tmp_path / "objects")


def test_an_object_comes_back_as_it_was_put(objects: ObjectStore) -> None:
    content = bytes(range(256)) * 100
    objects.put("a", memoryview(content))
    assert b"".join(objects.chunks("a")) == content
    assert objects.read("a", 0, 8) == content[:8]
    assert objects.read("a", 300, 1_000) == content[300:1_300]
    objects.put("a", memoryview(b"other"))
    assert b"".join(objects.chunks("a")) == b"other"
    assert objects.address


def test_a_read_over_the_end_is_short_or_refused(objects: ObjectStore) -> None:
    objects.put("a", memoryview(b"0123456789"))
    with suppress(ObjectStoreError):
        assert objects.read("a", 5, 100) == b"56789"


def test_what_is_not_there_is_an_error_with_its_name(objects: ObjectStore) -> None:
    with pytest.raises(ObjectStoreError, match="nothing"):
        objects.read("nothing", 0, 1)
    with pytest.raises(ObjectStoreError, match="nothing"):
        list(objects.chunks("nothing"))
    assert not issubclass(ObjectStoreError, FileNotFoundError), "that is a file here which has moved on"


def test_removing_is_repeatable(objects: ObjectStore) -> None:
    objects.put("a", memoryview(b"x"))
    objects.remove("a")
    objects.remove("a")
    with pytest.raises(ObjectStoreError):
        objects.read("a", 0, 1)


def test_nobody_answers() -> None:
    objects = CloudObjects.at("s3://bucket/prefix", {"endpoint": "http://127.0.0.1:1", "skip_signature": "true"})
    with pytest.raises(ObjectStoreError, match=r"s3://bucket/prefix/a: Generic S3 error") as failed:
        objects.read("a", 0, 1)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("url", "options"), [("s4://bucket", {}), ("s3://bucket", {"no_such_option": "1"}), ("nonsense", {})]
)
def test_an_address_that_means_nothing(url: str, options: dict[str, str]) -> None:
    with pytest.raises(Invalid, match=url):
        CloudObjects.at(url, options)
