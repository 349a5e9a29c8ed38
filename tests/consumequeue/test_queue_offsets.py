"""Next, max and min offsets of queues, with all caches of them, are those of a plain dictionary at every moment.

The model has what the database stores as dictionaries and computes each answer from them without any cache. Caches of
the code under test are so small that they drop queues all the time. Crashes lose what was not flushed, and cut the log.
Whenever asked, queues that are made from the log and the notes on deletions have the same entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from quarry_mq.kv import KvError
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.consumequeue import ConsumeQueueEntry, RocksConsumeQueues
from quarry_mq.store.consumequeue.dispatch import (
    OffsetAssignment,
    StoredAssignment,
    UndeletedEntries,
    in_light_queues_alone,
)
from quarry_mq.store.consumequeue.queue_offsets import LightFloor, QueueOffsets
from quarry_mq.store.consumequeue.rocks import bounds as rocks_bounds
from quarry_mq.store.consumequeue.rocks.bounds import RocksBounds, StagedEntries
from quarry_mq.store.consumequeue.rocks_layout import (
    ENTRIES_FAMILY,
    OFFSET_FAMILY,
    entry_key,
    parse_bound,
    parse_bound_key,
)
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.native import NATIVE
from quarry_mq.store.recovery.recovery import delete_again
from quarry_mq.store.state.deletions import Deletions
from quarry_mq.store.state.identity import FAMILIES
from tests.consumequeue.samples import RECORD_SIZE, entry, physical, queues_over, request

CACHED_MAX = 4
TOPICS = ["a", "b"]
QUEUES = [QueueId(topic, number) for topic in TOPICS for number in range(3)]
LIGHTS = [QueueId(f"%LMQ%{number}", 0) for number in range(4)]
ALL = [*QUEUES, *LIGHTS]

LOADS = st.lists(
    st.tuples(st.sampled_from(QUEUES), st.lists(st.sampled_from(LIGHTS), unique=True, max_size=2)),
    min_size=1,
    max_size=5,
)
SOME = st.lists(st.sampled_from(ALL), min_size=1, max_size=6, unique=True)


@dataclass
class Stored:
    """Stored rows of queues as dictionaries."""

    rows: dict[QueueId, dict[int, int]] = field(default_factory=dict)
    """Queue offset and number of the record of each entry."""
    max_offsets: dict[QueueId, tuple[int, int]] = field(default_factory=dict)
    """Physical offset and queue offset of the last entry."""
    min_offsets: dict[QueueId, int] = field(default_factory=dict)
    """The offset at which the search for the first entry begins."""
    watermark: int = 0
    log_begin: int = 0

    def maximum(self, queue: QueueId) -> int:
        return self.max_offsets[queue][1] + 1 if queue in self.max_offsets else 0

    def visible(self, queue: QueueId) -> list[int]:
        """Offsets of the entries whose records the log still has, ascending."""
        begin, end = self.min_offsets.get(queue, 0), self.maximum(queue)
        if end and self.max_offsets[queue][0] < self.log_begin:
            return []
        entries = self.rows.get(queue, {})
        return [each for each in sorted(entries) if begin <= each < end and physical(entries[each]) >= self.log_begin]

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        return min([*self.visible(queue), self.maximum(queue)]), self.maximum(queue)

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        entries = self.rows.get(queue, {})
        return [entry(entries[each], each) for each in self.visible(queue) if each >= start][:limit]

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None:
        below = [each for each in self.entries(queue, QueueOffset(0), 1_000) if each.physical_offset < at]
        return below[-1] if below else None

    def put(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        for each in requests:
            for queue, offset in offsets_of(each):
                self.rows.setdefault(queue, {})[offset] = each.physical_offset // RECORD_SIZE
                if offset + 1 >= self.maximum(queue):
                    self.max_offsets[queue] = each.physical_offset, offset
        self.watermark = dispatched_up_to

    def restart_at(self, queue: QueueId, offset: QueueOffset) -> None:
        entries = {each: number for each, number in self.rows.get(queue, {}).items() if each < offset}
        self.rows[queue] = entries
        self.max_offsets.pop(queue, None)
        if entries:
            self.max_offsets[queue] = physical(entries[max(entries)]), max(entries)
        elif offset > 0:
            self.max_offsets[queue] = 0, offset - 1
        if self.min_offsets.get(queue, 0) > self.maximum(queue):
            del self.min_offsets[queue]

    def truncate(self, end: int, min_offsets_at: dict[QueueId, int]) -> None:
        for queue, (last_physical, last) in list(self.max_offsets.items()):
            if last_physical >= end:
                entries = self.rows.get(queue, {})
                gone = [each for each in entries if each <= last and physical(entries[each]) >= end]
                self.restart_at(queue, QueueOffset(min(gone, default=last)))
                if queue in self.min_offsets and min_offsets_at[queue] >= end:
                    del self.min_offsets[queue]
        self.watermark = min(self.watermark, end)

    def remove(self, queue: QueueId) -> None:
        self.rows.pop(queue, None)
        self.max_offsets.pop(queue, None)
        self.min_offsets.pop(queue, None)


def offsets_of(each: DispatchRequest) -> list[tuple[QueueId, int]]:
    """The queue offset that the record has in each of its queues."""
    lights = [(QueueId(name, 0), int(offset)) for name, offset in each.light_queues]
    return [(QueueId(each.topic, each.queue_number), int(each.queue_offset)), *lights]


def undeleted_by(rule: OffsetAssignment, requests: Sequence[DispatchRequest]) -> list[DispatchRequest]:
    """The requests as a scan of the log makes them by a rule, which knows of deletions."""
    made = []
    for each in requests:
        lights = [
            (name, offset)
            for name, offset in each.light_queues
            if rule.offset_of(name, offset, each.physical_offset) is not None
        ]
        found = each._replace(light_queues=tuple(lights))
        is_deleted = each.physical_offset < rule.deleted_topics.get(each.topic, 0)
        if (left := in_light_queues_alone(found) if is_deleted else found) is not None:
            made.append(left)
    return made


class OffsetsMachine(RuleBasedStateMachine):
    """A store of queues in RocksDB whose every answer is compared with the model's."""

    native = False

    @initialize(table_queues=st.sampled_from([CACHED_MAX, 64]))
    def begin(self, table_queues: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(rocks_bounds, "ROWS_PER_PAGE", 3)
        self.patch.setattr(rocks_bounds, "TABLE_QUEUES", table_queues)
        self.engine = MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])
        self.stored, self.durable = Stored(), Stored()
        self.min_offsets_at: dict[QueueId, int] = {}
        self.log: list[DispatchRequest] = []
        self.undispatched: list[DispatchRequest] = []
        self.dropped_below = 0
        self.deletions = Deletions(MemoryEngine(FAMILIES, write_ahead_log=True))
        self.deleted_at: dict[str, PhysicalOffset] = {}
        """The dictionary says for a topic or a light queue where the log ended at its last deletion or removal."""
        self.floor = LightFloor(None, lambda _: None)
        self.own_floor: dict[QueueId, int] = {}
        """The offset above those of the light queue of this name that was removed."""
        self.open()
        for _ in range(2):
            self.send([(main, [light]) for main, light in zip(QUEUES, LIGHTS * 2, strict=False)])
        self.flush()

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            try:
                self.read(ALL, start=0, limit=1_000)
                self.ask(ALL, at_once=False)
            finally:
                self.patch.undo()

    def open(self) -> None:
        """Open the queues with empty caches."""
        self.queues: RocksConsumeQueues = queues_over(self.engine, self.stored.log_begin, CACHED_MAX)
        if self.native and NATIVE is not None:
            self.queues.use(NATIVE)
        self.offsets = QueueOffsets(self.queues, cached_max=CACHED_MAX, light_floor=self.floor)
        self.warmed: bytes | None = b""

    # -- what happens to queues

    def assign(self, load: list[tuple[QueueId, list[QueueId]]], *, at_once: bool) -> None:
        """Give messages their offsets as an append does, each alone or all at once, and append them unless it fails."""
        wanted = [queue for main, lights in load for queue in (main, *lights)]
        if at_once and (unknown := [each for each in wanted if each not in self.offsets.next]):
            self.offsets.load(unknown)
        assigned: dict[tuple[str, int], QueueOffset] = {}
        requests = []
        for number, (main, lights) in enumerate(load, len(self.log)):
            got = []
            for queue in (main, *lights):
                offset = assigned[queue] if queue in assigned else self.offsets.next_of(queue)
                if queue not in assigned:
                    self.compare_next(queue, offset)
                assigned[queue] = QueueOffset(offset + 1)
                got.append(offset)
            lights_with_offsets = [(light.topic, offset) for light, offset in zip(lights, got[1:], strict=True)]
            requests.append(request(number, main, got[0], *lights_with_offsets))
        self.assigned, self.requests = assigned, requests

    @rule(load=LOADS, at_once=st.booleans())
    def append(self, load: list[tuple[QueueId, list[QueueId]]], at_once: bool) -> None:
        self.assign(load, at_once=at_once)
        self.offsets.appended(self.assigned, self.requests)
        self.log += self.requests
        self.undispatched += self.requests

    @rule(load=LOADS)
    def send(self, load: list[tuple[QueueId, list[QueueId]]]) -> None:
        """Append messages and dispatch them at once, as under `async`."""
        self.append(load, at_once=True)
        self.dispatch(share=1, fails=False)

    @rule(load=LOADS)
    def append_in_vain(self, load: list[tuple[QueueId, list[QueueId]]]) -> None:
        """An append fails after it has assigned offsets."""
        self.assign(load, at_once=False)
        self.offsets.evict()

    @precondition(lambda self: self.undispatched)
    @rule(share=st.sampled_from([0.5, 1]), fails=st.sampled_from([False, False, False, True]))
    def dispatch(self, share: float, fails: bool) -> None:
        last = self.undispatched[max(0, int(len(self.undispatched) * share) - 1)]
        end = PhysicalOffset(last.physical_offset + RECORD_SIZE)
        requests = self.offsets.undispatched_below(end)
        assert requests == [each for each in self.undispatched if each.physical_offset < end]
        queued = self.offsets.undeleted(requests)
        assert queued == self.undeleted(requests)
        if fails:
            with pytest.MonkeyPatch.context() as broken:
                broken.setattr(self.engine, "write", refuse)
                with pytest.raises(KvError):
                    self.queues.put(queued, end)
            return
        self.queues.put(queued, end)
        self.stored.put(queued, end)
        self.undispatched = self.undispatched[len(requests) :]
        self.offsets.dispatched(requests)

    @rule(topic=st.sampled_from(TOPICS), compared=st.booleans())
    def delete_topic(self, topic: str, compared: bool) -> None:
        end = PhysicalOffset(physical(len(self.log)))
        self.deletions.topic_deleted(topic, end)
        self.deleted_at[topic] = end
        self.offsets.delete_topic(topic, list(self.queues.queues(topic)), end)
        for queue in [each for each in QUEUES if each.topic == topic]:
            self.stored.remove(queue)
        if compared:
            self.ask(QUEUES, at_once=False)

    def undeleted(self, requests: list[DispatchRequest]) -> list[DispatchRequest]:
        """The requests of the entries that are left: those of a record's own queue go with its topic."""
        return undeleted_by(UndeletedEntries(StoredAssignment(), self.deleted_at, self.deleted_at), requests)

    @rule(below=st.integers(1, 60))
    def remove_light_queues(self, below: int) -> None:
        found = self.queues.light_queues_ended(physical(below), b"")
        busy = {queue for each in self.undispatched for queue, _ in offsets_of(each)}
        still = self.offsets.still_ended(found.ended)
        wanted = {
            each
            for each in LIGHTS
            if each in self.stored.max_offsets and self.stored.max_offsets[each][0] < below * 100
        }
        assert {each.queue for each in still} == wanted - busy
        end = PhysicalOffset(physical(len(self.log)))
        self.deletions.light_queues_removed([each.queue.topic for each in still], end)
        self.offsets.remove_ended(still)
        for each in still:
            self.stored.remove(each.queue)
            self.deleted_at[each.queue.topic] = end
            self.own_floor[each.queue] = each.last.queue_offset + 1

    @rule(records=st.lists(st.integers(0, 16), min_size=1, max_size=3), asked=SOME)
    def move_log_begin(self, records: list[int], asked: list[QueueId]) -> None:
        """The log begins later or, as long as no entries were dropped, earlier again."""
        for record in records:
            begin = max(self.dropped_below, min(physical(record), self.durable.watermark))
            self.stored.log_begin = begin
            self.queues.set_minimum_physical_offset(PhysicalOffset(begin))
            self.ask(asked, at_once=False)

    @rule(stores=st.booleans())
    def expire(self, stores: bool) -> None:
        """Entries of records that the log has no more are dropped, and minima stored, unless a crash comes first."""
        found = self.queues.expired_entries().step()
        assert self.queues.drop(found.ranges, removals=self.queues.removals)
        self.dropped_below = self.stored.log_begin
        for queue, entries in self.stored.rows.items():
            for each in [
                each
                for each in entries
                if any(keys.start <= entry_key(queue, QueueOffset(each)) < (keys.end or b"") for keys in found.ranges)
            ]:
                del entries[each]
        self.flush_entries()
        if stores:
            assert self.queues.store_min_offsets(found.min_offsets, removals=self.queues.removals)
            for key, value in found.min_offsets:
                queue, bound = parse_bound_key(key)[0], parse_bound(value)
                self.stored.min_offsets[queue], self.min_offsets_at[queue] = bound.queue_offset, bound.physical_offset

    @rule()
    def flush_entries(self) -> None:
        self.queues.flush_entries()
        self.durable.rows = deepcopy(self.stored.rows)

    @rule()
    def flush(self) -> None:
        self.queues.flush()
        self.durable = deepcopy(self.stored)

    @rule(lost=st.integers(0, 12), pages=st.integers(0, 9), asked=st.sets(st.sampled_from(ALL)), twice=st.booleans())
    def crash(self, lost: int, pages: int, asked: set[QueueId], twice: bool) -> None:
        """The process dies: unflushed rows are gone, perhaps with the end of the log; a start puts the rest again.

        `twice`: the start dies, too, before its end. At the end of a start the queues are flushed.
        """
        self.die_and_recover(lost, pages, asked)
        if twice:
            self.die_and_recover(0, pages, asked)
        self.flush()
        end = PhysicalOffset(physical(len(self.log)))
        self.deletions.drop_below(PhysicalOffset(self.dropped_below))
        self.deletions.lower_to(end)
        self.deleted_at = {name: min(at, end) for name, at in self.deleted_at.items()}
        self.ask(sorted(asked), at_once=True)

    def die_and_recover(self, lost: int, pages: int, asked: set[QueueId]) -> None:
        self.engine.crash()
        begin = self.stored.log_begin
        self.stored = deepcopy(self.durable)
        self.stored.log_begin = begin
        self.log = [each for each in self.log if each.physical_offset < max(begin, physical(len(self.log) - lost))]
        end = physical(len(self.log))
        self.undispatched = []
        self.open()
        self.warm(pages=pages)
        for queue in sorted(asked):
            self.queues.bounds(queue)  # into the caches; queues that were deleted need the rest of the log to be right
        if self.stored.watermark > end:
            self.queues.truncate(end)
            self.stored.truncate(end, self.min_offsets_at)
            self.durable = deepcopy(self.stored)
        for name in [each for each, at in self.deleted_at.items() if at >= self.stored.watermark]:
            for queue in [each for each in ALL if each.topic == name]:
                self.stored.remove(queue)
        delete_again(self.queues, self.deletions.since(PhysicalOffset(self.stored.watermark)))
        again = self.undeleted([each for each in self.log if each.physical_offset >= max(self.stored.watermark, begin)])
        self.stored.put(again, end)
        self.queues.put_again(again, end)
        self.offsets = QueueOffsets(self.queues, cached_max=CACHED_MAX, light_floor=self.floor)

    @rule()
    def make_again(self) -> None:
        """Queues that are made from the log and the notes on deletions have the entries that the live ones have."""
        begin, engine = self.stored.log_begin, MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])
        made = queues_over(engine, begin, CACHED_MAX)
        end = self.undispatched[0].physical_offset if self.undispatched else PhysicalOffset(physical(len(self.log)))
        rule = UndeletedEntries(
            StoredAssignment(), self.deletions.topics(), self.deletions.light_queues_since(PhysicalOffset(begin))
        )
        made.put_again(undeleted_by(rule, [each for each in self.log if begin <= each.physical_offset < end]), end)
        for queue in ALL:
            assert made.entries(queue, QueueOffset(0), 1_000) == self.stored.entries(queue, QueueOffset(0), 1_000)

    # -- what is asked

    @rule(pages=st.integers(1, 3))
    def warm(self, pages: int) -> None:
        for _ in range(pages):
            if self.warmed is not None:
                self.warmed = self.queues.warm(self.warmed)

    @rule(queues=SOME, at_once=st.booleans())
    def ask(self, queues: list[QueueId], at_once: bool) -> None:
        """Ask for bounds and next offsets, of each queue alone or of all at once."""
        if at_once:
            assert self.queues.next_offsets(queues) == [self.stored.maximum(each) for each in queues]
            for queue, extent in zip(queues, self.offsets.extents_of_all(queues), strict=True):
                first = self.stored.entries(queue, QueueOffset(0), 1)
                assert extent == (*self.stored.bounds(queue), first[0].physical_offset if first else None), queue
        for queue in queues:
            assert self.offsets.bounds(queue) == self.stored.bounds(queue), queue
            assert self.offsets.maximum(queue) == self.stored.maximum(queue), queue
            self.compare_next(queue, self.offsets.next_of(queue))

    @rule(queues=SOME, start=st.integers(0, 5), limit=st.integers(1, 3))
    def read(self, queues: list[QueueId], start: int, limit: int) -> None:
        """Read entries as a receive does, which does not ask for the bounds first."""
        for queue in queues:
            found = self.queues.entries(queue, QueueOffset(start), limit)
            assert found == self.stored.entries(queue, QueueOffset(start), limit), queue

    @rule(topic=st.sampled_from(TOPICS))
    def open_topic(self, topic: str) -> None:
        stored = [each for each in QUEUES if each.topic == topic and each in self.stored.max_offsets]
        assert self.queues.queues_of(topic) == stored

    def compare_next(self, queue: QueueId, offset: int) -> None:
        pending = [at for each in self.undeleted(self.undispatched) for main, at in offsets_of(each) if main == queue]
        maximum = self.stored.maximum(queue)
        if queue in LIGHTS and not pending and maximum == 0:
            # the floor may have risen for another queue since this one was cached
            assert self.own_floor.get(queue, 0) <= offset <= self.floor.offset, queue
            return
        assert offset == (pending[-1] + 1 if pending else maximum), queue


