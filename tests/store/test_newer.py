"""A store that a newer Quarry wrote is left alone, whatever comes to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from bench import scratch_store
from quarry_mq.kv.options import FamilyOptions
from quarry_mq.kv.rocks import RocksEngine
from quarry_mq.pipeline.source.log_splits import log_extent, open_segments
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import NotAStore, StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.opening.repair import NO_ORDERS, Orders
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.identity import FAMILIES, META, open_state_engine
from tests.cli.offline_runner import refusal

COMMANDS: Final = [
    ("verify", "{store}"),
    ("decode", "{store}"),
    ("queues", "{store}"),
    ("queues", "{store}", "--summary"),
    ("units", "{store}", "--topic", "orders", "--queue", "0"),
    ("query", "{store}", "--topic", "orders", "--key", "k"),
    ("index", "list", "{store}"),
    ("index", "verify", "{store}"),
    ("recover", "{store}"),
    ("recover", "{store}", "--dry-run"),
    ("recover", "{store}", "--rebuild-queues"),
    ("recover", "{store}", "--replace-damaged"),
    ("migrate", "{store}", "--to", "file"),
    ("export-metadata", "{store}", "--output", "{other}"),
    ("backup", "{store}", "{other}"),
    ("pipeline", "rebuild", "{store}"),
    ("pipeline", "migrate", "{store}"),
    ("pipeline", "verify", "{store}"),
    ("pipeline", "index", "{store}"),
    ("pipeline", "export", "{store}", "{other}"),
    ("pipeline", "stats", "{store}"),
]
OFTEN: Final = {"verify", "recover", "migrate", "backup"}
"""Commands that would change something, and one that would not; the others are tried in the slow tests."""
NEWER: Final = "written by a newer Quarry (format 2; this one supports 1)"


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A store of ours, stamped by a later version."""
    root = tmp_path / "store"
    store = opened(root)
    store.topics.create(Topic(scratch_store.TOPIC, TopicType.NORMAL, 8, 8))
    store.messages.append(scratch_store.make_messages(Random(1), 16, body_sizes=range(10, 20)))
    store.close()
    engine = open_state_engine(StorePaths(root).quarry, create=False)
    batch = engine.batch()
    batch.put(engine.family(META), b"format", b"2")
    engine.write(batch, sync=True)
    engine.close()
    return root


def opened(root: Path, orders: Orders = NO_ORDERS) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=1 << 20, record_size_max=1 << 16)
    return open_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None, orders=orders)


def content(root: Path) -> dict[str, str]:
    """All files but the lock, which says nothing."""
    files = (path for path in root.rglob("*") if path.is_file() and path != StorePaths(root).lock)
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("has_abort", [False, True])
@pytest.mark.parametrize(
    "attempt",
    [
        opened,
        lambda root: opened(root, Orders(rebuild_queues=True)),
        lambda root: opened(root, Orders(replace_damaged=True)),
        lambda root: OfflineStore.open(PosixDisk(), root),
        lambda root: log_extent(PosixDisk(), root, open_segments(PosixDisk(), root)),
    ],
    ids=["start", "rebuild queues", "replace damaged", "offline", "spark"],
)
def test_it_is_refused_before_anything_is_changed(
    newer: Path, attempt: Callable[[Path], object], has_abort: bool
) -> None:
    if has_abort:
        StorePaths(newer).abort.write_text("1")
    before = content(newer)
    with pytest.raises(NotAStore, match="written by a newer Quarry") as refused:
        attempt(newer)
    assert str(StorePaths(newer).quarry) in str(refused.value)
    assert content(newer) == before


@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=() if each[0] in OFTEN else pytest.mark.slow, id=" ".join(each)) for each in COMMANDS],
)
def test_every_command_refuses_it_with_one_line(newer: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    before = content(newer)
    line = refusal(2, *(each.format(store=newer, other=tmp_path / "other") for each in command))
    assert NEWER in line
    assert content(newer) == before


def test_a_database_with_a_family_that_nobody_here_knows_is_refused(newer: Path) -> None:
    """A later version that added one, and did not say so."""
    directory = StorePaths(newer).quarry
    families = {name: FamilyOptions() for name in (*FAMILIES, "quotas")}
    engine = RocksEngine.open(directory, families, create=True, write_ahead_log=True)
    batch = engine.batch()
    batch.put(engine.family(META), b"format", b"1")
    engine.write(batch, sync=True)
    engine.close()
    with pytest.raises(StoreUnusable, match="quotas") as refused:
        opened(newer)
    assert "\n" not in str(refused.value)
