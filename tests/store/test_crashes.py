"""Crash at every step of a workload, come back, compare with what was promised."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.errors import DiskRefused, StoreDamaged, StorePoisoned
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from tests.faults.disk import FaultyDisk, PowerCut
from tests.store.assembly import LOG, Assembly, assemble, message, queue_engine

QUEUES = [QueueId("orders", 0), QueueId("orders", 1), QueueId("bills", 0)]


class Workload:
    """Sends, flushes and dispatches at random, and remembers what was promised before the crash."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self.sent: dict[tuple[str, int, int], bytes] = {}
        self.attempted: set[bytes] = set()
        self.durable_up_to = PhysicalOffset(0)
        self.acked: set[tuple[str, int, int]] = set()
        self._undurable: list[tuple[PhysicalOffset, tuple[str, int, int]]] = []

    def run(self, opened: Assembly, steps: int) -> None:
        store = opened.store
        for step in range(steps):
            match self._chance.randrange(6):
                case 0 | 1 | 2:
                    self._send(opened, step)
                case 3:
                    self._durable(store.flush())
                    store.dispatch(store.flushed_up_to)
                case 4:
                    store.dispatch(store.flushed_up_to)
                case _:
                    self._durable(store.flush())
                    store.dispatch(store.flushed_up_to)
                    store.flush_entries()
                    store.flush_queues()

    def _send(self, opened: Assembly, step: int) -> None:
        count = self._chance.randrange(1, 4)
        messages = []
        for index in range(count):
            queue = self._chance.choice(QUEUES)
            body = b"%d-%d-" % (step, index) + self._chance.randbytes(self._chance.randrange(1, 6000))
            messages.append(message(queue.topic, queue.number, body))
            self.attempted.add(body)
        for each, where in zip(messages, opened.store.append(messages), strict=True):
            key = (each.topic, each.queue_number, int(where.queue_offset))
            self.sent[key] = each.body
            self._undurable.append((PhysicalOffset(where.physical_offset + where.size), key))

    def recovered(self, flushed: PhysicalOffset) -> None:
        """A start has said how far the log is durable. What was not acknowledged before it never will be."""
        self.durable_up_to = flushed
        self._undurable = []

    def _durable(self, flushed: PhysicalOffset) -> None:
        self.durable_up_to = flushed
        self.acked.update(key for end, key in self._undurable if end <= flushed)
        self._undurable = [each for each in self._undurable if each[0] > flushed]


def content(opened: Assembly) -> dict[tuple[str, int, int], bytes]:
    """Return the messages that consumers would read of all queues."""
    found = {}
    for queue in opened.queues.queues():
        bounds = opened.store.bounds(queue)
        entries = opened.store.entries(queue, QueueOffset(0), 100_000)
        assert [each.queue_offset for each in entries] == list(range(bounds.minimum, bounds.maximum)), queue
        for entry in entries:
            record = opened.store.read(entry)
            assert (record.topic, record.queue_number, record.queue_offset) == (*queue, entry.queue_offset)
            found[queue.topic, queue.number, int(entry.queue_offset)] = bytes(record.body)
    return found


def rebuilt(disk: FaultyDisk) -> MemoryEngine:
    engine = queue_engine()
    assemble(disk, engine)
    return engine


def rows(engine: MemoryEngine) -> dict[str, dict[bytes, bytes]]:
    return {name: dict(engine.family(name).scan(KeyRange(b"", None))) for name in ("default", "offset")}


@pytest.mark.parametrize("seed", range(60))
def test_what_was_acknowledged_survives_power_loss(seed: int) -> None:
    """Jepsen on NATS: acknowledged writes were lost in a power cut. `sync`: the flush comes before the answer."""
    chance = Random(seed)
    disk, engine = FaultyDisk(crash_at=chance.randrange(5, 120)), queue_engine()
    workload = Workload(seed)
    with suppress(PowerCut):
        workload.run(assemble(disk, engine), 100)
    engine.crash(chance.randrange(4))
    after = disk.power_loss(seed)
    opened = assemble(after, engine, flushed_up_to=workload.durable_up_to)
    found = content(opened)
    assert workload.acked <= found.keys(), f"replay with {seed=}"
    assert all(found[key] == workload.sent[key] for key in workload.acked), f"replay with {seed=}"
    assert set(found.values()) <= workload.attempted, f"replay with {seed=}"


@pytest.mark.parametrize("seed", range(40))
def test_the_death_of_the_process_loses_nothing_that_was_appended(seed: int) -> None:
    disk, engine = FaultyDisk(), queue_engine()
    workload = Workload(seed)
    workload.run(assemble(disk, engine), 60)
    engine.crash(Random(seed).randrange(4))
    opened = assemble(disk.process_death(), engine, flushed_up_to=workload.durable_up_to)
    assert content(opened) == workload.sent, f"replay with {seed=}"


@pytest.mark.parametrize("seed", range(20))
def test_derived_data_equals_a_rebuild_from_the_log(seed: int) -> None:
    """Promise 1, agreement: the same keys and values, whether written live, recovered, or rebuilt from nothing."""
    disk, engine = FaultyDisk(), queue_engine()
    live = assemble(disk, engine)
    Workload(seed).run(live, 60)
    live.store.flush()
    live.store.dispatch(live.store.appended_up_to)
    written_live = rows(engine)
    assert rows(rebuilt(disk.process_death())) == written_live, f"replay with {seed=}"


