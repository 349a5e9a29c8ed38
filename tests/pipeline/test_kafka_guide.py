"""The examples of Spark's guide for Kafka in Python run with another format and another address.

docs/pipeline.md says what else two of them need: a pattern needs the admin port, and `df.write` needs its mode, because
Spark has no other mode for sinks in Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from quarry_mq.pipeline.source import InvalidOption
from quarry_mq.pipeline.stream.options import UnusableRow, sink_options
from quarry_mq.pipeline.stream.sink.outgoing import check_columns
from quarry_mq.pipeline.stream.source_options import Use, source_options
from tests.e2e.broker import Broker, environment_of, until
from tests.e2e.conftest import QUICK
from tests.pipeline.streams import batch, send
from tests.pipeline.test_sink import made

ADDRESSES: Final = '"host1:port1,host2:port2"'

READ_STREAM: Final = """
df = spark \\
  .readStream \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .option("subscribe", "topic1") \\
  .load()
df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
"""
READ_STREAM_WITH_HEADERS: Final = """
df = spark \\
  .readStream \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .option("subscribe", "topic1") \\
  .option("includeHeaders", "true") \\
  .load()
df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "headers")
"""
READ_STREAM_OF_TOPICS: Final = READ_STREAM.replace('"topic1"', '"topic1,topic2"')
READ_STREAM_OF_PATTERN: Final = READ_STREAM.replace('"subscribe", "topic1"', '"subscribePattern", "topic.*"')

READ: Final = READ_STREAM.replace("readStream", "read")
READ_WITH_OFFSETS: Final = '''
df = spark \\
  .read \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .option("subscribe", "topic1,topic2") \\
  .option("startingOffsets", """{"topic1":{"0":23,"1":-2},"topic2":{"0":-2}}""") \\
  .option("endingOffsets", """{"topic1":{"0":50,"1":-1},"topic2":{"0":-1}}""") \\
  .load()
df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
'''
READ_PATTERN: Final = """
df = spark \\
  .read \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .option("subscribePattern", "topic.*") \\
  .option("startingOffsets", "earliest") \\
  .option("endingOffsets", "latest") \\
  .load()
df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
"""

WRITE_STREAM: Final = """
ds = df \\
  .selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)") \\
  .writeStream \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .option("topic", "copies1") \\
  .start()
ds
"""
WRITE_STREAM_BY_TOPIC: Final = """
ds = df \\
  .selectExpr("topic", "CAST(key AS STRING)", "CAST(value AS STRING)") \\
  .writeStream \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .start()
ds
"""
WRITE: Final = """
df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)") \\
  .write \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .option("topic", "copies3") \\
  .save()
"""
WRITE_BY_TOPIC: Final = """
df.selectExpr("topic", "CAST(key AS STRING)", "CAST(value AS STRING)") \\
  .write \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .save()
"""
WORD_COUNT: Final = """
lines = spark\\
    .readStream\\
    .format("kafka")\\
    .option("kafka.bootstrap.servers", "host1:port1,host2:port2")\\
    .option("subscribe", "topic1")\\
    .load()\\
    .selectExpr("CAST(value AS STRING)")
