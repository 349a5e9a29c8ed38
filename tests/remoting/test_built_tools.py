"""RocketMQ's exporter and dashboard, built from their sources without a change, beside one broker with traffic."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from quarry_mq.cli.demo import free_ports
from tests.e2e.broker import DELIVERED_TIMEOUT_S, DISK_OF_THE_TESTS, Broker, environment_of, until
from tests.e2e.languages import checkout, installed, need, run
from tests.remoting.test_java_clients import remoting_classes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

EXPORTER: Final = ("rocketmq-exporter", "rocketmq-exporter-0.0.2")
DASHBOARD: Final = ("rocketmq-dashboard", "rocketmq-dashboard-2.1.0")

PATIENCE_S: Final = 20.0
"""Seconds until a page of the dashboard shows what was done."""

NEVER: Final = {
    "rocketmq_broker_commitlog_diff": "no broker has a slave",
    "rocketmq_group_consume_total_offset": "the exporter never sets it",
    "rocketmq_group_consume_tps": "the exporter never sets it",
    "rocketmq_group_dlqdiff": "the exporter asks for no groups of dead letter topics",
}
"""Metrics of the exporter without a value, and why."""

COUNTED: Final = (
    "rocketmq_producer_tps", "rocketmq_producer_message_size", "rocketmq_producer_offset", "rocketmq_producer_count",
    "rocketmq_consumer_tps", "rocketmq_consumer_message_size", "rocketmq_consumer_offset", "rocketmq_group_count",
    "rocketmq_broker_tps", "rocketmq_broker_qps", "rocketmq_send_back_nums", "rocketmq_topic_dlq_offset",
    "rocketmq_topic_retry_offset", "rocketmq_client_consume_ok_msg_tps", "rocketmq_client_consumer_pull_tps",
    "rocketmq_brokeruntime_putmessage_times_total", "rocketmq_brokeruntime_put_message_size_total",
    "rocketmq_brokeruntime_put_message_average_size", "rocketmq_brokeruntime_msg_put_total_today_now",
    "rocketmq_brokeruntime_msg_gettotal_today_now", "rocketmq_brokeruntime_commitlog_maxoffset",
    "rocketmq_brokeruntime_commitlog_disk_ratio", "rocketmq_brokeruntime_put_tps10",
    "rocketmq_brokeruntime_gettransfered_tps10", "rocketmq_brokeruntime_earliest_message_timestamp",
)  # fmt: skip
"""Metrics that are above 0 where messages are sent, consumed and retried."""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server address of a broker whose topic `traffic` has traffic."""
    directory = tmp_path_factory.mktemp("built")
    address, own = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {"remoting.listen": own, "remoting.names_listen": address, "index.hash_files": True}
    environment = {**DISK_OF_THE_TESTS, **environment_of(settings)}
    class_path = remoting_classes("5.5.0", tmp_path_factory)
    broker = Broker(directory / "store", logs=directory / "logs", environment=environment)
    broker.start()
    try:
        options = ("-Drocketmq.client.logUseSlf4j=true", "-XX:TieredStopAtLevel=1", "-cp", class_path)
        with java(directory / "traffic.out", *options, "Traffic", address) as said:
            wait_for(lambda: "started" in said(), "the first message", said)
            yield address
        broker.assert_no_stack_trace()
    finally:
        broker.close()


@contextmanager
def java(output: Path, *words: str | Path) -> Iterator[Callable[[], str]]:
    """Run a program until the test ends. Yields what returns its output so far."""
    with output.open("wb") as file:
        process = subprocess.Popen(["java", "-Xmx256m", *words], stdout=file, stderr=subprocess.STDOUT)
    try:
        yield lambda: output.read_text(errors="replace")
    finally:
        process.kill()
        process.wait(30)


