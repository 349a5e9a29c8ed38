"""Messages of a store sent once more."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.fernet import Fernet
from pyspark.sql import SparkSession

from quarry_mq.pipeline.replay import REPLAYED_FROM, REPLAYED_ID, Target, replay
from quarry_mq.pipeline.replay.job import stored_bodies
from quarry_mq.pipeline.wanted import Wanted
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages.bodies import plain_body
from quarry_mq.protocol.messages.property_names import RESERVED_PROPERTIES
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.security.model import User
from quarry_mq.store.security.sealer import Sealer
from quarry_mq.store.tools.users import users_of
from tests.cli.spark_runner import SPARK
from tests.conftest import GoldenStore
from tests.e2e.broker import Broker, quarry
from tests.e2e.conftest import StartBroker, StartClients
from tests.pipeline.conftest import TIMEOUT_S
from tests.pipeline.streams import latest, rows_between, stream
from tests.pipeline.tables import messages, plain

Row = dict[str, Any]
COLUMNS = "topic,queueId,queueOffset,phyOffset,storeTimestamp,msgId,uniqKey,tags,keys,sysFlag,properties,body"


def target(broker: Broker, topic: str | None = None) -> Target:
    return Target(options={"endpoints": broker.endpoint}, topic=topic)


def arrived(broker: Broker, topic: str) -> list[Row]:
    reader = stream(broker, topic)
    try:
        start = reader.initialOffset()
        return [plain(row) for row in rows_between(reader, start, latest(reader, start))]
    finally:
        reader.stop()


def originals(root: Path, topic: str) -> dict[str, Row]:
    """By what the copies call the place."""
    return {
        f"{row['topic']}/{row['queueId']}/{row['queueOffset']}": plain(row)
        for row in messages(root, columns=COLUMNS)
        if row["topic"] == topic
    }


@pytest.mark.slow
@pytest.mark.parametrize("keeps_compressed", [False, True])
def test_copies_are_what_was_sent_and_say_where_they_come_from(
    spark: SparkSession, broker: Broker, golden_store: GoldenStore, keeps_compressed: bool
) -> None:
    root = golden_store("file-clean") / "store"
    expected = originals(root, "acme-orders")
    wanted = Wanted(topics=("acme-orders",))
    done = replay(
        spark,
        PosixDisk(),
        root,
        target(broker, "again"),
        wanted,
        keeps_compressed=keeps_compressed,
        split_bytes=100_000,
    )
    copies = {row["properties"][REPLAYED_FROM]: row for row in arrived(broker, "again")}
    assert done.messages == len(copies) == len(expected)
    assert copies.keys() == expected.keys()
    assert any(row["sysFlag"] & COMPRESSED for row in expected.values()), "some are compressed"
    for place, original in expected.items():
        copy = copies[place]
        is_kept = keeps_compressed and original["sysFlag"] & COMPRESSED
        body = plain_body(original["sysFlag"], original["body"])
        assert copy["body"] == (original["body"] if is_kept else body)
        assert copy["bodyEncoding"] == ("GZIP" if is_kept else "IDENTITY")
        assert (copy["tags"], copy["keys"]) == (original["tags"], original["keys"])
        assert copy["properties"].pop(REPLAYED_ID) == (original["uniqKey"] or original["msgId"])
        del copy["properties"][REPLAYED_FROM]
        own = {name: value for name, value in original["properties"].items() if name not in RESERVED_PROPERTIES}
        assert copy["properties"] == own


@pytest.mark.slow
def test_a_replay_that_is_run_again_sends_the_same_ids(
    spark: SparkSession, broker: Broker, golden_store: GoldenStore
) -> None:
    root = golden_store("file-clean") / "store"
    wanted = Wanted(topics=("acme-orders",), where="queueOffset % 10 = 0 and bodyLength > 0")
    for split_bytes in (64 << 20, 50_000):
        replay(spark, PosixDisk(), root, target(broker, "again"), wanted, split_bytes=split_bytes)
    rows = arrived(broker, "again")
    by_id = defaultdict(set)
    for row in rows:
        by_id[row["uniqKey"]].add(row["properties"][REPLAYED_FROM])
    assert len(rows) == 2 * len(by_id)
    assert all(len(places) == 1 for places in by_id.values())
    replay(spark, PosixDisk(), root, target(broker, "elsewhere"), wanted)
    assert by_id.keys().isdisjoint(row["uniqKey"] for row in arrived(broker, "elsewhere"))


@pytest.mark.slow
def test_what_brokers_keep_for_themselves_is_left_out(
    spark: SparkSession, broker: Broker, golden_store: GoldenStore
) -> None:
    root = golden_store("file-clean") / "store"
    stored = {row["topic"] for row in messages(root, columns="topic")}
    assert {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "%RETRY%acme-cg"} <= stored
    replay(spark, PosixDisk(), root, target(broker), Wanted(where="queueOffset < 3"))
    topics = broker.administer("topic", "list")
    assert "acme-orders" in topics
    assert "acme_audit-log" in topics
    assert all(name not in topics for name in ("SCHEDULE", "rmq_sys", "%RETRY%"))
    some = Wanted(topics=("%RETRY%acme-cg",), where="queueOffset < 3")
    assert replay(spark, PosixDisk(), root, target(broker, "retried"), some).messages > 0
    assert {row["properties"][REPLAYED_FROM].split("/")[0] for row in arrived(broker, "retried")} == {"%RETRY%acme-cg"}


def test_a_body_whose_compression_the_protocol_has_no_name_for_is_uncompressed() -> None:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as packing:
        packing.write(b"body " * 100)
    lz4, packed = sink.getvalue().to_pybytes(), zlib.compress(b"body " * 100)
    batch = pa.RecordBatch.from_pydict(
        {
            "phyOffset": pa.array([0, 1, 2], pa.int64()),
            "sysFlag": pa.array([COMPRESSED | Compression.LZ4, COMPRESSED | Compression.ZLIB, 0], pa.int32()),
            "body": pa.array([lz4, packed, b"plain"], pa.binary()),
        }
    )
    [found] = stored_bodies(iter([batch]))
    assert found.column("body").to_pylist() == [b"body " * 100, packed, b"plain"]
    assert [bool(flag & COMPRESSED) for flag in found.column("sysFlag").to_pylist()] == [False, True, False]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.usefixtures("java")
def test_the_command(broker: Broker, start_clients: StartClients, golden_store: GoldenStore) -> None:
    root = golden_store("file-clean") / "store"
    wanted = ("--topic", "acme-payments", "--where", "queueOffset < 5", "--to-topic", "again")
    command = ("pipeline", "replay", str(root), *wanted, *SPARK)
    done = quarry(*command, "--endpoint", broker.endpoint, "--json", timeout_s=280)
    assert done.returncode == 0, done.stderr
    rows = [row for row in messages(root, columns="topic,queueOffset,body,uniqKey") if row["queueOffset"] < 5]
    expected = [row for row in rows if row["topic"] == "acme-payments"]
    nothing_damaged = {"damagedPlaces": 0, "firstDamaged": []}
    assert json.loads(done.stdout) == {"messages": len(expected), "refused": 0, "first": [], **nothing_damaged}
    received = start_clients("python", broker.endpoint).simple_consumer("again", group="g").receive_until(len(expected))
    assert sorted(each.properties[REPLAYED_ID] for each in received) == sorted(row["uniqKey"] for row in expected)
    gone = quarry(*command, "--endpoint", "127.0.0.1:9", "--timeout", "1", timeout_s=280)
    assert gone.returncode == 2
    [told] = gone.stderr.splitlines()[-1:]
    assert told.startswith("127.0.0.1:9: topic again: unavailable: ")


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.usefixtures("java")
def test_the_command_asks_as_the_user_of_its_context(
    start_broker: StartBroker, golden_store: GoldenStore, tmp_path: Path
) -> None:
    root, key, secret = golden_store("file-clean") / "store", Fernet.generate_key(), tmp_path / "secret"
    secret.write_text("correct-horse-battery")
    secret.chmod(0o600)
    with users_of(PosixDisk(), tmp_path / "store", Sealer([key]), SystemClock()) as users:
        users.create(User(name="spark"))
        users.add_secret("spark", "correct-horse-battery", 0)
    broker = start_broker(settings={"security.authentication": True, "security.key": key.decode()})
    contexts = tmp_path / "contexts.toml"
    contexts.write_text(f'[secured]\nendpoint = "{broker.endpoint}"\nuser = "spark"\nsecret_file = "secret"\n')
    command = ("pipeline", "replay", str(root), "--topic", "acme-payments", "--to-topic", "again", *SPARK)
    named = {"QUARRY_CONTEXTS": str(contexts), "QUARRY_CONTEXT": "secured"}
    done = quarry(*command, environment=named, timeout_s=280)
    assert done.returncode == 0, done.stderr
    stranger = quarry(*command, "--endpoint", broker.endpoint, timeout_s=280)
    assert stranger.returncode == 2
    refusal, hint = stranger.stderr.splitlines()[-2:]
    assert "UNAUTHORIZED: the call is not signed" in refusal
    assert hint.startswith("hint: add a context with a user")
