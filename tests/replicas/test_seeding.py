"""A copy that has no rows yet, and notes on deletions that its primary lowers or drops."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from quarry_mq.server.replicas import shipment as shipment_module
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Topic, TopicType
from quarry_mq.store.metadata.topics import READ_WRITE
from quarry_mq.store.opening.open_store import OpenStore
from tests.faults.engines import MachineEngines
from tests.faults.kernel import Kernel
from tests.faults.machine import crash
from tests.replicas.test_copies import SEGMENT_SIZE, Copy, Primary, require_equal
from tests.store.assembly import message


def send(store: OpenStore, topic: str, count: int, size: int = 500) -> None:
    """Append messages to the first queue of a topic, which is made if it does not exist."""
    if store.topics.get(topic) is None:
        store.topics.create(Topic(topic, TopicType.MIXED, 3, 3, READ_WRITE, {}))
    for _ in range(count):
        store.messages.append([message(topic, 0, body=bytes(size))])


def dispatch(store: OpenStore) -> None:
    store.messages.dispatch(store.messages.flush())


def fill(store: OpenStore, segments: int) -> None:
    """Let the log have so many segments."""
    end = store.segments.minimum + segments * SEGMENT_SIZE
    while store.messages.appended_up_to < end:
        send(store, "often", 1, 3_000)
    dispatch(store)


@pytest.fixture
def slow_seeding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log comes in many turns, and the rows at their end: segments are small here."""
    monkeypatch.setattr(shipment_module, "NEARLY_THERE_SIZE", SEGMENT_SIZE)
    monkeypatch.setattr(shipment_module, "LOG_SIZE_MAX", 2 * SEGMENT_SIZE)


@pytest.mark.usefixtures("slow_seeding")
def test_segments_of_the_primary_expire_while_a_copy_has_no_rows(tmp_path: Path) -> None:
    primary = Primary(tmp_path / "primary", Random(1))
    fill(primary.store, 4)
    primary._expire()
    fill(primary.store, 12)
    primary.restart()
    copy = Copy(tmp_path / "copy", primary)
    copy.send()
    assert copy.link.shipment.takes_all_rows
    primary._expire()
    for _ in range(12):
        copy.link.send()
    with closing(primary.store), closing(copy.promoted()) as promoted:
        require_equal(primary.store, promoted)


@pytest.mark.usefixtures("slow_seeding")
@pytest.mark.parametrize("restarts", [False, True])
def test_a_queue_without_messages_goes_on_although_the_copy_began_without_rows(tmp_path: Path, restarts: bool) -> None:
    primary, rare = Primary(tmp_path / "primary", Random(1)), QueueId("rare", 0)
    store = primary.store
    send(store, "rare", 20)
    store.groups.create(Group("billing"))
    batch = store.state_engine.batch()
    store.offsets.stage(batch, "billing", rare, QueueOffset(20))
    store.state_engine.write(batch)
    fill(store, 10)
    primary._expire()
    primary.restart()
    copy = Copy(tmp_path / "copy", primary)
    copy.send()
    assert copy.link.shipment.takes_all_rows
    if restarts:
        copy.restart()
    for _ in range(12):
        copy.send()
    with closing(primary.store), closing(copy.promoted()) as promoted:
        assert primary.store.messages.maximum(rare) == 20
        assert promoted.messages.maximum(rare) == 20


@pytest.mark.parametrize("seed", range(4))
def test_a_note_on_a_deletion_that_a_power_cut_lowers_is_followed(tmp_path: Path, seed: int) -> None:
    """The note names the end of the log, which was not durable yet. New records take the place of the lost ones."""
    kernel = Kernel(Random(seed))
    disk = kernel.disk()
    engines = MachineEngines(kernel, disk)
    primary = Primary(kernel.path("/primary"), Random(1), expires=False, disk=disk, engines=engines)
    send(primary.store, "orders", 5)
    send(primary.store, "bills", 5)
    dispatch(primary.store)
    primary.store.messages.flush_queues()
    copy = Copy(tmp_path, primary)
    copy.send()
    send(primary.store, "bills", 30)
    primary._delete("orders")
    copy.send()
    crash(kernel, engines, primary.store.segments, power_loss=True)
    primary.open()
    copy.connect()
    send(primary.store, "orders", 20)
    dispatch(primary.store)
    for _ in range(4):
        copy.send()
    with closing(primary.store), closing(copy.promoted()) as promoted:
        require_equal(primary.store, promoted)


def test_a_note_on_a_deletion_that_expires_costs_no_rebuild(tmp_path: Path) -> None:
    primary = Primary(tmp_path / "primary", Random(1))
    store = primary.store
    send(store, "orders", 1)
    dispatch(store)
    primary._delete("orders")
    copy = Copy(tmp_path / "copy", primary)
    for segments in range(1, 6):
        fill(store, segments)
        copy.send()
    for _ in range(2):  # while the copy is away
        store.messages.flush_queues()
        minimum = store.segments.bases[1]
        store.expiry.announce(minimum)
        store.expiry.retire(minimum)
        store.expiry.remover.run()
    copy.connect()
    copy.send()
    copy.send()
    assert copy.store.minimum == store.segments.minimum > 0
    assert copy.rebuilds == 0
    copy.store.close()
    store.close()
