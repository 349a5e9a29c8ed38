"""Every row of the page's table that compares this source with Spark's source for Kafka."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadLimit

from quarry_mq.pipeline.data_source import QuarryDataSource
from quarry_mq.pipeline.kafka_columns import KAFKA_TYPES
from quarry_mq.pipeline.source import InvalidOption
from quarry_mq.pipeline.stream.columns import live_schema
from quarry_mq.pipeline.stream.options import Connection, MessagesLost
from quarry_mq.pipeline.stream.reader import StreamReader
from quarry_mq.pipeline.stream.source_options import Use, source_options
from quarry_mq.protocol.clock import ManualClock, SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests.documents.pages import ROOT
from tests.e2e.broker import Broker, environment_of, until
from tests.e2e.conftest import QUICK
from tests.pipeline.streams import Offsets, Row, batch, latest, rows_between, send, stream

SENT: Final = ["a", "b", "c", "d", "e", "f"]
EARLY: Final = SENT[:4]


def rows_of_the_page() -> list[str]:
    """The first column of the table, without the marks of code."""
    page = (ROOT / "docs" / "pipeline.md").read_text()
    _, _, section = page.partition("### Compared with Spark's source for Kafka")
    lines = re.search(r"\|[-|]+\|\n((?:\|.*\n)+)", section)
    assert lines is not None
    return [line.split("|")[1].strip().replace("`", "") for line in lines[1].splitlines()]


class Live(NamedTuple):
    """A broker with the topic `orders` of two queues, and the time between its early and its late messages."""

    broker: Broker
    middle_ms: int
    fixture: Callable[[str], Any]

    @property
    def spark(self) -> SparkSession:
        session: SparkSession = self.fixture("spark")
        return session

    @property
    def folder(self) -> Path:
        folder: Path = self.fixture("tmp_path")
        return folder


class Filled(NamedTuple):
    broker: Broker
    middle_ms: int


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    root = tmp_path_factory.mktemp("live")
    broker = Broker(root / "store", logs=root / "logs", environment=environment_of(QUICK))
    try:
        broker.start()
        for topic, queues in (("orders", 2), ("bills", 1), ("large", 1), ("kafka", 1), ("empty", 1)):
            broker.administer("topic", "create", topic, "--queues", str(queues))
        send(broker, *EARLY)
        middle_ms = SystemClock().wall_ms() + 1
        until(lambda: SystemClock().wall_ms() > middle_ms, "the clock goes on")
        send(broker, *SENT[4:])
        send(broker, "bill", topic="bills")
        send(broker, *SENT, topic="large", size=1_000)
        send_with_everything(broker)
        yield Filled(broker, middle_ms)
    finally:
        broker.close()


def send_with_everything(broker: Broker) -> None:
    message = definition.Message(body=b"paid", user_properties={"colour": "blue"})
    message.topic.name = "kafka"
    message.system_properties.message_id = "ID-1"
    message.system_properties.tag = "food"
    message.system_properties.keys.extend(["k1", "k2"])
    message.system_properties.body_encoding = definition.IDENTITY
    client = Connection(endpoint=broker.endpoint).client()
    try:
        client.send([message])
    finally:
        client.close()


Check = Callable[[Live], None]
CHECKS: Final[dict[str, Check]] = {}


def row(name: str) -> Callable[[Check], Check]:
    def keep(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return keep


def bodies(rows: list[Row]) -> list[str]:
    return sorted(bytes(each["body"]).decode().rstrip() for each in rows)


def begun(live: Live, **options: Any) -> list[str]:
    """Read a stream with these options from its begin on."""
    told: dict[str, Any] = {"startingOffsets": None, **options}
    reader = stream(live.broker, **told)
    start = reader.initialOffset()
    rows = rows_between(reader, start, latest(reader, start))
    reader.stop()
    return bodies(rows)


def by_queue(**numbers: int) -> str:
    """`q0=3`: the queue 0 of orders."""
    return json.dumps({"orders": {name.removeprefix("q"): number for name, number in numbers.items()}})


def queue_of(live: Live, number: int) -> list[str]:
    """The bodies of a queue in its order."""
    rows = [each for each in batch(live.broker) if each["queueId"] == number]
    return [bytes(each["body"]).decode() for each in sorted(rows, key=lambda each: int(each["queueOffset"]))]


def refused(complaint: str, use: Use = Use.STREAM, /, **options: Any) -> None:
    given = {"endpoints": "127.0.0.1:8081", "subscribe": "orders", **options}
    with pytest.raises(InvalidOption, match=complaint):
        source_options({name: str(value) for name, value in given.items()}, use)


def refused_with_hint(name: str, ours: str) -> None:
    refused(f"option '{name}': this source has '{ours}' for it", **{name: "1"})
    refused(f"option '{name.upper()}': this source has '{ours}' for it", **{name.upper(): "1"})


@pytest.mark.parametrize("name", rows_of_the_page())
def test_a_row_is_true(name: str, filled: Filled, request: pytest.FixtureRequest) -> None:
    CHECKS[name](Live(*filled, request.getfixturevalue))


def test_no_row_is_checked_that_the_page_lacks() -> None:
    rows = rows_of_the_page()
    assert sorted(CHECKS) == sorted(rows)
    assert len(rows) > 30


# -- what is read


@row("subscribe")
def _(live: Live) -> None:
    assert bodies(batch(live.broker, "orders, bills")) == sorted([*SENT, "bill"])
    assert begun(live, subscribe="bills", startingOffsets="earliest") == ["bill"]
    refused("option 'subscribe': 'orders,,bills' holds an empty name", subscribe="orders,,bills")
    refused("option 'assign': 'subscribe' is given, too", assign='{"orders": [0]}')


@row("subscribePattern")
def _(live: Live) -> None:
    options: dict[str, Any] = {
        "subscribe": None,
        "subscribePattern": "or.*s|new[0-9]+",
        "adminEndpoint": live.broker.admin,
    }
    assert bodies(batch(live.broker, None, **{**options, "subscribePattern": "order"})) == [], "whole names match"
    reader = stream(live.broker, **options)
    start = reader.initialOffset()
    assert list(start) == ["orders"]
    live.broker.administer("topic", "create", "new1", "--queues", "1")
    send(live.broker, "later", topic="new1")
    end = latest(reader, start)
    assert list(end) == ["new1", "orders"]
    assert bodies(rows_between(reader, start, end)) == sorted([*SENT, "later"])
    live.broker.administer("topic", "delete", "--yes", "new1")
    assert latest(reader, end) == end
    reader.stop()
    with pytest.raises(InvalidOption, match="option 'adminEndpoint': subscribePattern needs it"):
        batch(live.broker, None, subscribePattern="orders")
    with pytest.raises(InvalidOption, match=r"option 'subscribePattern': '\(' is no regular expression"):
        batch(live.broker, None, subscribePattern="(", adminEndpoint=live.broker.admin)


@row("assign")
def _(live: Live) -> None:
    for names in ([1], ["quarry/1"], [1, "1"]):
        assert bodies(batch(live.broker, None, assign=json.dumps({"orders": names}))) == sorted(queue_of(live, 1))
    with pytest.raises(
        InvalidOption, match="option 'assign': topic orders has no queue 7; there are quarry/0, quarry/1"
    ):
        batch(live.broker, None, assign='{"orders": [7]}')
    with pytest.raises(InvalidOption, match=r"option 'assign': .* is not JSON such as"):
        batch(live.broker, None, assign="orders")


@row("kafka.bootstrap.servers")
def _(live: Live) -> None:
    rows = batch(live.broker, endpoints=None, **{"kafka.bootstrap.servers": f"{live.broker.endpoint}, other:8081"})
    assert sorted(each["value"].decode() for each in rows) == SENT
    options = {"kafka.bootstrap.servers": live.broker.endpoint, "subscribe": "orders"}
    assert QuarryDataSource(options).schema().fieldNames() == list(KAFKA_TYPES)
    refused("option 'endpoints': 'kafka.bootstrap.servers' is given, too", **options)


# -- where a query begins and ends


@row("startingOffsets")
def _(live: Live) -> None:
    some = sorted([*queue_of(live, 0)[1:], *queue_of(live, 1)])
    assert begun(live) == []
    assert begun(live, startingOffsets="EARLIEST") == SENT
    assert begun(live, startingOffsets=by_queue(q0=1, q1=-2)) == some
    assert begun(live, startingOffsets=by_queue(q0=-1, q1=-2)) == sorted(queue_of(live, 1))
    assert bodies(batch(live.broker)) == SENT
    assert bodies(batch(live.broker, startingOffsets='{"orders": {"quarry/0": 1, "1": 0}}')) == some
    with pytest.raises(InvalidOption, match="'startingOffsets': topic orders, queue quarry/1 is missing"):
        begun(live, startingOffsets=by_queue(q0=1))
    with pytest.raises(InvalidOption, match="'startingOffsets': topic orders, queue quarry/7 is not read"):
        begun(live, startingOffsets=by_queue(q0=1, q1=1, q7=1))
    refused(r"'soon' is neither earliest, latest nor JSON$", startingOffsets="soon")
    refused(r"neither earliest, latest nor JSON \(did you mean 'latest'\?\)", startingOffsets="lates")
    refused(r"neither earliest, latest nor JSON; a time is startingTimestamp", startingOffsets="1795219820000")
    refused("'latest' gives a batch without rows", Use.BATCH, startingOffsets="latest")
    refused("topic orders: -1 gives a batch without rows", Use.BATCH, startingOffsets=by_queue(q0=-1))
    refused("queue 0: -3 is no whole number of at least -2", startingOffsets=by_queue(q0=-3))


@row("startingTimestamp")
def _(live: Live) -> None:
    moment = datetime.fromtimestamp(live.middle_ms / 1000, UTC).isoformat()
    for time in (live.middle_ms, moment):
        rows = batch(live.broker, startingTimestamp=time, startingOffsetsByTimestampStrategy="latest")
        assert bodies(rows) == SENT[4:]
    assert begun(live, startingTimestamp=0, startingOffsetsByTimestamp=by_queue(q0=5), startingOffsets="latest") == SENT
    refused("option 'startingTimestamp': 'noon' is neither ms since 1970 nor a date", startingTimestamp="noon")


@row("startingOffsetsByTimestamp")
def _(live: Live) -> None:
    options = {"startingOffsetsByTimestampStrategy": "latest", "startingOffsets": "earliest"}
    late = [body for body in queue_of(live, 0) if body in SENT[4:]]
    times = by_queue(q0=live.middle_ms, q1=0)
    assert begun(live, startingOffsetsByTimestamp=times, **options) == sorted([*late, *queue_of(live, 1)])
    refused("queue 0: -1 is no whole number of at least 0", startingOffsetsByTimestamp=by_queue(q0=-1))


@row("startingOffsetsByTimestampStrategy")
def _(live: Live) -> None:
    future_ms = SystemClock().wall_ms() + 3_600_000
    complaint = f"option 'startingTimestamp': topic orders, queue quarry/0: no message since {future_ms}"
    for options in ({}, {"startingOffsetsByTimestampStrategy": "error"}):
        with pytest.raises(InvalidOption, match=complaint):
            begun(live, startingTimestamp=future_ms, **options)
    assert begun(live, startingTimestamp=future_ms, startingOffsetsByTimestampStrategy="Latest") == []
    refused(r"'last' is neither error nor latest", startingOffsetsByTimestampStrategy="last")


@row("endingOffsets")
def _(live: Live) -> None:
    assert bodies(batch(live.broker, endingOffsets="latest")) == SENT
    ends = by_queue(q0=1, q1=-1)
    assert bodies(batch(live.broker, endingOffsets=ends)) == sorted([*queue_of(live, 0)[:1], *queue_of(live, 1)])
    refused("option 'endingOffsets': only spark.read has it", endingOffsets="latest")
    refused("'earliest' gives a batch without rows", Use.BATCH, endingOffsets="earliest")
    refused("topic orders: -2 gives a batch without rows", Use.BATCH, endingOffsets=by_queue(q0=-2))
    with pytest.raises(InvalidOption, match="'endingOffsets': topic orders, queue quarry/0 begins at 2, after 1"):
        batch(live.broker, startingOffsets=by_queue(q0=2, q1=0), endingOffsets=ends)


@row("endingTimestamp")
def _(live: Live) -> None:
    assert bodies(batch(live.broker, endingTimestamp=live.middle_ms)) == EARLY
    assert bodies(batch(live.broker, endingTimestamp=SystemClock().wall_ms() + 3_600_000)) == SENT
    assert (
        batch(
            live.broker,
            startingTimestamp=live.middle_ms,
            endingTimestamp=0,
            startingOffsetsByTimestampStrategy="latest",
        )
        == []
    )
    refused("option 'endingTimestamp': only spark.read has it", endingTimestamp=1)


@row("endingOffsetsByTimestamp")
def _(live: Live) -> None:
    early = [body for body in queue_of(live, 0) if body in EARLY]
    rows = batch(live.broker, endingOffsetsByTimestamp=by_queue(q0=live.middle_ms, q1=0))
    assert bodies(rows) == sorted(early)
    refused("option 'endingOffsetsByTimestamp': only spark.read has it", endingOffsetsByTimestamp="{}")


# -- batches and tasks


def with_clock(live: Live, topic: str = "orders", /, **options: Any) -> tuple[StreamReader, ManualClock, ReadLimit]:
    given = {"endpoints": live.broker.endpoint, "subscribe": topic, "startingOffsets": "earliest", **options}
    checked = source_options({name: str(value) for name, value in given.items()}, Use.STREAM)
    clock = ManualClock()
    reader = StreamReader(checked, live_schema(checked), clock=clock)
    return reader, clock, reader.getDefaultReadLimit()


def taken(reader: StreamReader, start: Offsets, limit: ReadLimit) -> tuple[int, Offsets]:
    end = latest(reader, start, limit)
    return len(rows_between(reader, start, end)), end


@row("maxOffsetsPerTrigger")
def _(live: Live) -> None:
    reader, _, limit = with_clock(live, maxOffsetsPerTrigger=2)
    start = reader.initialOffset()
    end = latest(reader, start, limit)
    assert end == {"orders": {"quarry/0": 1, "quarry/1": 1}}, "as many of each queue"
    assert len(rows_between(reader, start, latest(reader, start))) == 6, "Trigger.Once takes all"
    reader.stop()
    refused("option 'maxOffsetsPerTrigger': only spark.readStream has it", Use.BATCH, maxOffsetsPerTrigger=1)
    refused("option 'maxOffsetsPerTrigger': '0' is no whole number of at least 1", maxOffsetsPerTrigger=0)


@row("minOffsetsPerTrigger")
def _(live: Live) -> None:
    reader, clock, limit = with_clock(live, minOffsetsPerTrigger=4, maxOffsetsPerTrigger=4)
    count, end = taken(reader, reader.initialOffset(), limit)
    assert count == 4
    clock.advance(14 * 60)
    assert latest(reader, end, limit) == end, "two are too few"
    clock.advance(60)
    assert taken(reader, end, limit)[0] == 2
    reader.stop()
    reader, _, limit = with_clock(live, minOffsetsPerTrigger=7)
    assert taken(reader, reader.initialOffset(), limit)[0] == 6, "the first batch does not wait"
    reader.stop()
    refused("option 'minOffsetsPerTrigger': only spark.readStream has it", Use.BATCH, minOffsetsPerTrigger=1)
    refused("'minOffsetsPerTrigger': 3 is more than max", minOffsetsPerTrigger=3, maxOffsetsPerTrigger=2)


@row("maxTriggerDelay")
def _(live: Live) -> None:
    for text, delay_s in (("30s", 30.0), ("500ms", 0.5), ("2 min", 120.0), ("250", 0.25)):
        options: dict[str, Any] = {"minOffsetsPerTrigger": 4, "maxOffsetsPerTrigger": 4, "maxTriggerDelay": text}
        reader, clock, limit = with_clock(live, **options)
        _, end = taken(reader, reader.initialOffset(), limit)
        clock.advance(delay_s * 0.9)
        assert latest(reader, end, limit) == end
        clock.advance(delay_s * 0.2)
        assert latest(reader, end, limit) != end
        reader.stop()
    refused("option 'maxTriggerDelay': only spark.readStream has it", Use.BATCH, maxTriggerDelay="1m")
    refused("option 'maxTriggerDelay': 'soon' is no duration such as 15m", maxTriggerDelay="soon")


@row("maxBytesPerTrigger")
def _(live: Live) -> None:
    for most, expected in ((2_500, 2), (1, 1), (1_000_000, 6)):
        reader, _, limit = with_clock(live, "large", maxBytesPerTrigger=most)
        assert taken(reader, reader.initialOffset(), limit)[0] == expected
        reader.stop()
    refused("option 'maxBytesPerTrigger': only spark.readStream has it", Use.BATCH, maxBytesPerTrigger=1)


@row("minPartitions")
def _(live: Live) -> None:
    for least, expected in ((1, 1), (4, 4), (50, 6)):
        reader, _, _ = with_clock(live, minPartitions=least)
        start = reader.initialOffset()
        end = latest(reader, start)
        assert len(reader.partitions(start, end)) == expected
        assert bodies(rows_between(reader, start, end)) == SENT
        reader.stop()


@row("maxRecordsPerPartition")
def _(live: Live) -> None:
    reader, _, _ = with_clock(live, maxRecordsPerPartition=4)
    start = reader.initialOffset()
    end = latest(reader, start)
    assert [len(next(iter(reader.read(part)))) for part in reader.partitions(start, end)] == [3, 3]
    reader.stop()
    assert source_options({"endpoints": "h:1", "subscribe": "orders"}).records_max == 20_000


@row("failOnDataLoss")
def _(live: Live) -> None:
    beyond = by_queue(q0=100, q1=100)
    with pytest.raises(
        MessagesLost, match=r"orders, queue quarry/0: offsets \[\d+, 100\) are to be read, .* holds \[0"
    ):
        batch(live.broker, endingOffsets=beyond)
    assert bodies(batch(live.broker, endingOffsets=beyond, failOnDataLoss="false")) == SENT
    refused("option 'failOnDataLoss': 'no' is neither true nor false", failOnDataLoss="no")


# -- options that others do here


@row("groupIdPrefix")
def _(_live: Live) -> None:
    refused_with_hint("groupIdPrefix", "group")


@row("kafka.group.id")
def _(_live: Live) -> None:
    refused_with_hint("kafka.group.id", "group")


@row("kafkaConsumer.pollTimeoutMs")
def _(_live: Live) -> None:
    refused_with_hint("kafkaConsumer.pollTimeoutMs", "timeoutMs")


@row("fetchOffset.numRetries")
def _(_live: Live) -> None:
    refused_with_hint("fetchOffset.numRetries", "timeoutMs")


@row("fetchOffset.retryIntervalMs")
def _(_live: Live) -> None:
    refused_with_hint("fetchOffset.retryIntervalMs", "timeoutMs")


@row("kafka.security.protocol")
def _(_live: Live) -> None:
    refused_with_hint("kafka.security.protocol", "tls")


@row("other options kafka.…")
def _(_live: Live) -> None:
    refused("option 'kafka.fetch.max.bytes': it is for a client of Kafka", **{"kafka.fetch.max.bytes": "1"})


# -- what Spark does with a source in Python


def query_options(live: Live, topic: str = "orders") -> dict[str, str]:
    return {"endpoints": live.broker.endpoint, "subscribe": topic, "startingOffsets": "earliest"}


@row("Trigger.AvailableNow")
def _(live: Live) -> None:
    live.broker.administer("topic", "create", "now", "--queues", "2")
    send(live.broker, *SENT, topic="now")
    frame = live.spark.readStream.format("quarry").options(**query_options(live, "now")).load()
    for expected in (SENT, [*SENT, "more"]):
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(live.folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(live.folder / "rows"))
        assert query.awaitTermination(120)
        rows = live.spark.read.parquet(str(live.folder / "rows")).collect()
        assert sorted(bytes(each["body"]).decode() for each in rows) == sorted(expected)
        send(live.broker, "more", topic="now")


@row("continuous processing")
def _(live: Live) -> None:
    frame = live.spark.readStream.format("quarry").options(**query_options(live)).load()
    with pytest.raises(PySparkException, match=r"(?i)continuous"):
        frame.writeStream.format("noop").trigger(continuous="1 second").start().awaitTermination(60)


@row("metrics such as avgOffsetsBehindLatest")
def _(live: Live) -> None:
    options = {**query_options(live), "maxOffsetsPerTrigger": "2"}
    frame = live.spark.readStream.format("quarry").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(live.folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    [first, *_] = query.recentProgress
    [source] = json.loads(first.json)["sources"]
    assert "metrics" not in source
    reached, ends = source["endOffset"], source["latestOffset"]
    assert sum(ends["orders"].values()) - sum(reached["orders"].values()) == 4


# -- columns


def kafka_row(live: Live) -> Row:
    [found] = batch(live.broker, "kafka", columns="kafka")
    return found


def as_kafka(name: str, value: object) -> None:
    @row(name)
    def _(live: Live) -> None:
        assert kafka_row(live)[name] == value


for _name, _value in (
    ("key", b"k1 k2"),
    ("value", b"paid"),
    ("topic", "kafka"),
    ("partition", 0),
    ("offset", 0),
    ("timestampType", 1),
):
    as_kafka(_name, _value)


@row("timestamp")
def _(live: Live) -> None:
    [ours] = batch(live.broker, "kafka")
    assert kafka_row(live)["timestamp"] == ours["storeTimestamp"]
    [millis] = batch(live.broker, "kafka", timestamps="millis")
    assert millis["storeTimestamp"] == round(ours["storeTimestamp"].timestamp() * 1000)
    with pytest.raises(InvalidOption, match="option 'timestamps': with columns=kafka"):
        batch(live.broker, "kafka", columns="kafka", timestamps="millis")


@row("headers")
def _(live: Live) -> None:
    expected = [("TAGS", b"food"), ("UNIQ_KEY", b"ID-1"), ("colour", b"blue")]
    assert [(each["key"], each["value"]) for each in kafka_row(live)["headers"]] == expected


@row("includeHeaders")
def _(live: Live) -> None:
    [found] = batch(live.broker, "kafka", columns="kafka", INCLUDEHEADERS="false")
    assert list(found) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert "headers" in kafka_row(live)
    refused("option 'includeHeaders': it belongs to columns=kafka", includeHeaders="true")


# -- what holds for all options


@pytest.mark.parametrize(
    ("name", "like"),
    [("startingOffset", "startingOffsets"), ("subscribepatern", "subscribePattern"), ("endpoint", "endpoints")],
)
def test_a_near_miss_is_named(name: str, like: str) -> None:
    refused(rf"option '{name}': no such option \(did you mean '{like}'\?\)", **{name: "x"})


def test_spark_reads_a_live_broker_as_a_table(spark: SparkSession, filled: Filled) -> None:
    options = {"endpoints": filled.broker.endpoint, "subscribe": "orders", "columns": "kafka"}
    frame = spark.read.format("quarry").options(**options).load()
    rows = frame.selectExpr("cast(value as string) as body", "topic", "timestamp").collect()
    assert sorted(each["body"] for each in rows) == SENT
    assert (
        spark.read.format("quarry").options(**{**options, "endingTimestamp": str(filled.middle_ms)}).load().count() == 4
    )


def test_a_loaded_table_ends_where_the_queues_ended_at_its_first_query(spark: SparkSession, filled: Filled) -> None:
    options = {"endpoints": filled.broker.endpoint, "subscribe": "growing"}
    filled.broker.administer("topic", "create", "growing", "--queues", "1")
    send(filled.broker, "a", topic="growing")
    source = spark.read.format("quarry").options(**options)
    frame = source.load()
    assert frame.count() == 1
    send(filled.broker, "b", topic="growing")
    assert frame.count() == 1
    assert source.load().count() == 2
