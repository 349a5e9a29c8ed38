"""Answers name files within the store and tell nothing of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.kv import EngineCorrupt, EngineFull
from quarry_mq.server.admin_port.calls.edge import status_text
from quarry_mq.server.wire.status import is_store, status_of, without_places
from quarry_mq.store.errors import DiskRefused, StoreDamaged, StorePoisoned


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "/var/lib/quarry/commitlog/00000000000000000000: a bad record",
            "commitlog/00000000000000000000: a bad record",
        ),
        (
            "IO error: While appending to file: /data/quarry/000012.log",
            "IO error: While appending to file: quarry/000012.log",
        ),
        (
            "[Errno 28] No space left on device: '/data/store/commitlog/1'",
            "[Errno 28] No space left on device: 'commitlog/1'",
        ),
        ("/root/.aws/credentials (and /etc/quarry/tls.key)", ".aws/credentials (and quarry/tls.key)"),
        (
            "topic orders, sources 10.0.0.0/8, s3://bucket/prefix/x, 3/4",
            "topic orders, sources 10.0.0.0/8, s3://bucket/prefix/x, 3/4",
        ),
        ("call /quarry of commitlog/1", "call /quarry of commitlog/1"),
    ],
)
def test_absolute_paths_lose_where_they_begin(text: str, shown: str) -> None:
    assert without_places(text) == shown


def test_the_store_of_a_broker_is_left_out_whatever_it_is_called(tmp_path: Path) -> None:
    store = tmp_path / "my own (store)"
    is_store(store)
    assert without_places(f"{store}/commitlog/1: bad; {store}: gone") == "commitlog/1: bad; the store: gone"
    is_store(Path("/srv/q"))
    assert without_places("/srv/q/quarry/1 /srv/q2/quarry/1 /srv/q") == "quarry/1 quarry/1 the store"
    is_store(Path("store"))
    assert without_places("no store/commitlog is a store") == "no store/commitlog is a store"


@pytest.mark.parametrize(
    "error",
    [
        StoreDamaged(Path("/var/lib/quarry/commitlog/1"), "a bad record at 7"),
        StorePoisoned("[Errno 5] Input/output error: '/var/lib/quarry/commitlog/1'"),
        DiskRefused("the commit log cannot grow: '/var/lib/quarry/commitlog/1'"),
        EngineFull("No space left on device: While appending to file: /var/lib/quarry/commitlog/1"),
        EngineCorrupt("block checksum mismatch in /var/lib/quarry/commitlog/1"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_reach_clients_and_operators_without_places(error: Exception) -> None:
    for text in (status_of(error).message, status_text(error)):
        assert "/var" not in text
        assert "commitlog/1" in text
