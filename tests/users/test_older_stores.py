"""Stores that a version without users, or without a cluster, has made."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.kv import EngineMissing, KeyRange, KvError
from quarry_mq.kv.options import FamilyOptions
from quarry_mq.kv.rocks import RocksEngine, list_families
from quarry_mq.store.state.identity import ADDED_FAMILIES, FAMILIES, META, SHARED, TOPICS, USERS, open_state_engine
from tests.users.tables import FIRST_KEY, orders, tables_in

ALL = KeyRange(b"", None)
OLDER = [name for name in FAMILIES if name not in ADDED_FAMILIES]


def make(directory: Path, families: list[str]) -> None:
    options = {name: FamilyOptions() for name in families}
    engine = RocksEngine.open(directory, options, create=True, write_ahead_log=True)
    batch = engine.batch()
    batch.put(engine.family(META), b"key", b"value")
    engine.write(batch, sync=True)
    engine.close()


@pytest.fixture(params=[OLDER, [name for name in FAMILIES if name != SHARED]], ids=["no users", "no cluster"])
def families(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


@pytest.fixture
def older(tmp_path: Path, families: list[str]) -> Path:
    make(tmp_path / "quarry", families)
    return tmp_path / "quarry"


def test_they_are_read_as_they_are(older: Path, families: list[str]) -> None:
    before = {path.name for path in older.iterdir()}
    engine = open_state_engine(older, create=False, read_only=True)
    assert engine.family(META).scan(ALL) == [(b"key", b"value")]
    engine.close()
    assert {path.name for path in older.iterdir()} == before
    assert set(list_families(older)) == {"default", *families}


def test_they_get_what_they_lack_when_they_are_opened(older: Path) -> None:
    with tables_in(older, FIRST_KEY) as tables:
        assert tables.users.is_empty()
        tables.users.create(orders())
    with tables_in(older, FIRST_KEY) as tables:
        assert tables.users.get("orders") is not None
    engine = open_state_engine(older, create=False, read_only=True)
    assert engine.family(META).scan(ALL) == [(b"key", b"value")]
    assert len(engine.family(USERS).scan(ALL)) == 1
    engine.close()


def test_nothing_else_that_is_missing_is_made_up_for(tmp_path: Path) -> None:
    """A database without topics is none of ours, and must not become one."""
    make(tmp_path / "quarry", [name for name in FAMILIES if name != TOPICS])
    with pytest.raises(KvError):
        open_state_engine(tmp_path / "quarry", create=False)
    make(tmp_path / "other", [name for name in OLDER if name != TOPICS])
    with pytest.raises(KvError):
        open_state_engine(tmp_path / "other", create=False)
    with pytest.raises(EngineMissing):
        open_state_engine(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()
