"""Rows as messages of a live broker, and what official clients make of them."""

from __future__ import annotations

import threading
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from quarry_mq.client.errors import AdminCallRefused, BrokerUnreachable, CallRefused
from quarry_mq.pipeline.source import InvalidOption
from quarry_mq.pipeline.stream.options import Connection, SinkOptions, UnusableRow, sink_options
from quarry_mq.pipeline.stream.sink import writer
from quarry_mq.pipeline.stream.sink.outgoing import check_columns, messages_of
from quarry_mq.pipeline.stream.sink.sender import Sender
from quarry_mq.pipeline.stream.sink.sent_before import SentBefore
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2 import SendMessageRequest
from tests.e2e.broker import Broker, until
from tests.e2e.clients import Clients
from tests.e2e.conftest import StartBroker, StartClients
from tests.e2e.members import ClusterOfBrokers, names
from tests.pipeline.streams import latest, rows_between, stream

HOUR_MS = 3_600_000


def write(frame: DataFrame, broker: Broker, **options: object) -> None:
    told = {"endpoints": broker.endpoint, **options}
    frame.write.format("quarry").mode("append").options(**{name: str(text) for name, text in told.items()}).save()


def everything(broker: Broker, topic: str = "orders") -> list[dict[str, Any]]:
    reader = stream(broker, topic)
    try:
        start = reader.initialOffset()
        return rows_between(reader, start, latest(reader, start))
    finally:
        reader.stop()


@pytest.fixture
def clients(broker: Broker, start_clients: StartClients) -> Clients:
    return start_clients("python", broker.endpoint)


# -- rows


def made(batch: dict[str, list[Any]], **how: Any) -> list[definition.Message]:
    given = {"topic": "orders", "write": "w", "partition": 3, "first_row": 0, "now_ms": 1, **how}
    return list(messages_of(pa.RecordBatch.from_pydict(batch), **given))


def test_a_row_becomes_a_message() -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, 678_000, UTC)
    properties = pa.array([[("colour", "grün")]], pa.map_(pa.string(), pa.string()))
    [message] = made(
        {
            "topic": ["bills"],
            "body": [b"paid"],
            "tag": ["blue"],
            "keys": [["k1", "k2"]],
            "properties": properties,
            "deliveryTimestamp": pa.array([at], pa.timestamp("us", "UTC")),
            "messageId": ["mine"],
        },
        topic=None,
    )
    system = message.system_properties
    assert (message.topic.name, message.body, dict(message.user_properties)) == ("bills", b"paid", {"colour": "grün"})
    assert (system.tag, list(system.keys), system.message_id) == ("blue", ["k1", "k2"], "mine")
    assert system.delivery_timestamp.ToMilliseconds() == round(at.timestamp() * 1000)
    assert system.message_type == definition.DELAY
    assert system.body_encoding == definition.IDENTITY


def test_texts_and_numbers_serve_as_well() -> None:
    [message] = made({"body": ["größe"], "keys": ["k1  k2"], "deliveryTimestamp": [7_000], "bodyEncoding": ["GZIP"]})
    assert message.body == "größe".encode()
    assert list(message.system_properties.keys) == ["k1", "k2"]
    assert message.system_properties.delivery_timestamp.ToMilliseconds() == 7_000
    assert message.system_properties.body_encoding == definition.GZIP


def test_an_id_is_that_of_a_row_and_its_place() -> None:
    def ids(*bodies: bytes, **how: Any) -> list[str]:
        return [each.system_properties.message_id for each in made({"body": list(bodies)}, **how)]

    first, second = ids(b"a", b"a", first_row=10)
    assert ids(b"a", first_row=11, now_ms=7_777) == [second] != [first]
    others = [*ids(b"b", first_row=10), *ids(b"a", write="v"), *ids(b"a", partition=4), *ids(b"a", topic="bills")]
    assert len({first, second, *others}) == 6, "another row at this place is no repetition, nor is this one elsewhere"
    assert all(len(each) == 34 and each.startswith("01") for each in (first, *others))


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"body": [None]}, "row 5 of partition 3: column 'body': null"),
        ({"body": [b""], "topic": [None]}, "column 'topic': null"),
        ({"body": [b"a"], "keys": [["k", None]]}, "column 'keys': it holds null"),
        ({"body": [b"a"], "bodyEncoding": ["ZIP"]}, "column 'bodyEncoding': 'ZIP' is none of IDENTITY, GZIP"),
        ({"body": [b"a"], "deliveryTimestamp": [-1]}, "column 'deliveryTimestamp': -1 ms lies before 1970"),
    ],
)
def test_a_row_that_is_no_message_is_named(columns: dict[str, list[Any]], complaint: str) -> None:
    with pytest.raises(UnusableRow, match=complaint):
        made(columns, topic=None if "topic" in columns else "orders", first_row=5)


