"""Stores of this version to verify, and hands that spoil them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quarry_mq.kv import KeyValueEngine
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.delivery.state.inflight import InFlight, InFlightTable
from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.identity import open_state_engine
from quarry_mq.store.state.in_flight_key import subscription_prefix
from quarry_mq.store.verify import Check, Difference, VerifyReport, verify
from tests.store.assembly import message

ORDERS = QueueId("orders", 0)
LIGHT = "%LMQ%light"


def opened(root: Path, mode: QueueMode | None = None) -> OpenStore:
    """Segments of 64 KiB where the store is new."""
    settings = StoreSettings(root=root, segment_size=64 * 1024, queue_mode=mode, units_per_file=16)
    return open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)


def fill(root: Path, count: int = 10) -> None:
    """Two topics, a light queue, a group with an offset and a message in flight; a clean stop."""
    store = opened(root)
    for topic in ("orders", "bills"):
        if store.topics.get(topic) is None:
            store.topics.create(Topic(topic, TopicType.NORMAL, 2, 2, READ_WRITE, {}))
    send(store, count)
    store.messages.flush()
    store.messages.dispatch(store.messages.appended_up_to)
    batch = store.state_engine.batch()
    store.offsets.stage(batch, "readers", ORDERS, QueueOffset(5))
    row = InFlight(1_700_000_000_000, 1, 0, 1, "client")
    InFlightTable(store.state_engine).put(batch, subscription_prefix("readers", "orders"), 0, 4, row)
    store.state_engine.write(batch, sync=True)
    store.close()


def send(store: OpenStore, count: int) -> None:
    for number in range(count):
        store.messages.append(
            [
                message("orders", 0, b"order %d" % number, TAGS="new"),
                message("orders", 1, b"other order"),
                message("bills", 0, b"bill", INNER_MULTI_DISPATCH=LIGHT),
            ]
        )


def verified(root: Path, limit: int = 20) -> VerifyReport:
    with OfflineStore.open(PosixDisk(), root) as store:
        return verify(store, lambda _: None, differences_max=limit)


def differences(root: Path) -> list[Difference]:
    report = verified(root)
    assert report.agrees == (not report.differences)
    return report.differences


def differing(root: Path) -> set[Check]:
    return {each.check for each in differences(root)}


@contextmanager
def queue_rows(root: Path) -> Iterator[KeyValueEngine]:
    """The database of consume queues, to be changed."""
    engine = open_consume_queue_engine(inspect_store(PosixDisk(), root).rocksdb_directory, create=False)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def state_rows(root: Path) -> Iterator[KeyValueEngine]:
    """`quarry/`, to be changed."""
    engine = open_state_engine(StorePaths(root).quarry, create=False)
    try:
        yield engine
    finally:
        engine.close()


def put(engine: KeyValueEngine, family: str, key: bytes, value: bytes) -> None:
    batch = engine.batch()
    batch.put(engine.family(family), key, value)
    engine.write(batch)


def delete(engine: KeyValueEngine, family: str, key: bytes) -> None:
    batch = engine.batch()
    batch.delete(engine.family(family), key)
    engine.write(batch)


def get(engine: KeyValueEngine, family: str, key: bytes) -> bytes:
    value = engine.family(family).get(key)
    assert value is not None
    return value
