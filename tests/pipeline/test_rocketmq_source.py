"""The source beside a real RocketMQ 4.9 and 5.x: what its own consumer gets is what Spark gets."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from bench.peers.rocketmq import RocketMQ
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.errors import BrokerUnreachable
from quarry_mq.client.remoting import RemotingClient, RemotingFailed
from quarry_mq.client.remoting_queues import TOOLS_GROUP, RemotingQueues
from quarry_mq.pipeline.stream.options import MessagesLost
from quarry_mq.protocol.remoting.codes import RequestCode
from quarry_mq.store.settings import Durability
from tests.e2e.broker import until
from tests.following.test_live_rocketmq import RocketMQ4
from tests.following.test_live_users import SECRET, USER, WithoutFront, with_users
from tests.pipeline.streams import Row, batch, latest, rows_between, stream
from tests.remoting.client import ask, send_fields
from tests.remoting.test_fleet import TOPIC, knows_topic
from tests.remoting.test_java_clients import played, remoting_classes

__all__ = ["with_users"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SENT: Final = 400
QUEUES: Final = 4
KINDS: Final = {
    "4.9.7 file": (RocketMQ4, "default"),
    "5.5.0 file": (WithoutFront, "default"),
    "5.5.0 rocksdb": (WithoutFront, "defaultRocksDB"),
}
EVERY_HOUR: Final = ";".join(f"{hour:02}" for hour in range(24))


@pytest.fixture(scope="module", params=KINDS)
def rocketmq(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    kind, store_type = KINDS[request.param]
    made = kind(
        tmp_path_factory.mktemp("real") / "rocketmq",
        Durability.ASYNC,
        topic=TOPIC,
        queues=QUEUES,
        groups=["fleet"],
        properties={
            "mappedFileSizeCommitLog": 1 << 20,
            "storeType": store_type,
            "deleteWhen": EVERY_HOUR,
            "autoCreateTopicEnable": "false",
            "autoCreateSubscriptionGroup": "false",
        },
    )
    try:
        made.start()
        until(lambda: knows_topic(made.names), "the broker has registered", timeout_s=90)
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def registered(request: pytest.FixtureRequest) -> None:
    """Wait until name servers know the broker again, which an earlier test may have restarted."""
    if "rocketmq" in request.fixturenames:
        names = request.getfixturevalue("rocketmq").names
        until(lambda: knows_topic(names), "the broker has registered", timeout_s=90)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return remoting_classes("4.9.8", tmp_path_factory)


def send(rocketmq: RocketMQ, classes: str, first: int, last: int) -> None:
    played(rocketmq.names, classes, TOPIC, "mixed-send", options=[f"-Dfirst={first}", f"-Dlast={last}"])


def consumed(rocketmq: RocketMQ, classes: str, *login: str) -> set[tuple[str, ...]]:
    """Return what RocketMQ's own client gets of each message."""
    lines = played(rocketmq.names, classes, TOPIC, "rows", *login).splitlines()
    return {tuple(line.split("\t")[1:]) for line in lines if line.startswith("row\t")}


def as_consumed(row: Row) -> tuple[str, ...]:
    """Return the row in the form of `consumed`."""
    return (
        row["broker"], str(row["queueId"]), str(row["queueOffset"]), row["uniqKey"], str(row["storeTimestamp"]),
        str(row["bornTimestamp"]), str(zlib.crc32(row["body"])), str(row["tags"]).replace("None", "null"),
        str(row["keys"]).replace("None", "null"), dict(row["properties"]).get("colour", "null"),
    )  # fmt: skip


def read(rocketmq: RocketMQ, **options: Any) -> list[Row]:
    return batch(None, **{"nameServers": rocketmq.names, "timestamps": "millis", **options})


