"""Stores that are opened as members of a cluster, and those that are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.replication import SharedKind, is_shared, member_id
from quarry_mq.store.security.sealer import Sealer
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.tools.users import make_first_administrator, users_of
from tests.replication.members import KEY, member

SEGMENT_SIZE = 64 * 1024
ALL = KeyRange(b"", None)


def opened(root: Path, name: str | None, segment_size: int = SEGMENT_SIZE) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=segment_size, member=name)
    return open_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None, sealer=Sealer([KEY]))


def orders(queues: int) -> Topic:
    return Topic("orders", TopicType.NORMAL, queues, queues)


def test_a_store_that_never_was_in_a_cluster_keeps_no_account(tmp_path: Path) -> None:
    store = opened(tmp_path, None)
    assert store.replicated is None
    store.topics.create(orders(1))
    assert store.state_engine.family("shared").scan(ALL) == []
    store.close()


def test_a_store_shares_what_it_had_and_what_changes(tmp_path: Path) -> None:
    store = opened(tmp_path, None)
    store.topics.create(orders(1))
    store.close()
    store = opened(tmp_path, "shard-0")
    assert store.replicated is not None
    incarnation = store.replicated.incarnation
    assert store.replicated.member == "shard-0"
    (row,) = store.replicated.changes(0).rows
    assert (row.kind, row.name, row.version.time_ms) == (SharedKind.TOPIC, "orders", 0)
    store.close()
    store = opened(tmp_path, "shard-0")
    assert store.replicated is not None
    assert store.replicated.incarnation == incarnation
    store.topics.update(orders(2))
    (again,) = store.replicated.changes(0).rows
    assert again.version.time_ms == ManualClock().wall_ms()
    assert again.based_on == row.version
    store.close()


def test_changes_without_a_broker_or_a_cluster_are_told_when_there_is_one_again(tmp_path: Path) -> None:
    other = member("other")
    store = opened(tmp_path, "shard-0")
    assert store.replicated is not None
    until = store.replicated.sequence
    store.close()
    with users_of(PosixDisk(), tmp_path, Sealer([KEY]), ManualClock()) as users:
        make_first_administrator(users, "admin", None, 1, force=False)
    store = opened(tmp_path, None)
    assert store.replicated is None
    store.topics.create(orders(1))
    store.close()
    store = opened(tmp_path, "renamed")
    assert store.replicated is not None
    page = store.replicated.changes(until)
    assert [row.name for row in page.rows if row.value is not None] == ["admin", "orders"]
    assert {row.version.member for row in page.rows} == {member_id("shard-0")}
    store.topics.update(orders(2))
    assert store.replicated.changes(page.until).rows[0].version.member == member_id("renamed")
    other.replicated.apply(store.replicated.changes(0).rows, peer="renamed", until=None)
    assert other.tables.topics.get("orders") == orders(2)
    store.close()


@pytest.mark.parametrize("name", ["rocks-clean", "file-clean"])
def test_other_members_take_what_an_older_store_has(name: str, golden_copy: Callable[[str], Path]) -> None:
    store = opened(golden_copy(name) / "store", "shard-0", 2**30)
    assert store.replicated is not None
    rows = store.replicated.changes(0).rows
    assert {row.version.time_ms for row in rows} == {0}
    replicated = {
        (SharedKind.TOPIC, each.name) for each in store.topics.list() if is_shared(SharedKind.TOPIC, each.name)
    }
    replicated |= {
        (SharedKind.GROUP, each.name) for each in store.groups.list() if is_shared(SharedKind.GROUP, each.name)
    }
    assert {(row.kind, row.name) for row in rows} == replicated
    assert len({kind for kind, _ in replicated}) == 2
    other = member("other")
    assert len(other.replicated.apply(rows, peer="shard-0", until=None).changed) == len(rows)
    store.close()