def wait_for(condition: Callable[[], bool], what: str, said: Callable[[], str]) -> None:
    try:
        until(condition, what, timeout_s=DELIVERED_TIMEOUT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{said()[-4_000:]}") from None


def built(repository: str, tag: str) -> tuple[Path, Path]:
    """The sources of a program, and its jar, which Maven builds of them."""
    need("java", "mvn")
    source = checkout(repository, tag)

    def install(folder: Path) -> None:
        skipped = (
            "maven.test.skip",
            "checkstyle.skip",
            "rat.skip",
            "skip.installnodenpm",
            "skip.npm",
            "maven.antrun.skip",
        )
        options = [f"-D{each}=true" for each in skipped]
        run(["mvn", "-q", "-B", *options, "package"], directory=source)
        jars = sorted((source / "target").glob("*.jar"), key=lambda path: path.stat().st_size)
        jars[-1].rename(folder / "program.jar")

    return source, installed(f"{tag}-built", install) / "program.jar"


def got(url: str, body: object = None, headers: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return what a page answers; nothing while nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read().decode()}"
    except OSError:
        return ""


def test_every_metric_of_the_exporter_has_a_value(names: str, tmp_path: Path) -> None:
    source, jar = built(*EXPORTER)
    collector = next(source.rglob("RMQMetricsCollector.java")).read_text()
    known = set(re.findall(r'"(rocketmq_\w+)"', collector))
    port, grpc_port = free_ports(2)
    tasks = ("TopicOffset", "Producer", "ConsumerOffset", "BrokerStatsTopic", "BrokerStats", "BrokerRuntimeStats")
    options = [
        f"--rocketmq.config.namesrvAddr={names}",
        f"--server.port={port}",
        f"--grpc.server.port={grpc_port}",
        *(f"--task.collect{task}.cron=0/5 * * * * ?" for task in tasks),
    ]

    def values() -> Mapping[str, float]:
        text = got(f"http://127.0.0.1:{port}/metrics")
        rows = re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE)
        largest: dict[str, float] = {}
        for name, value in rows:
            largest[name] = max(largest.get(name, 0.0), float(value))
        return largest

    with java(tmp_path / "exporter.out", "-jar", jar, *options) as said:
        wanted = known - set(NEVER)
        wait_for(
            lambda: wanted <= set(found := values()) and all(found[each] > 0 for each in COUNTED),
            "every metric",
            lambda: f"{wanted - set(values())} {[each for each in COUNTED if not values().get(each)]}\n{said()}",
        )
        assert not set(values()) & set(NEVER)


GROUP: Final = "traffic-readers"
SINCE: Final = {"pageNum": 1, "pageSize": 5, "taskId": "", "begin": 0, "end": 4_000_000_000_000}
MADE: Final = {"clusterNameList": ["DefaultCluster"], "brokerNameList": ["quarry"]}
RESET: Final = {"consumerGroupList": ["made-group"], "topic": "made", "force": True}

PAGES: Final[tuple[tuple[str, object, str], ...]] = (
    ("cluster/list.query", None, '"brokerVersionDesc":"V5_5_0"'),
    ("cluster/brokerConfig.query?brokerAddr=BROKER", None, '"brokerName":"quarry"'),
    ("topic/list.query", None, '"traffic"'),
    ("topic/list.queryTopicType", None, '"UNSPECIFIED"'),
    ("topic/stats.query?topic=traffic", None, '"maxOffset":'),
    ("topic/route.query?topic=traffic", None, '"readQueueNums":8'),
    ("topic/queryConsumerByTopic.query?topic=traffic", None, f'"{GROUP}"'),
    ("topic/queryTopicConsumerInfo.query?topic=traffic", None, f'"{GROUP}"'),
    ("topic/createOrUpdate.do", {**MADE, "topicName": "made", "writeQueueNums": 4, "readQueueNums": 4, "perm": 6,
                                 "order": False, "messageType": "NORMAL"}, '"data":true'),
    ("topic/examineTopicConfig.query?topic=made", None, '"writeQueueNums":4'),
    ("topic/sendTopicMessage.do", {"topic": "made", "key": "k", "tag": "t", "messageBody": "hello"}, '"SEND_OK"'),
    ("consumer/createOrUpdate.do",
     {**MADE, "subscriptionGroupConfig": {"groupName": "made-group", "retryMaxTimes": 5}}, '"data":true'),
    ("consumer/examineSubscriptionGroupConfig.query?consumerGroup=made-group", None, '"retryMaxTimes":5'),
    ("consumer/resetOffset.do", {**RESET, "resetTime": 0}, '"status":true'),
    ("consumer/skipAccumulate.do", {**RESET, "resetTime": -1}, '"status":true'),
    ("consumer/groupList.query", None, f'"group":"{GROUP}"'),
    (f"consumer/group.query?consumerGroup={GROUP}", None, '"messageModel":"CLUSTERING"'),
    (f"consumer/queryTopicByConsumer.query?consumerGroup={GROUP}&address=BROKER", None, '"topic":"traffic"'),
    (f"consumer/consumerConnection.query?consumerGroup={GROUP}&address=BROKER", None, '"clientId":"'),
    (f"consumer/fetchBrokerNameList.query?consumerGroup={GROUP}", None, '["quarry"]'),
    (f"consumer/consumerRunningInfo.query?consumerGroup={GROUP}&clientId=CLIENT&jstack=true", None, '"mqTable"'),
    ("producer/producerConnection.query?producerGroup=traffic-producers&topic=traffic", None, '"clientId":"'),
    ("message/queryMessagePageByTopic.query", {**SINCE, "topic": "traffic"}, '"topic":"traffic"'),
    ("message/queryMessageByTopic.query?topic=traffic&begin=0&end=4000000000000", None, '"topic":"traffic"'),
    ("message/queryMessageByTopicAndKey.query?topic=traffic&key=key-0", None, '"msgId":"'),
    ("message/viewMessage.query?topic=traffic&msgId=MESSAGE", None, '"messageBody":"the first message"'),
    (f"message/consumeMessageDirectly.do?topic=traffic&consumerGroup={GROUP}&msgId=MESSAGE&clientId=CLIENT", {},
     '"CR_SUCCESS"'),
    ("messageTrace/viewMessage.query?topic=traffic&msgId=MESSAGE", None, '"messageBody":"the first message"'),
    ("messageTrace/viewMessageTraceDetail.query?msgId=MESSAGE", None, '"traceType":"SubAfter"'),
    ("messageTrace/viewMessageTraceGraph.query?msgId=MESSAGE", None, '"groupName":"traffic-producers"'),
    ("dlqMessage/queryDlqMessageByConsumerGroup.query", {**SINCE, "topic": "%DLQ%traffic-consumers"}, '"msgId":"'),
    ("ops/homePage.query", None, '"namesvrAddrList"'),
    ("ops/rocketMqStatus.query", None, '"CLUSTER_HEALTH_CHECK"'),
    ("consumer/deleteSubGroup.do", {"groupName": "made-group", "brokerNameList": ["quarry"]}, '"data":true'),
    ("topic/deleteTopic.do?topic=made", {}, '"data":true'),
)  # fmt: skip
"""The table holds what the pages of the dashboard ask for, and a part of each answer. Words in capitals are looked up
before.
"""


