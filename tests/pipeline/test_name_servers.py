"""The source over the remoting protocol: against Quarry's own port for it, and against a broker that plays RocketMQ."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import lz4.frame
import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from quarry_mq.cli.demo import free_ports
from quarry_mq.client.errors import BrokerUnreachable
from quarry_mq.client.remoting import RemotingFailed
from quarry_mq.pipeline.data_source import QuarryDataSource
from quarry_mq.pipeline.source import InvalidOption
from quarry_mq.pipeline.stream.options import Connection, MessagesLost, UnreadableBody
from quarry_mq.pipeline.stream.source_options import Use, source_options
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests.certificates import make_tls
from tests.client.fake_rocketmq import FakeRocketMQ, record_of
from tests.e2e.broker import Broker, environment_of
from tests.e2e.conftest import QUICK, StartBroker
from tests.pipeline.streams import Row, batch, latest, rows_between, send, stream
from tests.pipeline.test_kafka_options import send_with_everything

SENT: Final = [f"m{number:03}" for number in range(100)]
NOBODY: Final = "127.0.0.1:9"


class Served(NamedTuple):
    broker: Broker
    names: str

    def options(self, **more: Any) -> dict[str, Any]:
        return {"endpoints": None, "nameServers": self.names, **more}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("remoting")
    names, own = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {**QUICK, "remoting.listen": own, "remoting.names_listen": names}
    broker = Broker(root / "store", logs=root / "logs", environment=environment_of(settings))
    try:
        broker.start()
        for topic, queues in (("orders", 2), ("kafka", 1)):
            broker.administer("topic", "create", topic, "--queues", str(queues))
        send(broker, *SENT)
        send_with_everything(broker)
        yield Served(broker, names)
    finally:
        broker.close()


def bodies(rows: list[Row]) -> list[str]:
    return sorted(bytes(row["body"]).decode() for row in rows)


# -- beside gRPC


@pytest.mark.parametrize("options", [{}, {"columns": "kafka"}, {"columns": "body,queueOffset", "timestamps": "millis"}])
def test_rows_are_those_that_grpc_gives(served: Served, options: dict[str, str]) -> None:
    for topic in ("kafka", "orders"):
        expected = batch(served.broker, topic, **options)
        assert batch(served.broker, topic, **served.options(**options)) == expected
        assert expected


def test_positions_and_limits_are_those_of_any_live_broker(served: Served) -> None:
    def read(**options: Any) -> list[str]:
        return bodies(batch(served.broker, None, **served.options(**options)))

    first, second = (
        [bytes(row["body"]).decode() for row in batch(served.broker, None, assign=json.dumps({"orders": [number]}))]
        for number in (0, 1)
    )
    assert read(assign='{"orders": ["quarry/1"]}') == sorted(second)
    offsets = {"startingOffsets": '{"orders": {"0": 10, "1": -2}}', "endingOffsets": '{"orders": {"0": 20, "1": 0}}'}
    assert read(subscribe="orders", **offsets) == sorted(first[10:20])
    times = batch(served.broker, None, assign='{"orders": [0]}')
    middle = times[20]["storeTimestamp"].isoformat()
    later = [row for row in batch(served.broker) if row["storeTimestamp"] >= times[20]["storeTimestamp"]]
    assert read(subscribe="orders", startingTimestamp=middle) == bodies(later)
    assert read(subscribe="orders", minPartitions=7) == SENT


def test_a_stream_has_each_message_once_and_finds_topics_by_a_pattern(served: Served) -> None:
    options = served.options(maxOffsetsPerTrigger=30, maxRecordsPerPartition=7)
    reader = stream(served.broker, **options, subscribePattern="or.*s|new[0-9]+", subscribe=None)
    offset, found = reader.initialOffset(), []
    by_grpc = stream(served.broker)
    assert by_grpc.initialOffset() == offset, "a checkpoint is good for both"
    by_grpc.stop()
    limit = reader.getDefaultReadLimit()
    while (end := latest(reader, offset, limit)) != offset:
        found += rows_between(reader, offset, end)
        assert rows_between(reader, offset, end) == found[-30:][-len(rows_between(reader, offset, end)) :]
        offset = end
    assert bodies(found) == SENT
    assert reader.reportLatestOffset() == offset
    served.broker.administer("topic", "create", "new1", "--queues", "1")
    send(served.broker, "later", topic="new1")
    end = latest(reader, offset)
    assert bodies(rows_between(reader, offset, end)) == ["later"]
    served.broker.administer("topic", "delete", "--yes", "new1")
    assert latest(reader, end) == end
    reader.stop()


def test_reading_makes_neither_group_nor_topic(served: Served) -> None:
    batch(served.broker, **served.options())
    with pytest.raises(RemotingFailed, match="topic ghost: it does not exist, or all its brokers are away"):
        batch(served.broker, "ghost", **served.options())
    assert served.broker.administer("group", "list", "--json") == ""
    assert "ghost" not in served.broker.administer("topic", "list", "--json")


def test_spark_reads_through_name_servers(served: Served, spark: SparkSession, tmp_path: Path) -> None:
    options = {"nameServers": f"{NOBODY};{served.names}", "subscribe": "orders", "startingOffsets": "earliest"}
    table = spark.read.format("quarry").options(**options).load()
    assert table.selectExpr("count(distinct uniqKey)").first()[0] == len(SENT)  # type: ignore[index]
    frame = spark.readStream.format("quarry").options(**options).option("columns", "kafka").load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination(120)
    rows = spark.read.parquet(str(tmp_path / "rows")).selectExpr("cast(value as string) as text").collect()
    assert sorted(row["text"] for row in rows) == SENT


# -- several addresses


def test_endpoints_are_tried_in_turn_and_an_error_names_all(served: Served) -> None:
    assert bodies(batch(served.broker, endpoints=f"{NOBODY},{served.broker.endpoint}")) == SENT
    with pytest.raises(BrokerUnreachable, match=r"127.0.0.1:9: .*; 127.0.0.1:10: .* \(after 100 ms\)"):
        batch(served.broker, endpoints=f"{NOBODY}, 127.0.0.1:10", timeoutMs=100)
    client = Connection(endpoint=f"{NOBODY},{served.broker.endpoint}").client()
    assert client.queues("orders") == [0, 1], "the sink's client, too"
    client.close()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"nameServers": "h:1", "endpoints": "h:1"}, "option 'nameServers': 'endpoints' is given, too"),
        ({"nameServers": "h:1;here"}, "option 'nameServers': 'here' is not host:port"),
        ({"endpoints": "h:1,"}, "option 'endpoints': '' is not host:port"),
        ({"nameServers": "h:1", "adminEndpoint": "h:2"}, "option 'adminEndpoint': name servers list the topics"),
        ({"namesrvAddr": "h:1"}, "option 'namesrvAddr': this source has 'nameServers' for it"),
        ({"nameServer": "h:1"}, r"option 'nameServer': no such option \(did you mean 'nameServers'\?\)"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        source_options({"subscribe": "orders", **options})
    with pytest.raises(InvalidOption, match="option 'subscribe'"):
        QuarryDataSource({"nameServers": "h:1"}).schema()


def test_the_group_is_one_that_every_rocketmq_has() -> None:
    def group(**options: str) -> str:
        return source_options({"subscribe": "orders", **options}, Use.BATCH).group

    assert group(nameServers="h:1") == "TOOLS_CONSUMER"
    assert group(nameServers="h:1", group="mine") == "mine"
    assert group(endpoints="h:1") == "quarry-spark"


# -- what brokers of RocketMQ may do


def read(fake: FakeRocketMQ, **options: Any) -> list[Row]:
    return batch(None, **{"nameServers": fake.address, "timeoutMs": 2_000, **options})


def numbers(rows: list[Row]) -> list[int]:
    return [int(row["queueOffset"]) for row in rows]


def test_many_messages_come_in_order_and_a_task_ends_where_it_should() -> None:
    with FakeRocketMQ(10_000) as fake:
        rows = read(fake, columns="queueOffset,body", maxRecordsPerPartition=4_321)
        assert [(row["queueOffset"], bytes(row["body"])) for row in rows] == [(n, b"%d" % n) for n in range(10_000)]
        assert numbers(read(fake, subscribe=None, subscribePattern=".*")) == list(range(10_000)), "users' topics alone"


def test_brokers_may_have_different_numbers_of_queues() -> None:
    with FakeRocketMQ(10) as fake:
        queue = {"writeQueueNums": 8, "perm": 6, "topicSysFlag": 0}
        counts = {"broker-a": 2, "broker-b": 1}
        fake.more = {
            "queueDatas": [{**queue, "brokerName": name, "readQueueNums": count} for name, count in counts.items()]
        }
        reader = stream(None, nameServers=fake.address)
        assert reader.initialOffset() == {"orders": {"broker-a/0": 0, "broker-a/1": 0, "broker-b/0": 0}}
        reader.stop()


def test_expired_messages_are_a_loss_and_gaps_are_not() -> None:
    with FakeRocketMQ(100, missing=range(40, 60)) as fake:
        assert numbers(read(fake)) == [*range(40), *range(60, 100)]
        assert numbers(read(fake, endingOffsets='{"orders": {"0": 50}}')) == list(range(40))
        fake.minimum = 10
        begin = {"startingOffsets": '{"orders": {"0": 0}}'}
        complaint = r"queue broker-a/0: offsets \[0, 100\) are to be read, but the queue holds \[10, 100\)"
        with pytest.raises(MessagesLost, match=complaint):
            read(fake, **begin)
        with capture_logs() as logs:
            rows = read(fake, **begin, failOnDataLoss="false")
        assert numbers(rows) == [*range(10, 40), *range(60, 100)]
        assert len(logs) == 1
        with pytest.raises(MessagesLost, match=r"offsets \[100, 120\) are to be read, but the queue holds \[10, 100\)"):
            read(fake, endingOffsets='{"orders": {"0": 120}}')


def test_a_file_of_the_log_that_is_gone_before_its_queue_knows_is_a_loss() -> None:
    with FakeRocketMQ(100, missing=range(30)) as fake:
        with pytest.raises(MessagesLost, match=r"offsets \[0, 30\) are to be read, but the queue holds \[30, 100\)"):
            read(fake)
        with capture_logs() as logs:
            assert numbers(read(fake, failOnDataLoss="false")) == list(range(30, 100))
        assert len(logs) == 1


BORN: Final = {"BORN_TIMESTAMP": "1700000000000"}
PLAIN: Final = b"plain " * 100


@pytest.mark.parametrize(
    ("record", "encoding", "body"),
    [
        (record_of(0, body=zlib.compress(PLAIN), system_flag=0x301), "IDENTITY", PLAIN),
        (record_of(0, body=zlib.compress(PLAIN), system_flag=0x001), "IDENTITY", PLAIN),
        (record_of(0, body=lz4.frame.compress(PLAIN), system_flag=0x101), "IDENTITY", PLAIN),
        (record_of(0, body=gzip.compress(PLAIN), system_flag=0x001, properties=BORN), "GZIP", None),
        (record_of(0, body=b"no", system_flag=0x301), "ZLIB", None),
        (record_of(0, body=b"no", system_flag=0x701), "UNKNOWN", None),
        (record_of(0, body=b""), "IDENTITY", b""),
    ],
)
def test_bodies_are_uncompressed_as_clients_of_rocketmq_do_it(record: bytes, encoding: str, body: bytes | None) -> None:
    with FakeRocketMQ(2) as fake:
        fake.records[0] = record
        row, other = read(fake)
        assert row["bodyEncoding"] == encoding
        if body is not None:
            assert bytes(row["body"]) == body
        if encoding in ("IDENTITY", "GZIP"):
            assert bytes(read(fake, columns="kafka")[0]["value"]) == (PLAIN if body is None else body)
        else:
            with pytest.raises(UnreadableBody, match=r"topic orders, queue broker-a/0, offset 0: marked as compressed"):
                read(fake, columns="kafka")
        assert (bytes(other["body"]), other["bodyEncoding"]) == (b"1", "IDENTITY")


def test_properties_are_those_of_the_sender() -> None:
    properties = {"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "ID", "größe": "ß", "WAIT": "true", "__SHARDINGKEY": "g"}
    with FakeRocketMQ(2) as fake:
        fake.records[0] = record_of(0, properties=properties)
        fake.records[1] = record_of(1, properties={})
        first, second = read(fake)
        assert (first["tags"], first["keys"], first["uniqKey"], first["messageGroup"]) == ("a", "k1 k2", "ID", "g")
        assert (first["broker"], first["properties"]) == ("broker-a", [("größe", "ß")])
        assert (second["tags"], second["keys"], second["messageGroup"], second["properties"]) == (None, None, None, [])
        assert second["uniqKey"] == "7F00000100002A9F0000000000000514", "the id that RocketMQ's clients make"


def test_a_record_that_cannot_be_read_is_named() -> None:
    with FakeRocketMQ(10) as fake:
        damaged = bytearray(record_of(4))
        damaged[88] ^= 1
        fake.records[4] = bytes(damaged)
        with pytest.raises(UnreadableBody, match=r"queue broker-a/0 after offset 3: .* cannot be read: .*CRC"):
            read(fake)
        fake.records[4] = record_of(4, system_flag=0xC0)
        with pytest.raises(
            UnreadableBody, match=r"queue broker-a/0, offset 4: it is a batch that consumers take apart"
        ):
            read(fake)


def test_a_query_waits_for_a_broker_that_restarts() -> None:
    with FakeRocketMQ(100) as fake:
        reader = stream(None, nameServers=fake.address, timeoutMs=10_000)
        start = reader.initialOffset()
        fake.is_away = True
        back = threading.Timer(0.5, setattr, (fake, "is_away", False))
        back.start()
        end = latest(reader, start)
        back.join()
        assert numbers(rows_between(reader, start, end)) == list(range(100))
        reader.stop()
        fake.is_away = True
        with pytest.raises(RemotingFailed, match="topic orders: it does not exist, or all its brokers are away"):
            read(fake)


# -- security


@pytest.mark.slow
def test_name_servers_and_brokers_that_speak_tls(start_broker: StartBroker, tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    names, own = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {**tls.settings(), "remoting.listen": own, "remoting.names_listen": names}
    broker = start_broker(settings=settings)
    broker.administer("topic", "create", "orders", "--queues", "1")
    secure: dict[str, Any] = {"tls": "true", "tlsCa": tls.authority_path}
    send_over(broker, "a", tls.authority_path)
    assert bodies(batch(None, nameServers=names, **secure)) == ["a"]
    with pytest.raises(BrokerUnreachable, match=f"topic orders: {names}: .*certificate"):
        batch(None, nameServers=names, tls="true", timeoutMs=200)


def send_over(broker: Broker, body: str, authority: Path) -> None:
    message = definition.Message(body=body.encode())
    message.topic.name = "orders"
    message.system_properties.message_id = "ID-1"
    client = Connection(endpoint=broker.endpoint, tls=True, ca=authority).client()
    client.send([message])
    client.close()