class NativeOffsetsMachine(OffsetsMachine):
    native = True


MACHINES = [OffsetsMachine] if NATIVE is None else [OffsetsMachine, NativeOffsetsMachine]


def refuse(*_: object, **__: object) -> None:
    raise KvError("no space left")


def run(
    machine: type[OffsetsMachine],
    examples: int,
    phases: Sequence[Phase] = tuple(Phase),
    *,
    derandomize: bool = False,
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            database=None,
            derandomize=derandomize,
            phases=phases,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("machine", MACHINES)
def test_every_answer_is_that_of_a_plain_dictionary(machine: type[OffsetsMachine]) -> None:
    run(machine, 60)


# -- mistakes that the model has to find


def plant_removed_queues_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RocksBounds, "replaced", lambda *_: None)


def plant_removed_queues_kept_in_the_table(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RocksBounds, "replaced", lambda self, queue, _: self._cache.discard(queue))


def plant_known_queues_not_advanced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RocksBounds, "written", lambda self, staged: self.stored(staged[1]))
    patch.setattr(RocksBounds, "written_last", lambda self, _, max_offsets: self.stored(max_offsets))


def plant_table_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RocksBounds, "stored", lambda *_: None)


def plant_put_counted_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    stage = RocksBounds.stage

    def staged(bounds: RocksBounds, requests: Sequence[DispatchRequest]) -> StagedEntries | None:
        found = stage(bounds, requests)
        if found is not None:
            bounds.written(found)
        return found

    patch.setattr(RocksBounds, "stage", staged)


