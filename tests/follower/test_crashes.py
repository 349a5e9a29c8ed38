"""The power goes, or the process dies, at the steps of a follower: nothing is lost that was reported, or left over."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.follower import FollowedStore, follow
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import RecoveredStore, recover_store
from quarry_mq.store.pending import PendingBefore
from quarry_mq.store.pending.rows import TIMER_TOPIC
from quarry_mq.store.settings import StoreSettings
from tests.faults.disk import PowerCut
from tests.faults.engines import MachineEngines
from tests.faults.kernel import Kernel
from tests.faults.machine import crash
from tests.follower.test_followed_store import SEGMENT_SIZE, log_bytes, send_some
from tests.store.assembly import message
from tests.store.test_deletions import opened

DELIVERED_MS = 50_000
"""Timers with an earlier time have been delivered by the other broker."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The log of another broker: four segments with three topics, light queues, and delayed messages."""
    chance = Random(3)
    primary = opened(tmp_path_factory.mktemp("primary"))
    while primary.messages.appended_up_to < 3.5 * SEGMENT_SIZE:
        send_some(primary, chance)
        timers = [str(chance.randrange(1_000, 100_000)) for _ in range(2)]
        primary.messages.append([message(TIMER_TOPIC, TIMER_OUT_MS=each, UNIQ_KEY=each) for each in timers])
        primary.messages.append([message("gone", body=bytes(chance.randrange(900)))])
    found = log_bytes(primary, 0, primary.messages.appended_up_to)
    primary.close()
    return found


class Machine:
    """A machine with a follower on it, and what the follower has reported to the other broker."""

    def __init__(self, seed: int) -> None:
        self.kernel = Kernel(Random(seed))
        self._disk = self.kernel.disk()
        self._engines = MachineEngines(self.kernel, self._disk)
        self._recovered: RecoveredStore | None = None
        self.durable_up_to = 0
        """The end of the last record that was durable when the follower reported."""

    def start(self) -> FollowedStore:
        settings = StoreSettings(root=self.kernel.path("/store"), segment_size=SEGMENT_SIZE, mapped_segments_max=4)
        self._recovered = recover_store(
            settings,
            disk=self._disk,
            clock=ManualClock(),
            report=lambda _: None,
            engines=self._engines,
            followed=StoreKind.ROCKETMQ_FILE,
        )
        store = follow(self._recovered)
        assert store.received_up_to >= self.durable_up_to, "what was reported is still there"
        return store

    def crash(self, *, power_loss: bool) -> None:
        living, self._recovered = self._recovered, None
        crash(self.kernel, self._engines, None if living is None else living.parts.segments, power_loss=power_loss)

    def content(self, store: FollowedStore) -> dict[str, object]:
        """Return the rows of the queues, and the messages that wait for their time."""
        assert self._recovered is not None
        engine = self._recovered.parts.queues.engine
        assert engine is not None
        rows = {
            name: dict(engine.family(name).iterate(KeyRange(b"", None))) for name in (ENTRIES_FAMILY, OFFSET_FAMILY)
        }
        return {**rows, "waiting": list(store._pending.waiting_messages())}


def work(machine: Machine, store: FollowedStore, log: bytes, chance: Random) -> FollowedStore:
    """Receive the log from where the store is, with all that a follower does meanwhile. Returns the last life."""
    names = ("orders", "rooms")
    while (at := store.received_up_to) < len(log):
        size = chance.choice([1, 90, 4_000, 32_768])
        store.receive(PhysicalOffset(at), log[at : at + size])
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                store.commit()
                machine.durable_up_to = store.dispatched_up_to
            case 4:
                store.flush_queues()
            case 5:
                store.settle(PendingBefore(timers_read=chance.randrange(200), timers_read_ms=DELIVERED_MS), 1)
            case 6:
                store.take_topics(names, PhysicalOffset(chance.randrange(store.received_up_to, len(log) + 1)))
            case 7 if chance.random() < 0.3:
                store.close()
                store = machine.start()
    store.commit()
    store.take_topics(names, PhysicalOffset(len(log)))
    store.settle(PendingBefore(timers_read=1_000, timers_read_ms=DELIVERED_MS), 1)
    store.flush_queues()
    return store


@pytest.fixture(scope="module")
def expected(log: bytes) -> dict[str, object]:
    machine = Machine(0)
    return machine.content(work(machine, machine.start(), log, Random(0)))


def steps_of(seed: int, log: bytes) -> int:
    machine = Machine(seed)
    work(machine, machine.start(), log, Random(seed))
    return machine.kernel.steps


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_any_step_loses_nothing_and_leaves_nothing(
    seed: int, log: bytes, expected: dict[str, object]
) -> None:
    steps = steps_of(seed, log)
    chance = Random(seed)
    for step in range(1 + seed, steps, 11):
        machine = Machine(seed)
        machine.kernel.crash_at = step
        with suppress(PowerCut):
            work(machine, machine.start(), log, Random(seed))
        machine.crash(power_loss=chance.random() < 0.7)
        machine.kernel.crash_at = None
        store = work(machine, machine.start(), log, chance)
        assert store.dispatched_up_to == len(log)
        assert machine.content(store) == expected, f"seed {seed}, step {step}"
        store.close()
