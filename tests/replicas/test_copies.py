"""A copy has the log, the rows and the queues of its primary, whatever happens to both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Final

import pytest

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.kv.recording import Change, ChangeKind, RecordingEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.replicas.intake import Intake
from quarry_mq.server.replicas.shipment import Part, Shipment
from quarry_mq.server.replicas.status import End, Lag, ReplicaStatus
from quarry_mq.server.replicas.wire import BODY_SIZE_MAX, FrameReader, header
from quarry_mq.store.consumequeue.rocks_layout import BOUND_SIZE, CHECKPOINT_KEY, OFFSET_FAMILY, parse_bound_key
from quarry_mq.store.engines import StoreEngines
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.follower import CopiedStore, QueuesOutdated, open_copy
from quarry_mq.store.fs import Disk, PosixCopyingDisk, PosixDisk
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Topic, TopicType
from quarry_mq.store.metadata.topics import READ_WRITE
from quarry_mq.store.opening.open_store import Copied, OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.identity import FAMILIES, META, open_state_engine
from quarry_mq.store.state.state_log import StateCursor, StateLog, encode_changes, is_own_row
from tests.follower.points import verified_while
from tests.follower.test_followed_store import log_bytes
from tests.store.assembly import message
from tests.store.test_deletions import light_message, rows_of

SEGMENT_SIZE: Final = 64 * 1024
SEEDS: Final = int(os.environ.get("SEEDS", "6"))
KEPT: Final = "rooms"
"""A topic that is never deleted."""
NAMES: Final = ("orders", "bills", KEPT)


def settings(root: Path, *, has_copies: bool = True, queue_mode: QueueMode | None = None) -> StoreSettings:
    return StoreSettings(
        root=root, segment_size=SEGMENT_SIZE, units_per_file=16, has_copies=has_copies, queue_mode=queue_mode
    )


def state_of(store: OpenStore) -> dict[tuple[str, bytes], bytes]:
    """Return all rows that copies have."""
    return state_in(store.state_engine)


def state_in(engine: KeyValueEngine) -> dict[tuple[str, bytes], bytes]:
    return {
        (name, key): value
        for name in FAMILIES
        for key, value in engine.family(name).iterate(KeyRange(b"", None))
        if not is_own_row(name, key)
    }


def state_of_log(store: OpenStore) -> tuple[RecordingEngine, StateLog]:
    """Return what a shipment needs of a store that has copies."""
    assert isinstance(store.state_engine, RecordingEngine)
    assert store.state_log is not None
    return store.state_engine, store.state_log


class Primary:
    """A primary with a random life."""

    def __init__(
        self,
        root: Path,
        chance: Random,
        *,
        expires: bool = True,
        removes: bool = True,
        disk: Disk | None = None,
        engines: StoreEngines | None = None,
        store_settings: StoreSettings | None = None,
    ) -> None:
        self._chance = chance
        self._expires = expires
        self._removes = removes
        self._disk = disk or PosixDisk()
        self._engines = engines
        self.settings = store_settings or settings(root)
        self.store = self.open()

    def open(self) -> OpenStore:
        """Open the store, also after a crash."""
        self.store = open_store(
            self.settings, disk=self._disk, clock=ManualClock(), report=lambda _: None, engines=self._engines
        )
        return self.store

    def live(self) -> None:
        messages, chance = self.store.messages, self._chance
        step = chance.choice(["send", "send", "send", "dispatch", "dispatch", "read", "delete", "remove", "expire"])
        if step == "send":
            self._send()
        elif step == "dispatch":
            messages.dispatch(messages.flush())
        elif step == "read":
            self._read()
        elif step == "delete":
            self._delete(chance.choice(NAMES[:2]))
        elif step == "remove" and self._removes:
            found = messages.light_queues_ended(messages.appended_up_to, b"").ended
            messages.remove_ended(messages.still_ended([each for each in found if chance.random() < 0.5]))
        elif self._expires and chance.random() < 0.3:
            self._expire()

    def _send(self) -> None:
        chance, topic = self._chance, self._chance.choice(NAMES)
        for name in (topic, KEPT):  # the latter for the light message
            if self.store.topics.get(name) is None:
                self.store.topics.create(Topic(name, TopicType.MIXED, 3, 3, READ_WRITE, {}))
        batch = [message(topic, chance.randrange(3), body=bytes(chance.randrange(4_000))) for _ in range(4)]
        lights = [f"%LMQ%{chance.randrange(4)}" for _ in range(2)]
        self.store.messages.append([*batch, light_message(chance.randrange(9), *set(lights))])

    def _read(self) -> None:
        store, chance = self.store, self._chance
        if store.groups.get("g") is None:
            store.groups.create(Group("g"))
        queue = QueueId(chance.choice(NAMES), chance.randrange(3))
        batch = store.state_engine.batch()
        store.offsets.stage(batch, "g", queue, QueueOffset(store.messages.bounds(queue).maximum))
        store.state_engine.write(batch)

    def _delete(self, topic: str) -> None:
        batch = self.store.state_engine.batch()
        self.store.offsets.delete_topic(batch, topic)
        self.store.state_engine.write(batch)
        if self.store.topics.get(topic) is not None:
            self.store.topics.delete(topic)
        self.store.messages.delete_topic(topic)

    def _expire(self) -> None:
        store = self.store
        store.messages.dispatch(store.messages.flush())
        store.messages.flush_queues()
        if len(store.segments) > 2:
            minimum = store.segments.bases[1]
            store.expiry.announce(minimum)
            store.expiry.retire(minimum)
            store.expiry.remover.run()
            store.expiry.announce(minimum)

    def restart(self) -> None:
        self.store.close()
        self.open()


class Expired(Exception):
    """The primary's log does not go back to where the copy is."""


