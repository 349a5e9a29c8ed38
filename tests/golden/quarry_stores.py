"""Stores that earlier versions of Quarry wrote, one for each layout that `quarry/` and what is derived have had.

Each `quarry-<layout>.tar.xz` unpacks to `store/` and `contents.json`, which says what was sent, received and
acknowledged. They are made once, from the commit that is named here, and never again:

    git worktree add --detach ../earlier COMMIT
    python -m tests.golden.quarry_stores ../earlier LAYOUT
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from tests.conformance.client import Client, message, resource

ARCHIVES: Final = Path(__file__).parent
SEGMENT_SIZE: Final = 16 << 20
TIMEOUT_S: Final = 30.0
INVISIBLE_S: Final = 15.0
"""So that whoever opens the store finds these messages to be handed out again."""
DELAY_S: Final = 20.0
"""Long enough for the broker to be ended before, so that whoever opens the store has to deliver them."""

NORMAL: Final = "orders"
FIFO: Final = "ledger"
DELAYED: Final = "reminders"
TRANSACTIONS: Final = "payments"
LIGHT: Final = "devices"
LIGHT_QUEUES: Final = "%LMQ%device-1,%LMQ%device-2"
GROUP: Final = "billing"
FIFO_GROUP: Final = "bookkeeping"


class Layout(NamedTuple):
    """Which version wrote a store, what was new in its layout, and how the broker ended."""

    commit: str
    what: str
    settings: Mapping[str, str] = MappingProxyType({})
    has_every_type: bool = False
    """Whether it takes more than normal messages."""
    ends_by_kill: bool = False
    has_old_index: bool = False
    """Files of its tiered index have no checksums where they have them now, and pass for damaged."""


DOUBLE: Final = {"QUARRY_CONSUME_QUEUE_MODE": "double_write"}
INDEXED: Final = {
    "QUARRY_INDEX_HASH_FILES": "true",
    "QUARRY_INDEX_HASH_SLOTS": "100",
    "QUARRY_INDEX_HASH_ITEMS": "1000",
    "QUARRY_INDEX_TIERED": "true",
    "QUARRY_INDEX_TIERED_SLOTS": "16",
    "QUARRY_INDEX_TIERED_ITEMS": "20",
}

LAYOUTS: Final[Mapping[str, Layout]] = {
    "quarry-1-first": Layout("d8a7f6a", "five families, rows up to `backfill_end`; no checkpoint"),
    "quarry-1-killed": Layout("d8a7f6a", "the same, ended by a kill", ends_by_kill=True),
    "quarry-2-checkpoint": Layout("fc5e848", "`seen_up_to`, `log_begin`, `checkpoint`, durable state"),
    "quarry-3-phases": Layout("8ef7bd7", "`queue_phase`, `light_floor`, rows of a migration; queues in both", DOUBLE),
    "quarry-4-expiry": Layout("c369eec", "`expired_*`; filters of tables in parts"),
    "quarry-5-held": Layout(
        "8666b74",
        "in-flight rows by time, `held_rocksdb/`, indexes of keys",
        INDEXED,
        has_every_type=True,
        has_old_index=True,
    ),
    "quarry-5-killed": Layout("8666b74", "the same, ended by a kill", INDEXED, has_every_type=True, ends_by_kill=True),
    "quarry-6-index": Layout(
        "7e00967",
        "index files say of which part of the log they are",
        INDEXED,
        has_every_type=True,
        has_old_index=True,
    ),
    "quarry-7-checksums": Layout("53135a5", "compacted index files have checksums", INDEXED, has_every_type=True),
}


@dataclass
class Contents:
    """What a store holds, by ids of messages. `bodies` are of all; the lists are of the groups' queues."""

    bodies: dict[str, str] = field(default_factory=dict)
    topics: dict[str, list[str]] = field(default_factory=dict)
    acknowledged: list[str] = field(default_factory=list)
    in_flight: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    fifo_acknowledged: list[str] = field(default_factory=list)
    fifo_left: list[str] = field(default_factory=list)
    delayed: list[str] = field(default_factory=list)
    transactions: dict[str, str] = field(default_factory=dict)
    """Half messages to their transactions' ids."""


def unpack(layout: str, destination: Path) -> Contents:
    """Unpack below `destination`: the store is in `destination/store` then."""
    with tarfile.open(ARCHIVES / f"{layout}.tar.xz", "r:xz") as archive:
        archive.extractall(destination, filter="data")
    return Contents(**json.loads((destination / "contents.json").read_text()))


class EarlierBroker:
    """`quarry serve` of another working tree."""

    def __init__(self, tree: Path, store: Path, settings: Mapping[str, str]) -> None:
        self._tree = tree
        messaging, admin, http = (f"127.0.0.1:{port}" for port in free_ports(3))
        self.endpoint = messaging
        self._admin = admin
        self._http = http
        self._settings = {**os.environ, "QUARRY_STORE_SEGMENT_SIZE": str(SEGMENT_SIZE), **settings}
        self._arguments = ["--store", str(store), "--listen", messaging, "--admin", admin, "--http", http]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "quarry_mq.cli.main", "serve", *self._arguments]
        self._process = subprocess.Popen(command, cwd=self._tree, env=self._settings)
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the broker of {self._tree} does not start")
            time.sleep(0.05)

    def end(self, *, kill: bool) -> None:
        assert self._process is not None
        (self._process.kill if kill else self._process.terminate)()
        self._process.wait(TIMEOUT_S)

    def administer(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "quarry_mq.cli.main", *arguments, "--admin", self._admin]
        subprocess.run(command, cwd=self._tree, check=True, timeout=TIMEOUT_S)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._http}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False