@pytest.mark.parametrize(
    ("schema", "topic", "complaint"),
    [
        ("tag string", "orders", "column 'body': it is missing"),
        ("body string", None, "column 'topic': it is missing"),
        ("body string, topic string", "orders", "column 'topic': the option 'topic' says"),
        ("body int", "orders", "column 'body': it is int, not string or binary"),
        ("body string, tags string", "orders", "column 'tags': a message has no such thing; there are topic, body,"),
        ("body string, keys array<int>", "orders", "column 'keys': it is array<int>, not string or array<string>"),
        ("body string, properties map<string,int>", "orders", "column 'properties': it is map<string,int>"),
        ("body string, deliveryTimestamp date", "orders", "'deliveryTimestamp': it is date, not timestamp or bigint"),
    ],
)
def test_a_wrong_column_is_named_before_anything_is_sent(
    spark: SparkSession, schema: str, topic: str | None, complaint: str
) -> None:
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    with pytest.raises(InvalidOption, match=complaint):
        check_columns(parsed, topic)


def test_a_stream_has_an_id_of_its_own() -> None:
    with pytest.raises(InvalidOption, match="option 'writeId': a stream has the id of its query"):
        sink_options({"endpoints": "h:1", "writeId": "w", "checkpointLocation": "/c"}, is_stream=True)


# -- sending


def message(body: str, *, group: str = "", topic: str = "orders") -> definition.Message:
    [made_] = made({"body": [body], "messageGroup": [group], "messageId": [f"id-{body}"]}, topic=topic)
    return made_


def test_messages_of_a_group_keep_their_order(broker: Broker) -> None:
    broker.administer("topic", "create", "orders", "--type", "fifo", "--queues", "4")
    client = Connection(endpoint=broker.endpoint).client()
    sender = Sender(client, 4)
    for number in range(2_000):
        sender.add(message(f"{number:04}", group=f"g{number % 7}"))
    sender.finish()
    sender.close()
    client.close()
    by_group = defaultdict(list)
    for row in everything(broker):
        by_group[row["messageGroup"]].append((row["queueId"], row["queueOffset"], row["body"]))
    assert len(by_group) == 7
    for places in by_group.values():
        assert len({queue for queue, _, _ in places}) == 1
        assert [body for _, _, body in sorted(places)] == sorted(body for _, _, body in places)
    assert sum(map(len, by_group.values())) == 2_000


@pytest.mark.slow
def test_a_broker_that_restarts_meanwhile_gets_every_message(broker: Broker) -> None:
    client = Connection(endpoint=broker.endpoint).client()
    sender = Sender(client, 2)
    back: threading.Timer | None = None
    for number in range(1_000):
        if number == 500:
            broker.kill()
            back = threading.Timer(0.5, broker.start)
            back.start()
        sender.add(message(f"{number:04}"))
    sender.finish()
    assert back is not None
    back.join()
    sender.close()
    client.close()
    bodies = [row["body"] for row in everything(broker)]
    assert set(bodies) == {b"%04d" % number for number in range(1_000)}
    assert {row["uniqKey"] for row in everything(broker)} == {f"id-{number:04}" for number in range(1_000)}


def test_what_is_refused_for_good_is_told_at_once(broker: Broker) -> None:
    client = Connection(endpoint=broker.endpoint).client()
    with pytest.raises(CallRefused, match="topic orders: MESSAGE_BODY_EMPTY"):
        client.send([message("")])
    client.close()
    impatient = Connection(endpoint="127.0.0.1:9", timeout_ms=200).client()
    with pytest.raises(BrokerUnreachable, match=r"127.0.0.1:9: topic orders: unavailable: .*\(after 200 ms\)"):
        impatient.send([message("a")])
    impatient.close()


