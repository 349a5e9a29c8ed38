"""`quarry query`: by RocketMQ's index files, and without them."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from quarry_mq.store.index.keys import keys_of
from tests import golden
from tests.cli.offline_runner import lines, refusal, run
from tests.conftest import GoldenStore

LOOKED_UP: Final = 12

Wanted = dict[tuple[str, str], list[dict[str, Any]]]


def by_key(root: Path) -> Wanted:
    """The messages of each topic and key, the newest first."""
    found: Wanted = defaultdict(list)
    for line in golden.records(root):
        for key in dict.fromkeys(keys_of(line.get("properties", {}))):
            found[line["topic"], key].insert(0, line)
    return found


def sample(wanted: Wanted, seed: int) -> list[tuple[str, str]]:
    """Some keys of many messages among them."""
    keys = sorted(wanted)
    most = sorted(keys, key=lambda each: -len(wanted[each]))[: LOOKED_UP // 2]
    return [*most, *Random(seed).sample(keys, LOOKED_UP // 2)]


@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_messages_of_golden_stores_are_found(golden_store: GoldenStore, name: str) -> None:
    root = golden_store(name)
    wanted = by_key(root)
    for topic, key in sample(wanted, 1):
        found = lines("query", root / "store", "--topic", topic, "--key", key, "--limit", 1_000)
        assert found == wanted[topic, key]


@pytest.mark.parametrize("gone", ["index", "abort"])
def test_what_no_index_file_tells_is_read_from_the_log(golden_copy: GoldenStore, gone: str) -> None:
    root = golden_copy("file-kill")
    wanted = by_key(root)
    if gone == "index":
        shutil.rmtree(root / "store" / "index")
    else:
        (root / "store" / "abort").unlink()
    for topic, key in sample(wanted, 2):
        found = lines("query", root / "store", "--topic", topic, "--key", key, "--limit", 1_000)
        assert found == wanted[topic, key]


def test_the_newest_within_a_limit_and_a_time(golden_store: GoldenStore) -> None:
    root = golden_store("double-clean")
    wanted = by_key(root)
    (topic, key), messages = max(wanted.items(), key=lambda item: len(item[1]))
    assert len(messages) > 5
    where = ("query", root / "store", "--topic", topic, "--key", key)
    assert lines(*where, "--limit", 3) == messages[:3]
    begin_ms, end_ms = messages[-2]["storeTimestamp"], messages[2]["storeTimestamp"]
    within = [each for each in messages if begin_ms <= each["storeTimestamp"] <= end_ms]
    assert lines(*where, "--since", begin_ms, "--until", end_ms) == within[:32]
    assert "body" in run(*where, "--limit", 1).stdout


def test_a_key_that_no_message_has_is_a_finding(golden_store: GoldenStore) -> None:
    result = run("query", golden_store("rocks-clean") / "store", "--topic", "acme-orders", "--key", "nothing")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "no messages\n", "")


def test_an_index_file_that_cannot_be_told_is_named(golden_copy: GoldenStore) -> None:
    store = golden_copy("file-clean") / "store"
    [path] = (store / "index").iterdir()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 7)
    line = refusal(2, "query", store, "--topic", "acme-orders", "--key", "order-1")
    assert str(path) in line
    assert "index.hash_slots" in line
