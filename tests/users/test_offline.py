"""The first administrator comes before the broker, on stores of every kind, and the store notices nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.errors import StoreLocked
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.security.sealer import Sealer
from quarry_mq.store.tools.users import make_first_administrator, users_of
from tests.store.test_golden_stores import opened
from tests.users.tables import FIRST_KEY


def bootstrap(root: Path) -> None:
    with users_of(PosixDisk(), root, Sealer([FIRST_KEY]), SystemClock()) as users:
        make_first_administrator(users, "admin", None, 1_000, force=False)


@pytest.mark.parametrize("name", ["file-kill", "double-clean"])
def test_a_store_of_rocketmq_is_taken_over_as_if_nothing_had_been(
    name: str, golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = golden_copy(name) / "store"
    other = tmp_path / "other"
    shutil.copytree(root, other, symlinks=True)
    bootstrap(other)
    found = []
    for each in (root, other):
        store = opened(each)
        queues = {queue: store.messages.bounds(queue) for queue in store.messages.iterate_queues()}
        found.append(
            (
                list(store.topics.list()),
                list(store.groups.list()),
                store.identity.origin,
                store.recovery.end,
                queues,
            )
        )
        assert [user.name for user in store.users.list()] == (["admin"] if each == other else [])
        store.close()
    assert found[0] == found[1]
    assert found[0][0]


def test_a_new_store_is_made_with_the_settings_of_its_broker(tmp_path: Path) -> None:
    root = tmp_path / "store"
    bootstrap(root)
    assert not StorePaths(root).commit_log.exists()
    store = opened(root, segment_size=1 << 16)
    assert store.segments.segment_size == 1 << 16
    assert [user.name for user in store.users.list()] == ["admin"]
    store.close()


def test_a_store_that_a_broker_runs_on_is_left_alone(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", segment_size=1 << 16)
    with pytest.raises(StoreLocked, match="a broker is running on this store"):
        bootstrap(tmp_path / "store")
    store.close()
    bootstrap(tmp_path / "store")


def test_a_store_after_a_kill_gets_its_administrator_and_still_knows_of_the_kill(tmp_path: Path) -> None:
    root = tmp_path / "store"
    opened(root, segment_size=1 << 16).close()
    StorePaths(root).abort.write_text("1")
    bootstrap(root)
    assert StorePaths(root).abort.exists()
    store = opened(root)
    assert [user.name for user in store.users.list()] == ["admin"]
    store.close()
