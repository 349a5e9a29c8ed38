"""A probe that kills a slow recovery must not make it start over for ever (rmq#9587)."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.error
from pathlib import Path
from random import Random
from typing import Final

import pytest

from bench import scratch_store
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.recovery.recovery import SAVE_EVERY_BYTES
from quarry_mq.store.settings import Durability, StoreSettings
from tests.e2e.broker import Broker, environment_of, quarry

BATCH: Final = 4096
TOTAL_BYTES: Final = 5 * SAVE_EVERY_BYTES // 2
PROGRESS: Final = re.compile(r"recovering, (\d+) %")
TIMEOUT_S: Final = 60.0

pytestmark = pytest.mark.slow


def build(root: Path) -> None:
    """A store whose queues are gone, so that recovery has to read all of its log."""
    settings = StoreSettings(root=root, durability=Durability.ASYNC, segment_size=64 * MIB)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    queues = scratch_store.QUEUES
    store.topics.create(Topic(scratch_store.TOPIC, TopicType.NORMAL, read_queues=queues, write_queues=queues))
    messages = scratch_store.make_messages(Random(5), BATCH)
    while store.messages.appended_up_to < TOTAL_BYTES:
        store.messages.append(messages)
        store.messages.dispatch(store.messages.appended_up_to)
    store.close()
    shutil.rmtree(StorePaths(root).root / "consumequeue_rocksdb")
    StorePaths(root).abort.write_text("1")


def kill_at(broker: Broker, bytes_left: int) -> None:
    """Launch, and kill as soon as it has read a little more than it saves its progress after."""
    wanted_percent = 100 * SAVE_EVERY_BYTES // bytes_left + 5
    assert wanted_percent < 90
    broker.launch()
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            words = broker.get("/readyz")[1]
        except (urllib.error.URLError, ConnectionError):
            words = ""
        assert words != "ready\n", "it was not killed in time"
        found = PROGRESS.search(words)
        if found and int(found[1]) >= wanted_percent:
            break
        assert time.monotonic() < deadline, words
    broker.kill()


def recovered(logs: Path) -> list[tuple[int, int]]:
    """Where each recovery that came to its end began and ended."""
    lines = [json.loads(line) for line in (logs / "broker.err").read_text().splitlines()]
    return [(line["start"], line["end"]) for line in lines if line["event"] == "log recovered"]


def test_a_recovery_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    store, logs = tmp_path / "store", tmp_path / "logs"
    build(store)
    broker = Broker(store, logs=logs, environment=environment_of({"store.segment_size": 64 * MIB}))
    try:
        kill_at(broker, TOTAL_BYTES)
        kill_at(broker, TOTAL_BYTES - SAVE_EVERY_BYTES)
        broker.start()
        [(start, end)] = recovered(logs)
        assert end >= TOTAL_BYTES
        assert start >= 2 * SAVE_EVERY_BYTES
        broker.stop()
        done = quarry("verify", str(store), timeout_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        broker.close()
