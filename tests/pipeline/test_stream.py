"""The source against a broker in a process of its own."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from structlog.testing import capture_logs

from quarry_mq.cli.demo import free_ports
from quarry_mq.client.errors import BrokerUnreachable, CallRefused
from quarry_mq.pipeline import data_source
from quarry_mq.pipeline.data_source import QuarryDataSource
from quarry_mq.pipeline.source import InvalidOption
from quarry_mq.pipeline.stream.columns import live_schema
from quarry_mq.pipeline.stream.options import MessagesLost
from quarry_mq.pipeline.stream.reader import LOOK_INTERVAL_S, StreamReader
from quarry_mq.pipeline.stream.source_options import source_options
from quarry_mq.protocol.clock import ManualClock, SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.security.model import User
from quarry_mq.store.security.sealer import Sealer
from quarry_mq.store.tools.users import users_of
from tests.certificates import make_tls
from tests.e2e.broker import Broker, until
from tests.e2e.clients import Outgoing
from tests.e2e.conftest import StartBroker, StartClients
from tests.pipeline.streams import latest, rows_between, send, stream

EXPIRING = {
    "store.segment_size": "1MiB",
    "store.durability": "async",
    "limits.body_size": "256KiB",
    "topics.default_queues": 1,
    "expiry.retention_hours": 0.00001,  # 36 ms
    "expiry.interval_ms": 100,
    "expiry.pause_ms": 0,
    "expiry.start_delay_ms": 3_600_000,
}


def bodies(rows: list[dict[str, object]]) -> list[str]:
    return sorted(bytes(row["body"]).decode().rstrip() for row in rows)  # type: ignore[call-overload]


def test_what_an_official_client_sent_is_read_with_all_that_belongs_to_it(
    broker: Broker, start_clients: StartClients
) -> None:
    producer = start_clients("python", broker.endpoint).producer("orders")
    [receipt] = producer.send([Outgoing("orders", b"paid", "blue", ("k1", "k2"), {"colour": "grün"})])
    reader = stream(broker)
    start = reader.initialOffset()
    [row] = rows_between(reader, start, latest(reader, start))
    assert row["uniqKey"] == receipt.message_id
    assert (row["topic"], row["tags"], sorted(row["keys"].split())) == ("orders", "blue", ["k1", "k2"])
    assert (row["body"], row["bodyEncoding"], row["messageGroup"]) == (b"paid", "IDENTITY", None)
    assert dict(row["properties"]) == {"colour": "grün"}
    assert abs(row["storeTimestamp"].timestamp() * 1000 - receipt.at_ms) < 60_000
    assert row["broker"] == "quarry"
    assert row["queueOffset"] == 0
    reader.stop()


@pytest.mark.slow
def test_a_query_begins_where_it_is_told_to(broker: Broker) -> None:
    send(broker, "a", "b")
    between_ms = SystemClock().wall_ms() + 1
    until(lambda: SystemClock().wall_ms() > between_ms, "the clock goes on")
    send(broker, "c")
    for option, start, expected in (
        ("startingOffsets", "earliest", ["a", "b", "c"]),
        ("startingOffsets", "latest", []),
        ("startingTimestamp", between_ms, ["c"]),
    ):
        told: dict[str, Any] = {"startingOffsetsByTimestampStrategy": "latest", option: start}
        reader = stream(broker, **told)
        begin = reader.initialOffset()
        assert bodies(rows_between(reader, begin, latest(reader, begin))) == expected
        reader.stop()


def test_batches_follow_each_other_and_each_is_the_same_again(broker: Broker) -> None:
    sent = [f"m{number:03}" for number in range(100)]
    send(broker, *sent)
    reader = stream(broker, maxOffsetsPerTrigger=30, maxRecordsPerPartition=7)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    offset = reader.initialOffset()
    found, batches = [], []
    while (end := latest(reader, offset, limit)) != offset:
        rows = rows_between(reader, offset, end)
        another = stream(broker, maxRecordsPerPartition=7)
        assert rows_between(another, json.loads(json.dumps(offset)), json.loads(json.dumps(end))) == rows
        assert len(reader.partitions(offset, end)) == -(-len(rows) // 7)
        batches.append(len(rows))
        found += rows
        offset = end
    assert batches == [30, 30, 30, 10]
    assert bodies(found) == sent
    assert reader.latestOffset(offset, ReadAllAvailable()) == offset
    assert reader.reportLatestOffset() == offset
    reader.stop()


@pytest.mark.slow
def test_queues_that_appear_later_are_read_from_their_beginning(broker: Broker) -> None:
    broker.administer("topic", "create", "orders", "--queues", "1")
    send(broker, "before")
    reader = stream(broker, startingOffsets="latest")
    start = reader.initialOffset()
    assert start == {"orders": {"quarry/0": 1}}
    broker.administer("topic", "update", "orders", "--queues", "4")
    sent = [f"m{number}" for number in range(8)]
    send(broker, *sent)
    end = latest(reader, start)
    assert sorted(end["orders"]) == ["quarry/0", "quarry/1", "quarry/2", "quarry/3"]
    assert bodies(rows_between(reader, start, end)) == sent
    broker.administer("topic", "update", "orders", "--queues", "2")
    assert latest(reader, end) == end, "what was read of a queue is not forgotten with the queue"
    reader.stop()


def test_reading_makes_neither_group_nor_topic(broker: Broker) -> None:
    send(broker, "a")
    reader = stream(broker)
    start = reader.initialOffset()
    assert len(rows_between(reader, start, latest(reader, start))) == 1
    missing = stream(broker, topic="ghost")
    with pytest.raises(CallRefused, match="topic ghost does not exist"):
        missing.initialOffset()
    assert broker.administer("group", "list", "--json") == ""
    topics = [json.loads(line)["name"] for line in broker.administer("topic", "list", "--json").splitlines()]
    assert topics == ["orders"]
    for each in (reader, missing):
        each.stop()


def test_a_query_that_takes_what_there_is_takes_nothing_that_comes_later(broker: Broker) -> None:
    send(broker, "a", "b")
    reader = stream(broker)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    send(broker, "c")
    end = latest(reader, start)
    assert bodies(rows_between(reader, start, end)) == ["a", "b"]
    assert latest(reader, end) == end
    late = stream(broker, startingOffsets="latest")
    late.prepareForTriggerAvailableNow()
    send(broker, "d")
    begun = late.initialOffset()
    assert latest(late, begun) == begun, "it began behind what it was to take"
    for each in (reader, late):
        each.stop()


@pytest.mark.slow
def test_the_broker_is_not_asked_as_often_as_spark_asks(broker: Broker) -> None:
    send(broker, "a")
    clock = ManualClock()
    told = source_options({"endpoints": broker.endpoint, "subscribe": "orders", "startingOffsets": "earliest"})
    reader = StreamReader(told, live_schema(told), clock=clock)
    start = reader.initialOffset()
    seen = reader.latestOffset(start, ReadAllAvailable())
    send(broker, "b")
    assert reader.latestOffset(start, ReadAllAvailable()) == seen
    clock.advance(LOOK_INTERVAL_S)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert bodies(rows_between(reader, start, end)) == ["a", "b"]
    reader.stop()


@pytest.mark.slow
def test_messages_that_expired_before_they_were_read(start_broker: StartBroker) -> None:
    broker = start_broker(settings=EXPIRING)
    send(broker, *(f"m{number:02}" for number in range(20)), size=200_000)
    strict, lenient = stream(broker), stream(broker, failOnDataLoss="false")
    start = strict.initialOffset()
    end = latest(strict, start)
    assert end == {"orders": {"quarry/0": 20}}
    broker.administer("expire", "--yes")

    def begin() -> int:
        offsets: dict[str, int] = stream(broker).initialOffset()["orders"]
        return offsets["quarry/0"]

    until(lambda: begin() > 0, "the first messages have expired")
    left = begin()
    assert left < 20
    complaint = rf"topic orders, queue quarry/0: offsets \[0, 20\) are to be read, but the queue holds \[{left}, 20\)"
    with pytest.raises(MessagesLost, match=complaint):
        rows_between(strict, start, end)
    with capture_logs() as logs:
        rows = rows_between(lenient, start, end)
    assert [row["queueOffset"] for row in rows] == list(range(left, 20))
    assert "offsets [0, 20) are to be read" in logs[0]["what"]
    assert rows_between(lenient, start, {"orders": {"quarry/0": left}}) == [], "all of it has expired"


@pytest.mark.slow
def test_a_topic_that_began_again_is_noticed(broker: Broker) -> None:
    broker.administer("topic", "create", "orders", "--queues", "1")
    send(broker, "a", "b", "c")
    strict, lenient = stream(broker), stream(broker, failOnDataLoss="false")
    reached = latest(strict, strict.initialOffset())
    broker.administer("topic", "delete", "--yes", "orders")
    broker.administer("topic", "create", "orders", "--queues", "1")
    send(broker, "d")
    with pytest.raises(MessagesLost, match="topic orders, queue quarry/0: read up to offset 3, but it ends at 1"):
        latest(strict, reached)
    with capture_logs() as logs:
        end = latest(lenient, reached)
    assert end == {"orders": {"quarry/0": 1}}
    assert len(logs) == 1
    assert rows_between(lenient, reached, end) == []
    send(broker, "e")
    assert bodies(rows_between(lenient, end, latest(lenient, end))) == ["e"]
    for each in (strict, lenient):
        each.stop()


@pytest.mark.slow
def test_a_broker_that_is_away_for_a_moment_is_waited_for(broker: Broker) -> None:
    send(broker, "a")
    reader = stream(broker)
    start = reader.initialOffset()
    broker.stop()
    back = threading.Timer(1.0, broker.start)
    back.start()
    try:
        end = latest(reader, start)
    finally:
        back.join()
    assert bodies(rows_between(reader, start, end)) == ["a"]
    broker.stop()
    impatient = stream(broker, timeoutMs=300)
    with pytest.raises(BrokerUnreachable, match=rf"{broker.endpoint}: topic orders, queue 0: unavailable: .*300 ms"):
        impatient.initialOffset()
    for each in (reader, impatient):
        each.stop()


@pytest.mark.slow
def test_a_broker_that_speaks_tls(start_broker: StartBroker, tmp_path: Path) -> None:
    tls = make_tls(tmp_path, clients_too=True)
    assert tls.client is not None
    for name, text in zip(("client.pem", "client.key"), tls.client, strict=True):
        (tmp_path / name).write_bytes(text)
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    broker = start_broker(
        settings={
            "network.tls_listen": address,
            "network.tls_certificate": tls.files.certificate,
            "network.tls_key": tls.files.key,
            "network.tls_client_ca": tls.files.client_ca,
        },
    )
    send(broker, "a")
    files: dict[str, Any] = {
        "tlsCa": tls.authority_path,
        "tlsCertificate": tmp_path / "client.pem",
        "tlsKey": tmp_path / "client.key",
    }
    reader = stream(broker, **{"endpoints": address, "tls": "true", **files})
    start = reader.initialOffset()
    assert bodies(rows_between(reader, start, latest(reader, start))) == ["a"]
    reader.stop()


@pytest.mark.slow
def test_a_broker_that_asks_for_users_is_told_who_asks(start_broker: StartBroker, tmp_path: Path) -> None:
    key, secret = Fernet.generate_key(), tmp_path / "secret"
    secret.write_text("correct-horse-battery\n")
    with users_of(PosixDisk(), tmp_path / "store", Sealer([key]), SystemClock()) as users:
        users.create(User(name="spark"))
        users.add_secret("spark", "correct-horse-battery", 0)
    broker = start_broker(settings={"security.authentication": True, "security.key": key.decode()})
    with pytest.raises(CallRefused, match="TOPIC_NOT_FOUND"):
        stream(broker, user="spark", secretFile=secret).initialOffset()
    with pytest.raises(CallRefused, match="UNAUTHORIZED: the call is not signed"):
        stream(broker).initialOffset()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"endpoints": "here"}, "option 'endpoints': 'here' is not host:port"),
        ({"tlsCa": "/ca.pem"}, "option 'tlsCa': it needs tls=true"),
        ({"tls": "true", "tlsKey": "/key.pem"}, "option 'tlsKey': it belongs to tlsCertificate"),
        ({"user": "spark"}, "option 'secretFile': it belongs to user"),
        ({"path": "/store"}, "option 'path': no such option; there are subscribe, subscribePattern"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        source_options({"endpoints": "127.0.0.1:8081", "subscribe": "orders", **options})


def test_a_topic_and_a_store_have_their_own_columns() -> None:
    topic = QuarryDataSource({"endpoints": "127.0.0.1:8081", "subscribe": "orders", "columns": "body,queueOffset"})
    assert topic.schema().fieldNames() == ["body", "queueOffset"]
    assert "phyOffset" in QuarryDataSource({"path": "/store"}).schema().fieldNames()
    with pytest.raises(InvalidOption, match="option 'columns': no column 'phyOffset'"):
        QuarryDataSource({"endpoints": "h:1", "subscribe": "orders", "columns": "phyOffset"}).schema()


def test_a_stream_says_which_spark_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_source, "find_spec", lambda name: None)  # as with PySpark 4.1
    for options in ({"endpoints": "127.0.0.1:8081", "subscribe": "orders"}, {"path": "/store"}):
        source = QuarryDataSource(options)
        with pytest.raises(InvalidOption, match=r"needs PySpark 4\.3 or newer"):
            source.streamReader(source.schema())