def test_a_table_has_what_rocketmqs_own_consumer_gets(rocketmq: RocketMQ, classes: str) -> None:
    send(rocketmq, classes, 0, SENT)
    expected = consumed(rocketmq, classes)
    rows = read(rocketmq)
    assert {as_consumed(row) for row in rows} == expected
    assert len(rows) == len(expected) > SENT
    assert {row["bodyEncoding"] for row in rows} == {"IDENTITY"}
    kafka = batch(None, nameServers=rocketmq.names, columns="kafka")
    assert [bytes(row["value"]) for row in kafka] == [bytes(row["body"]) for row in rows]
    assert read(rocketmq, maxRecordsPerPartition=17) == rows
    assert read(rocketmq, subscribe=None, subscribePattern="ord.*") == rows

    middle_ms = sorted(row["storeTimestamp"] for row in rows)[SENT // 2]
    for time_ms in (middle_ms, middle_ms + 1):
        later = [row for row in rows if row["storeTimestamp"] >= time_ms]
        assert read(rocketmq, startingTimestamp=time_ms) == later
        earlier = [row for row in rows if row["storeTimestamp"] < time_ms]
        assert read(rocketmq, endingTimestamp=time_ms) == earlier
    assert read(rocketmq, endingTimestamp=middle_ms * 2) == rows


def test_reading_commits_nothing(rocketmq: RocketMQ) -> None:
    client = RemotingClient("127.0.0.1", rocketmq.broker_port)
    offsets, groups = (
        client.call(code).body.decode()
        for code in (RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_GROUP_CONFIG)
    )
    client.close()
    assert TOOLS_GROUP in groups, "it was there before"
    committed, _, _pulled = offsets.partition('"pullOffsetTable"')
    assert TOOLS_GROUP not in committed, "RocketMQ 5 notes the last pull of every group"
    assert "quarry" not in groups + offsets
    with pytest.raises(RemotingFailed, match="topic ghost: it does not exist"):
        read(rocketmq, subscribe="ghost")
    with pytest.raises(RemotingFailed, match=r"topic orders, queue rocketmq/\d: .*group.* \(code 26\)"):
        read(rocketmq, group="nobody")


def test_a_stream_goes_on_while_the_broker_is_killed_and_restarts(
    rocketmq: RocketMQ, classes: str, spark: SparkSession, tmp_path: Path
) -> None:
    options = {"nameServers": rocketmq.names, "subscribe": TOPIC, "startingOffsets": "earliest"}
    send(rocketmq, classes, 0, SENT)
    before = len(read(rocketmq))
    frame = spark.readStream.format("quarry").options(**options, maxOffsetsPerTrigger="150").load()
    writer = frame.select("uniqKey").writeStream.format("memory").queryName("landed")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def landed() -> list[str]:
        assert query.isActive, query.exception()
        return sorted(row[0] for row in spark.table("landed").collect())

    try:
        until(lambda: bool(landed()), "the first batch has landed", timeout_s=120)
        os.kill(rocketmq.pid, signal.SIGKILL)
        time.sleep(2)  # name servers notice it, and forget the topic
        rocketmq.start_broker()
        until(lambda: knows_topic(rocketmq.names), "the broker has registered again", timeout_s=90)
        send(rocketmq, classes, SENT, SENT + 100)
        expected = sorted(row[3] for row in consumed(rocketmq, classes))
        until(lambda: len(landed()) >= len(expected), "all has landed", timeout_s=180)
        assert landed() == expected
    finally:
        query.stop()
    assert len(expected) > before


def test_a_task_goes_on_when_the_broker_restarts(rocketmq: RocketMQ) -> None:
    reader = stream(None, nameServers=rocketmq.names)
    start = reader.initialOffset()
    end = latest(reader, start)
    parts = reader.partitions(start, end)
    expected = rows_between(reader, start, end)
    os.kill(rocketmq.pid, signal.SIGKILL)
    back = threading.Timer(1, rocketmq.start_broker)
    back.start()
    try:
        assert [row for part in parts for some in reader.read(part) for row in some.to_pylist()] == expected
    finally:
        back.join()
        reader.stop()


def test_expired_messages_are_a_loss(rocketmq: RocketMQ, classes: str) -> None:
    broker = f"127.0.0.1:{rocketmq.broker_port}"
    bodies = [os.urandom(8_000) for _ in range(600)]
    ask(broker, *((310, send_fields(TOPIC, at % QUEUES), body) for at, body in enumerate(bodies)))
    reader = stream(None, nameServers=rocketmq.names)
    start = reader.initialOffset()
    end = latest(reader, start)

    def begins() -> dict[str, int]:
        fresh = stream(None, nameServers=rocketmq.names)
        offsets: dict[str, int] = fresh.initialOffset()["orders"]
        fresh.stop()
        return offsets

    ask(broker, (RequestCode.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=0\n"))
    until(lambda: min(begins().values()) > 0, "the first files have expired", timeout_s=200)
    ask(broker, (RequestCode.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=72\n"))
    with pytest.raises(MessagesLost, match=r"offsets \[0, \d+\) are to be read, but the queue holds \[[1-9]"):
        rows_between(reader, start, end)
    reader.stop()
    zero = json.dumps({"orders": {f"rocketmq/{number}": 0 for number in range(QUEUES)}})

    def left() -> list[Row]:
        return read(rocketmq, startingOffsets=zero, failOnDataLoss="false")

    # a deletion of files that has begun goes on
    until(lambda: {as_consumed(row) for row in left()} == consumed(rocketmq, classes), "the same is left for both")
    rows, first = left(), begins()
    for number in range(QUEUES):
        assert min(row["queueOffset"] for row in rows if row["queueId"] == number) == first[f"rocketmq/{number}"]


@pytest.mark.parametrize("rocketmq", ["4.9.7 file", "5.5.0 file"], indirect=True)
def test_a_slave_is_read_when_its_master_is_gone(rocketmq: RocketMQ, classes: str, tmp_path: Path) -> None:
    slave = slave_of(rocketmq, tmp_path / "slave")
    try:
        slave.start_broker()
        send(rocketmq, classes, 0, 100)
        expected = consumed(rocketmq, classes)
        until(lambda: ends_at(slave) == ends_at(rocketmq), "the slave has all messages", timeout_s=60)
        os.kill(rocketmq.pid, signal.SIGKILL)
        until(lambda: slave_alone(rocketmq, slave), "name servers know the slave alone", timeout_s=60)
        with pytest.raises(BrokerUnreachable, match=r"127.0.0.1:\d+: topic orders, queue rocketmq/0: .*system busy"):
            read(rocketmq, timeoutMs=500, failOnDataLoss="false")
        ask(f"127.0.0.1:{slave.broker_port}", (RequestCode.UPDATE_BROKER_CONFIG, {}, b"slaveReadEnable=true\n"))
        # a new slave begins with the last file of its master, which may have more
        first = list(map(int, offsets_at(slave, RequestCode.GET_MIN_OFFSET)))
        there = {row for row in expected if int(row[2]) >= first[int(row[1])]}
        assert {as_consumed(row) for row in read(rocketmq)} == there
        assert len(there) >= 100, "what was sent last"
    finally:
        slave.close()
        rocketmq.start_broker()


def slave_of(rocketmq: RocketMQ, directory: Path) -> RocketMQ:
    """Return a slave at the name server of a master, to be started."""
    made = type(rocketmq)(
        directory,
        Durability.ASYNC,
        topic=TOPIC,
        queues=QUEUES,
        groups=["fleet"],
        properties={
            "namesrvAddr": rocketmq.names,
            "brokerId": 1,
            "brokerRole": "SLAVE",
            "mappedFileSizeCommitLog": 1 << 20,
        },
    )
    made._front = made.broker_port
    for name in ("logback_broker.xml", "logback_namesrv.xml"):
        (directory / "conf" / name).write_text("<configuration/>")
    return made


def offsets_at(rocketmq: RocketMQ, code: RequestCode) -> list[str]:
    client = RemotingClient("127.0.0.1", rocketmq.broker_port)
    queues = [{"topic": TOPIC, "queueId": str(number)} for number in range(QUEUES)]
    found = [answer.fields["offset"] for answer in client.call_all(code, queues)]
    client.close()
    return found


def ends_at(rocketmq: RocketMQ) -> list[str]:
    return offsets_at(rocketmq, RequestCode.GET_MAX_OFFSET)


def slave_alone(rocketmq: RocketMQ, slave: RocketMQ) -> bool:
    with RemotingQueues([Endpoint(rocketmq.names)]) as queues:
        route = queues.routes([TOPIC]).get(TOPIC, [])
    return {queue.address for queue in route} == {f"127.0.0.1:{slave.broker_port}"}


def test_a_user_reads(with_users: RocketMQ, classes: str, tmp_path: Path) -> None:
    played(with_users.names, classes, TOPIC, "mixed-send", USER, SECRET, options=["-Dfirst=0", "-Dlast=40"])
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    login = {"user": USER, "secretFile": str(secret)}
    assert {as_consumed(row) for row in read(with_users, **login)} == consumed(with_users, classes, USER, SECRET)
    secret.write_text("wrong")
    for wrong in ({}, login):
        with pytest.raises((RemotingFailed, BrokerUnreachable), match="topic orders"):
            read(with_users, **wrong, timeoutMs=1_000)