def plant_table_complete_after_one_page(patch: pytest.MonkeyPatch) -> None:
    warm = RocksBounds.warm

    def warm_one_page(bounds: RocksBounds, after: bytes) -> bytes | None:
        warm(bounds, after)
        if bounds._table is not None:
            bounds._table.end_all()
        return None

    patch.setattr(RocksBounds, "warm", warm_one_page)


def plant_caches_kept_when_the_log_is_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RocksBounds, "invalidate_all", lambda *_: None)


def plant_table_kept_when_the_log_is_truncated(patch: pytest.MonkeyPatch) -> None:
    def forget_known(bounds: RocksBounds) -> None:
        bounds._cache.rotate()
        bounds._cache.rotate()

    patch.setattr(RocksBounds, "invalidate_all", forget_known)


def plant_first_entries_kept_when_the_log_begins_earlier(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RocksBounds, "log_begins_at", lambda self, minimum: setattr(self, "minimum", minimum))


def plant_undispatched_offsets_dropped(patch: pytest.MonkeyPatch) -> None:
    def evict(offsets: QueueOffsets) -> None:
        if len(offsets.next) >= CACHED_MAX:
            offsets.next = {}

    patch.setattr(QueueOffsets, "evict", evict)


def plant_next_offsets_of_removed_queues_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueOffsets, "_drop", lambda *_: None)


