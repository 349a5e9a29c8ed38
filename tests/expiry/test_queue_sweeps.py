"""Entries of expired messages leave the consume queues step by step, whatever else happens to these meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.consumequeue import ConsumeQueueStore, DoubleWriteConsumeQueues
from quarry_mq.store.consumequeue.files.layout import ENTRY_SIZE as FILE_ENTRY_SIZE
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, ENTRY, OFFSET_FAMILY, entry_key
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.retention.queue_expiry import FileSweep, QueueSweep, RocksSweep
from tests.consumequeue.backings import UNITS_PER_FILE, FileBacking
from tests.consumequeue.samples import A0, A1, B0, LITE, entry, offsets, physical, put, queues_over, request
from tests.faults.disk import FaultyDisk, PowerCut

ALL = KeyRange(b"", None)
QUEUES = [A0, A1, B0, LITE, QueueId("%LMQ%other", 0), QueueId("A", 7)]
TOPICS = sorted({queue.topic for queue in QUEUES})
KINDS = ["rocksdb", "files", "both"]


class Subject:
    """Queues of one kind, and beside them every entry ever put, which a plain filter is asked about."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.engine = MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])
        self.disk = FaultyDisk()
        self.saved: PhysicalOffset | None = None
        self.minimum = PhysicalOffset(0)
        self.count = 0
        self.numbers: dict[QueueId, list[int]] = {queue: [] for queue in QUEUES}
        """The records of each queue since it began."""
        self.dropped = 0
        self.open()

    def open(self) -> None:
        backing = FileBacking(Path("/consumequeue"), self.disk, self.saved)
        backing.units_per_file, backing.after_crash = UNITS_PER_FILE, True
        self.file_backing = backing
        self.files = backing.open_as_it_is(self.minimum)
        self.rocks = queues_over(self.engine, self.minimum)
        kinds: dict[str, ConsumeQueueStore] = {
            "rocksdb": self.rocks,
            "files": self.files,
            "both": DoubleWriteConsumeQueues(self.files, self.rocks, read_rocks=True, assign_rocks=True),
        }
        self.queues = kinds[self.kind]

    @property
    def has_files(self) -> bool:
        return self.kind != "rocksdb"

    @property
    def has_rocks(self) -> bool:
        return self.kind != "files"

    # -- what happens

    def put(self, queue: QueueId) -> None:
        put(self.queues, [request(self.count, queue, len(self.numbers[queue]))])
        self.numbers[queue].append(self.count)
        self.count += 1

    def delete(self, topic: str) -> None:
        self.queues.delete_topic(topic)
        self.numbers = {queue: [] if queue.topic == topic else known for queue, known in self.numbers.items()}

    def expire(self, number: int) -> None:
        self.minimum = max(self.minimum, physical(min(number, self.count)))
        self.queues.set_minimum_physical_offset(self.minimum)

    def sweeps(self) -> list[QueueSweep]:
        files: list[QueueSweep] = [FileSweep(self.files, self.minimum)] if self.has_files else []
        if not self.has_rocks:
            return files
        return [*files, RocksSweep(self.rocks, dropped=self._count, rows_per_slice=3, ranges_per_flush=2)]

    def _count(self, entries: int) -> None:
        self.dropped += entries

    # -- what is to be seen

    def check_reads(self) -> None:
        """Of every queue exactly the entries whose records the log has, by whoever is asked."""
        readers: list[ConsumeQueueStore] = [self.queues]
        readers += [self.files] if self.has_files else []
        readers += [self.rocks, queues_over(self.engine, self.minimum)] if self.has_rocks else []
        for queue, numbers in self.numbers.items():
            live = [at for at, number in enumerate(numbers) if physical(number) >= self.minimum]
            minimum = live[0] if live else len(numbers)
            for reader in readers:
                assert offsets(reader, queue) == live, (queue, reader)
                assert reader.bounds(queue) == (minimum, len(numbers)), (queue, reader)

    def check_what_is_stored(self) -> None:
        """Nothing below the minimum is left in RocksDB; in files only what shares one with something above, or with
        the end of its queue.
        """
        if self.has_rocks:
            assert dict(self.engine.family(ENTRIES_FAMILY).scan(ALL)) == self.by_filter()
        if not self.has_files:
            return
        for queue, numbers in self.numbers.items():
            first_live = next((at for at, each in enumerate(numbers) if physical(each) >= self.minimum), len(numbers))
            first_kept = min(first_live, max(0, len(numbers) - 1)) // UNITS_PER_FILE * UNITS_PER_FILE
            ends = range(first_kept, len(numbers), UNITS_PER_FILE)
            names = [
                each.name for each in self.disk.list_directory(Path("/consumequeue") / queue.topic / str(queue.number))
            ]
            assert names == [f"{begin * FILE_ENTRY_SIZE:020d}" for begin in ends], queue

    def by_filter(self) -> dict[bytes, bytes]:
        """RocketMQ's rule, asked about every unit: dropped if it is one of a record below the minimum."""
        entries = {
            entry_key(queue, QueueOffset(at)): ENTRY.pack(*entry(number, at)[1:])
            for queue, numbers in self.numbers.items()
            for at, number in enumerate(numbers)
        }
        return {key: value for key, value in entries.items() if ENTRY.unpack(value)[0] >= self.minimum}