def make(tree: Path, name: str) -> None:
    """Have the version in `tree` write the store, and pack it."""
    layout = LAYOUTS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        broker = EarlierBroker(tree, folder / "store", layout.settings)
        contents = Contents()
        for work in (_first_run, _second_run):
            broker.start()
            try:
                asyncio.run(work(broker, layout, contents))
            finally:
                broker.end(kill=layout.ends_by_kill)
        (folder / "contents.json").write_text(json.dumps(asdict(contents), indent=1))
        for quiet in (*folder.glob("store/*/LOG*"), *folder.glob("store/lock")):
            quiet.unlink()
        with tarfile.open(ARCHIVES / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            archive.add(folder / "store", "store")
            archive.add(folder / "contents.json", "contents.json")


async def _first_run(broker: EarlierBroker, layout: Layout, contents: Contents) -> None:
    for topic, kind in ((NORMAL, "normal"), (FIFO, "fifo"), (DELAYED, "delay"), (TRANSACTIONS, "transaction")):
        broker.administer("topic", "create", topic, "--type", kind, "--queues", "4")
    broker.administer("topic", "create", LIGHT, "--queues", "1")
    broker.administer("group", "create", FIFO_GROUP, "--fifo")
    async with Client(broker.endpoint) as client:
        await _send_some(client, layout, contents, range(12))
        handles = await _receive(client, GROUP, NORMAL, 6)
        await client.ack(GROUP, NORMAL, *handles.values())
        contents.acknowledged += handles
        if layout.has_every_type:
            handles = await _receive(client, FIFO_GROUP, FIFO, 1)
            await client.ack(FIFO_GROUP, FIFO, *handles.values())
            contents.fifo_acknowledged += handles


async def _second_run(broker: EarlierBroker, layout: Layout, contents: Contents) -> None:
    """The layout is opened again by its own version, which is when some rows are written."""
    async with Client(broker.endpoint) as client:
        await _send_some(client, layout, contents, range(12, 16))
        contents.in_flight += await _receive(client, GROUP, NORMAL, 5)
        seen = {*contents.acknowledged, *contents.in_flight}
        contents.waiting += [each for each in contents.topics[NORMAL] if each not in seen]
        if layout.has_every_type:
            contents.fifo_left += [each for each in contents.topics[FIFO] if each not in contents.fifo_acknowledged]
            due = message(DELAYED, b"a reminder", message_type=definition.DELAY)
            due.system_properties.delivery_timestamp.FromMilliseconds(int((time.time() + DELAY_S) * 1000))
            contents.delayed += await client.sent(due)
            half = message(TRANSACTIONS, b"a payment", message_type=definition.TRANSACTION)
            answer = await client.send(half)
            assert answer.status.code == definition.OK, answer.status
            contents.transactions[answer.entries[0].message_id] = answer.entries[0].transaction_id
        await asyncio.sleep(1.5)  # what is written once a second


async def _send_some(client: Client, layout: Layout, contents: Contents, numbers: range) -> None:
    for number in numbers:
        for topic in (NORMAL, FIFO, LIGHT) if layout.has_every_type else (NORMAL, LIGHT):
            made = message(
                topic, f"{topic} {number}".encode(), message_id=f"{number:04X}{topic}", keys=[f"{topic}-{number}"]
            )
            if topic == FIFO:
                made.system_properties.message_type = definition.FIFO
                made.system_properties.message_group = "one"
            if topic == LIGHT:
                made.user_properties["INNER_MULTI_DISPATCH"] = LIGHT_QUEUES
            [sent] = await client.sent(made)
            contents.bodies[sent] = made.body.decode()
            contents.topics.setdefault(topic, []).append(sent)


async def _receive(client: Client, group: str, topic: str, count: int) -> dict[str, str]:
    """So many messages, one after the other: ids to handles."""
    taken: dict[str, str] = {}
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(taken) < count:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"group {group} got {len(taken)} of {count} messages of topic {topic}")
        received = await client.receive(group, topic, count=1, invisible_s=INVISIBLE_S)
        if received.code not in {definition.OK, definition.MESSAGE_NOT_FOUND}:
            raise RuntimeError(str(received.status))
        taken |= zip(received.ids, received.handles, strict=True)
    return taken


def commit_of(topic: str, message_id: str, transaction_id: str) -> service.EndTransactionRequest:
    """The producer's word that the transaction is to be."""
    return service.EndTransactionRequest(
        topic=resource(topic),
        message_id=message_id,
        transaction_id=transaction_id,
        resolution=definition.COMMIT,
        source=definition.SOURCE_CLIENT,
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve(), sys.argv[2])