class Link:
    """A connection between a primary and a copy, which sends frames in pieces of any size."""

    def __init__(self, primary: Primary, copy: CopiedStore) -> None:
        store = primary.store
        state = state_of_log(store)
        self.shipment = Shipment(store.segments, store.messages, state, at=copy.received_up_to, cursor=copy.cursor)
        self._intake = Intake(copy)
        self._reader = FrameReader()
        self._reader.size_max = BODY_SIZE_MAX

    def _parts(self) -> Iterator[Part]:
        try:
            yield from self.shipment.parts(is_beat_due=True)
        except OffsetOutOfRange as error:
            raise Expired from error

    def send(self, *, commits: bool = True) -> None:
        for kind, parts in self._parts():
            data = header(kind, 1, *parts) + b"".join(parts)
            for piece in (data[:30], data[30:]):
                for frame in self._reader.feed(piece):
                    self._intake.take(frame)
        if commits:
            self._intake.commit()


class Copy:
    """A copy that is restarted now and then."""

    def __init__(self, root: Path, primary: Primary) -> None:
        self._root, self._primary = root, primary
        segment_size, self._origin = primary.store.segments.segment_size, StoreKind(primary.store.identity.origin)
        self._settings = replace(settings(root, has_copies=False), segment_size=segment_size)
        self.rebuilds = 0
        self.store = self._open()
        self.link = Link(primary, self.store)

    def _open(self) -> CopiedStore:
        return open_copy(
            self._settings,
            disk=PosixCopyingDisk(),
            clock=ManualClock(),
            report=lambda _: None,
            copied=Copied(self._origin),
            begin=self._primary.store.segments.minimum,
        )

    def restart(self) -> None:
        self.store.close()
        self.store = self._open()
        self.connect()

    def connect(self) -> None:
        self.link = Link(self._primary, self.store)

    def send(self, *, commits: bool = True) -> None:
        try:
            self.link.send(commits=commits)
        except Expired:
            self.store.close()
            rmtree(self._root)
            self.store = self._open()
            self.connect()
        except QueuesOutdated:
            self.rebuilds += 1
            self.restart()

    def promoted(self) -> OpenStore:
        try:
            self.store.close_for_promotion()
        except QueuesOutdated:
            self.restart()
            self.store.close_for_promotion()
        return self.served()

    def served(self) -> OpenStore:
        promoted = replace(self._settings, has_copies=True)
        return open_store(promoted, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None)


def living(store: OpenStore) -> dict[tuple[str, bytes], bytes]:
    """Return the rows of the queues, without entries whose segments have expired: each store drops them in its time.

    A bound whose record has expired is left without the record's place, which queues that were rebuilt do not know; and
    RocketMQ writes a minimum of 0, where Quarry writes none.
    """
    begin = store.segments.minimum.to_bytes(8, "big")
    rows = rows_of(store)
    bounds = {
        key: bytes(8) + value[8:] if len(value) == BOUND_SIZE and value[:8] < begin else value
        for key, value in rows.pop(OFFSET_FAMILY).items()
    }
    entries = {(name, key): value for name, found in rows.items() for key, value in found.items() if value[:8] >= begin}
    return entries | {
        (OFFSET_FAMILY, key): value
        for key, value in bounds.items()
        if key == CHECKPOINT_KEY or parse_bound_key(key)[1] or value[8:] != bytes(8)
    }


def require_equal(primary: OpenStore, promoted: OpenStore) -> None:
    begin, end = primary.segments.minimum, primary.messages.appended_up_to
    assert promoted.segments.minimum == begin
    assert promoted.messages.appended_up_to == end
    assert log_bytes(promoted, begin, end) == log_bytes(primary, begin, end)
    assert state_of(promoted) == state_of(primary)
    rows, expected = living(promoted), living(primary)
    assert {key: rows[key] for key in rows.keys() - expected.keys()} == {}
    assert {key: expected[key] for key in expected.keys() - rows.keys()} == {}
    assert {key: (rows[key], expected[key]) for key in rows if rows[key] != expected[key]} == {}


