"""A stream stores how far it has read as the offsets of a group, so that operators see its lag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from quarry_mq.pipeline.source import InvalidOption
from quarry_mq.pipeline.stream.columns import live_schema
from quarry_mq.pipeline.stream.group_offsets import CALL_TIMEOUT_MS, RETRY_S
from quarry_mq.pipeline.stream.reader import StreamReader
from quarry_mq.pipeline.stream.source_options import Use, source_options
from quarry_mq.protocol.clock import ManualClock
from tests.e2e.broker import Broker, until
from tests.e2e.conftest import StartBroker, StartClients
from tests.e2e.members import ClusterOfBrokers, names
from tests.pipeline.streams import latest, rows_between, send, stream

COMMITTING: dict[str, Any] = {"group": "lake", "commitOffsets": "true"}


def lag(broker: Broker, group: str = "lake", topic: str = "orders") -> int:
    """The messages of the topic that the group has not read, as `quarry lag` shows them."""
    lines = [json.loads(line) for line in broker.administer("lag", group, "--json").splitlines()]
    [of_topic] = [line for line in lines if line["topic"] == topic]
    return int(of_topic["ready"])


def test_the_lag_of_the_group_is_that_of_the_stream(broker: Broker) -> None:
    send(broker, "a", "b", "c")
    reader = stream(broker, **COMMITTING, maxOffsetsPerTrigger=2)
    start = reader.initialOffset()
    end = latest(reader, start, reader.getDefaultReadLimit())
    assert lag(broker) == 3, "the group is there before the first batch ends"
    reader.commit(end)
    assert lag(broker) == 1
    last = latest(reader, end)
    latest(reader, last)
    assert lag(broker) == 0, "the start of the next batch is the end of this one"
    send(broker, "d", "e")
    assert lag(broker) == 2
    reader.stop()
    again = stream(broker, **COMMITTING)
    assert len(rows_between(again, end, latest(again, end))) == 3, "the checkpoint alone says where to read on"
    assert lag(broker) == 3
    again.stop()


def test_a_stream_without_the_option_stores_nothing(broker: Broker) -> None:
    send(broker, "a")
    reader = stream(broker, group="lake")
    latest(reader, reader.initialOffset())
    assert broker.administer("group", "list", "--json") == ""
    reader.stop()


def test_a_group_that_the_broker_refuses_ends_the_query(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"groups.auto_create": False})
    broker.administer("topic", "create", "orders", "--queues", "2")
    reader = stream(broker, **COMMITTING)
    start = reader.initialOffset()
    with pytest.raises(InvalidOption, match=r"option 'group': lake cannot have offsets: .*CONSUMER_GROUP_NOT_FOUND"):
        latest(reader, start)
    broker.administer("group", "create", "lake")
    latest(reader, start)
    broker.administer("group", "delete", "--yes", "lake")
    with capture_logs() as logs:
        send(broker, "a")
        reader.commit(latest(reader, start))
    assert [each["log_level"] for each in logs] == ["warning"], "later it only warns"
    reader.stop()


def test_a_group_with_consumers_is_refused(broker: Broker, start_clients: StartClients) -> None:
    send(broker, "a")
    consumer = start_clients("python", broker.endpoint).simple_consumer("orders", group="lake")
    assert len(consumer.receive_until(1)) == 1
    reader = stream(broker, **COMMITTING, adminEndpoint=broker.admin)
    start = reader.initialOffset()
    with pytest.raises(InvalidOption, match=r"option 'group': lake has 1 consumers, such as .*: give a group that no"):
        latest(reader, start)
    reader.stop()
    other = stream(broker, **{**COMMITTING, "group": "other"}, adminEndpoint=broker.admin)
    latest(other, start)
    assert lag(broker, "other") == 1
    other.stop()


@pytest.mark.slow
def test_a_broker_that_is_away_ends_no_query(broker: Broker) -> None:
    send(broker, "a", "b")
    clock = ManualClock()
    told = {"endpoints": broker.endpoint, "subscribe": "orders", "startingOffsets": "earliest", **COMMITTING}
    options = source_options(told, Use.STREAM)
    reader = StreamReader(options, live_schema(options), clock=clock)
    start = reader.initialOffset()
    end = latest(reader, start)
    broker.stop()
    with capture_logs() as logs:
        reader.commit(end)
        reader.commit(end)
    assert [each["event"] for each in logs] == ["the offsets of the group are not stored"]
    assert f"after {CALL_TIMEOUT_MS} ms" in logs[0]["error"]
    broker.start()
    clock.advance(RETRY_S)
    reader.commit(end)
    assert lag(broker) == 0
    reader.stop()


@pytest.mark.slow
def test_each_member_of_a_cluster_has_the_offsets_of_its_queues(tmp_path: Path) -> None:
    cluster = ClusterOfBrokers(tmp_path)
    try:
        first = cluster.add()
        first.administer("topic", "create", "orders", "--queues", "1")
        second = cluster.add()
        cluster.agree(lambda broker: names(broker, "topic"), ["orders"])
        send(first, "a")
        send(second, "b", "c")
        reader = stream(first, **COMMITTING)
        until(lambda: len(reader.initialOffset()["orders"]) == 2, "the new member is in the route")
        start = reader.initialOffset()
        end = latest(reader, start)
        assert end == {"orders": {"quarry-0/0": 1, "quarry-1/0": 2}}
        for broker, expected in ((first, 1), (second, 2)):
            assert lag(broker) == expected
        reader.commit(end)
        for broker in (first, second):
            assert lag(broker) == 0
        reader.stop()
    finally:
        cluster.close()


@pytest.mark.slow
def test_spark_stores_the_end_of_each_batch(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    send(broker, *"abcde")
    options = {"endpoints": broker.endpoint, "subscribe": "orders", "startingOffsets": "earliest", **COMMITTING}
    frame = spark.readStream.format("quarry").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    try:
        query.processAllAvailable()
        until(lambda: lag(broker) == 0, "no new messages are needed for the end of the last batch to be stored")
        send(broker, "f")
        until(lambda: lag(broker) == 0, "the next batch is read")
    finally:
        query.stop()
    send(broker, "g", "h")
    assert lag(broker) == 2
    writer.trigger(availableNow=True).start().awaitTermination()
    assert lag(broker) == 0


@pytest.mark.parametrize(
    ("options", "use", "complaint"),
    [
        ({"commitOffsets": "true"}, Use.STREAM, "option 'commitOffsets': it needs the option 'group'"),
        (COMMITTING, Use.BATCH, "option 'commitOffsets': only spark.readStream has it"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], use: Use, complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        source_options({"endpoints": "127.0.0.1:8081", "subscribe": "orders", **options}, use)
