"""Promises of a broker, in plain dictionaries: the model that a store is compared with after each crash."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from quarry_mq.store.message import Appended, QueueId
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.settings import Durability

GROUPS = ("billing", "audit")
PATTERN = bytes(range(1, 252))
"""Bytes of bodies, each from another byte on. No zeros: a page that was lost shows."""


class Attempt(NamedTuple):
    """A message that was given to the store, whatever became of it."""

    queue: QueueId
    light_queues: tuple[str, ...]


class Stored(NamedTuple):
    body: bytes
    at: int
    end: int


class Ledger:
    """Promises as they are made (`stored`, `flushed`, `visible`, …), and one `check` of all of them."""

    def __init__(self, durability: Durability) -> None:
        self.groups = GROUPS
        self._durability = durability
        self._attempts: dict[bytes, Attempt] = {}
        self._stored: dict[QueueId, dict[int, Stored]] = defaultdict(dict)
        self._flushed = 0
        self._expired_up_to = 0
        self._seen: dict[tuple[QueueId, int], tuple[int, bytes]] = {}  # place in the log, body
        self._topics: set[str] = set()
        self._topics_in_doubt: set[str] = set()
        # messages of a topic whose deletion has begun: they are there or not, and come back no more once it has ended
        self._deleted: set[bytes] = set()
        self._gone: set[bytes] = set()
        self._removed: set[tuple[str, bytes]] = set()  # of removed light queues: the name and a message
        self._positions: dict[tuple[str, QueueId], int] = {}
        self._written: dict[tuple[str, QueueId], set[int]] = defaultdict(set)
        self._handing: dict[tuple[str, QueueId], int] = {}  # being written: done or not
        self._began: dict[tuple[str, QueueId], int] = {}
        self._acknowledged: dict[tuple[str, QueueId], set[int]] = defaultdict(set)
        self._power_was_lost = False
        self._stop_was_clean = True

    # -- promises

    def attempt(self, queue: QueueId, light_queues: tuple[str, ...], size: int) -> bytes:
        """The body for a new message: no two are alike."""
        number = len(self._attempts)
        begin = number * 31 % len(PATTERN)
        body = (b"%06d," % number) + (PATTERN * (size // len(PATTERN) + 2))[begin : begin + size]
        self._attempts[body] = Attempt(queue, light_queues)
        return body

    @property
    def queues(self) -> set[QueueId]:
        """Return every queue that a message was sent to."""
        light = {QueueId(name, 0) for each in self._attempts.values() for name in each.light_queues}
        return {each.queue for each in self._attempts.values()} | light

    def stored(self, body: bytes, where: Appended) -> None:
        queue = self._attempts[body].queue
        at = int(where.physical_offset)
        self._stored[queue][int(where.queue_offset)] = Stored(body, at, at + where.size)

    def flushed(self, up_to: int) -> None:
        self._flushed = max(self._flushed, up_to)

    def visible(self, up_to: int) -> None:
        """Consumers may have seen what lies below."""
        for queue, kept in self._stored.items():
            for offset in reversed(kept):
                if (queue, offset) in self._seen:
                    break
                if kept[offset].at < up_to:
                    self._seen[queue, offset] = kept[offset].at, kept[offset].body

    def expires(self, up_to: int) -> None:
        """Allow everything below to be gone from now on."""
        self._expired_up_to = max(self._expired_up_to, up_to)

    def position(self, group: str, queue: QueueId) -> int | None:
        return self._positions.get((group, queue))

    def hands_out(self, group: str, queue: QueueId, start: int, following: int) -> None:
        key = group, queue
        self._began.setdefault(key, start)
        self._written[key].add(following)
        self._handing[key] = following

    def handed_out(self, group: str, queue: QueueId, following: int) -> None:
        self._positions[group, queue] = following
        del self._handing[group, queue]

    def acknowledges(self, group: str, queue: QueueId, offset: int) -> None:
        self._acknowledged[group, queue].add(offset)

    def topic_created(self, name: str) -> None:
        self._topics.add(name)
        self._topics_in_doubt.discard(name)

    def deletes_topic(self, name: str) -> None:
        """From now on its messages may be there or not."""
        self._topics.discard(name)
        self._topics_in_doubt.add(name)
        for queue in [each for each in self._stored if each.topic == name]:
            for offset, each in self._stored.pop(queue).items():
                self._deleted.add(each.body)
                self._seen.pop((queue, offset), None)
        for table in (self._positions, self._written, self._began, self._acknowledged, self._handing):
            for key in [each for each in table if each[1].topic == name]:
                del table[key]

    def topic_deleted(self, name: str) -> None:
        self._topics_in_doubt.discard(name)
        self._gone |= self._deleted
        self._deleted = set()

    def removes_light_queue(self, name: str) -> None:
        """From now on its messages may be there or not: a crash may take the removal back."""
        self._removed |= {(name, body) for body, attempt in self._attempts.items() if name in attempt.light_queues}
        for seen in [each for each in self._seen if each[0].topic == name]:
            del self._seen[seen]
        for table in (self._positions, self._written, self._began, self._acknowledged, self._handing):
            for key in [each for each in table if each[1].topic == name]:
                del table[key]

    def stopped(self) -> None:
        self._stop_was_clean = True
        self._flushed = max([self._flushed, *(each.end for kept in self._stored.values() for each in kept.values())])

    def crashed(self, *, power_loss: bool) -> None:
        self._power_was_lost |= power_loss
        self._stop_was_clean = False

    # -- the comparison

    def check_read(self, queue: QueueId, offset: int, body: bytes) -> None:
        """Under `sync` what a consumer has seen at an offset is what every consumer sees there, for ever."""
        expected = self._stored[queue].get(offset) if queue in self._stored else None
        if expected is not None:
            assert expected.body == body, f"{queue} {offset}: another message than was stored"

    def check(
        self,
        found: dict[QueueId, dict[int, tuple[int, bytes]]],
        rows: dict[tuple[str, QueueId], set[int]],
        store: OpenStore,
    ) -> None:
        """Fails when a promise is broken; else what is found is what counts from now on."""
        self._check_wrong_messages(found)
        begin = int(store.expiry.minimum)
        assert begin <= self._expired_up_to, f"the log begins at {begin}, but may at {self._expired_up_to}"
        self._check_lost_messages(found, begin)
        self._check_groups(found, rows, store)
        for name in self._topics:
            assert store.topics.get(name) is not None, f"topic {name} is lost"
        self._adopt(found, store)

    def _check_wrong_messages(self, found: dict[QueueId, dict[int, tuple[int, bytes]]]) -> None:
        for queue, entries in found.items():
            bodies = [body for _, body in entries.values()]
            assert len(bodies) == len(set(bodies)), f"{queue}: a message came twice"
            for body in bodies:
                assert body in self._attempts, f"{queue}: a message that nobody sent"
                attempt = self._attempts[body]
                assert queue == attempt.queue or queue.topic in attempt.light_queues, f"{queue}: of another queue"
                assert queue != attempt.queue or body not in self._gone, f"{queue}: a deleted message came back"

    def _check_lost_messages(self, found: dict[QueueId, dict[int, tuple[int, bytes]]], begin: int) -> None:
        for queue, kept in self._stored.items():
            for offset, each in kept.items():
                if each.at < begin or (self._power_was_lost and each.end > self._flushed):
                    continue
                there = found.get(queue, {}).get(offset)
                assert there is not None, f"{queue} {offset} at {each.at} is lost; flushed up to {self._flushed}"
                assert there == (each.at, each.body), f"{queue} {offset}: another message than was stored"
                for light in self._attempts[each.body].light_queues:
                    if (light, each.body) in self._removed:
                        continue
                    entries = found.get(QueueId(light, 0), {}).values()
                    assert there in entries, f"{light}: lost what {queue} {offset} has"
        if self._durability is Durability.SYNC:
            for (queue, offset), (at, body) in self._seen.items():
                if at < begin:
                    continue
                there = found.get(queue, {}).get(offset)
                assert there is not None, f"{queue} {offset}: a consumer saw what a crash took back"
                assert there[1] == body, f"{queue} {offset}: a consumer saw another message there"

    def _check_groups(
        self,
        found: dict[QueueId, dict[int, tuple[int, bytes]]],
        rows: dict[tuple[str, QueueId], set[int]],
        store: OpenStore,
    ) -> None:
        for key, positions in self._written.items():
            group, queue = key
            position = store.offsets.get(group, queue)
            maximum = store.messages.bounds(queue).maximum
            if not self._power_was_lost:
                told = self._positions.get(key)
                assert position in (told, self._handing.get(key)), f"{key}: at {position}, not at {told} as was written"
            if position is None:
                assert key not in self._positions or self._power_was_lost, f"{key}: the position is lost"
                continue
            assert position <= maximum, f"{key}: at {position}, ahead of the queue's end at {maximum}"
            assert position in positions or position == maximum, f"{key}: at {position}, where it never was"
            waiting = set(range(self._began[key], position)) - self._acknowledged[key] - rows.get(key, set())
            # the log's begin moves on; what expired waits for nobody
            waiting &= set(found.get(queue, ()))
            assert not waiting, f"{key}: neither acknowledged nor in flight: {sorted(waiting)}"

    def _adopt(self, found: dict[QueueId, dict[int, tuple[int, bytes]]], store: OpenStore) -> None:
        """A recovery has made durable what it found; what it did not find was never promised."""
        ends = {each.body: each.end for kept in self._stored.values() for each in kept.values()}
        end = int(store.messages.appended_up_to)
        self._stored = defaultdict(dict)
        self._seen = {}
        for queue, entries in found.items():
            for offset, (at, body) in entries.items():
                # the crash has come before the deletion
                self._deleted.discard(body)
                self._seen[queue, offset] = at, body
                if self._attempts[body].queue == queue:
                    self._stored[queue][offset] = Stored(body, at, ends.get(body, end))
        self._gone |= self._deleted
        self._deleted = set()
        self._flushed = int(store.messages.flushed_up_to)
        for key in list(self._written):
            position = store.offsets.get(*key)
            self._acknowledged[key] = {each for each in self._acknowledged[key] if each < (position or 0)}
            if position is None:
                for table in (self._positions, self._written, self._began, self._acknowledged):
                    table.pop(key, None)
            else:
                self._positions[key] = position
                self._written[key].add(position)
        self._topics |= {name for name in self._topics_in_doubt if store.topics.get(name) is not None}
        self._topics_in_doubt = set()
        self._handing = {}
        self._power_was_lost = False