def require_equal_at_the_end(primary: Primary, copy: Copy) -> None:
    """Let the copy have everything, promote it, compare both, and close them."""
    primary.store.messages.dispatch(primary.store.messages.flush())
    for _ in range(3):
        copy.send()
    promoted = copy.promoted()
    try:
        require_equal(primary.store, promoted)
    finally:
        promoted.close()
        primary.store.close()


def test_a_store_that_was_in_use_before_gives_its_first_copy_all_rows(tmp_path: Path) -> None:
    root = tmp_path / "primary"
    primary = Primary(root, Random(2), store_settings=settings(root, has_copies=False))
    for _ in range(40):
        primary.live()
    primary.settings = settings(root)
    primary.restart()
    copy = Copy(tmp_path / "copy", primary)
    primary.store.messages.dispatch(primary.store.messages.flush())
    copy.send()
    copy.send()
    promoted = copy.promoted()
    assert promoted.topics.get(KEPT) is not None
    require_equal(primary.store, promoted)
    promoted.close()
    primary.store.close()


@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_copy_that_ends_before_its_queues_are_rebuilt_does_it_when_it_is_opened(
    tmp_path: Path, is_promoted: bool
) -> None:
    primary = Primary(tmp_path / "primary", Random(3), expires=False)
    for _ in range(30):
        primary.live()
    primary.store.messages.dispatch(primary.store.messages.flush())
    copy = Copy(tmp_path / "copy", primary)
    copy.send()
    copy.send()
    run, number, position = copy.store.cursor
    missed = Change(ChangeKind.PUT, META, b"deleted:" + KEPT.encode(), (position // 2).to_bytes(8, "big"))
    copy.store.take(StateCursor(run, number + 1, position), encode_changes([missed]))
    if is_promoted:
        promoted = copy.promoted()
    else:
        with pytest.raises(QueuesOutdated):
            copy.store.commit()
        copy.restart()
        assert not list((tmp_path / "copy").glob("*.set-aside-*"))
        promoted = copy.promoted()
    queues = [QueueId(KEPT, number) for number in range(3)]
    firsts = [entry for queue in queues for entry in promoted.queues.store.entries(queue, QueueOffset(0), 1)]
    assert firsts, "there are later messages"
    assert all(entry.physical_offset >= position // 2 for entry in firsts)
    promoted.close()
    primary.store.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_lost_is_at_most_the_lag_that_was_shown(tmp_path: Path, seed: int) -> None:
    """The copy is promoted at any moment; it has the log and the rows up to what its acknowledgement says, or more."""
    chance = Random(100 + seed)
    primary = Primary(tmp_path / "primary", chance)
    store, log = primary.store, primary.store.state_log
    assert log is not None
    rows = {log.cursor.number: state_of(store)}
    written = log.written

    def note_rows() -> None:
        written()
        rows[log.cursor.number] = state_of(store)

    # after each batch, under the engine's lock: no other place sees the rows of exactly one change
    log.written = note_rows  # type: ignore[method-assign]
    copy = Copy(tmp_path / "copy", primary)
    status, lag = ReplicaStatus(name="b"), Lag(ManualClock())
    for _ in range(chance.randrange(20, 60)):
        primary.live()
        if chance.random() < 0.6:
            copy.send(commits=chance.random() < 0.7)
            cursor = copy.store.cursor
            status = replace(status, position=cursor.position, number=cursor.number)
    end = End(store.messages.flushed_up_to, log.cursor.number)
    shown = lag.measured(status, end)
    copy.store.close_for_promotion()
    cursor = copy.store.cursor
    with closing(open_state_engine(tmp_path / "copy" / "quarry", create=False, read_only=True)) as engine:
        assert state_in(engine) == (rows[cursor.number] if cursor.number else {})
    promoted = copy.served()
    try:
        assert end.offset - promoted.messages.appended_up_to <= shown.lag_bytes
        assert end.number - cursor.number <= shown.lag_changes
        begin, at = max(promoted.segments.minimum, store.segments.minimum), promoted.messages.appended_up_to
        assert log_bytes(promoted, begin, at) == log_bytes(store, begin, at)
    finally:
        promoted.close()
        store.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_copy_equals_its_primary_after_any_history(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    primary = Primary(tmp_path / "primary", chance)
    for _ in range(chance.randrange(30)):
        primary.live()
    copy = Copy(tmp_path / "copy", primary)
    for _ in range(120):
        primary.live()
        if chance.random() < 0.5:
            copy.send(commits=chance.random() < 0.7)
        if chance.random() < 0.04:
            copy.restart()
        if chance.random() < 0.05 and copy.store.received_up_to > copy.store.minimum:
            found = verified_while(tmp_path / "copy", copy.store.make_wanted_point)
            assert found.agrees, found.differences
        if chance.random() < 0.03:
            primary.restart()
            copy.connect()
    primary.store.messages.dispatch(primary.store.messages.flush())
    for _ in range(3):
        copy.send()
    promoted = copy.promoted()
    try:
        require_equal(primary.store, promoted)
        promoted.messages.append([message("orders")])
    finally:
        promoted.close()
        primary.store.close()
