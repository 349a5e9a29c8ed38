"""The power goes, or the process dies, at the steps of a copy: afterwards it becomes equal to its primary again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.replicas.intake import Intake
from quarry_mq.server.replicas.shipment import Part, Shipment
from quarry_mq.server.replicas.wire import Frame
from quarry_mq.store.follower import CopiedStore, QueuesOutdated, follow, recover_copy
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import Copied, OpenStore, RecoveredStore, open_store
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.state_log import NO_CURSOR
from tests.faults.disk import PowerCut
from tests.faults.engines import MachineEngines
from tests.faults.kernel import Kernel
from tests.faults.machine import crash
from tests.follower.test_followed_store import log_bytes
from tests.replicas.test_copies import (
    KEPT,
    SEGMENT_SIZE,
    Copy,
    Primary,
    require_equal,
    require_equal_at_the_end,
    state_of_log,
)


@dataclass
class Life:
    """The life of a primary that is still there, and what it sent to a copy that was never away."""

    primary: Primary
    sent: list[list[Part]]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    primary = Primary(tmp_path_factory.mktemp("primary"), Random(5), expires=False)
    store = primary.store
    shipment = Shipment(store.segments, store.messages, state_of_log(store), at=PhysicalOffset(0), cursor=NO_CURSOR)
    sent: list[list[Part]] = []
    for _ in range(90):
        primary.live()
        sent.append([(kind, tuple(map(bytes, parts))) for kind, parts in shipment.parts(is_beat_due=True)])
    store.messages.dispatch(store.messages.flush())
    yield Life(primary, sent)
    store.close()


class Machine:
    """A machine with a copy on it."""

    def __init__(self, seed: int) -> None:
        self.kernel = Kernel(Random(seed))
        self._disk = self.kernel.disk()
        self._engines = MachineEngines(self.kernel, self._disk)
        self._recovered: RecoveredStore | None = None

    @property
    def settings(self) -> StoreSettings:
        return StoreSettings(root=self.kernel.path("/store"), segment_size=SEGMENT_SIZE, mapped_segments_max=4)

    def start(self, *, is_promoted: bool = False) -> CopiedStore:
        self._recovered = recover_copy(
            self.settings,
            disk=self._disk,
            clock=ManualClock(),
            report=lambda _: None,
            engines=self._engines,
            copied=Copied(StoreKind.NEW, is_promoted=is_promoted),
        )
        return CopiedStore(self._recovered, follow(self._recovered))

    def crash(self, *, power_loss: bool) -> None:
        living, self._recovered = self._recovered, None
        crash(self.kernel, self._engines, None if living is None else living.parts.segments, power_loss=power_loss)

    def promoted(self) -> OpenStore:
        return open_store(
            self.settings, disk=self._disk, clock=ManualClock(), report=lambda _: None, engines=self._engines
        )


def take(store: CopiedStore, life: Life, chance: Random) -> None:
    """Take what the primary sent while it lived."""
    intake = Intake(store)
    for parts in life.sent:
        for kind, body in parts:
            intake.take(Frame(kind, 1, memoryview(b"".join(body))))
        if chance.random() < 0.6:
            intake.commit()
        if chance.random() < 0.1:
            store.flush()


def catch_up(machine: Machine, store: CopiedStore, primary: OpenStore) -> CopiedStore:
    """Take the rest from the primary as it is now."""
    while True:
        shipment = Shipment(
            primary.segments, primary.messages, state_of_log(primary), at=store.received_up_to, cursor=store.cursor
        )
        intake = Intake(store)
        try:
            for _ in range(3):
                for kind, body in shipment.parts(is_beat_due=True):
                    intake.take(Frame(kind, 1, memoryview(b"".join(body))))
                intake.commit()
        except QueuesOutdated:
            store.close()
            store = machine.start()
        else:
            return store


def steps_of(seed: int, life: Life) -> int:
    machine = Machine(seed)
    take(machine.start(), life, Random(seed))
    return machine.kernel.steps


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_that_crashes_at_any_step_becomes_equal_again(seed: int, life: Life) -> None:
    chance = Random(seed)
    for step in range(1 + 5 * seed, steps_of(seed, life), 7):
        machine = Machine(seed)
        machine.kernel.crash_at = step
        with suppress(PowerCut):
            take(machine.start(), life, Random(seed))
        machine.crash(power_loss=chance.random() < 0.7)
        machine.kernel.crash_at = None
        store = catch_up(machine, machine.start(), life.primary.store)
        store.close_for_promotion()
        promoted = machine.promoted()
        require_equal(life.primary.store, promoted)
        promoted.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_that_is_promoted_after_a_crash_opens_with_a_prefix_of_the_log(seed: int, life: Life) -> None:
    """The primary is gone, too: the copy serves what it has, and its parts agree."""
    chance = Random(seed)
    primary = life.primary.store
    for step in range(1 + 5 * seed, steps_of(seed, life), 9):
        machine = Machine(seed)
        machine.kernel.crash_at = step
        with suppress(PowerCut):
            take(machine.start(), life, Random(seed))
        machine.crash(power_loss=chance.random() < 0.7)
        machine.kernel.crash_at = None
        promoted = machine.promoted()
        end = promoted.messages.appended_up_to
        assert log_bytes(promoted, 0, end) == log_bytes(primary, 0, end)
        for _, queue, position in promoted.offsets.all_rows():
            assert queue.topic != KEPT or position <= promoted.messages.maximum(queue), (
                "a group has read what is not here"
            )
        promoted.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_primary_that_crashes_and_its_copy_become_equal_again(tmp_path: Path, seed: int) -> None:
    """A power cut takes rows from the primary that the copy has already; the log that the copy has is never taken.

    Light queues are not removed here: a removal that a power cut takes is made again by the next sweep.
    """
    chance = Random(seed)
    kernel = Kernel(chance)
    disk = kernel.disk()
    engines = MachineEngines(kernel, disk)
    primary = Primary(kernel.path("/primary"), chance, expires=False, removes=False, disk=disk, engines=engines)
    copy = Copy(tmp_path / "copy", primary)
    for _ in range(6):
        kernel.crash_at = kernel.steps + chance.randrange(40, 250)
        with suppress(PowerCut):
            while True:
                primary.live()
                copy.send()
        crash(kernel, engines, primary.store.segments, power_loss=chance.random() < 0.7)
        kernel.crash_at = None
        primary.open()
        copy.connect()
    require_equal_at_the_end(primary, copy)