# -- each row once


@pytest.fixture
def indexed(start_broker: StartBroker) -> Broker:
    return start_broker(settings={"index.tiered": True})


def once(broker: Broker, **options: object) -> dict[str, object]:
    return {"deduplicate": "true", "adminEndpoint": broker.admin, **options}


def sink(broker: Broker, **options: object) -> SinkOptions:
    told = {"endpoints": broker.endpoint, "topic": "orders", **once(broker, **options)}
    return sink_options({name: str(text) for name, text in told.items()}, is_stream=False)


def test_messages_that_are_there_are_not_sent_again(indexed: Broker) -> None:
    messages = [message(f"{number:03}") for number in range(600)]
    options = sink(indexed)
    with options.connection.client() as client, SentBefore(options, client, SystemClock()) as before:
        assert before.unsent(messages) == messages, "there is no topic yet"
        client.send(messages[100:150])
        client.send(messages[300:364])
        left = before.unsent(messages)
        assert left == [*messages[:100], *messages[150:300], *messages[364:]]
        assert before.unsent([message("120", topic="bills")]) == [message("120", topic="bills")]
    recent = sink(indexed, deduplicateWindow="1ms")
    stored_ms = max(row["storeTimestamp"].timestamp() for row in everything(indexed)) * 1000
    until(lambda: SystemClock().wall_ms() > stored_ms + 2, "the window is over")
    with recent.connection.client() as client, SentBefore(recent, client, SystemClock()) as before:
        assert before.unsent(messages[100:101]) == messages[100:101], "it was stored before the window"


