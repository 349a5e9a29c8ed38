"""The shipped alert rules in a real Prometheus, which scrapes real brokers with a fault each, and one without.

Prometheus is that of a package of Debian, unpacked into the cache (`tests/e2e/debian.py`), or is on the path. So that
nobody waits for an hour, times in the rules are 60 times shorter here: see `shortened`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
import trustme
import yaml
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests.breakages.test_breakages import flip
from tests.conformance.client import Client, consumer_settings, message, producer_settings
from tests.deploy.test_alert_rules import PLANTED, alerts, rules
from tests.e2e.broker import DISK_OF_THE_TESTS, Broker
from tests.e2e.debian import unpacked

SHORTER: Final = 60
LIMITS: Final = {
    "QuarryLagGrows": ("> 600000", "> 10000"),
    "QuarryGroupStuck": ("> 600000", "> 10000"),
    "QuarryDelayedLate": ("> 60000", "> 1000"),
    "QuarryLagUnknown": ("> 600", "> 10"),
}
"""Ages in the expressions of rules, and what they are here."""

FOR_LEAST_S: Final = 5
"""The rule allows for it: one slow scrape on a busy machine is no fault."""

FIRING_TIMEOUT_S: Final = 240.0
QUICK: Final[Mapping[str, object]] = {
    "store.segment_size": "16MiB",
    "metrics.lag_interval_ms": 500,
    "metrics.lag_limit_ms": 1_000,
    "delivery.new_group_start": "earliest",
    "delivery.polling_min_ms": 0,
    "delivery.invisible_time_min_ms": 100,
    "expiry.refuse_percent": 100,
    "expiry.force": False,
}

IN_REAL_BROKERS: Final[Mapping[str, str]] = {
    "QuarryDown": "away",
    "QuarryNotReady": "late",
    "QuarrySendsRefused": "full",
    "QuarryLoopLate": "late",
    "QuarryExpiredUnread": "expires",
    "QuarryDamageMet": "damaged",
    "QuarryLagGrows": "consumers",
    "QuarryGroupStuck": "consumers",
    "QuarryDeadLettersWaiting": "consumers",
    "QuarryDeadLetters": "consumers",
    "QuarryDelayedLate": "full",
    "QuarryLagUnknown": "late",
    "QuarryConcern": "certificate",
    "QuarryRestarts": "restarts",
}
"""The rules whose fault is planted in a real broker, and in which of them."""

CONCERNS: Final = {
    ("full", "sends-refused"),
    ("damaged", "damage-met"),
    ("damaged", "queue-blocked"),
    ("consumers", "group-without-consumer"),
    ("consumers", "dead-letters"),
    ("certificate", "certificate"),
}
"""The brokers and kinds for which QuarryConcern has to fire."""

WITH_PROMTOOL_ONLY: Final[Mapping[str, str]] = {
    "QuarrySendsFail": "the disk has to fail",
    "QuarryLoopSilent": "the event loop has to hang for seconds while the HTTP port answers: a disk that hangs",
    "QuarrySlowSends": "the disk has to be slow",
    "QuarryDiskFills": "the disk of the tests has to be full above 85 %",
    "QuarryFlushSlow": "the disk has to be slow",
    "QuarryDispatchBehind": "64 MiB have to wait for a database that takes no writes",
    "QuarryRocksdbStalls": "RocksDB has to be overloaded for ten minutes",
    "QuarryRocksdbErrors": "a flush of RocksDB has to fail, which poisons the store",
    "QuarryIndexBehind": "a GiB has to wait for the index",
    "QuarryQueuesDiffer": "a defect of the migration",
    "QuarryReplicaAway": "two brokers have to be copies of one store, as in tests/replicas",
    "QuarryReplicaBehind": "a copy has to be slow",
    "QuarryFilesRunOut": "a broker keeps clients from using up its descriptors",
}
"""The rules that `test_alert_rules.py` alone tries, with series that are made up, and why."""

OF_THE_MACHINE: Final = {"QuarryLoopLate", "QuarrySlowSends", "QuarryFlushSlow", "QuarryDiskFills"}
"""These alerts may fire on a healthy broker if the machine of the tests is slow or full, and are right then."""


def test_each_rule_is_tried_in_a_real_broker_or_says_why_not() -> None:
    assert sorted([*IN_REAL_BROKERS, *WITH_PROMTOOL_ONLY]) == sorted(PLANTED)
    assert all(WITH_PROMTOOL_ONLY.values())


def test_shortening_changes_nothing_but_times() -> None:
    before = {each["alert"]: each for each in alerts()}
    for group in shortened()["groups"]:
        for rule in group["rules"]:
            old = before[rule["alert"]]
            assert {**rule, "expr": "", "for": ""} == {**old, "expr": "", "for": ""}
            limit = LIMITS.get(rule["alert"], ("", ""))
            expression = re.sub(r"\[(\d+)s\]", r"[\1m]", rule["expr"])
            assert expression.replace(limit[1], limit[0]) == old["expr"]


def shortened() -> dict[str, Any]:
    """The shipped rules with times that are 60 times shorter: `for` (but `FOR_LEAST_S`), the windows of ranges, and
    `LIMITS`.
    """
    changed = rules()
    for group in changed["groups"]:
        for rule in group["rules"]:
            old, new = LIMITS.get(rule["alert"], ("", ""))
            assert old in rule["expr"], rule["alert"]
            rule["expr"] = re.sub(r"\[(\d+)m\]", r"[\1s]", rule["expr"].replace(old, new))
            if "for" in rule:
                number, unit = re.fullmatch(r"(\d+)([ms])", rule["for"]).groups()  # type: ignore[union-attr]
                seconds = int(number) * (60 if unit == "m" else 1)
                rule["for"] = f"{max(FOR_LEAST_S, seconds // SHORTER)}s"
    return changed


class Prometheus:
    """A Prometheus with the shortened rules. Brokers have the label `instance` by their names here."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._address = f"127.0.0.1:{free_ports(1)[0]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, brokers: Mapping[str, Broker]) -> None:
        program = shutil.which("prometheus") or unpacked("prometheus") / "usr" / "bin" / "prometheus"
        targets = [{"targets": [each.http], "labels": {"instance": name}} for name, each in brokers.items()]
        settings = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "quarry", "static_configs": targets}],
        }
        (self._directory / "rules.yaml").write_text(yaml.safe_dump(shortened()))
        (self._directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
        with (self._directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={self._directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._directory / 'data'}",
                    f"--web.listen-address={self._address}",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def firing(self) -> set[tuple[str, str, str]]:
        """Alert, broker, and kind of the concern of all that fire now."""
        try:
            found = self._get("alerts")["alerts"]
        except (urllib.error.URLError, ConnectionError):
            return set()  # it has not started yet
        return {_key(each["labels"]) for each in found if each["state"] == "firing"}

    def ever_fired(self) -> set[tuple[str, str, str]]:
        query = urllib.parse.quote('max_over_time(ALERTS{alertstate="firing"}[1h])')
        return {_key(each["metric"]) for each in self._get(f"query?query={query}")["result"]}

    def samples(self, metric: str, broker: str) -> int:
        query = urllib.parse.quote(f'count_over_time({metric}{{instance="{broker}"}}[1h])')
        return sum(int(each["value"][1]) for each in self._get(f"query?query={query}")["result"])

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]


def _key(labels: Mapping[str, str]) -> tuple[str, str, str]:
    return labels["alertname"], labels["instance"], labels.get("kind", "")


class Scene:
    """The brokers of the test, by name, and what goes on in them until `is_over`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.is_over = Event()
        self.brokers = {
            name: Broker(directory / name / "store", logs=directory / name / "logs", environment=DISK_OF_THE_TESTS)
            for name in ("healthy", *dict.fromkeys(IN_REAL_BROKERS.values()))
        }
        self.settings = {name: {**QUICK, **SETTINGS.get(name, {})} for name in self.brokers}
        self.prometheus = Prometheus(directory / "prometheus")
        self.expected = {(alert, name, "") for alert, name in IN_REAL_BROKERS.items() if alert != "QuarryConcern"}
        self.expected |= {("QuarryConcern", name, kind) for name, kind in CONCERNS}
        self.fired: set[tuple[str, str, str]] = set()

    def start(self, name: str, **settings: object) -> Broker:
        return self.brokers[name].start(settings={**self.settings[name], **settings})

    def goes_on(self, name: str, *alerts: str) -> bool:
        """Whether one of these alerts of the broker, or any that is expected, has not fired yet."""
        left = self.expected - self.fired
        return not self.is_over.is_set() and any(
            broker == name and (not alerts or alert in alerts) for alert, broker, _ in left
        )

    def close(self) -> None:
        self.is_over.set()
        self.prometheus.close()
        for each in self.brokers.values():
            each.close()


LOW: Final[Mapping[str, object]] = {"expiry.force_percent": 1, "expiry.clean_percent": 1}
SETTINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "late": {"metrics.lag_interval_ms": 3_600_000, "network.drain_delay_ms": 25_000},
    "full": LOW,
    "expires": {**LOW, "store.segment_size": "1MiB", "expiry.force": True},
}


@asynccontextmanager
async def client_of(scene: Scene, name: str, group: str, *topics: str) -> AsyncIterator[Client]:
    """A client that sends to all these topics, and is a consumer of them."""
    broker = scene.brokers[name]
    for topic in topics:
        await asyncio.to_thread(broker.administer, "topic", "create", topic, "--queues", "1")
    await asyncio.to_thread(broker.administer, "group", "create", group, "--max-attempts", "1")
    async with Client(broker.endpoint) as client, Client(broker.endpoint) as producer:
        await producer.declare(producer_settings(*topics))
        await client.declare(consumer_settings(group, *topics, kind=definition.PUSH_CONSUMER))
        yield client


async def all_is_well(scene: Scene) -> None:
    async with client_of(scene, "healthy", "billing", "orders") as client:
        while not scene.is_over.is_set():
            await client.sent(message("orders"))
            received = await client.receive("billing", "orders", count=8, polling_s=1)
            await client.ack("billing", "orders", *received.handles)
            await asyncio.sleep(0.1)


async def groups_do_not_keep_up(scene: Scene) -> None:
    """Plant three faults: one group reads nothing, one falls behind more and more, and one has dead letters."""
    scene.start("consumers")
    async with client_of(scene, "consumers", "stuck", "quiet") as client:
        await client.receive("stuck", "quiet", count=1)
        await client.sent(message("quiet"))
    async with client_of(scene, "consumers", "slow", "busy", "bad") as client:
        while scene.goes_on("consumers"):
            await client.sent(message("busy"))
            await client.sent(message("bad"))
            await client.receive("slow", "bad", count=1, polling_s=1, invisible_s=0.1)
            await asyncio.sleep(0.5)


async def a_record_is_damaged(scene: Scene) -> None:
    broker = scene.start("damaged")
    async with client_of(scene, "damaged", "billing", "orders") as client:
        await client.sent(message("orders", b"to be damaged"))
        flip(broker.store / "commitlog", b"to be damaged")
        while scene.goes_on("damaged"):
            await client.receive("billing", "orders", count=1, polling_s=0.5)
            await asyncio.sleep(0.5)


async def the_disk_is_full(scene: Scene) -> None:
    """A delayed message is due when sends are refused."""
    broker = scene.start("full")
    async with client_of(scene, "full", "billing") as client:
        broker.administer("topic", "create", "later", "--type", "delay")
        await client.declare(producer_settings("later"))
        due = Timestamp()
        due.FromDatetime(datetime.now(UTC) + timedelta(seconds=30))
        await client.sent(message("later", message_type=definition.DELAY, delivery_timestamp=due))
        broker.administer("settings", "set", "expiry.refuse_percent", "1")


async def messages_expire_unread(scene: Scene) -> None:
    broker = scene.start("expires")
    async with client_of(scene, "expires", "billing", "orders") as client:
        await client.receive("billing", "orders", count=1)
        for _ in range(16):
            await client.sent(message("orders", bytes(500_000)))
        while scene.goes_on("expires"):  # the metric counts from its first scrape on
            broker.administer("expire", "--yes")
            await client.sent(*[message("orders", bytes(500_000)) for _ in range(4)])
            await asyncio.sleep(2)


async def a_certificate_has_expired(scene: Scene) -> None:
    certificate, key = scene.directory / "server.pem", scene.directory / "server.key"
    issued = trustme.CA().issue_cert("127.0.0.1", not_after=datetime.now(UTC) - timedelta(days=1))
    certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    issued.private_key_pem.write_to_path(key)
    key.chmod(0o600)
    names = {"network.tls": "optional", "network.tls_certificate": certificate, "network.tls_key": key}
    scene.start("certificate", **names)


async def the_process_is_starved(scene: Scene) -> None:
    """Stop a broker again and again, as on a machine that has other things to do; later it drains."""
    broker = scene.start("late")
    while scene.goes_on("late", "QuarryLoopLate"):
        broker.signal(signal.SIGSTOP)
        await asyncio.sleep(1.0)
        broker.signal(signal.SIGCONT)
        await asyncio.sleep(0.6)
    while scene.goes_on("late", "QuarryLagUnknown"):
        await asyncio.sleep(0.5)
    broker.signal(signal.SIGTERM)


async def it_restarts_again_and_again(scene: Scene) -> None:
    broker = scene.start("restarts")
    while scene.goes_on("restarts"):
        await asyncio.sleep(2)  # Prometheus sees each start
        broker.kill()
        scene.start("restarts")
    broker.kill()


async def it_is_away(scene: Scene) -> None:
    broker = scene.start("away")
    await asyncio.sleep(4)
    broker.kill()


FAULTS: Final = (
    all_is_well,
    groups_do_not_keep_up,
    a_record_is_damaged,
    the_disk_is_full,
    messages_expire_unread,
    a_certificate_has_expired,
    the_process_is_starved,
    it_restarts_again_and_again,
    it_is_away,
)


@pytest.mark.slow
@pytest.mark.timeout(FIRING_TIMEOUT_S + 120)
def test_each_rule_fires_on_its_fault_in_a_real_broker_and_on_no_healthy_one(tmp_path: Path) -> None:
    used = shutil.disk_usage(tmp_path)
    if used.used / used.total < 0.02:
        pytest.skip("the disk is emptier than the smallest threshold")
    scene = Scene(tmp_path)
    with ThreadPoolExecutor(len(FAULTS)) as pool, closing(scene):
        scene.start("healthy")  # before Prometheus, which would find it away
        scene.prometheus.start(scene.brokers)
        running = [pool.submit(asyncio.run, each(scene)) for each in FAULTS]
        deadline = time.monotonic() + FIRING_TIMEOUT_S
        while not scene.expected <= scene.fired and time.monotonic() < deadline:
            for each in running:
                if each.done():
                    each.result()
            scene.fired |= scene.prometheus.firing()
            time.sleep(0.5)
        assert scene.expected - scene.fired == set()
        assert scene.prometheus.samples("quarry_ready", "healthy") > 15, "it was watched for a while"
        unfounded = {each for each in scene.prometheus.ever_fired() if each[1] == "healthy"}
        assert {alert for alert, _, _ in unfounded} <= OF_THE_MACHINE
        scene.is_over.set()
        for each in running:
            each.result(timeout=60)