@pytest.mark.parametrize("seed", range(40))
def test_disk_errors_restarts_and_power_losses_in_any_order_lose_nothing_acknowledged(seed: int) -> None:
    """Errors hit starts too; whatever a start says is durable must be so at the next one."""
    chance = Random(seed)
    disk, engine = FaultyDisk(), queue_engine()
    workload = Workload(seed)
    for life in range(8):
        for operation in ("create", "flush", "flush", "zero", "replace", "remove"):
            if chance.random() < 0.3:
                error = chance.choice((errno.EIO, errno.ENOSPC))
                disk.fail(operation, nth=chance.randrange(1, 12), error=error)
        with suppress(OSError, StorePoisoned, DiskRefused):
            opened = assemble(disk, engine, flushed_up_to=workload.durable_up_to)
            workload.recovered(opened.store.flush())
            found = content(opened)
            assert workload.acked <= found.keys(), f"{seed=} {life=}"
            assert all(found[key] == workload.sent[key] for key in workload.acked), f"{seed=} {life=}"
            workload.run(opened, 25)
        engine.crash(chance.randrange(4))
        disk = disk.power_loss(seed) if chance.random() < 0.5 else disk.process_death()
    found = content(assemble(disk, engine, flushed_up_to=workload.durable_up_to))
    assert workload.acked <= found.keys(), f"replay with {seed=}"
    assert all(found[key] == workload.sent[key] for key in workload.acked), f"replay with {seed=}"
    assert set(found.values()) <= workload.attempted, f"replay with {seed=}"


def test_what_a_failed_flush_left_in_the_page_cache_is_not_taken_for_durable() -> None:
    """Linux counts the pages as clean after the error, and shows them to the next process as if all were well."""
    disk, engine = FaultyDisk(), queue_engine()
    first = assemble(disk, engine)
    first.store.append([message(body=b"flushed")])
    flushed = first.store.flush()
    first.store.append([message(body=b"lost" * 2_000)])
    disk.fail("flush")
    with pytest.raises(StorePoisoned):
        first.store.flush()
    engine.crash(0)
    disk = disk.process_death()
    second = assemble(disk, engine, flushed_up_to=flushed)
    told_durable = second.store.flush()
    seen = content(second)
    assert set(seen.values()) == {b"flushed"}
    engine.crash(0)
    third = assemble(disk.power_loss(seed=1), engine, flushed_up_to=told_durable)
    assert content(third) == seen


def test_a_recovery_that_is_killed_goes_on_where_it_was() -> None:
    """rmq#9587: a recovery must make progress across restarts."""
    disk, engine = FaultyDisk(), queue_engine()
    live = assemble(disk, engine)
    live.store.append([message(body=b"%d" % number) for number in range(100)])
    live.store.flush()
    live.store.dispatch(live.store.appended_up_to)
    live.store.flush_queues()
    live.store.append([message(body=b"%d" % number) for number in range(100, 130)])
    engine.crash(0)
    again = assemble(disk.process_death(), engine, flushed_up_to=live.store.flushed_up_to)
    assert (again.report.findings.records, again.report.findings.dispatched) == (30, 30)


def test_damage_below_what_is_durable_refuses_to_start_and_changes_nothing() -> None:
    """Corruption is reported, never skipped: one flipped bit must not cost what follows it."""
    disk, engine = FaultyDisk(), queue_engine()
    live = assemble(disk, engine)
    places = live.store.append([message(body=b"%d" % number * 50) for number in range(10)])
    flushed = live.store.flush()
    engine.crash(0)
    broken = disk.process_death()
    segment = broken.open_segment(LOG / f"{0:020d}", writable=True)
    segment.write(places[4].physical_offset + 120, b"\xff")
    segment.flush()
    before = broken.read(LOG / f"{0:020d}")
    with pytest.raises(StoreDamaged, match=rf"{0:020d}.*offset {places[4].physical_offset}"):
        assemble(broken, engine, flushed_up_to=flushed)
    assert broken.read(LOG / f"{0:020d}") == before


def test_damage_above_it_is_cut_and_the_bytes_are_kept() -> None:
    disk, engine = FaultyDisk(), queue_engine()
    live = assemble(disk, engine)
    places = live.store.append([message(body=b"%d" % number * 50) for number in range(10)])
    engine.crash(0)
    broken = disk.process_death()
    segment = broken.open_segment(LOG / f"{0:020d}", writable=True)
    segment.write(places[4].physical_offset + 120, b"\xff")
    segment.flush()
    opened = assemble(broken, engine, flushed_up_to=PhysicalOffset(0))
    assert opened.report.end == places[4].physical_offset
    assert [path.parent.name for path in opened.report.removed.kept] == ["broken"]
    assert len(content(opened)) == 4
    opened.store.append([message(body=b"4" * 50)])
    opened.store.dispatch(opened.store.appended_up_to)
    assert len(content(opened)) == 5, "an old record behind the cut does not come back"


def test_queues_that_know_more_than_the_log_are_cut_back() -> None:
    """rmq#10417: after a truncation the minimum must not exceed the maximum."""
    disk, engine = FaultyDisk(), queue_engine()
    live = assemble(disk, engine)
    live.store.append([message(body=b"kept")])
    live.store.flush()
    live.store.append([message(body=b"lost %d" % number) for number in range(50)])
    live.store.dispatch(live.store.appended_up_to)
    live.store.flush_queues()
    lost = disk.power_loss(seed=3)
    opened = assemble(lost, engine, flushed_up_to=live.store.flushed_up_to)
    found = content(opened)
    assert found[("orders", 0, 0)] == b"kept"
    bounds = opened.store.bounds(QueueId("orders", 0))
    assert bounds.minimum <= bounds.maximum == len(found)
    assert opened.store.append([message(body=b"next")])[0].queue_offset == bounds.maximum
