"""An old primary comes back as a copy: its log is cut where it parts from that of the new primary."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.replicas.intake import Intake
from quarry_mq.server.replicas.shipment import Shipment
from quarry_mq.server.replicas.wire import Frame
from quarry_mq.store.engines import StoreEngines
from quarry_mq.store.follower import CopiedStore, QueuesOutdated, follow, recover_copy
from quarry_mq.store.fs import Disk, PosixDisk
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.metadata.topics import READ_WRITE
from quarry_mq.store.opening.open_store import Copied, OpenStore, open_store
from quarry_mq.store.settings import IndexSettings
from quarry_mq.store.state.state_log import NO_CURSOR, StateCursor
from tests.faults.engines import MachineEngine, MachineEngines
from tests.faults.kernel import Kernel
from tests.faults.machine import crash
from tests.replicas.test_copies import require_equal, settings, state_of_log
from tests.store.assembly import message
from tests.store.test_deletions import light_message

ORDERS = QueueId("orders", 0)
INDEX = IndexSettings(
    hash_files=True, hash_slots=7, hash_items=24, tiered=True, tiered_slots=5, tiered_items=12, upload_to=None
)

Work = Callable[[OpenStore], None]


class Place(NamedTuple):
    """The place of a store: a folder, and the machine that it is on."""

    root: Path
    disk: Disk = PosixDisk()
    engines: StoreEngines | None = None

    def primary(self, *, is_indexed: bool = False) -> OpenStore:
        own = replace(settings(self.root), index=INDEX if is_indexed else IndexSettings())
        return open_store(own, disk=self.disk, clock=ManualClock(), report=lambda _: None, engines=self.engines)

    def copy(self, *, parts_at: PhysicalOffset | None = None) -> CopiedStore:
        recovered = recover_copy(
            settings(self.root, has_copies=False),
            disk=self.disk,
            clock=ManualClock(),
            report=lambda _: None,
            engines=self.engines,
            copied=Copied(StoreKind.NEW, parts_at),
        )
        return CopiedStore(recovered, follow(recovered))

    def followed(self, primary: OpenStore, copy: CopiedStore, cursor: StateCursor) -> CopiedStore:
        """Let a copy here take all that the primary has, and return it."""
        while True:
            state = state_of_log(primary)
            shipment = Shipment(primary.segments, primary.messages, state, at=copy.received_up_to, cursor=cursor)
            intake = Intake(copy)
            try:
                for _ in range(4):
                    for kind, body in shipment.parts(is_beat_due=True):
                        intake.take(Frame(kind, 1, memoryview(b"".join(body))))
                    intake.commit()
                return copy
            except QueuesOutdated:
                copy.close()
                copy = self.copy()
                cursor = copy.cursor


def create(store: OpenStore) -> None:
    if store.topics.get(ORDERS.topic) is None:
        store.topics.create(Topic(ORDERS.topic, TopicType.MIXED, 1, 1, READ_WRITE, {}))


def send(store: OpenStore, name: str, count: int) -> None:
    for number in range(count):
        body, key = f"{name} {number}".encode(), f"{name}-{number}"
        store.messages.append([message(ORDERS.topic, 0, body=body, KEYS=key)])
    store.messages.dispatch(store.messages.flush())


def send_light(store: OpenStore, name: str, count: int) -> None:
    for _ in range(count):
        store.messages.append([light_message(0, name)])
    store.messages.dispatch(store.messages.flush())


def delete(store: OpenStore) -> None:
    batch = store.state_engine.batch()
    store.offsets.delete_topic(batch, ORDERS.topic)
    store.state_engine.write(batch)
    store.topics.delete(ORDERS.topic)
    store.messages.delete_topic(ORDERS.topic)


def bodies(store: OpenStore) -> list[bytes]:
    entries = store.messages.entries(ORDERS, QueueOffset(0), 1_000)
    return [bytes(store.messages.read(each).body) for each in entries]


def come_back(
    tmp_path: Path, before: Work, *, lost: Work, after: Work, is_indexed: bool = False
) -> tuple[OpenStore, OpenStore]:
    """Do `before` on both stores, `lost` on the old primary alone, and `after` on the new one.

    Returns the new primary, and the old one after it has followed and was promoted.
    """
    here, there = Place(tmp_path / "a"), Place(tmp_path / "b")
    old = here.primary(is_indexed=is_indexed)
    create(old)
    before(old)
    old.messages.dispatch(old.messages.flush())
    parts_at = there.followed(old, there.copy(), NO_CURSOR).close_for_promotion()
    assert parts_at == old.messages.appended_up_to
    new = there.primary()
    lost(old)
    old.close()
    after(new)
    copy = here.followed(new, here.copy(parts_at=parts_at), NO_CURSOR)
    assert copy.received_up_to == new.messages.appended_up_to
    copy.close_for_promotion()
    return new, here.primary(is_indexed=is_indexed)


def test_messages_that_only_the_old_primary_has_are_gone(tmp_path: Path) -> None:
    new, again = come_back(
        tmp_path,
        lambda store: send(store, "before", 3),
        lost=lambda store: send(store, "lost", 3),
        after=lambda store: send(store, "after", 5),
    )
    with closing(new), closing(again):
        assert bodies(again) == bodies(new)
        require_equal(new, again)


@pytest.mark.parametrize("deletions_before", [0, 1])
def test_a_topic_that_only_the_old_primary_has_deleted_has_its_messages(tmp_path: Path, deletions_before: int) -> None:
    """A deletion has one row for each topic: that of the old primary has taken the place of an earlier one."""

    def before(store: OpenStore) -> None:
        for _ in range(deletions_before):
            send(store, "first", 3)
            delete(store)
            create(store)
        send(store, "before", 3)

    def lost(store: OpenStore) -> None:
        send(store, "lost", 30)
        delete(store)

    new, again = come_back(tmp_path, before, lost=lost, after=lambda store: send(store, "after", 5))
    with closing(new), closing(again):
        assert len(bodies(new)) == 8
        assert bodies(again) == bodies(new)
        require_equal(new, again)


def test_every_message_is_found_by_its_key(tmp_path: Path) -> None:
    """The indexes of the old primary had keys of records that are gone."""

    def after(store: OpenStore) -> None:
        send(store, "xxx", 1)
        send(store, "after", 60)

    new, again = come_back(
        tmp_path,
        lambda store: send(store, "before", 3),
        lost=lambda store: send(store, "lost", 7),
        after=after,
        is_indexed=True,
    )
    read = again.messages.existing_record_at
    with closing(new), closing(again):
        for index in again.messages.indexes.followers:
            while index.step():
                pass
            for key, count in (("after-0", 1), ("after-59", 1), ("before-2", 1), ("lost-0", 0)):
                found = index.find(ORDERS.topic, key, begin_ms=0, end_ms=2**62, limit=10, read=read)
                assert len(found.messages) == count, key


def test_groups_are_not_ahead_of_a_log_that_was_cut(tmp_path: Path) -> None:
    """The new primary is lost, too, before it has sent its rows."""
    place = Place(tmp_path)
    old = place.primary()
    create(old)
    send(old, "before", 3)
    parts_at = old.messages.appended_up_to
    send(old, "lost", 7)
    batch = old.state_engine.batch()
    old.offsets.stage(batch, "billing", ORDERS, QueueOffset(10))
    old.state_engine.write(batch)
    old.close()
    place.copy(parts_at=parts_at).close_for_promotion()
    with closing(place.primary()) as again:
        assert again.messages.maximum(ORDERS) == 3
        assert again.offsets.get("billing", ORDERS) == 3


class OnlyFlushed(MachineEngines):
    """Engines that keep nothing in a crash but what was flushed."""

    def crash(self, *, power_loss: bool) -> None:
        for each in self._engines.values():
            assert isinstance(each, MachineEngine)
            each.crash(0, power_loss=power_loss)


@pytest.mark.parametrize("power_loss", [False, True])
def test_entries_of_lost_records_stay_out_of_sight(tmp_path: Path, power_loss: bool) -> None:
    """A light queue of the new primary begins at the floor, and the old primary has entries of lost records there."""
    kernel = Kernel(Random(1))
    disk = kernel.disk()
    engines = OnlyFlushed(kernel, disk)
    here, there = Place(kernel.path("/old"), disk, engines), Place(tmp_path)
    old = here.primary()
    create(old)
    send_light(old, "%LMQ%z", 2)
    old.messages.flush_queues()
    parts_at = there.followed(old, there.copy(), NO_CURSOR).close_for_promotion()
    new = there.primary()
    send_light(old, "%LMQ%a", 3)
    old.messages.flush_entries()
    crash(kernel, engines, old.segments, power_loss=power_loss)
    send_light(new, "%LMQ%b", 10)
    ended = new.messages.light_queues_ended(new.messages.appended_up_to, b"").ended
    new.messages.remove_ended(new.messages.still_ended([each for each in ended if each.queue.topic == "%LMQ%b"]))
    send_light(new, "%LMQ%a", 1)
    light = QueueId("%LMQ%a", 0)
    assert new.messages.bounds(light) == (10, 11)
    here.followed(new, here.copy(parts_at=parts_at), NO_CURSOR).close_for_promotion()
    again = here.primary()
    assert again.messages.bounds(light) == (10, 11)
    assert [each.queue_offset for each in again.messages.entries(light, QueueOffset(0), 10)] == [10]
