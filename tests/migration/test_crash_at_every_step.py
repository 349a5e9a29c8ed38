"""The power goes at every step of a migration, and again during the recoveries that follow.

A failure is repeated with QUARRY_MIGRATION_CRASH="seed,step,durability,path" pytest this_file. What a step is:
tests/faults/test_crash_at_every_step.py.
"""

from __future__ import annotations

import os
from contextlib import suppress
from random import Random
from typing import Final

import pytest

from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.migration import Backfill
from quarry_mq.store.settings import Durability
from tests.faults.code_paths import CODE_PATHS, CodePath
from tests.faults.conftest import one_thread, small_pages
from tests.faults.disk import PowerCut
from tests.faults.machine import Broker, Machine
from tests.faults.test_crash_at_every_step import LIGHT, QUEUES, TOPICS, come_back, sending, use_again

__all__ = ["one_thread", "small_pages"]
"""The fixtures by which a place stands for one order of steps."""

MESSAGES_FIRST: Final = 30
EVERY: Final = 14
"""Of the steps, so many apart are tried in the normal run."""


def some_traffic(broker: Broker, chance: Random) -> None:
    for _ in range(chance.randrange(1, 4)):
        broker.send([sending(chance) for _ in range(chance.randrange(1, 4))])
    broker.flush()
    if chance.random() < 0.3:
        group = chance.choice(broker.ledger.groups)
        queue = chance.choice([*QUEUES, QueueId(LIGHT[0], 0)])
        for entry in broker.receive(group, queue, 3):
            broker.acknowledge(group, queue, QueueOffset(entry.queue_offset))
    if chance.random() < 0.3:
        broker.save_checkpoint()
    if chance.random() < 0.15:
        topic = chance.choice(TOPICS)
        broker.delete_topic(topic)
        broker.create_topic(topic)


def backfill(broker: Broker, chance: Random) -> None:
    work = broker.store.migration.backfill()
    if work is None:
        return
    try:
        bring_over(broker, work, chance)
    finally:
        work.close()


def bring_over(broker: Broker, work: Backfill, chance: Random) -> None:
    while (portion := work.read()) is not None:
        some_traffic(broker, chance)
        left = True
        while left:
            if work.is_stale(portion):
                work.look_up_again(portion)
            else:
                left = work.put(portion)
        broker.flush_queues()
        work.save(portion.end)
    while work.raise_max_offsets():
        pass
    broker.flush_queues([sending(chance)])
    work.save(work.end)


def compare(broker: Broker) -> None:
    comparison = broker.store.migration.comparison("test")
    while comparison.step():
        pass
    comparison.close()
    report = comparison.report()
    assert report.agrees, report.first
    broker.store.migration.keep_report(report)


def take(broker: Broker, target: QueuePhase) -> None:
    migration = broker.store.migration
    if migration.needs_comparison(target):
        compare(broker)
    if target is QueuePhase.ROCKSDB:
        broker.flush_queues()
    migration.switch(target, "test", migration.prepare(target))()


def go_through(broker: Broker, chance: Random) -> None:
    """To the end, from wherever it stands."""
    migration = broker.store.migration
    while migration.phase is not QueuePhase.ROCKSDB:
        backfill(broker, chance)
        take(broker, migration.target_of_advance())
        some_traffic(broker, chance)
    removal = migration.removal()
    if removal is not None:
        while removal.step():
            pass
        migration.removed()


def with_history(seed: int, durability: Durability, code_path: CodePath) -> Machine:
    """A store in files, stopped. From now on no setting says so."""
    machine = Machine(seed, durability, queue_mode=QueueMode.FILE, code_path=code_path)
    chance = Random(seed)
    broker = machine.start()
    for topic in TOPICS:
        broker.create_topic(topic)
    for _ in range(MESSAGES_FIRST):
        broker.send([sending(chance)])
    broker.flush()
    broker.stop()
    machine.queue_mode = None
    return machine


def there_and_back_and_there_again(machine: Machine, chance: Random) -> Broker:
    broker = machine.start()
    migration = broker.store.migration
    for _ in range(4):
        backfill(broker, chance)
        take(broker, migration.target_of_advance())
        some_traffic(broker, chance)
    assert migration.phase is QueuePhase.READING_ROCKSDB
    for _ in range(4):
        take(broker, migration.target_of_rollback())
        some_traffic(broker, chance)
    go_through(broker, chance)
    some_traffic(broker, chance)
    return broker


def steps_of(seed: int, durability: Durability, code_path: CodePath) -> int:
    machine = with_history(seed, durability, code_path)
    before = machine.kernel.steps
    there_and_back_and_there_again(machine, Random(seed)).check()
    return machine.kernel.steps - before


def crash_at(seed: int, step: int, durability: Durability, code_path: CodePath) -> None:
    machine = with_history(seed, durability, code_path)
    machine.kernel.crash_at = machine.kernel.steps + step
    chance = Random(seed * 1_000_003 + step)
    try:
        with suppress(PowerCut):
            there_and_back_and_there_again(machine, Random(seed))
        broker = come_back(machine, chance)
        broker.check()
        for topic in TOPICS:
            broker.create_topic(topic)
        go_through(broker, chance)
        broker.check()
        use_again(machine, broker)
    except Exception as error:
        tail = "\n".join(machine.kernel.log[-12:])
        place = f"{seed},{step},{durability.value},{code_path.value}"
        error.add_note(f'replay with QUARRY_MIGRATION_CRASH="{place}"; the last steps were\n{tail}')
        raise


@pytest.mark.skipif("QUARRY_MIGRATION_CRASH" not in os.environ, reason="no place is chosen")
def test_the_chosen_place() -> None:
    seed, step, durability, code_path = os.environ["QUARRY_MIGRATION_CRASH"].split(",")
    crash_at(int(seed), int(step), Durability(durability), CodePath(code_path))


@pytest.mark.parametrize(
    ("seed", "step", "durability"),
    [
        (0, 233, Durability.ASYNC),
        (0, 241, Durability.SYNC),
        (0, 322, Durability.ASYNC),
        (2, 130, Durability.ASYNC),
    ],
)
def test_places_that_once_broke_a_promise(seed: int, step: int, durability: Durability) -> None:
    """Topics that were deleted, and began anew, shortly before one or two crashes.

    When they were found, the next segment was made on a thread: its five steps came before the place or after it.
    """
    for found in (step - 5, step, step + 5):
        crash_at(seed, found, durability, CodePath.APPEND)


@pytest.mark.parametrize("durability", [Durability.ASYNC, pytest.param(Durability.SYNC, marks=pytest.mark.slow)])
def test_a_crash_now_and_then_in_a_migration_breaks_no_promise(durability: Durability) -> None:
    for turn, code_path in enumerate(CODE_PATHS):
        end = steps_of(0, durability, code_path) + 2
        for step in range(1 + turn * EVERY, end, EVERY * len(CODE_PATHS)):
            crash_at(0, step, durability, code_path)


@pytest.mark.slow
@pytest.mark.parametrize("code_path", CODE_PATHS)
@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_any_step_of_a_migration_breaks_no_promise(
    seed: int, durability: Durability, code_path: CodePath
) -> None:
    for step in range(1, steps_of(seed, durability, code_path) + 2):
        crash_at(seed, step, durability, code_path)
