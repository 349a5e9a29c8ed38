"""Every kind of object store does what the tiered index expects."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from obstore.store import LocalStore, MemoryStore

from quarry_mq.store.errors import Invalid
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.tiered.object_store.cloud import CloudObjects
from quarry_mq.store.index.tiered.object_store.protocol import (
    FolderObjects,
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
)
from tests.index.objects import FaultyObjects
from tests.object_store.server import S3Server, options

BIG: Final = bytes(range(256)) * (12 * 4096)
"""12 MiB: obstore puts it in three parts."""


def on_s3(server: S3Server) -> ObjectStore:
    return CloudObjects.at(f"s3://{server.new_bucket()}/some/prefix", options(server.port))


STORES: dict[str, Callable[[pytest.FixtureRequest, Path], ObjectStore]] = {
    "memory of tests": lambda *_: FaultyObjects(),
    "folder": lambda _, folder: FolderObjects(PosixDisk(), folder),
    "obstore, memory": lambda *_: CloudObjects("memory://", MemoryStore()),
    "obstore, files": lambda _, folder: CloudObjects("file://", LocalStore(folder, mkdir=True)),
    "obstore, S3": lambda request, _: on_s3(request.getfixturevalue("s3_server")),
}


@pytest.fixture(params=STORES)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return STORES[request.param](request, tmp_path / "objects")


def test_an_object_comes_back_as_it_was_put(objects: ObjectStore) -> None:
    content = bytes(range(256)) * 100
    objects.put("a", memoryview(content))
    assert b"".join(objects.chunks("a")) == content
    assert objects.read("a", 0, 8) == content[:8]
    assert objects.read("a", 300, 1_000) == content[300:1_300]
    assert objects.read("a", len(content) - 3, 3) == content[-3:]
    assert objects.address


def test_an_object_is_replaced(objects: ObjectStore) -> None:
    objects.put("a", memoryview(b"0123456789"))
    objects.put("b", memoryview(b"neighbour"))
    objects.put("a", memoryview(b"other"))
    assert b"".join(objects.chunks("a")) == b"other"
    assert objects.read("a", 1, 3) == b"the"
    assert b"".join(objects.chunks("b")) == b"neighbour"


def test_a_big_object(objects: ObjectStore) -> None:
    objects.put("big", memoryview(BIG))
    assert b"".join(objects.chunks("big")) == BIG
    assert objects.read("big", 5 * 1024 * 1024 - 4, 8) == BIG[5 * 1024 * 1024 - 4 :][:8]


def test_a_read_over_the_end_is_short_or_refused(objects: ObjectStore) -> None:
    objects.put("a", memoryview(b"0123456789"))
    for position, there in ((5, b"56789"), (10, b""), (300, b"")):
        with suppress(ObjectStoreError):
            assert objects.read("a", position, 100) == there


def test_what_is_not_there_is_an_error_with_its_name(objects: ObjectStore) -> None:
    objects.put("something", memoryview(b"x"))
    with pytest.raises(ObjectMissing, match="/nothing: "):
        objects.read("nothing", 0, 1)
    with pytest.raises(ObjectMissing, match="/nothing: "):
        list(objects.chunks("nothing"))
    assert not issubclass(ObjectMissing, FileNotFoundError), "that is a file here which has moved on"


def test_removing_is_repeatable(objects: ObjectStore) -> None:
    objects.put("a", memoryview(b"x"))
    objects.put("b", memoryview(b"y"))
    objects.remove("a")
    objects.remove("a")
    with pytest.raises(ObjectMissing):
        objects.read("a", 0, 1)
    assert objects.read("b", 0, 1) == b"y"


def on_nobody() -> ObjectStore:
    return CloudObjects.at("s3://bucket/prefix", {"endpoint": "http://127.0.0.1:1", "skip_signature": "true"})


UNREACHABLE: dict[str, Callable[[pytest.FixtureRequest, Path], ObjectStore]] = {
    "nobody listens": lambda *_: on_nobody(),
    "no bucket": lambda request, _: CloudObjects.at(
        "s3://no-such-bucket/prefix", options(request.getfixturevalue("s3_server").port)
    ),
    "no folder": lambda _, folder: FolderObjects(PosixDisk(), folder / "not" / "mounted"),
}


@pytest.mark.parametrize("kind", UNREACHABLE)
def test_a_store_that_is_not_there_may_have_the_object(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    objects = UNREACHABLE[kind](request, tmp_path)
    for ask in (lambda: objects.read("a", 0, 1), lambda: list(objects.chunks("a"))):
        with pytest.raises(ObjectStoreError, match=f"^{re.escape(objects.address)}/a: .") as failed:
            ask()
        assert not isinstance(failed.value, ObjectMissing)
        assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("url", "options"), [("s4://bucket", {}), ("s3://bucket", {"no_such_option": "1"}), ("nonsense", {})]
)
def test_an_address_that_means_nothing(url: str, options: dict[str, str]) -> None:
    with pytest.raises(Invalid, match=url):
        CloudObjects.at(url, options)
