"""Stores written by Apache RocketMQ 5.5.0, served to an official client from the first message on.

What must come is taken from RocketMQ's own reading of the store (`messages.jsonl`) and, for bodies that the
sender compressed, from the commit log itself, read here without any code of Quarry.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from tests import golden
from tests.conftest import GoldenStore
from tests.e2e.clients import Delivery, SimpleConsumer
from tests.e2e.conftest import StartBroker, StartClients

SEGMENT_SIZE: Final = 1 << 20
COMPRESSED: Final = 0x1
IPV6_BORN_HOST: Final = 0x10
IPV6_STORE_HOST: Final = 0x20
SENDERS_PROPERTIES: Final = frozenset({"INNER_MULTI_DISPATCH", "région", "trace", "xx"})
"""All that the program which filled these stores set; every other property is RocketMQ's own."""

Content = tuple[str, str, str, str | None, tuple[str, ...], tuple[tuple[str, str], ...]]


def is_normal(topic: str) -> bool:
    return topic.startswith("acme")


def stored_body(store: Path, record: dict[str, Any]) -> bytes:
    """The body of a record as the commit log holds it (docs/formats/commit-log.md)."""
    base = record["phyOffset"] // SEGMENT_SIZE * SEGMENT_SIZE
    with (store / "commitlog" / f"{base:020d}").open("rb") as segment:
        segment.seek(record["phyOffset"] - base)
        data = segment.read(record["storeSize"])
    hosts = sum(16 if record["sysFlag"] & flag else 4 for flag in (IPV6_BORN_HOST, IPV6_STORE_HOST))
    # size, magic, body CRC, queue, flag: 4 each; queue offset, physical offset: 8 each; system flag: 4;
    # born time 8 and host with port, store time 8 and host with port, reconsume times 4, prepared offset 8
    start = 5 * 4 + 2 * 8 + 4 + 8 + 8 + hosts + 2 * 4 + 4 + 8
    (length,) = struct.unpack_from(">i", data, start)
    body = data[start + 4 : start + 4 + length]
    assert hashlib.sha1(body).hexdigest() == record["bodySha1"], record
    return body


def wanted_content(store: Path, record: dict[str, Any]) -> Content:
    properties = record["properties"]
    body = stored_body(store, record)
    if record["sysFlag"] & COMPRESSED:
        body = zlib.decompress(body)
    return (
        record["topic"],
        properties["UNIQ_KEY"],
        hashlib.sha1(body).hexdigest(),
        properties.get("TAGS"),
        tuple(sorted(set(properties.get("KEYS", "").split()))),
        tuple(sorted((name, properties[name]) for name in SENDERS_PROPERTIES & properties.keys())),
    )


def content(delivery: Delivery) -> Content:
    return (
        delivery.topic,
        delivery.message_id,
        hashlib.sha1(delivery.body).hexdigest(),
        delivery.tag,
        delivery.keys,
        tuple(sorted(delivery.properties.items())),
    )


def read_all(consumer: SimpleConsumer, wanted: int) -> list[Delivery]:
    """All messages of the topic, and one receive more to see that nothing follows."""
    deliveries = consumer.receive_until(wanted, invisible_s=600, timeout_s=100)
    return deliveries + consumer.receive(invisible_s=600)


@pytest.mark.slow
@pytest.mark.parametrize("name", golden.NAMES)
def test_an_official_client_reads_every_message_of_the_normal_topics(
    name: str,
    golden_copy: GoldenStore,
    start_broker: StartBroker,
    start_clients: StartClients,
) -> None:
    """Changing the store type left old messages unconsumable in RocketMQ: rmq#8600."""
    folder = golden_copy(name)
    wanted: dict[str, Counter[Content]] = {}
    for record in golden.records(folder):
        if "blank" not in record and is_normal(record["topic"]):
            wanted.setdefault(record["topic"], Counter())[wanted_content(folder / "store", record)] += 1
    assert len(wanted) > 4
    broker = start_broker(store=folder / "store", settings={"store.segment_size": SEGMENT_SIZE})
    clients = start_clients("python", broker.endpoint)

    consumers = [clients.simple_consumer(topic, group="new-readers", await_s=1) for topic in wanted]
    with ThreadPoolExecutor(len(wanted)) as threads:
        counts = [messages.total() for messages in wanted.values()]
        found = dict(zip(wanted, threads.map(read_all, consumers, counts), strict=True))

    for topic, messages in wanted.items():
        came = Counter(map(content, found[topic]))
        assert came == messages, f"{topic}: missing {messages - came}, not expected {came - messages}"
    clients.close()
    broker.stop()
