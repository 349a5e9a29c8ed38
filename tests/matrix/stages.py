"""Stages for features: one broker, Quarry or Apache RocketMQ, and clients of each language."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bench.peers.rocketmq import RocketMQ
from quarry_mq.cli.demo import free_ports
from quarry_mq.store.settings import Durability
from tests.certificates import make_tls
from tests.e2e.broker import Broker, environment_of
from tests.e2e.clients import ClientError, Clients, Language
from tests.matrix.features import FEATURES, UNSUPPORTED, Feature, Stage, dead_letter_topic, reader_of

QUICK: Final = {
    "store.segment_size": 16 * 1024 * 1024,
    "delivery.polling_min_ms": 100,
    "delivery.polling_max_ms": 4000,
    "delivery.new_group_start": "earliest",
    "transactions.check_after_ms": 1000,
    "transactions.check_interval_ms": 1000,
}
"""No gigabyte is preallocated for a few messages, and nobody waits longer than necessary."""

ROCKETMQ_QUICK: Final = {
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "enablePropertyFilter": "true",
    "enableCalcFilterBitMap": "true",
    "recallMessageEnable": "true",
}
ROCKETMQ_PROXY: Final = {"grpcClientConsumerMinLongPollingTimeoutMillis": 500, "minInvisibleTimeMillsForRecv": 1000}
"""It refuses receives whose client waits for less, or that hide messages for less."""
ROCKETMQ_STARTS_S: Final = 20
"""It listens before it serves."""


@dataclass(frozen=True)
class Outcome:
    """The end of a feature: None for what the library does not have."""

    works: bool | None
    detail: str = ""


class Server(Protocol):
    """A broker that features are played on."""

    def place(self, *, tls: bool) -> tuple[str, Path | None]:
        """Return the address that clients connect to, and the authority that they have to trust."""

    def make(self, name: str, feature: Feature) -> None:
        """Make the topic, and the group of the same name."""

    def restart(self) -> None: ...


class Stages:
    """Plays features on one server."""

    def __init__(self, server: Server, home: Path) -> None:
        self._server = server
        self._home = home

    def play(self, feature: str, language: Language, *, tls: bool) -> None:
        """Raises what the feature raises."""
        name = stage_name(feature, language.name, tls=tls)
        endpoint, authority = self._server.place(tls=tls)
        self._server.make(name, FEATURES[feature])
        clients = Clients(language, endpoint, self._home / name, tls_authority=authority)
        try:
            FEATURES[feature].play(Stage(clients, name, name, self._server.restart))
        except BaseException:
            clients.kill()
            raise
        clients.close()

    def outcome(self, feature: str, language: Language, *, tls: bool) -> Outcome:
        try:
            self.play(feature, language, tls=tls)
        except ClientError as error:
            return Outcome(None if error.kind == UNSUPPORTED else False, str(error))
        except (AssertionError, TimeoutError) as error:
            return Outcome(False, str(error))
        return Outcome(True)


def stage_name(feature: str, language: str, *, tls: bool) -> str:
    """Of topic and group."""
    return re.sub(r"[^a-z]+", "-", feature.lower()) + f"-{language}" + ("-tls" if tls else "")


class _Quarry:
    def __init__(self, broker: Broker, tls_endpoint: str, tls_authority: Path) -> None:
        self._broker = broker
        self._tls = tls_endpoint, tls_authority

    def place(self, *, tls: bool) -> tuple[str, Path | None]:
        return self._tls if tls else (self._broker.endpoint, None)

    def make(self, name: str, feature: Feature) -> None:
        queues = str(feature.queues)
        self._broker.administer("topic", "create", name, "--type", feature.topic_type, "--queues", queues)
        options = ["--fifo"] if feature.is_fifo else []
        if feature.is_lite:
            options += ["--lite-parent", name]
        if feature.max_attempts is not None:
            options += ["--max-attempts", str(feature.max_attempts)]
        if feature.retry_delay_s is not None:
            options += ["--retry-delays", str(feature.retry_delay_s)]
        self._broker.administer("group", "create", name, *options)

    def restart(self) -> None:
        self._broker.restart()


@contextmanager
def open_stages(folder: Path) -> Iterator[Stages]:
    """Run the features on Quarry, with and without TLS."""
    tls, (port,) = make_tls(folder), free_ports(1)
    tls_endpoint = f"127.0.0.1:{port}"
    settings = {
        **QUICK,
        "network.tls_listen": tls_endpoint,
        "network.tls_certificate": tls.files.certificate,
        "network.tls_key": tls.files.key,
    }
    broker = Broker(folder / "store", logs=folder / "broker", environment=environment_of(settings))
    broker.start()
    try:
        yield Stages(_Quarry(broker, tls_endpoint, tls.authority_path), folder / "homes")
        broker.stop()
    finally:
        broker.close()


class _RocketMQ:
    """Topics and groups of all stages are there from the start."""

    def __init__(self, server: RocketMQ, start: Callable[[], None]) -> None:
        self._server = server
        self._start = start

    def place(self, *, tls: bool) -> tuple[str, Path | None]:
        assert not tls, "RocketMQ is played on without TLS"
        return self._server.endpoint, None

    def make(self, name: str, feature: Feature) -> None:
        pass

    def restart(self) -> None:
        self._server.close()
        self._start()


@contextmanager
def open_rocketmq_stages(folder: Path, languages: Sequence[str]) -> Iterator[Stages]:
    """Run the features on Apache RocketMQ, for these languages and without TLS."""
    folder.mkdir(parents=True)
    store = folder / "store"
    server = RocketMQ(
        folder / "rocketmq",
        Durability.SYNC,
        topic="unused",
        queues=1,
        groups=(),
        store=store,
        properties=ROCKETMQ_QUICK,
        proxy_properties=ROCKETMQ_PROXY,
    )
    stages = {stage_name(name, language, tls=False): FEATURES[name] for name in FEATURES for language in languages}
    _write_tables(store / "config", stages)

    def start() -> None:
        server.start()
        time.sleep(ROCKETMQ_STARTS_S)

    start()
    try:
        yield Stages(_RocketMQ(server, start), folder / "homes")
    finally:
        server.close()


def _write_tables(directory: Path, stages: dict[str, Feature]) -> None:
    """Topics and groups as RocketMQ stores them; also those for dead letters, which it makes unreadable."""
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    topics: dict[str, object] = {}
    groups: dict[str, object] = {}
    for name, feature in stages.items():
        topics[name] = _topic(name, feature.queues, feature.topic_type)
        topics[dead_letter_topic(name)] = _topic(dead_letter_topic(name), 1, "normal")
        groups[name] = _group(name, feature)
        groups[reader_of(name)] = _group(reader_of(name), Feature(feature.play))
    for file, table, rows in (
        ("topics.json", "topicConfigTable", topics),
        ("subscriptionGroup.json", "subscriptionGroupTable", groups),
    ):
        (directory / file).write_text(json.dumps({"dataVersion": version, table: rows}))


def _topic(name: str, queues: int, kind: str) -> dict[str, object]:
    attributes = {"message.type": kind.upper()}
    return {
        "topicName": name,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "attributes": attributes,
    }


def _group(name: str, feature: Feature) -> dict[str, object]:
    group: dict[str, object] = {"groupName": name, "consumeMessageOrderly": feature.is_fifo}
    if feature.is_lite:
        group["attributes"] = {"lite.bind.topic": name}
    if feature.max_attempts is not None:
        group["retryMaxTimes"] = feature.max_attempts - 1
    if feature.retry_delay_s is not None:
        group["groupRetryPolicy"] = {
            "type": "CUSTOMIZED",
            "customizedRetryPolicy": {"next": [feature.retry_delay_s * 1000]},
        }
    return group
