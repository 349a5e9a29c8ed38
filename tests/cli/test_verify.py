"""`quarry verify` as a user sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

from quarry_mq.store.consumequeue.rocks_layout import CHECKPOINT_KEY, ENTRIES_FAMILY, I64, OFFSET_FAMILY, entry_key
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import QueueOffset
from tests.cli.offline_runner import lines, refusal, run
from tests.verify.stores import ORDERS, delete, fill, put, queue_rows

GoldenStore = Callable[[str], Path]


def test_agreement_is_exit_code_0(golden_store: GoldenStore) -> None:
    store = golden_store("rocks-clean") / "store"
    (verdict,) = lines("verify", store)
    assert verdict["verdict"] == "agree"
    assert verdict["checks"]["units"] == {"checked": 5505, "differences": 0}
    text = run("verify", store)
    assert (text.exit_code, text.stderr) == (0, "")
    assert text.stdout.splitlines()[-1] == "log [0, 2331369): the parts of the store agree"


def test_differences_are_exit_code_1(tmp_path: Path) -> None:
    fill(tmp_path)
    with queue_rows(tmp_path) as engine:
        delete(engine, ENTRIES_FAMILY, entry_key(ORDERS, QueueOffset(3)))
        put(engine, OFFSET_FAMILY, CHECKPOINT_KEY, I64.pack(1 << 40))
    text = run("verify", tmp_path)
    assert (text.exit_code, text.stderr) == (1, "")
    directory = StorePaths(tmp_path).consume_queue_rocksdb
    assert text.stdout.startswith(f"records: {directory}: orders/0@3: offset ")
    shown = run("verify", tmp_path, "--json")
    assert shown.exit_code == 1
    assert '"verdict":"differ"' in shown.stdout.splitlines()[-1]
    assert '"queueId":0,"queueOffset":3,"topic":"orders"' in shown.stdout.splitlines()[0]


def test_what_cannot_be_read_is_exit_code_2(tmp_path: Path) -> None:
    assert refusal(2, "verify", tmp_path / "missing").endswith("no such directory")
    fill(tmp_path / "store")
    lock = PosixDisk().lock(StorePaths(tmp_path / "store").lock)
    assert "a broker is running" in refusal(2, "verify", tmp_path / "store")
    lock.release()


def test_damage_that_ends_the_reading_is_a_finding(tmp_path: Path) -> None:
    """A segment that is gone: there is no order to compare in."""
    fill(tmp_path, 400)
    segments = sorted(StorePaths(tmp_path).commit_log.glob("0*"))
    assert len(segments) > 2
    segments[1].unlink()
    assert f"segment {segments[1].name} is missing" in refusal(1, "verify", tmp_path)


def test_queues_that_are_gone_are_a_difference(tmp_path: Path) -> None:
    fill(tmp_path)
    rmtree(StorePaths(tmp_path).consume_queue_rocksdb)
    result = run("verify", tmp_path)
    assert (result.exit_code, result.stderr) == (1, "")
    assert "expected the entries of 30 records, found no database" in result.stdout
