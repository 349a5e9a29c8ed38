"""`quarry index`: the files of a key index, of a store that nobody runs and of a live broker."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.tiered.folders import Stage
from quarry_mq.store.message import Host, Message
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import IndexSettings, StoreSettings
from tests.cli.offline_runner import flip, lines, refusal, run

HOST: Final = Host(bytes([127, 0, 0, 1]), 8081)
COUNT: Final = 100


def opened(root: Path, **more: Any) -> OpenStore:
    index = IndexSettings(hash_slots=11, hash_items=50, tiered_slots=11, tiered_items=30, **more)
    settings = StoreSettings(root=root, segment_size=64 * 1024, index=index)
    return open_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None)


def sent(store: OpenStore, numbers: range) -> None:
    messages = store.messages
    for number in numbers:
        properties = {"UNIQ_KEY": f"id{number}", "KEYS": f"all k{number}"}
        messages.append([Message("orders", 0, b"x" * 100, properties, 1_700_000_000_000, HOST, HOST)])
    messages.flush()
    messages.dispatch(messages.flushed_up_to)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with both indexes, closed in good order."""
    root = tmp_path / "store"
    store = opened(root, hash_files=True, tiered=True)
    store.topics.create(Topic("orders", TopicType.NORMAL, 1, 1))
    sent(store, range(COUNT))
    store.close()
    return root


def found(root: Path, key: str, *more: object) -> list[str]:
    rows = lines("query", root, "--topic", "orders", "--key", key, "--limit", 1_000, *more)
    return [row["properties"]["UNIQ_KEY"] for row in rows]


def newest_first(count: int) -> list[str]:
    return [f"id{number}" for number in reversed(range(count))]


def stages(root: Path) -> list[str]:
    return [row["stage"] for row in lines("index", "list", root) if row["kind"] == "tiered"]


def test_the_files_of_a_store_go_through_their_stages(root: Path, tmp_path: Path) -> None:
    rows = lines("index", "list", root)
    hashed = [row for row in rows if row["kind"] == "hash"]
    tiered = [row for row in rows if row["kind"] == "tiered"]
    assert sum(row["items"] for row in tiered) == 3 * COUNT
    assert sum(row["items"] for row in hashed) == 3 * COUNT
    assert [row["stage"] for row in tiered] == ["sealed"] * 9 + ["filling"]
    for row, following in pairwise(tiered):
        assert row["beginOffset"] <= row["endOffset"] <= following["beginOffset"]
    assert lines("index", "compact", root) == [{"compacted": 9}]
    assert stages(root) == ["compacted"] * 9 + ["filling"]
    target = tmp_path / "objects"
    assert lines("index", "upload", root, "--upload-to", target, "--drop") == [{"uploaded": 9}]
    rows = [row for row in lines("index", "list", root) if row["kind"] == "tiered"]
    assert [(row["stage"], row["here"]) for row in rows] == [("uploaded", False)] * 9 + [("filling", True)]
    assert len(list(target.iterdir())) == 9
    assert found(root, "all") == newest_first(COUNT)
    verdicts = lines("index", "verify", root, "--upload-to", target)
    assert {row["verdict"] for row in verdicts} == {"whole", "not looked at"}
    done = run("index", "verify", root, "--json")
    assert done.exit_code == 2
    assert "index.upload_to" in done.stdout
    store = opened(root, tiered=True, upload_to=str(target))
    [index] = store.messages.indexes.followers
    sent(store, range(COUNT, COUNT + 5))
    answer = index.find("orders", "all", begin_ms=0, end_ms=2**62, limit=1_000, read=store.messages.record_at)
    assert [each.properties["UNIQ_KEY"] for each in answer.messages] == newest_first(COUNT + 5)
    store.close()


@pytest.mark.parametrize("trouble", ["header", "run", "crash", "missing"])
def test_queries_of_a_store_whose_index_cannot_be_trusted_read_the_log(root: Path, trouble: str) -> None:
    lines("index", "compact", root)
    for path in (root / "index").iterdir():
        path.unlink()
    oldest = sorted((root / "key_index" / "compacted").iterdir())[0]
    match trouble:
        case "header":
            flip(oldest, 20)
        case "run":
            flip(oldest, oldest.stat().st_size - 5)
        case "crash":
            (root / "abort").touch()
            [filling] = (root / "key_index" / "filling").iterdir()
            flip(filling, 20)
        case "missing":
            oldest.with_name(f"{int(oldest.name) + 3:020d}").unlink()
    for key, wanted in (("all", newest_first(COUNT)), ("k3", ["id3"]), ("k99", ["id99"]), ("none", [])):
        done = run("query", root, "--topic", "orders", "--key", key, "--limit", 1_000, "--json")
        assert done.exit_code == (0 if wanted else 1)
        ids = [json.loads(line)["properties"]["UNIQ_KEY"] for line in done.stdout.splitlines()]
        assert ids == wanted, key


def test_only_what_the_index_does_not_tell_is_read_from_the_log(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (root / "index").iterdir():
        path.unlink()
    monkeypatch.setattr("quarry_mq.store.offline.scan_log", lambda *_, **__: iter(()))
    assert found(root, "all") == newest_first(COUNT)


@pytest.mark.parametrize("stage", [Stage.SEALED, Stage.COMPACTED])
def test_verify_names_what_is_damaged(root: Path, stage: Stage) -> None:
    if stage is Stage.COMPACTED:
        lines("index", "compact", root)
    path = sorted((root / "key_index" / stage.value).iterdir())[2]
    flip(path, path.stat().st_size - 5)
    hashed = sorted((root / "index").iterdir())[0]
    flip(hashed, 40 + 4 * 11 + 20)
    done = run("index", "verify", root, "--json")
    assert done.exit_code == 1
    damaged = [row["name"] for row in map(json.loads, done.stdout.splitlines()) if row["damage"]]
    assert damaged == [hashed.name, path.name]
    assert stages(root)[2] == stage.value, "looking at it changes nothing"


def test_refusals(root: Path, tmp_path: Path) -> None:
    store = opened(root, tiered=True)
    assert "a broker is running" in refusal(2, "index", "compact", root)
    store.close()
    assert "needed with a store" in run("index", "upload", root).stderr
    assert "either STORE or --admin" in run("index", "list", root, "--admin", "127.0.0.1:1").stderr
    assert "STORE or --admin" in run("index", "list").stderr
    assert "no such directory" in refusal(2, "index", "compact", tmp_path / "nowhere")
    (root / "abort").touch()
    assert "start and stop one first" in refusal(2, "index", "compact", root)
    (root / "abort").unlink()
    empty = tmp_path / "empty"
    store = opened(empty)
    store.topics.create(Topic("orders", TopicType.NORMAL, 1, 1))
    sent(store, range(1))
    store.close()
    assert "no tiered index" in refusal(2, "index", "compact", empty)
    assert lines("index", "list", empty) == []
