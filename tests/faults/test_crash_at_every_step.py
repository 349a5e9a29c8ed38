"""The power goes at the steps of a workload, and again during the recoveries that follow.

A step is a system call that changes something, a store through a mapping, a write to a database or the flush of one
of its families. Sends, flushes and entries of queues go through the code paths of production. The quick run tries
every fourth to 28th step, on the code paths by turns. The slow run tries every step on each code path. One
failure is repeated with its seed and place: QUARRY_CRASH="seed,step,durability,mode,path" pytest this_file. The slow
run tries QUARRY_CRASH_SEEDS histories (8 unless told; a minute each, for each durability and code path).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from quarry_mq.store.commitlog import BegunFlush, CommitLogFlusher
from quarry_mq.store.consumequeue.queue_offsets import QueueOffsets
from quarry_mq.store.consumequeue.rocks.bounds import RocksBounds
from quarry_mq.store.consumequeue.rocks_layout import OFFSET_FAMILY
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.native import NATIVE
from quarry_mq.store.settings import Durability
from tests.faults.code_paths import CODE_PATHS, CodePath
from tests.faults.disk import PowerCut
from tests.faults.inodes import Directory
from tests.faults.machine import Broker, Machine, Sending

TOPICS = ("orders", "bills")
QUEUES = [QueueId(topic, number) for topic in TOPICS for number in range(2)]
LIGHT = ("%LMQ%a", "%LMQ%b", "%LMQ%c")
STEPS = 60
SMALL = 600
"""Bytes of a message larger than a sector: one that is torn often has a whole one behind it."""
LIVES_MAX = 4
SEEDS = int(os.environ.get("QUARRY_CRASH_SEEDS", "8"))


def sending(chance: Random) -> Sending:
    light_queues = tuple(name for name in LIGHT if chance.random() < 0.15)
    return Sending(chance.choice(QUEUES), chance.choice((SMALL, SMALL, SMALL, 3000, 9000)), light_queues)


def work(broker: Broker, chance: Random, start: Callable[..., Broker]) -> Broker:
    """A day of a broker, with clean restarts in it. Returns the last life."""
    for name in TOPICS:
        broker.create_topic(name)
    for _ in range(STEPS):
        match chance.randrange(21):
            case 0 | 1 | 2 | 3:
                broker.send([sending(chance)])
            case 4 | 5:
                broker.send([sending(chance) for _ in range(chance.randrange(2, 8))])
            case 6 | 7 | 8:
                broker.flush([sending(chance)] if chance.random() < 0.3 else [])
            case 9 | 10:
                broker.flush_queues([sending(chance)] if chance.random() < 0.5 else [])
            case 11 | 12 | 13:
                group = chance.choice(broker.ledger.groups)
                queue = chance.choice([*QUEUES, QueueId(LIGHT[0], 0)])
                for entry in broker.receive(group, queue, chance.randrange(1, 5)):
                    if chance.random() < 0.7:
                        broker.acknowledge(group, queue, QueueOffset(entry.queue_offset))
            case 14:
                broker.save_checkpoint()
                broker.save_index()
                broker.list_queues()
            case 15 if chance.random() < 0.4:
                broker.expire(chance.randrange(1, 3))
            case 15:
                topic = chance.choice(TOPICS)
                if chance.random() < 0.3:
                    broker.delete_topic(topic)
                broker.create_topic(topic)
            case 16:
                broker.flush_entries()
            case 17 | 18:
                broker.remove_light_queues(chance)
            case _:
                if chance.random() < 0.3:
                    broker.stop()
                    broker = start(rebuild_queues=chance.random() < 0.3)
        broker.write_index()
    return broker


def run_until_cut(machine: Machine, seed: int) -> Broker | None:
    """Return the broker; None when the power went."""
    with suppress(PowerCut):
        return work(machine.start(), Random(seed), machine.start)
    return None


def come_back(machine: Machine, chance: Random) -> Broker:
    """Crash, and start again. The first recoveries are stopped somewhere, too."""
    for _ in range(LIVES_MAX):
        machine.crash(power_loss=chance.random() < 0.7)
        machine.kernel.crash_at = machine.kernel.steps + chance.randrange(1, 25)
        with suppress(PowerCut):
            broker = machine.start()
            machine.kernel.crash_at = None
            return broker
    machine.crash(power_loss=True)
    return machine.start()


def live_on(machine: Machine, broker: Broker, chance: Random) -> Broker:
    """New records and offsets take the place of lost ones, and show what the crash has left of these."""
    for _ in range(chance.randrange(1, 6)):
        match chance.randrange(5):
            case 0:
                broker.remove_light_queues(chance)
            case 1:
                broker.flush_queues()
            case 2:
                broker.flush_entries()
            case _:
                broker.send([sending(chance)])
        broker.content()
    machine.crash(power_loss=chance.random() < 0.7)
    broker = machine.start(rebuild_queues=chance.random() < 0.2)
    broker.check()
    return broker


def use_again(machine: Machine, broker: Broker) -> None:
    """The store goes on where it ended, and a clean stop leaves nothing to do."""
    for queue in QUEUES:
        end = broker.store.messages.bounds(queue).maximum
        broker.send([Sending(queue, SMALL)])
        broker.flush()
        assert broker.store.messages.bounds(queue).maximum == end + 1
    broker.check()
    before = broker.content()
    broker.stop()
    again = machine.start()
    assert again.store.recovery.findings.records == 0
    assert again.content() == before
    again.check()
    again.stop()


def steps_of(
    seed: int,
    durability: Durability,
    mode: QueueMode = QueueMode.ROCKSDB,
    code_path: CodePath = CodePath.PYTHON,
    *,
    indexed: bool = False,
) -> int:
    machine = Machine(seed, durability, queue_mode=mode, indexed=indexed, code_path=code_path)
    broker = run_until_cut(machine, seed)
    assert broker is not None
    return machine.kernel.steps


def crash_at(
    seed: int,
    step: int,
    durability: Durability,
    directory: Path | None = None,
    mode: QueueMode = QueueMode.ROCKSDB,
    code_path: CodePath = CodePath.PYTHON,
    *,
    indexed: bool = False,
) -> None:
    machine = Machine(seed, durability, directory, mode, indexed=indexed, code_path=code_path)
    machine.kernel.crash_at = step
    chance = Random(seed * 1_000_003 + step)
    try:
        run_until_cut(machine, seed)
        broker = come_back(machine, chance)
        broker.check()
        broker.send([Sending(QUEUES[0], SMALL)])
        broker.flush()
        machine.crash(power_loss=True)
        broker = machine.start()
        broker.check()
        for _ in range(2):
            broker = live_on(machine, broker, chance)
        use_again(machine, broker)
    except Exception as error:
        tail = "\n".join(machine.kernel.log[-12:])
        place = f"{seed},{step},{durability.value},{mode.value},{code_path.value}" + ",indexed" * indexed
        error.add_note(f'replay with QUARRY_CRASH="{place}"; the last steps were\n{tail}')
        raise
    finally:
        machine.close()


def chosen() -> tuple[int, int, Durability, QueueMode, CodePath, bool] | None:
    """The one place to try instead of all."""
    text = os.environ.get("QUARRY_CRASH")
    if not text:
        return None
    seed, step, durability, mode, code_path, *more = text.split(",")
    return int(seed), int(step), Durability(durability), QueueMode(mode), CodePath(code_path), bool(more)


def crash_at_steps(
    seed: int,
    durability: Durability,
    mode: QueueMode = QueueMode.ROCKSDB,
    code_paths: Sequence[CodePath] = CODE_PATHS,
    *,
    every: int = 1,
    indexed: bool = False,
) -> None:
    """Crash at every step, or at every n-th one; the code paths take turns."""
    for turn, code_path in enumerate(code_paths):
        end = steps_of(seed, durability, mode, code_path, indexed=indexed) + 2
        for step in range(1 + turn * every, end, every * len(code_paths)):
            crash_at(seed, step, durability, mode=mode, code_path=code_path, indexed=indexed)


@pytest.mark.parametrize("code_path", CODE_PATHS)
def test_the_workload_takes_every_kind_of_step(code_path: CodePath) -> None:
    taken, expired = set(), False
    for seed in range(6):
        machine = Machine(seed, Durability.SYNC, code_path=code_path)
        assert run_until_cut(machine, seed) is not None
        expired |= "mkdir expired" in machine.kernel.log
        taken |= {" ".join(step.split()[: 3 if step.startswith("fsync of") else 1]) for step in machine.kernel.log}
    wanted = {
        "create",
        "store",
        "fsync",
        "fsync of the",
        "ftruncate",
        "fallocate",
        "rename",
        "unlink",
        "mkdir",
    }
    assert wanted | {"write", "flush"} <= taken
    assert expired, "segments expire, too"


@pytest.mark.skipif(chosen() is None, reason="no place is chosen")
def test_the_chosen_place() -> None:
    place = chosen()
    assert place is not None
    seed, step, durability, mode, code_path, indexed = place
    crash_at(seed, step, durability, mode=mode, code_path=code_path, indexed=indexed)


@pytest.mark.parametrize("durability", list(Durability))
def test_a_crash_at_any_step_breaks_no_promise(durability: Durability) -> None:
    """Jepsen on NATS: acknowledged writes were lost in a power cut. rmq#10417: bounds were inverted after one."""
    crash_at_steps(0, durability, every=4)


