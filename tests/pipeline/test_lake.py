"""Tables of a lake, read back with pyiceberg, beside what RocketMQ's own decoder reads of the same store."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.client.queues import QueueClient
from quarry_mq.pipeline.stream.options import Connection
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests import golden
from tests.compat.rocketmq_store import open_in_rocketmq
from tests.conftest import GoldenStore
from tests.e2e.broker import Broker, quarry
from tests.e2e.conftest import StartBroker
from tests.pipeline.lake_environment import TIMEOUT_S, Iceberg, executors, iceberg
from tests.pipeline.logs import write_store
from tests.store.assembly import message

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]

Row = dict[str, Any]
COMPRESSED = 1
QUEUED = (0, 8)
"""Transaction states of records that queues hold: none, and committed."""


@pytest.fixture
def lake(java: None, tmp_path: Path) -> Iceberg:
    return iceberg(tmp_path / "warehouse")


def of_users(line: Row) -> bool:
    topic = line["topic"]
    is_internal = topic.startswith(("%", "rmq_sys_", "RMQ_SYS_")) or topic == "SCHEDULE_TOPIC_XXXX"
    return not is_internal and line["sysFlag"] & 12 in QUEUED


def expected(store: Path) -> list[Row]:
    """Return what RocketMQ's decoder has read, sorted by position."""
    lines = [line for line in golden.records(store) if "blank" not in line and of_users(line)]
    return sorted(lines, key=lambda line: (line["topic"], line["queueId"], line["queueOffset"]))