def plant_cached_next_offsets_loaded_again(patch: pytest.MonkeyPatch) -> None:
    load = QueueOffsets.load

    def load_all(offsets: QueueOffsets, unknown: Sequence[tuple[str, int]]) -> None:
        load(offsets, [*unknown, *offsets.next])

    patch.setattr(QueueOffsets, "load", load_all)


def plant_light_floor_not_raised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LightFloor, "raise_to", lambda *_: None)


IN_PYTHON = [
    plant_removed_queues_kept,
    plant_known_queues_not_advanced,
    plant_caches_kept_when_the_log_is_truncated,
    plant_first_entries_kept_when_the_log_begins_earlier,
    plant_undispatched_offsets_dropped,
    plant_next_offsets_of_removed_queues_kept,
    plant_cached_next_offsets_loaded_again,
    plant_light_floor_not_raised,
]
IN_THE_TABLE = [
    plant_removed_queues_kept_in_the_table,
    plant_table_not_told,
    plant_put_counted_before_it_is_written,
    plant_table_complete_after_one_page,
    plant_table_kept_when_the_log_is_truncated,
]


@pytest.mark.parametrize("plant", [*IN_PYTHON, *([] if NATIVE is None else IN_THE_TABLE)])
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    machine = NativeOffsetsMachine if plant in IN_THE_TABLE else OffsetsMachine
    with pytest.raises(Exception):  # noqa: B017, PT011 - a wrong answer, or what follows from one
        run(machine, 2_000, (Phase.generate,), derandomize=True)