def test_the_pages_of_the_dashboard(names: str, tmp_path: Path) -> None:
    _, jar = built(*DASHBOARD)
    (port,) = free_ports(1)
    options = [
        f"--server.port={port}",
        f"--rocketmq.config.namesrvAddrs[0]={names}",
        "--rocketmq.config.isVIPChannel=false",
        f"--rocketmq.config.dataPath={tmp_path}",
    ]
    base = f"http://127.0.0.1:{port}/"
    with java(tmp_path / "dashboard.out", "-jar", jar, *options) as said:
        wait_for(lambda: '"traffic"' in got(base + "topic/list.query"), "the dashboard", said)
        token = re.search(r'"token":"([^"]+)"', got(base + "rocketmq-dashboard/csrf-token"))
        headers = {} if token is None else {"X-XSRF-TOKEN": token[1], "Cookie": f"XSRF-TOKEN={token[1]}"}
        words: dict[str, str] = {}
        for word, path, pattern in (
            ("BROKER", "cluster/list.query", r'"brokerAddrs":\{"0":"([^"]+)"'),
            ("MESSAGE", "message/queryMessageByTopicAndKey.query?topic=traffic&key=key-0", r'"msgId":"([^"]+)"'),
            (
                "CLIENT",
                f"consumer/consumerConnection.query?consumerGroup={GROUP}&address=BROKER",
                r'"clientId":"([^"]+)"',
            ),
        ):
            found = re.search(pattern, got(base + path.replace("BROKER", words.get("BROKER", ""))))
            assert found is not None, path
            words[word] = found[1]

        def answer(path: str, body: object) -> str:
            for word, text in words.items():
                path = path.replace(word, urllib.parse.quote(text))
            return got(base + path, body, headers)

        wrong = []
        for path, body, part in PAGES:
            text = answer(path, body)
            until_s = time.monotonic() + PATIENCE_S
            while ".query" in path and part not in text and time.monotonic() < until_s:
                text = answer(path, body)  # what clients do comes to the pages a little later
            if part not in text or '"status":0' not in text:
                wrong.append(f"--- {path}\n{text[:1_000]}")
        assert not wrong, "\n".join(wrong)
        # it collects these once a minute
        wait_for(lambda: '"traffic,' in got(base + "dashboard/topicCurrent.query"), "statistics", said)
        for page in ("dashboard/broker.query", "dashboard/topic.query"):
            address = f"{base}{page}?date={date.today():%Y-%m-%d}"
            wait_for(lambda: '":["' in got(address), page, said)  # noqa: B023 - `wait_for` calls it at once