@pytest.mark.slow
@pytest.mark.parametrize("code_path", CODE_PATHS)
@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_crash_at_any_step_of_any_code_path_breaks_no_promise(
    seed: int, durability: Durability, code_path: CodePath
) -> None:
    crash_at_steps(seed, durability, code_paths=[code_path])


@pytest.mark.parametrize("mode", [QueueMode.FILE, QueueMode.DOUBLE_WRITE])
def test_with_queues_in_files_a_crash_breaks_no_promise_either(mode: QueueMode) -> None:
    crash_at_steps(0, Durability.SYNC, mode, every=9)


@pytest.mark.slow
@pytest.mark.parametrize("code_path", CODE_PATHS)
@pytest.mark.parametrize("mode", [QueueMode.FILE, QueueMode.DOUBLE_WRITE])
@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("seed", range(5))
def test_with_queues_in_files_a_crash_at_any_step_of_any_code_path_breaks_no_promise(
    seed: int, durability: Durability, mode: QueueMode, code_path: CodePath
) -> None:
    crash_at_steps(seed, durability, mode, [code_path])


@pytest.mark.parametrize("durability", list(Durability))
def test_after_a_crash_every_message_is_found_by_its_key(durability: Durability) -> None:
    """rmq#10656, rmq#7222: what a crash left of an index was taken for whole."""
    crash_at_steps(0, durability, every=28, indexed=True)


