"""The object store of the benchmarks does what the client of the tiered index asks of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from bench.peers.object_server import ObjectServer
from quarry_mq.store.index.tiered.object_store.cloud import CloudObjects
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStoreError

LARGE = 12 << 20
"""Bytes: the client sends so many in parts."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ObjectServer]:
    with closing(ObjectServer(tmp_path / "objects")) as started:
        yield started


@pytest.mark.parametrize("size", [1_000, LARGE])
def test_what_is_put_is_read(server: ObjectServer, tmp_path: Path, size: int) -> None:
    objects = CloudObjects.at(server.url, server.options)
    content = Random(1).randbytes(size)
    objects.put("0001", memoryview(b"before"))
    objects.put("0001", memoryview(content))
    assert objects.read("0001", 100, 50) == content[100:150]
    assert b"".join(objects.chunks("0001")) == content
    assert [path.read_bytes() for path in (tmp_path / "objects").rglob("0001")] == [content]


def test_what_is_removed_is_gone(server: ObjectServer) -> None:
    objects = CloudObjects.at(server.url, server.options)
    objects.put("0001", memoryview(b"content"))
    objects.remove("0001")
    objects.remove("0001")
    with pytest.raises(ObjectStoreError, match="0001"):
        objects.read("0001", 0, 7)


def test_answers_may_come_late(server: ObjectServer, tmp_path: Path) -> None:
    CloudObjects.at(server.url, server.options).put("0001", memoryview(b"content"))
    with closing(ObjectServer(tmp_path / "objects", delay_ms=1)) as far:
        assert CloudObjects.at(far.url, far.options).read("0001", 0, 7) == b"content"