def assert_equal(rows: list[Row], lines: list[Row]) -> None:
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        for name in ("topic", "queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "bornHost", "storeHost"):
            assert row[name] == line[name], (name, row, line)
        if not line["sysFlag"] & COMPRESSED:
            assert (row["bodyLength"], row["bodySha1"]) == (line["bodyLength"], line["bodySha1"])
        properties = line["properties"]
        assert row["uniqKey"] == (properties.get("UNIQ_KEY") or line["offsetMsgId"])
        assert (row["tags"], row["keys"]) == (properties.get("TAGS"), properties.get("KEYS"))
        assert row["properties"].items() <= properties.items()
        assert row["broker"] == "quarry"


@pytest.mark.parametrize("name", golden.NAMES)
def test_a_store_is_appended_once_and_stays_the_same_when_compacted(
    lake: Iceberg, golden_store: GoldenStore, name: str
) -> None:
    store = golden_store(name)
    lines = expected(store)
    first = lake.lake(store / "store", "--batch-mib", 1).fields
    assert first["messages"] == len(lines)
    assert first["commits"] > 1
    rows = lake.rows()
    assert_equal(rows, lines)
    maintained = lake.maintain("--retention-hours", 0).fields
    assert maintained["rewrittenFiles"] > maintained["addedFiles"] > 0
    assert lake.rows() == rows
    # all snapshots of appends have expired, and the position is still known
    assert lake.lake(store / "store", "--batch-mib", 1).fields["messages"] == 0
    assert lake.rows() == rows


def test_a_hundred_thousand_topics_are_few_files(lake: Iceberg, tmp_path: Path) -> None:
    topics = [f"{number:06}" for number in range(100_000)]
    write_store(tmp_path / "store", [(message(topic, 0, b"x"), 1_790_000_000_000) for topic in topics])
    assert lake.lake(tmp_path / "store").fields["messages"] == len(topics)
    assert lake.digests(TIMEOUT_S).keys() == {(topic, 0) for topic in topics}
    assert len(list(lake.warehouse.rglob("*.parquet"))) < 1_000


def test_kills_and_other_jobs_and_changes_of_the_table(lake: Iceberg, golden_store: GoldenStore) -> None:
    ran = lake.run("-m", "tests.pipeline.lake_checks", lake.jar, lake.warehouse, golden_store("rocks-clean") / "store")
    assert ran.status == 0, ran.errors
    rows = lake.rows("lake.db.killed")
    assert_equal(rows, expected(golden_store("rocks-clean")))


def test_damage_is_left_out_and_named(lake: Iceberg, golden_copy: GoldenStore) -> None:
    store = golden_copy("rocks-clean")
    lines = [line for line in golden.records(store) if "blank" not in line]
    victim = lines[700]
    segment = max(path for path in (store / "store" / "commitlog").iterdir() if int(path.name) <= victim["phyOffset"])
    with segment.open("r+b") as log:
        log.seek(victim["phyOffset"] - int(segment.name) + 4)
        log.write(b"\xff\xff\xff\xff")
    ran = lake.lake(store / "store", "--batch-mib", 1)
    assert ran.status == 1
    assert ran.fields["damagedPlaces"] == 1
    assert f"offset {victim['phyOffset']}" in ran.fields["firstDamaged"][0]
    assert_equal(lake.rows(), [line for line in expected(store) if line["phyOffset"] != victim["phyOffset"]])


def test_another_store_is_refused(lake: Iceberg, golden_copy: GoldenStore, tmp_path: Path) -> None:
    store = golden_copy("rocks-clean") / "store"
    log = sorted((store / "commitlog").iterdir())
    aside = tmp_path / "later"
    aside.mkdir()
    for segment in log[2:]:
        shutil.move(segment, aside)
    lake.lake(store, "--batch-mib", 1)
    other = lake.lake(golden_copy("file-clean") / "store")
    assert other.status == 2
    assert "it is another store" in other.errors
    refused = lake.lake(store, "--broker", "broker-a")
    assert refused.status == 2
    assert "of the broker quarry" in refused.errors


MESSAGES = int(os.environ.get("LAKE_MESSAGES", "20000"))
"""Messages of the history. More are sent until the last job is killed."""
KILLS = 2


def keep_sending(client: QueueClient, stop: threading.Event) -> None:
    begin = MESSAGES
    while not stop.wait(0.05):
        send(client, begin, 20)
        begin += 20


def send(client: QueueClient, begin: int, count: int) -> None:
    """Send messages to seven topics, those of a topic in one request."""
    by_topic: dict[str, list[definition.Message]] = {}
    for number in range(begin, begin + count):
        message = definition.Message(body=f"message {number} ".encode() * (1 + number % 50))
        message.topic.name = f"orders-{number % 7}"
        message.system_properties.message_id = uuid.uuid4().hex.upper()
        message.system_properties.keys.append(f"k{number}")
        message.system_properties.body_encoding = definition.IDENTITY
        by_topic.setdefault(message.topic.name, []).append(message)
    for messages in by_topic.values():
        client.send(messages)


def lines_of(process: subprocess.Popen[str], count: int) -> None:
    """Wait until a job has appended so many batches."""
    assert process.stdout is not None
    for _ in range(count):
        line = process.stdout.readline()
        assert "messages appended" in line, line


def restored_backup(broker: Broker, folder: Path) -> Path:
    """Return the store that a backup of a running broker becomes."""
    made = quarry("backup", str(folder / "backups"), "--admin", broker.admin, "--json")
    assert made.returncode == 0, made.stderr
    restored = folder / "restored"
    assert quarry("restore", str(folder / "backups"), str(restored)).returncode == 0
    shutil.rmtree(folder / "backups")
    return restored


def follow_and_kill(lake: Iceberg, broker: Broker, times: int) -> None:
    """Follow the broker with jobs on two executors: one is killed, later the driver with all the rest."""
    for _ in range(times):
        with lake.following(broker.endpoint, "--admin", broker.admin, master="local-cluster[2,1,1024]") as process:
            lines_of(process, 1)
            victim, *_ = executors(process.pid)
            os.kill(victim, signal.SIGKILL)
            lines_of(process, 2)


def test_a_live_broker_continues_where_its_backup_ended(
    lake: Iceberg, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    client = Connection(endpoint=broker.endpoint).client()
    for begin in range(0, MESSAGES, 500):
        send(client, begin, 500)
    restored = restored_backup(broker, tmp_path)
    stop = threading.Event()
    sender = threading.Thread(target=keep_sending, args=(client, stop))
    sender.start()
    try:
        with lake.following(restored, "--batch-mib", 1, master="local[2]") as process:
            lines_of(process, 1)
        backfilled = lake.lake(restored, "--batch-mib", 1).fields["messages"]
        assert 0 < backfilled < MESSAGES
        follow_and_kill(lake, broker, KILLS)
    finally:
        stop.set()
        sender.join()
        client.close()
    done = lake.lake(broker.endpoint, "--admin", broker.admin).fields
    assert (done["expired"], done["withoutBody"]) == (0, 0)
    broker.stop()
    rows = lake.rows()
    lines = [line for line in open_in_rocketmq(broker.store, tmp_path).messages.values() if line and of_users(line)]
    assert len(lines) > MESSAGES
    assert_equal(rows, sorted(lines, key=lambda line: (line["topic"], line["queueId"], line["queueOffset"])))
    assert lake.maintain("--retention-hours", 0).fields["rewrittenFiles"] > 0
    assert lake.rows() == rows
    broker.start()
    assert lake.lake(broker.endpoint, "--admin", broker.admin).fields["messages"] == 0