@pytest.mark.slow
@pytest.mark.parametrize("code_path", CODE_PATHS)
@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("seed", range(4))
def test_after_a_crash_at_any_step_every_message_is_found_by_its_key(
    seed: int, durability: Durability, code_path: CodePath
) -> None:
    crash_at_steps(seed, durability, code_paths=[code_path], indexed=True)


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_with_rocksdb_itself_a_crash_breaks_no_promise_either(
    seed: int, durability: Durability, tmp_path: Path
) -> None:
    """Its directories are taken as they lie there at the moment of the cut."""
    chance = Random(seed)
    for number in range(4):
        code_path = CODE_PATHS[number % len(CODE_PATHS)]
        step = chance.randrange(1, steps_of(seed, durability, code_path=code_path) + 1)
        crash_at(seed, step, durability, tmp_path / str(number), code_path=code_path)


def plant_a_flush_that_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.kernel.Kernel.sync", lambda kernel, inode: kernel.step("a lie"))


def plant_names_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Directory.settle
    monkeypatch.setattr(Directory, "settle", lambda self, count=0: settle(self, count))


def plant_nothing_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.metadata.ConsumerOffsetTable.lower", lambda *_: 0)


def plant_watermark_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.consumequeue.rocks.store.ENTRIES_FAMILIES", (OFFSET_FAMILY,))


def plant_queues_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.consumequeue.RocksConsumeQueues.truncate", lambda *_: None)


def plant_deletions_that_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.opening.open_store.delete_again", lambda *_: None)


def plant_an_index_taken_as_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.index.hash.index.HashIndex.go_back", lambda *_: None)


def plant_a_flush_that_ends_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    end = CommitLogFlusher.end
    monkeypatch.setattr(
        CommitLogFlusher,
        "end",
        lambda self, begun, error: end(self, begun._replace(end=self._writer.end), error),
    )


def plant_requests_lost_in_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_flush = MessageStore.begin_flush

    def begin_and_lose(store: MessageStore) -> BegunFlush | None:
        begun = begin_flush(store)
        if begun is not None:
            store._offsets._undispatched = []
        return begun

    monkeypatch.setattr(MessageStore, "begin_flush", begin_and_lose)


def plant_room_made_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueOffsets, "evict", lambda self: self.next.clear())


def plant_offsets_of_deleted_queues_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueOffsets, "_drop", lambda *_: None)


def plant_deleted_queues_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RocksBounds, "replaced", lambda *_: None)


def plant_deleted_queues_in_the_native_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RocksBounds, "replaced", lambda self, queue, _: self._cache.discard(queue))


def plant_known_queues_not_advanced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RocksBounds, "written", lambda self, staged: self.stored(staged[1]))


def plant_max_offsets_that_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RocksBounds, "stored", lambda *_: None)


IN_NATIVE_PATH = [
    plant_deleted_queues_in_the_native_table,
    plant_known_queues_not_advanced,
    plant_max_offsets_that_are_not_told,
]
UNDER_SYNC = [plant_requests_lost_in_a_flush, plant_room_made_for_all]
"""Mistakes with messages that wait for their flush: under `async` none does."""


@pytest.mark.parametrize(
    "plant",
    [
        plant_a_flush_that_ends_too_far,
        pytest.param(plant_offsets_of_deleted_queues_kept, marks=pytest.mark.slow),
        plant_deleted_queues_known,
        *([] if NATIVE is None else IN_NATIVE_PATH),
        *UNDER_SYNC,
        plant_an_index_taken_as_found,
        plant_a_flush_that_lies,
        plant_names_not_synced,
        plant_nothing_lowered,
        plant_watermark_first,
        pytest.param(plant_queues_not_cut, marks=pytest.mark.slow),
        plant_deletions_that_are_not_repeated,
    ],
)
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof that passes whatever the store does proves nothing."""
    plant(monkeypatch)
    durability = Durability.SYNC if plant in UNDER_SYNC else Durability.ASYNC
    for seed in range(100):
        code_path = CODE_PATHS[seed % len(CODE_PATHS)]
        for step in range(100 + seed, 320, 40):
            try:
                crash_at(seed, step, durability, code_path=code_path, indexed="index" in plant.__name__)
            except Exception:
                return
    pytest.fail("nobody noticed")