def run_sweeps(subject: Subject, meanwhile: Callable[[], None] = lambda: None) -> int:
    """All rounds to their end; `meanwhile` happens between any two halves of steps. Returns how many halves ran."""
    halves = 0
    for each in subject.sweeps():
        while each.prepare():
            meanwhile()
            halves += 1
            while each.carry_out():
                meanwhile()
                halves += 1
            meanwhile()
            halves += 1
    return halves


ACTIONS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(QUEUES)),
    st.tuples(st.just("put"), st.sampled_from(QUEUES)),
    st.tuples(st.just("delete"), st.sampled_from(TOPICS)),
    st.tuples(st.just("expire"), st.integers(0, 150)),
    st.tuples(st.just("read"), st.none()),
)


@pytest.mark.parametrize("kind", KINDS)
@given(
    log=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=100),
    minimum=st.integers(0, 110),
    actions=st.lists(ACTIONS, max_size=12),
)
@settings(max_examples=60)
def test_entry_by_entry_what_a_plain_filter_leaves(
    kind: str, log: list[QueueId], minimum: int, actions: list[tuple[str, object]]
) -> None:
    """Entries below the minimum go, beside puts, topics that are deleted and begin again, and a minimum that grows."""
    subject = Subject(kind)
    for queue in log:
        subject.put(queue)
    subject.expire(minimum)
    left = list(actions)

    def meanwhile() -> None:
        if not left:
            return
        match left.pop(0):
            case "put", QueueId() as queue:
                subject.put(queue)
            case "delete", str(topic):
                subject.delete(topic)
            case "expire", int(number):
                subject.expire(number)
        subject.check_reads()

    run_sweeps(subject, meanwhile)
    subject.check_reads()
    while left:
        meanwhile()
    run_sweeps(subject)  # the minimum may have grown after the first had begun
    subject.check_reads()
    subject.check_what_is_stored()


def filled(kind: str, count: int = 60) -> Subject:
    """Queues of different lengths, of which some are below record 40 altogether; all of it durable."""
    subject = Subject(kind)
    chance = Random(count)
    for number in range(count):
        subject.put(chance.choice(QUEUES[:4] if number > 20 else QUEUES))
    subject.queues.flush()
    subject.saved = subject.file_backing.saved
    return subject


def halves_of(kind: str) -> int:
    subject = filled(kind)
    subject.expire(40)
    return run_sweeps(subject)


class Crash(Exception):
    """The process ends here."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_after_any_half_of_a_step_is_gone_on_from(kind: str, seed: int) -> None:
    for crash_at in range(1, halves_of(kind) + 1):
        chance = Random(seed * 1_000 + crash_at)
        subject = filled(kind)
        subject.expire(40)
        countdown = iter(range(crash_at))

        def meanwhile(countdown: object = countdown) -> None:
            if next(countdown, None) is None:  # type: ignore[call-overload]
                raise Crash

        try:
            run_sweeps(subject, meanwhile)
        except Crash:
            # as when the broker's own flush of the queues was between entries and bounds
            subject.engine.flush([OFFSET_FAMILY])
            subject.engine.crash(chance.randrange(12))
            subject.disk = subject.disk.power_loss(seed) if seed % 2 else subject.disk.process_death()
            subject.open()
        subject.check_reads()
        subject.expire(45)
        run_sweeps(subject)
        subject.check_reads()
        subject.check_what_is_stored()


def test_a_power_cut_at_any_operation_of_a_sweep_over_files_is_gone_on_from() -> None:
    def expiring(disk_operations: int | None) -> Subject:
        subject = filled("files")
        subject.expire(40)
        subject.disk.crash_at = None if disk_operations is None else subject.disk.operations + disk_operations
        return subject

    whole = expiring(None)
    before = whole.disk.operations
    run_sweeps(whole)
    for crash_at in range(1, whole.disk.operations - before + 1):
        subject = expiring(crash_at)
        with pytest.raises(PowerCut):
            run_sweeps(subject)
        subject.disk = subject.disk.power_loss(crash_at)
        subject.open()
        subject.check_reads()
        run_sweeps(subject)
        subject.check_reads()
        subject.check_what_is_stored()


def test_a_topic_deleted_between_search_and_removal_is_looked_at_again() -> None:
    subject = filled("rocksdb")
    subject.expire(40)
    (each,) = subject.sweeps()
    assert each.prepare()
    subject.delete(B0.topic)
    for _ in range(40):
        subject.put(B0)
    subject.check_reads()
    run_sweeps(subject)
    while each.carry_out() or each.prepare():
        pass
    subject.check_reads()
    subject.check_what_is_stored()