def test_a_request_whose_answer_is_lost_is_not_stored_twice(indexed: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first answer is thrown away, and what the request stored stays."""
    options = sink(indexed)
    lost: list[SendMessageRequest] = []
    with options.connection.client() as client, SentBefore(options, client, SystemClock()) as before:
        begun = client._begun

        def losing(method: Any, request: Any) -> Any:
            answer = begun(method, request)
            if isinstance(request, SendMessageRequest) and len(lost) < 3:
                lost.append(request)
                answer.result()
                raise BrokerUnreachable("the answer is lost")
            return answer

        monkeypatch.setattr(client, "_begun", losing)
        sender = Sender(client, 2, unsent=before.unsent_now)
        for number in range(300):
            sender.add(message(f"{number:03}"))
        sender.finish()
        sender.close()
    rows = everything(indexed)
    assert len(lost) == 3
    assert len(rows) == len({row["uniqKey"] for row in rows}) == 300


def test_a_broker_without_a_key_index_is_refused(broker: Broker) -> None:
    options = sink(broker)
    complaint = "member quarry: FAILED_PRECONDITION: this broker has no key index"
    with (
        options.connection.client() as client,
        SentBefore(options, client, SystemClock()) as before,
        pytest.raises(AdminCallRefused, match=complaint),
    ):
        before.unsent([message("a")])


class Task:
    """A task as Spark describes it to its code."""

    def __init__(self, run: str | None, attempt: int = 0) -> None:
        self._run = run
        self._attempt = attempt

    def getLocalProperty(self, name: str) -> str | None:
        assert name == "spark.jobGroup.id"
        return self._run

    def attemptNumber(self) -> int:
        return self._attempt


def test_only_the_first_batch_of_a_run_and_repeated_tasks_may_be_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "KILLED_TASKS_S", 0.3)
    monkeypatch.setattr(writer, "_RUNS", {})
    clock = SystemClock()

    def may_be_again(batch: int, run: str | None = "a", attempt: int = 0) -> bool:
        return writer._may_be_again(Task(run, attempt), batch)  # type: ignore[arg-type]

    began_s = clock.monotonic_s()
    assert may_be_again(7)
    assert clock.monotonic_s() - began_s >= 0.3, "tasks of the former run have ended"
    waited = dict(writer._RUNS)
    assert may_be_again(7), "another task of the batch"
    assert waited == writer._RUNS, "the run has waited already"
    assert not may_be_again(8)
    assert may_be_again(8, attempt=1)
    assert may_be_again(8, run="b"), "this process sees the run for the first time"
    assert may_be_again(9, run=None), "Spark does not name the run"


@pytest.mark.slow
def test_ids_are_asked_for_at_all_members(tmp_path: Path) -> None:
    cluster = ClusterOfBrokers(tmp_path, settings={"index.tiered": True})
    try:
        first = cluster.add()
        first.administer("topic", "create", "orders", "--queues", "1")
        second = cluster.add()
        cluster.agree(lambda broker: names(broker, "topic"), ["orders"])
        messages = [message(f"{number}") for number in range(3)]
        for broker, each in ((first, messages[0]), (second, messages[1])):
            with Connection(endpoint=broker.endpoint).client() as client:
                client.send([each])
        options = sink(first, timeoutMs=500)
        with options.connection.client() as client, SentBefore(options, client, SystemClock()) as before:
            assert before.unsent(messages) == messages[2:]
            second.kill()
            with pytest.raises(BrokerUnreachable, match=r"member quarry-1: .*after 500 ms"):
                before.unsent(messages)
    finally:
        cluster.close()


@pytest.mark.slow
def test_a_batch_of_a_stream_that_is_run_again_sends_nothing_twice(
    spark: SparkSession, indexed: Broker, tmp_path: Path
) -> None:
    """Spark lost its own note that the batch has ended, twice."""
    write(spark.range(0, 300, 1, 3).selectExpr("cast(id as string) as body"), indexed, topic="orders")
    checkpoint = tmp_path / "checkpoint"
    options = {"endpoints": indexed.endpoint, "startingOffsets": "earliest", "maxRecordsPerPartition": "50"}
    source = spark.readStream.format("quarry").schema("body binary").options(**options).option("subscribe", "orders")
    told = {"endpoints": indexed.endpoint, **once(indexed), "topic": "copies", "checkpointLocation": str(checkpoint)}
    for _ in range(3):
        again = source.load().writeStream.format("quarry").options(**{name: str(each) for name, each in told.items()})
        again.trigger(availableNow=True).start().awaitTermination()
        for note in (checkpoint / "commits").iterdir():
            note.unlink()
    rows = everything(indexed, "copies")
    assert len(rows) == len({row["uniqKey"] for row in rows}) == 300
    assert {row["body"] for row in rows} == {str(number).encode() for number in range(300)}


@pytest.mark.slow
def test_a_write_with_an_id_and_rows_with_ids_are_sent_once(spark: SparkSession, indexed: Broker) -> None:
    frame = spark.range(0, 500, 1, 4).selectExpr("cast(id as string) as body")
    for count in (200, 500):
        write(frame.where(f"body < {count}"), indexed, **once(indexed, topic="orders", writeId="monday"))
    assert len(everything(indexed)) == 500
    named = frame.selectExpr("body", "concat('id-', body) as messageId")
    for rows in (named.repartition(7), named.repartition(3)):
        write(rows, indexed, **once(indexed, topic="bills"))
    assert len(everything(indexed, "bills")) == 500, "ids of rows do not depend on their places"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"deduplicate": "true"}, "option 'adminEndpoint': deduplicate needs it"),
        ({"deduplicateWindow": "1d"}, "option 'deduplicateWindow': it belongs to deduplicate=true"),
        (
            {"deduplicate": "true", "adminEndpoint": "h:2", "deduplicateWindow": "long"},
            "option 'deduplicateWindow': 'long' is no duration such as 15m",
        ),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        sink_options({"endpoints": "h:1", **options}, is_stream=True)


# -- Spark


@pytest.mark.slow
def test_an_official_client_receives_what_rows_say(spark: SparkSession, broker: Broker, clients: Clients) -> None:
    soon_ms = SystemClock().wall_ms() + 1_000
    rows = [
        Row(
            topic="orders",
            body=bytearray(b"paid \xff"),
            tag="blue",
            keys=["k1", "k2"],
            properties={"colour": "grün"},
            deliveryTimestamp=None,
        ),
        Row(topic="orders", body=bytearray(b"later"), tag=None, keys=None, properties=None, deliveryTimestamp=soon_ms),
        Row(topic="bills", body=bytearray(b"another"), tag=None, keys=[], properties={}, deliveryTimestamp=None),
    ]
    schema = (
        "topic string, body binary, tag string, keys array<string>, properties map<string,string>, "
        "deliveryTimestamp bigint"
    )
    write(spark.createDataFrame(rows, schema), broker)
    consumer = clients.simple_consumer("orders", group="billing")
    received = {each.body: each for each in consumer.receive_until(2)}
    paid, later = received[b"paid \xff"], received[b"later"]
    assert (paid.tag, paid.keys, dict(paid.properties)) == ("blue", ("k1", "k2"), {"colour": "grün"})
    assert (later.tag, later.keys, dict(later.properties)) == (None, (), {})
    assert later.at_ms >= soon_ms
    [other] = clients.simple_consumer("bills", group="billing").receive_until(1)
    assert other.body == b"another"


@pytest.mark.slow
def test_a_write_that_is_repeated_sends_the_same_ids(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(0, 1_000, 1, 4).selectExpr("cast(id as string) as body")
    for _ in range(2):
        write(frame, broker, topic="orders", writeId="monday")
    write(frame, broker, topic="bills")
    rows = everything(broker)
    assert len(rows) == 2_000
    ids = {(row["uniqKey"], row["body"]) for row in rows}
    assert len(ids) == 1_000, "each row has one id in both writes"
    others = {row["uniqKey"] for row in everything(broker, "bills")}
    assert len(others) == 1_000
    assert others.isdisjoint(each for each, _ in ids)


def test_a_wrong_column_and_a_wrong_mode_are_named(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) as body", "'blue' as colour")
    with pytest.raises(PySparkException, match="column 'colour': a message has no such thing"):
        write(frame, broker, topic="orders")
    options = {"endpoints": broker.endpoint, "topic": "orders"}
    with pytest.raises(PySparkException, match="mode 'overwrite': messages can only be added"):
        frame.select("body").write.format("quarry").mode("overwrite").options(**options).save()
    assert broker.administer("topic", "list", "--json") == ""


@pytest.mark.slow
def test_a_stream_lands_in_files_and_in_another_topic(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    write(spark.range(0, 900, 1, 3).selectExpr("cast(id as string) as body", "'blue' as tag"), broker, topic="orders")
    options = {"endpoints": broker.endpoint, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "400"}
    source = spark.readStream.format("quarry").options(**options).option("subscribe", "orders").load()
    landed, copied = str(tmp_path / "landed"), source.selectExpr("body", "tags as tag")
    for number in range(2):
        to_files = source.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "files"))
        query = to_files.trigger(availableNow=True).start(landed)
        query.awaitTermination()
        sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
        assert sizes == ([400, 400, 100] if number == 0 else []), "the second run finds nothing new"
        to_topic = copied.writeStream.format("quarry").option("endpoints", broker.endpoint).option("topic", "copies")
        to_topic.option("checkpointLocation", str(tmp_path / "topic")).trigger(
            availableNow=True
        ).start().awaitTermination()
    expected = {str(number).encode() for number in range(900)}
    files = spark.read.parquet(landed)
    assert files.count() == 900
    assert {bytes(row["body"]) for row in files.select("body").collect()} == expected
    rows = everything(broker, "copies")
    assert len(rows) == len({row["uniqKey"] for row in rows}) == 900
    assert {row["body"] for row in rows} == expected
    assert {row["tags"] for row in rows} == {"blue"}


@pytest.mark.slow
def test_a_batch_of_a_stream_that_is_run_again_sends_the_same_ids(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Its end was not written down: as when Spark died after the last message and before its own note of it."""
    write(spark.range(0, 300, 1, 3).selectExpr("cast(id as string) as body"), broker, topic="orders")
    checkpoint = tmp_path / "checkpoint"
    options = {"endpoints": broker.endpoint, "startingOffsets": "earliest", "maxRecordsPerPartition": "50"}
    source = spark.readStream.format("quarry").schema("body binary").options(**options, subscribe="orders").load()
    for _ in range(2):
        sink = source.writeStream.format("quarry").option("endpoints", broker.endpoint).option("topic", "copies")
        sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
        for note in (checkpoint / "commits").iterdir():
            note.unlink()
    rows = everything(broker, "copies")
    assert len(rows) == 600
    assert len({(row["uniqKey"], row["body"]) for row in rows}) == 300
    once = spark.createDataFrame([Row(**{name: row[name] for name in ("uniqKey", "body")}) for row in rows])
    assert once.dropDuplicates(["uniqKey"]).agg(sql.count_distinct("body")).first()[0] == 300  # type: ignore[index]