words = lines.select(
    explode(
        split(lines.value, ' ')
    ).alias('word')
)
words.groupBy('word').count()
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with 60 messages in each of two queues of topic1, and three in topic2."""
    root = tmp_path_factory.mktemp("guide")
    broker = Broker(root / "store", logs=root / "logs", environment=environment_of(QUICK))
    try:
        broker.start()
        for topic, queues in {"topic1": 2, "topic2": 1, **{f"copies{number}": 1 for number in range(1, 5)}}.items():
            broker.administer("topic", "create", topic, "--queues", str(queues))
        send(broker, *(f"m{number}" for number in range(120)), topic="topic1")
        send(broker, "a", "b", "c", topic="topic2")
        yield broker
    finally:
        broker.close()


def run(example: str, broker: Broker, **names: Any) -> Any:
    """Run an example for this broker, and return the value of its last line."""
    address = f'"{broker.endpoint},another-host:8081"'
    if "subscribePattern" in example:
        address += f').option("adminEndpoint", "{broker.admin}"'
    if ".save()" in example:
        example = example.replace(".save()", '.mode("append").save()')
    assert example.count('format("kafka")') == example.count(ADDRESSES) == 1
    program = ast.parse(example.replace('format("kafka")', 'format("quarry")').replace(ADDRESSES, address))
    last = program.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(program, "<guide>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<guide>", "eval"), names)


def values(rows: list[Any]) -> list[str]:
    return sorted(row["value"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "columns", "topics"),
    [
        (READ_STREAM, ["key", "value"], ["topic1"]),
        (READ_STREAM_WITH_HEADERS, ["key", "value", "headers"], ["topic1"]),
        (READ_STREAM_OF_TOPICS, ["key", "value"], ["topic1", "topic2"]),
        (READ_STREAM_OF_PATTERN, ["key", "value"], ["topic1", "topic2"]),
    ],
)
def test_streams(spark: SparkSession, live: Broker, example: str, columns: list[str], topics: list[str]) -> None:
    frame = run(example, live, spark=spark)
    assert frame.columns == columns
    name = f"read{abs(hash(example))}"
    query = frame.writeStream.format("memory").queryName(name).start()
    try:
        query.processAllAvailable()
        assert spark.table(name).count() == 0, "as Kafka's source, it begins at the end"
        send(live, "new", topic="topic1")
        send(live, "new", topic="topic2")
        until(
            lambda: values(spark.table(name).collect()) == ["new"] * len(topics), "new messages are read", timeout_s=60
        )
    finally:
        query.stop()


@pytest.mark.slow
def test_batches(spark: SparkSession, live: Broker) -> None:
    first, second = (sorted(bytes(row["body"]).decode() for row in batch(live, name)) for name in ("topic1", "topic2"))
    assert values(run(READ, live, spark=spark).collect()) == first
    assert values(run(READ_PATTERN, live, spark=spark).collect()) == sorted([*first, *second])
    with_offsets = run(READ_WITH_OFFSETS, live, spark=spark)
    assert with_offsets.count() == 27 + sum(row["queueId"] == 1 for row in batch(live, "topic1")) + len(second)


@pytest.mark.slow
def test_words_are_counted(spark: SparkSession, live: Broker) -> None:
    counts = run(WORD_COUNT, live, spark=spark, explode=sql.explode, split=sql.split)
    query = counts.writeStream.outputMode("complete").format("memory").queryName("words").start()
    try:
        query.processAllAvailable()
        send(live, "to be or not to be", topic="topic1")
        expected = {("to", 2), ("be", 2), ("or", 1), ("not", 1)}
        until(
            lambda: {tuple(row) for row in spark.table("words").collect()} == expected,
            "words are counted",
            timeout_s=60,
        )
    finally:
        query.stop()


def copies(broker: Broker, topic: str) -> list[tuple[str, bytes]]:
    return sorted((row["keys"], bytes(row["body"])) for row in batch(broker, topic))


def keyed(frame: DataFrame, topic: str) -> DataFrame:
    """Rows as they come from topic2, to be sent to a topic."""
    return frame.selectExpr(f"'{topic}' as topic", "cast(concat('k', offset) as binary) as key", "value")


@pytest.mark.slow
def test_writes(spark: SparkSession, live: Broker, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    source = {"endpoints": live.endpoint, "subscribe": "topic2", "columns": "kafka"}
    try:
        for example, topic in ((WRITE_STREAM, "copies1"), (WRITE_STREAM_BY_TOPIC, "copies2")):
            rows = spark.readStream.format("quarry").options(**source).option("startingOffsets", "earliest").load()
            query = run(example, live, df=keyed(rows, topic))
            query.processAllAvailable()
            query.stop()
        for example, topic in ((WRITE, "copies3"), (WRITE_BY_TOPIC, "copies4")):
            run(example, live, df=keyed(spark.read.format("quarry").options(**source).load(), topic))
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    sent = [bytes(row["body"]) for row in sorted(batch(live, "topic2"), key=lambda row: int(row["queueOffset"]))]
    expected = sorted((f"k{offset}", body) for offset, body in enumerate(sent))
    for number in range(1, 5):
        assert copies(live, f"copies{number}") == expected


def test_headers_become_tag_and_properties() -> None:
    headers = [
        {"key": "TAGS", "value": b"food"},
        {"key": "UNIQ_KEY", "value": b"ID-1"},
        {"key": "colour", "value": b"blue"},
    ]
    kind = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    [message] = made({"value": [b"paid"], "key": [b"k1 k2"], "headers": pa.array([headers], kind)})
    system = message.system_properties
    assert (message.body, list(system.keys), system.tag) == (b"paid", ["k1", "k2"], "food")
    assert dict(message.user_properties) == {"colour": "blue"}
    assert system.message_id != "ID-1", "a copy is a message of its own"
    [none] = made({"value": ["paid"], "key": pa.array([None], pa.binary()), "headers": pa.array([None], kind)})
    assert (none.body, list(none.system_properties.keys), dict(none.user_properties)) == (b"paid", [], {})


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"value": [None]}, "row 0 of partition 3: column 'value': null"),
        ({"value": [b"a"], "key": [b"\xff"]}, "row 0 of partition 3: 'utf-8' codec can't decode"),
    ],
)
def test_a_row_of_kafka_that_is_no_message_is_named(columns: dict[str, list[Any]], complaint: str) -> None:
    with pytest.raises(UnusableRow, match=complaint):
        made(columns)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("value string, body string", "column 'value': there is 'body', too; they are the same"),
        ("value int", "column 'value': it is int, not string or binary"),
        ("value string, headers array<string>", "column 'headers': it is array<string>, not array<struct<key:string"),
        ("value string, partition int", "column 'partition': a message has no such thing"),
    ],
)
def test_a_wrong_column_of_kafka_is_named(spark: SparkSession, schema: str, complaint: str) -> None:
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    with pytest.raises(InvalidOption, match=complaint):
        check_columns(parsed, "orders")


def test_addresses_under_the_name_of_kafka() -> None:
    told = {"KAFKA.bootstrap.servers": "a:1, b:2", "subscribe": "orders"}
    read = source_options(told, Use.STREAM)
    assert (read.connection.endpoint, read.columns) == ("a:1,b:2", ("kafka",))
    assert source_options({**told, "columns": "body"}).columns == ("body",)
    assert sink_options({"kafka.bootstrap.servers": "a:1,b:2"}, is_stream=True).connection.endpoint == "a:1,b:2"
    with pytest.raises(InvalidOption, match=r"option 'endpoints': 'KAFKA.bootstrap.servers' is given, too"):
        source_options({**told, "endpoints": "a:1"})
