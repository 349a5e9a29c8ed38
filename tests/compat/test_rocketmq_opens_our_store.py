"""A store written by Quarry opens in Apache RocketMQ 5.5.0: every queue, unit and message equal.

The expectation is derived here from the records of the commit log, by the rules of docs/formats/consume-queue.md,
not from Quarry's own queues.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests import golden
from tests.compat.rocketmq_store import Place, StoreDump, Unit, open_in_rocketmq
from tests.conftest import GoldenStore
from tests.e2e.broker import quarry
from tests.e2e.clients import Outgoing
from tests.e2e.conftest import StartBroker, StartClients

GOLDEN_SEGMENT_SIZE: Final = 1 << 20
TRANSACTION_BITS: Final = 0xC
PREPARED_OR_ROLLED_BACK: Final = (0x4, 0xC)
DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
WITHOUT_LIGHT_QUEUES: Final = ("%RETRY%", "rmq_sys_", DELAY_TOPIC)
"""Topics whose records only carry the light queue names of their originals along."""
FIELDS: Final = (
    "topic",
    "queueId",
    "queueOffset",
    "phyOffset",
    "storeSize",
    "flag",
    "sysFlag",
    "bornTimestamp",
    "bornHost",
    "storeTimestamp",
    "storeHost",
    "bodyCRC",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "bodyLength",
    "bodySha1",
    "properties",
)

pytestmark = pytest.mark.slow


def messages() -> list[Outgoing]:
    """Several topics, tags in and out of ASCII, light queues, bodies of one byte to 100 kB."""
    sent = []
    for number in range(240):
        properties = {"région": "Ürümqi", "n": str(number)} if number % 3 else {}
        if number % 5 == 0:
            lights = [f"%LMQ%inbox-{number % 4}", f"%LMQ%all-{number % 2}"]
            properties["INNER_MULTI_DISPATCH"] = ",".join(lights)
        sent.append(
            Outgoing(
                topic=f"acme-{number % 3}",
                body=b"x" * (1 if number % 50 == 0 else number * number % 100_000 + 1),
                tag=[None, "paid", "支付", "Aa", "BB"][number % 5],  # "Aa" and "BB" have the same hash
                keys=(f"key-{number}", "shared") if number % 2 else (),
                properties=properties,
            )
        )
    return sent


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 units, 32 bits, signed."""
    units = text.encode("utf-16-be")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[index : index + 2])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def records(store: Path) -> list[dict[str, Any]]:
    done = quarry("decode", str(store), "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line for line in lines if "blank" not in line]


def places(record: dict[str, Any]) -> Iterator[Place]:
    """The queue of the record itself, and the light queues it names."""
    if record["sysFlag"] & TRANSACTION_BITS in PREPARED_OR_ROLLED_BACK:
        return
    yield Place(record["topic"], record["queueId"], record["queueOffset"])
    properties = record["properties"]
    if "INNER_MULTI_QUEUE_OFFSET" in properties and not record["topic"].startswith(WITHOUT_LIGHT_QUEUES):
        names = properties["INNER_MULTI_DISPATCH"].split(",")
        for name, offset in zip(names, properties["INNER_MULTI_QUEUE_OFFSET"].split(","), strict=True):
            yield Place(name, 0, int(offset))


def unit(record: dict[str, Any]) -> Unit:
    tag = record["properties"].get("TAGS", "")
    return Unit(record["phyOffset"], record["storeSize"], java_hash(tag), record["storeTimestamp"])


def assert_equal(dump: StoreDump, found: list[dict[str, Any]], *, ignored: frozenset[str] = frozenset()) -> None:
    """RocketMQ's view is exactly what the records say. `ignored` names queues that are compared elsewhere."""
    wanted: dict[Place, dict[str, Any]] = {}
    for record in found:
        for place in places(record):
            if place.topic not in ignored:
                wanted[place] = record
    units = {place: each for place, each in dump.units.items() if place.topic not in ignored}
    assert units.keys() == wanted.keys()
    for place, record in wanted.items():
        expected = unit(record)
        if place.topic == DELAY_TOPIC:  # its units hold the delivery time in place of the tag's hash
            expected = expected._replace(tags_code=units[place].tags_code)
        assert units[place] == expected, place
        message = dump.messages[place]
        assert message is not None, place
        assert {name: message[name] for name in FIELDS} == {name: record[name] for name in FIELDS}, place
    bounds: dict[tuple[str, int], tuple[int, int]] = {}
    for place in wanted:
        queue = (place.topic, place.queue_id)
        first, last = bounds.get(queue, (place.offset, place.offset))
        bounds[queue] = min(first, place.offset), max(last, place.offset)
    assert {queue: (first, last + 1) for queue, (first, last) in bounds.items()} == {
        queue: each for queue, each in dump.queues.items() if queue[0] not in ignored
    }
    assert [place for place in dump.holes if place.topic not in ignored] == []


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_new_store(end: str, tmp_path: Path, start_broker: StartBroker, start_clients: StartClients) -> None:
    broker = start_broker()
    sent = messages()
    clients = start_clients("python", broker.endpoint)
    clients.producer().send(sent)
    clients.close()
    getattr(broker, end)()

    found = records(broker.store)
    dump = open_in_rocketmq(broker.store, tmp_path)

    assert Counter(record["bodyLength"] for record in found) == Counter(len(each.body) for each in sent)
    assert Counter(record["properties"].get("TAGS") for record in found) == Counter(each.tag for each in sent)
    assert {record["topic"] for record in found} == {each.topic for each in sent}
    assert_equal(dump, found)
    assert dump.max_physical_offset >= found[-1]["phyOffset"] + found[-1]["storeSize"]
    assert any(place.topic.startswith("%LMQ%") for place in dump.units)
    newest = found[-1]
    assert dump.checkpoint_flushed_ms <= newest["storeTimestamp"]
    assert dump.checkpoint_confirmed_up_to <= newest["phyOffset"] + newest["storeSize"]
    if end == "stop":
        assert dump.checkpoint_flushed_ms == newest["storeTimestamp"]


@pytest.mark.parametrize("queues", ["kept", "made by RocketMQ"])
def test_a_store_with_replaced_records(
    queues: str, tmp_path: Path, start_broker: StartBroker, start_clients: StartClients
) -> None:
    """RocketMQ reads over what an operator gave up, makes no entries of it, and hands out everything else."""
    broker = start_broker()
    clients = start_clients("python", broker.endpoint)
    clients.producer().send(messages())
    clients.close()
    broker.stop()
    before = records(broker.store)
    # the last of their queues: a queue with holes, made by RocketMQ, begins behind them
    last_of = {(record["topic"], record["queueId"]): record for record in before}
    damaged = [record for record in last_of.values() if "INNER_MULTI_DISPATCH" not in record["properties"]]
    assert len(damaged) > 2
    (segment,) = (path for path in (broker.store / "commitlog").iterdir() if path.is_file())
    with segment.open("r+b") as file:
        for record in damaged:
            file.seek(record["phyOffset"] + 100)
            file.write(b"\xff\xff\xff")
    assert quarry("recover", str(broker.store), "--replace-damaged").returncode == 1
    if queues == "made by RocketMQ":
        shutil.rmtree(broker.store / "consumequeue_rocksdb")
        (broker.store / "abort").touch()

    found = [record for record in records(broker.store) if record["topic"] != "~"]
    dump = open_in_rocketmq(broker.store, tmp_path)

    gone = {record["phyOffset"] for record in damaged}
    assert found == [record for record in before if record["phyOffset"] not in gone]
    if queues == "kept":
        to_gone = {place: unit for place, unit in dump.units.items() if unit.physical_offset in gone}
        assert len(to_gone) == len(gone)
        assert {(dump.messages[place] or {"topic": "~"})["topic"] for place in to_gone} == {"~"}
        rest = {place: unit for place, unit in dump.units.items() if place not in to_gone}
        assert {unit.physical_offset for unit in rest.values()} == {record["phyOffset"] for record in found}
    else:
        assert_equal(dump, found)
    assert dump.max_physical_offset >= before[-1]["phyOffset"] + before[-1]["storeSize"]


def doubled_light_queues(found: list[dict[str, Any]]) -> frozenset[str]:
    """Light queues that a message names twice: RocketMQ numbers them with holes, so their units are its own affair."""
    doubled = set()
    for record in found:
        names = Counter(record["properties"].get("INNER_MULTI_DISPATCH", "").split(","))
        doubled |= {name for name, count in names.items() if count > 1}
    return frozenset(doubled)


@pytest.mark.parametrize("name", ["file-clean", "rocks-clean"])
def test_a_store_that_rocketmq_began_and_quarry_continued(
    name: str,
    tmp_path: Path,
    golden_copy: GoldenStore,
    start_broker: StartBroker,
    start_clients: StartClients,
) -> None:
    store = golden_copy(name) / "store"
    before = len([line for line in golden.records(store.parent) if "blank" not in line])
    broker = start_broker(store=store, settings={"store.segment_size": GOLDEN_SEGMENT_SIZE})
    sent = messages()
    clients = start_clients("python", broker.endpoint)
    clients.producer().send(sent)
    clients.close()
    broker.stop()

    found = records(store)
    dump = open_in_rocketmq(store, tmp_path)

    assert len(found) == before + len(sent)
    assert_equal(dump, found, ignored=doubled_light_queues(found))


def test_the_comparison_holds_for_a_store_that_only_rocketmq_wrote(tmp_path: Path, golden_store: GoldenStore) -> None:
    """The rules above are RocketMQ's, not ours."""
    folder = golden_store("rocks-clean")
    found = [line for line in golden.records(folder) if "blank" not in line]

    dump = open_in_rocketmq(folder / "store", tmp_path)

    assert_equal(dump, found, ignored=doubled_light_queues(found))
