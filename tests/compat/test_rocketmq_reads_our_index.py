"""Index files written by Quarry are read by Apache RocketMQ 5.5.0: the same messages by the same keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from quarry_mq.store.index.keys import keys_of
from tests import golden
from tests.compat.rocketmq_store import keys_in_rocketmq
from tests.conftest import GoldenStore
from tests.e2e.broker import quarry, until
from tests.e2e.clients import Outgoing
from tests.e2e.conftest import StartBroker, StartClients

SLOTS: Final = 400
ITEMS: Final = 300
SETTINGS: Final = {
    "index.hash_files": "true",
    "index.hash_slots": SLOTS,
    "index.hash_items": ITEMS,
    "store.segment_size": 1 << 20,
}
FOUND_MAX: Final = 64
"""RocketMQ gives no more at once."""

pytestmark = pytest.mark.slow

Found = dict[tuple[str, str], list[int]]


def by_key(lines: list[dict[str, Any]]) -> Found:
    """Where the messages of each topic and key lie, in log order."""
    found: Found = {}
    for line in lines:
        for key in dict.fromkeys(keys_of(line.get("properties", {}))):
            found.setdefault((line["topic"], key), []).append(line["phyOffset"])
    return found


def records_of(store: Path) -> list[dict[str, Any]]:
    done = quarry("decode", str(store), "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(store: Path, scratch: Path, slots: int, items: int) -> None:
    wanted = by_key(records_of(store))
    assert len(wanted) > ITEMS, "more than one file is full of them"
    found = keys_in_rocketmq(store, scratch, list(wanted), slots=slots, items=items)
    for key, offsets in wanted.items():
        assert set(offsets[-FOUND_MAX:]) <= set(found[key]), f"{key}"


def test_of_a_store_of_our_own(start_broker: StartBroker, start_clients: StartClients, tmp_path: Path) -> None:
    broker = start_broker(settings=SETTINGS)
    for topic in ("orders", "bills"):
        broker.administer("topic", "create", topic)
    clients = start_clients("python", broker.endpoint)
    producer = clients.producer("orders", "bills")
    for number in range(400):
        producer.send(
            [Outgoing(("orders", "bills")[number % 2], b"%d" % number, keys=(f"k{number}", f"m{number % 7}"))]
        )
    done = quarry("query", "--admin", broker.admin, "--topic", "orders", "--key", "m2", "--json")
    assert done.returncode == 0, done.stderr
    live = [json.loads(line)["phyOffset"] for line in done.stdout.splitlines()]
    until(lambda: len(list((broker.store / "index").iterdir())) > 2, "the index goes from file to file")
    broker.stop()
    assert live == list(reversed(by_key(records_of(broker.store))["orders", "m2"]))[:32]
    check(broker.store, tmp_path, SLOTS, ITEMS)


@pytest.mark.parametrize("name", ["rocks-clean", "double-clean"])
def test_of_a_store_of_rocketmq_that_we_went_on_with(
    golden_copy: GoldenStore, name: str, start_broker: StartBroker, start_clients: StartClients, tmp_path: Path
) -> None:
    store = golden_copy(name) / "store"
    theirs = [line for line in golden.records(store.parent) if "blank" not in line]
    broker = start_broker(store=store, settings={"index.hash_files": "true"})
    broker.administer("topic", "create", "ours")
    producer = start_clients("python", broker.endpoint).producer("ours")
    for number in range(50):
        producer.send([Outgoing("ours", b"%d" % number, keys=(f"k{number}",))])
    broker.stop()
    assert len(records_of(store)) >= len(theirs) + 50
    check(store, tmp_path, 5_000, 20_000)
