"""Rows of a lake are equal, whether a log or a live broker gives the messages."""

from __future__ import annotations

import gzip
import uuid
import zlib
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
from pyspark.sql import SparkSession

from quarry_mq.client.queues import Start
from quarry_mq.pipeline.damage import LogTable, sound
from quarry_mq.pipeline.lake.rows import LIVE_SCHEMA, LOG_COLUMNS, SCHEMA, rows_of_log, rows_of_received, visible
from quarry_mq.pipeline.lake.table import LakeTable, Position
from quarry_mq.pipeline.source.options import DamageMode
from quarry_mq.pipeline.source.times import TimeForm
from quarry_mq.pipeline.stream.batch import read_ranges
from quarry_mq.pipeline.stream.live import LiveQueues
from quarry_mq.pipeline.stream.options import Connection
from quarry_mq.pipeline.stream.source_options import Use, source_options
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression, TransactionState
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Host, Message
from tests.e2e.broker import Broker
from tests.pipeline.logs import write_store

Row = dict[str, Any]
HOST = Host(bytes([127, 0, 0, 1]), 10911)


def of_log(root: Path, *topics: str, mode: DamageMode = DamageMode.FAIL, **deleted: int) -> list[Row]:
    """Return the rows of a store, read as a task reads them."""
    reader = LogTable(None, root, mode).reader(",".join(LOG_COLUMNS), visible(topics), times=TimeForm.MILLIS)  # type: ignore[arg-type]
    batches = [
        batch
        for split in reader.partitions()
        for batch in rows_of_log(sound(reader, split, visible(topics)), "quarry", deleted)  # type: ignore[arg-type]
    ]
    assert all(batch.schema.names == SCHEMA.names for batch in batches)
    return by_position([row for batch in batches for row in batch.to_pylist()])


def of_broker(broker: Broker) -> list[Row]:
    """Return the rows of a live broker, pulled as a task pulls them."""
    given = {"endpoints": broker.endpoint, "subscribePattern": ".*", "adminEndpoint": broker.admin}
    options = source_options(given, Use.BATCH)
    with LiveQueues(options) as live:
        queues = live.find()
        parts = live.plan(live.offsets(queues, Start.EARLIEST), live.offsets(queues, Start.LATEST))
    received = [each for part in parts for each in read_ranges(part, options, LIVE_SCHEMA)]
    return by_position([row for each in received for row in rows_of_received(each).to_pylist()])


def by_position(rows: list[Row]) -> list[Row]:
    rows = [row | {"properties": dict(row["properties"])} for row in rows]
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


def sent(body: bytes, encoding: int = definition.IDENTITY, **fields: Any) -> definition.Message:
    properties = fields.pop("properties", {})
    message = definition.Message(body=body, user_properties=properties)
    message.topic.name = fields.pop("topic", "orders")
    message.system_properties.MergeFrom(definition.SystemProperties(body_encoding=encoding, **fields))  # type: ignore[arg-type]
    message.system_properties.message_id = uuid.uuid4().hex.upper()
    return message


def test_a_log_and_its_broker_give_the_same_rows(broker: Broker) -> None:
    messages = [
        sent(b"plain", tag="red", keys=["k1", "k2"], properties={"region": "île", "empty-not": "x"}),
        sent(b"in order", message_group="g", message_type=definition.FIFO, topic="sorted"),
        sent(gzip.compress(b"compressed"), definition.GZIP),
        sent(zlib.compress(b"compressed, too"), definition.GZIP),
        sent(b"not compressed", definition.GZIP),
        sent(bytes(range(256)) * 1000),
    ]
    broker.administer("topic", "create", "sorted", "--type", "fifo", "--queues", "2")
    client = Connection(endpoint=broker.endpoint).client()
    for message in messages:
        client.send([message])
    client.close()
    live = of_broker(broker)
    broker.stop()
    assert of_log(broker.store) == live
    assert len(live) == len(messages)
    found = {row["uniqKey"]: row for row in live}
    rows = [found[message.system_properties.message_id] for message in messages]
    assert [row["body"] for row in rows[2:5]] == [b"compressed", b"compressed, too", None]
    assert rows[4]["bodyProblem"].startswith("marked as compressed")
    assert (rows[0]["keys"], rows[0]["tags"], rows[0]["bodyProblem"]) == ("k1 k2", "red", None)
    assert rows[0]["properties"] == {"region": "île", "empty-not": "x"}
    assert rows[1]["messageGroup"] == "g"


def stored(topic: str, body: bytes = b"x", flag: int = 0, **properties: str) -> tuple[Message, int]:
    return Message(topic, 0, body, properties, 1_000, HOST, HOST, system_flag=flag), 2_000


def test_only_what_consumers_can_see_is_a_row(tmp_path: Path) -> None:
    written = [
        stored("orders", b"0", KEYS=" a  b "),
        stored("orders", b"half", TransactionState.PREPARED),
        stored("orders", b"back", TransactionState.ROLLBACK),
        stored("orders", b"3", TransactionState.COMMIT),
        stored("RMQ_SYS_TRANS_HALF_TOPIC"),
        stored("SCHEDULE_TOPIC_XXXX"),
        stored("rmq_sys_wheel_timer"),
        stored("%RETRY%billing"),
        stored("%DLQ%billing", b"dead"),
        stored("old", b"deleted"),
        stored("orders", lz4.frame.compress(b"fast"), COMPRESSED | Compression.LZ4),
    ]
    write_store(tmp_path, written)
    end = 1 << 20
    rows = of_log(tmp_path, old=end)
    assert [(row["queueOffset"], row["body"]) for row in rows] == [(0, b"0"), (3, b"3"), (4, b"fast")]
    assert rows[0]["keys"] == "a b"
    assert [row["topic"] for row in of_log(tmp_path)] == ["old", "orders", "orders", "orders"]
    assert [row["body"] for row in of_log(tmp_path, "%DLQ%billing")] == [b"dead"]
    assert of_log(tmp_path, old=end, mode=DamageMode.QUARANTINE) == rows


@pytest.mark.parametrize("offset", [0, 2**53 + 1, 2**62])
def test_offsets_are_exact(tmp_path: Path, offset: int) -> None:
    write_store(tmp_path, [stored("orders")], first_offset=offset)
    [row] = of_log(tmp_path)
    assert row["queueOffset"] == offset


def test_a_position_is_what_its_text_says() -> None:
    positions = [
        Position(),
        Position(offsets="a1", log_end=2**60, topics=("b", "a"), broker="quarry", mark=(7, "cafe")),
        Position(offsets="a2"),
    ]
    assert [Position.from_json(each.to_json()) for each in positions] == positions


def test_what_is_missing_is_named_with_what_to_set(spark: SparkSession) -> None:
    for name, reason in (
        ("messages", "three parts"),
        ("lake.db.messages", "--conf spark.jars.packages=org.apache.iceberg"),
    ):
        with pytest.raises(Invalid, match=reason):
            LakeTable(spark, name, SystemClock()).open(16)
    spark.conf.set("spark.sql.catalog.delta", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    try:
        with pytest.raises(Invalid, match="tables of Delta are not supported"):
            LakeTable(spark, "delta.db.messages", SystemClock()).open(16)
    finally:
        spark.conf.unset("spark.sql.catalog.delta")
