"""`quarry migrate`: what it shows and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, entry_key
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.message import QueueId, QueueOffset
from tests.cli.offline_runner import lines, refusal, run
from tests.store.test_queue_modes import opened, send

ORDERS = QueueId("orders", 0)


def filled(root: Path, mode: QueueMode) -> None:
    store = opened(root, mode)
    send(store, 4)
    store.close()


def test_a_store_goes_over_and_says_so(tmp_path: Path) -> None:
    filled(tmp_path, QueueMode.FILE)
    (planned,) = lines("migrate", tmp_path, "--to", "rocksdb", "--dry-run")
    assert (planned["from"], planned["to"]) == ("file", "rocksdb")
    (done,) = lines("migrate", tmp_path, "--to", "rocksdb")
    aside = str(tmp_path / "consumequeue.set-aside-0")
    assert (done["from"], done["phase"], done["leftOut"], done["aside"]) == ("file", "rocksdb", 0, aside)
    assert (done["comparison"]["queues"], done["comparison"]["units"], done["comparison"]["first"]) == (2, 6, [])
    (again,) = lines("migrate", tmp_path, "--to", "rocksdb")
    assert (again["from"], again["phase"], again["comparison"], again["aside"]) == ("rocksdb", "rocksdb", None, None)
    shown = run("migrate", tmp_path, "--to", "file").stdout.splitlines()
    assert shown == [
        "2 queues with 6 entries compared, 0 differences",
        f"the old queues are in {tmp_path / 'consumequeue_rocksdb.set-aside-0'}",
        "the store was in phase rocksdb and is now in phase file",
    ]
    assert "write queue files" not in run("migrate", tmp_path, "--to", "file", "--dry-run").stdout


def test_differences_are_a_finding(tmp_path: Path) -> None:
    store = opened(tmp_path, QueueMode.DOUBLE_WRITE)
    send(store, 4)
    store.identity.queue_phase = QueuePhase.READING_ROCKSDB.value
    store.close()
    engine = open_consume_queue_engine(tmp_path / "consumequeue_rocksdb", create=False)
    batch = engine.batch()
    batch.delete(engine.family(ENTRIES_FAMILY), entry_key(ORDERS, QueueOffset(1)))
    engine.write(batch)
    engine.close()
    result = run("migrate", tmp_path, "--to", "rocksdb")
    assert result.exit_code == 1
    first, counted, ended = result.stdout.splitlines()
    assert first.startswith("orders/0@1: missing_in_rocksdb: ")
    assert counted == "2 queues with 6 entries compared, 1 differences"
    assert ended == "the store was in phase reading_rocksdb and is now in phase reading_rocksdb"
    result = run("migrate", tmp_path, "--to", "rocksdb", "--json")
    assert result.exit_code == 1
    (told,) = json.loads(result.stdout)["comparison"]["first"]
    assert (told["kind"], told["topic"], told["queueId"], told["queueOffset"]) == ("missing_in_rocksdb", "orders", 0, 1)


def test_what_it_cannot_run_on(tmp_path: Path) -> None:
    assert "there is no store" in refusal(2, "migrate", tmp_path / "nothing", "--to", "file")
    running = opened(tmp_path / "store")
    assert "another broker" in refusal(2, "migrate", tmp_path / "store", "--to", "file")
    running.close()
