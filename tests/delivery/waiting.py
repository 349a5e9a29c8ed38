"""Receives that wait, and everything that may make them go on, in an order that a seed decides.

The bench has no loop: the end of a pass and each timer run when the schedule says so, between any two other steps. When
nothing is left to run, nobody may wait for what is there. Who decides that is a delivery that was just made over the
same rows: it knows of no wake-ups, so it has lost none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, NamedTuple

from quarry_mq.kv import EngineFull, KeyRange, WriteBatch
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.server.delivery import (
    Delivered,
    Delivery,
    Forwarded,
    ReceiveRequest,
    WaitingPoll,
)
from quarry_mq.server.delivery.retry_topics import retry_topic_name
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.server.filters import TagFilter
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import DeliverySection, NewGroupStart
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata.lite import LiteGroup, light_queue_name
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.state.identity import FAMILIES
from tests.delivery.broker import TOPIC, DeliveryBench, ListedDeadLetters, Receive

SETTINGS: Final = BrokerSettings(
    delivery=DeliverySection(new_group_start=NewGroupStart.EARLIEST, lease_ms=3_000, lease_total_ms=20_000)
)
QUEUES: Final = 2
CLIENTS: Final = ("one", "two", "three")
LITE_TOPICS: Final = ("a", "b", "c", "d")
LITE: Final = LiteGroup(bind_topic=TOPIC, client_events_max=2)
LITE_GROUP: Final = "devices"
STEPS: Final = 120


class Consuming(NamedTuple):
    """How a group consumes. `tags`: what its receives ask for, not all of them the same."""

    group: str
    is_ordered: bool = False
    attempts_max: int | None = None
    tags: Sequence[str] = ("*",)
    is_lite: bool = False


GROUPS: Final = (
    Consuming("plain"),
    Consuming("undecided", tags=("blue", "red", "*")),
    Consuming("limited", attempts_max=2),
    Consuming("ordered", is_ordered=True),
    Consuming("ordered-limited", is_ordered=True, attempts_max=2),
    Consuming(LITE_GROUP, is_ordered=True, is_lite=True),
)


class Asked(NamedTuple):
    """A receive under way."""

    consuming: Consuming
    request: ReceiveRequest
    receive: Receive
    poll: WaitingPoll | None


class SlowDeadLetters(ListedDeadLetters):
    """Answers when the schedule says so."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Callable[[], None]] = []

    def forward(self, group: str, topic: str, record: StoredMessage, attempts: int, forwarded: Forwarded) -> None:
        error = self.error
        self.answers.append(lambda: forwarded(error))


class WaitingBench(DeliveryBench):
    """A delivery whose every step is the schedule's."""

    def __init__(self) -> None:
        self.letters = SlowDeadLetters()
        self.is_full = False
        super().__init__(queues=QUEUES, settings=SETTINGS)
        write = self.engine.write

        def write_or_not(batch: WriteBatch, *, sync: bool = False) -> None:
            if self.is_full:
                raise EngineFull("no space left on device")
            write(batch, sync=sync)

        self.engine.write = write_or_not  # type: ignore[method-assign]

    def _make(self, *, after_crash: bool = False) -> Delivery:
        self.dead_letters = self.letters
        self.barrier_of: int | None = None
        delivery = super()._make(after_crash=after_crash)
        delivery.hold_ordered(lambda _group, _topic: self.barrier_of)
        return delivery

    def again(self) -> DeliveryBench:
        """What a broker would know that begins now, with what is written. What it does changes nothing here."""
        bench = DeliveryBench(queues=QUEUES, settings=SETTINGS)
        bench.engine = MemoryEngine(FAMILIES, write_ahead_log=True)
        batch = bench.engine.batch()
        for name in FAMILIES:
            batch.put_all(bench.engine.family(name), self.engine.family(name).scan(KeyRange(b"", None)))
        bench.engine.write(batch)
        bench.source, bench.clock, bench.alive = self.source, self.clock, self.alive
        bench.restart()
        bench.delivery.hold_ordered(lambda _group, _topic: self.barrier_of)
        bench.delivery._deliveries._clients_away_until_ms = 0
        return bench


class Schedule:
    """One history. `run` raises AssertionError where somebody waits for what is there."""

    def __init__(self, seed: int, groups: Sequence[Consuming] = GROUPS) -> None:
        self.random = Random(seed)
        self.groups = groups
        self.bench = WaitingBench()
        self.bench.alive.update(CLIENTS)
        self.asked: list[Asked] = []
        self.given: list[tuple[Consuming, Delivered]] = []
        self.count = 0
        self.told: list[str] = []
        self.sent_to: list[QueueId] = []
        self._steps: list[tuple[Callable[[], None], int]] = [
            (self.ask, 30),
            (self.send, 20),
            (self.end_pass, 20),
            (self.let_time_pass, 12),
            (self.run_one_timer, 12),
            (self.acknowledge, 10),
            (self.acknowledge_together, 5),
            (self.hide_again, 6),
            (self.dead_letter, 3),
            (self.break_off, 4),
            (self.cancel, 6),
            (self.lose_client, 3),
            (self.say_goodbye, 2),
            (self.move, 3),
            (self.hold_or_let_go, 3),
            (self.subscribe, 6),
            (self.answer_dead_letter, 6),
            (self.refuse_dead_letters, 1),
            (self.fill_or_free_disk, 1),
            (self.drop_idle, 2),
            (self.restart, 1),
            (self.come_to_rest, 6),
        ]

    def run(self, steps: int = STEPS) -> None:
        moves = [step for step, _ in self._steps]
        weights = [weight for _, weight in self._steps]
        for move in self.random.choices(moves, weights, k=steps):
            self.told.append(move.__name__)
            move()
        self.bench.is_full, self.bench.letters.error = False, None
        self.come_to_rest()

    # -- what clients do

    def ask(self) -> None:
        consuming, random = self.random.choice(self.groups), self.random
        request = ReceiveRequest(
            consuming.group,
            TOPIC,
            range(QUEUES),
            TagFilter.parse(random.choice(consuming.tags)),
            random.randint(1, 3),
            random.choice((None, 500, 1_000, 4_000)),
            random.choice(CLIENTS),
            consuming.is_ordered,
            random.choice(("", "x", "y")) if consuming.is_ordered else "",
            consuming.attempts_max,
        )
        self.bench.alive.add(request.client_id)
        receive = Receive()
        polling_s = random.choice((0, 0.5, 5, 20, 20))
        if consuming.is_lite:
            poll = self.bench.delivery.lite.receive(request, LITE, polling_s, receive)
        else:
            poll = self.bench.delivery.receive(request, polling_s, receive)
        self.asked.append(Asked(consuming, request, receive, poll))

    def cancel(self) -> None:
        waiting = [each for each in self.asked if each.poll is not None and not each.poll.done]
        if waiting:
            poll = self.random.choice(waiting).poll
            assert poll is not None
            self.bench.delivery.cancel(poll)

    def _handle(self) -> tuple[Consuming, Delivered] | None:
        self._note_given()
        return self.given.pop(self.random.randrange(len(self.given))) if self.given else None

    def acknowledge(self) -> None:
        if (found := self._handle()) is not None:
            self._try(lambda: self.bench.delivery.acknowledge(found[0].group, TOPIC, found[1].receipt_handle))

    def acknowledge_together(self) -> None:
        found = self._handle()
        if found is not None and not found[0].is_lite:
            self.bench.acknowledge_all([found[1].receipt_handle], found[0].group)

    def hide_again(self) -> None:
        if (found := self._handle()) is not None:
            group, handle = found[0].group, found[1].receipt_handle
            hidden_ms = self.random.choice((0, 0, 500, 3_000))
            counted = self.random.random() < 0.5
            self._try(lambda: self.bench.delivery.change_invisible(group, TOPIC, handle, hidden_ms, is_counted=counted))

    def dead_letter(self) -> None:
        if (found := self._handle()) is not None:
            handle = found[1].receipt_handle
            self._try(lambda: self.bench.delivery.dead_letter(found[0].group, TOPIC, handle, lambda _: None))

    def break_off(self) -> None:
        """An answer did not get through."""
        if (found := self._handle()) is not None:
            handles, has_begun = [found[1].receipt_handle], self.random.random() < 0.5
            self.bench.delivery.undeliverable(found[0].group, TOPIC, handles, has_begun=has_begun)

    def lose_client(self) -> None:
        client = self.random.choice(CLIENTS)
        self.bench.alive.discard(client)
        self.bench.delivery.end_waiting(client)
        self.bench.delivery.client_lost(client)
        self.bench.delivery.lite.client_gone(client)

    def say_goodbye(self) -> None:
        self.bench.delivery.end_waiting(self.random.choice(CLIENTS))

    def subscribe(self) -> None:
        """A client wants a lite topic, or does not want it any more."""
        client, name = self.random.choice(CLIENTS), self.random.choice(LITE_TOPICS)
        table, batch = self.bench.delivery.lite._table, self.bench.writer.batch()
        if self.random.random() < 0.7:
            table.stage_added(batch, LITE_GROUP, client, name)
            change = {"added": [name]}
        else:
            table.stage_removed(batch, LITE_GROUP, client, name)
            change = {"removed": [name]}

        def written(error: Exception | None) -> None:
            if error is None:
                self.bench.delivery.lite.changed(LITE_GROUP, client, **change)

        self.bench.writer.when_written(written)

    # -- what else may happen

    def send(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.count += 1
            body, tag = b"%d" % self.count, self.random.choice(("blue", "red"))
            kind = self.random.random()
            if kind < 0.3:
                name = light_queue_name(TOPIC, self.random.choice(LITE_TOPICS))
                request = self.bench.source.add(QueueId(name, 0), body, tag)
                light_queues = ((name, request.queue_offset),)
                # of a queue of its own: that of the topic has other messages
                arrived = request._replace(topic="elsewhere", light_queues=light_queues)
            elif kind < 0.4:
                group = self.random.choice([each.group for each in self.groups if not each.is_lite] or ["none"])
                arrived = self.bench.source.add(QueueId(retry_topic_name(group, TOPIC), 0), body, tag)
            else:
                arrived = self.bench.source.add(QueueId(TOPIC, self.random.randrange(QUEUES)), body, tag)
            self.bench.delivery.messages_arrived([arrived])

    def move(self) -> None:
        consuming = self.random.choice(self.groups)
        if consuming.is_lite:
            name = light_queue_name(TOPIC, self.random.choice(LITE_TOPICS))
            offset = QueueOffset(self.random.randint(0, len(self.bench.source.queues[QueueId(name, 0)])))
            self.bench.end_pass()  # "to be written before anything else looks at the queue"
            self.bench.delivery.lite.move(consuming.group, name, offset)
            self.bench.end_pass()
            return
        queue = QueueId(TOPIC, self.random.randrange(QUEUES))
        offset = QueueOffset(self.random.randint(0, len(self.bench.source.queues[queue])))
        if self.random.random() < 0.5:
            self.bench.delivery.reset_offset(consuming.group, queue, offset)
        else:
            self.bench.delivery.commit_offset(consuming.group, queue, offset)

    def hold_or_let_go(self) -> None:
        """Another member of a cluster has what comes first, or has it no longer."""
        self.bench.barrier_of = self.random.choice((None, self.bench.source.appended_up_to))
        for each in self.groups:
            self.bench.delivery.let_go(each.group, TOPIC)
            if each.is_lite:
                for name in LITE_TOPICS:
                    self.bench.delivery.let_go(each.group, light_queue_name(TOPIC, name))

    def answer_dead_letter(self) -> None:
        answers = self.bench.letters.answers
        if answers:
            answers.pop(self.random.randrange(len(answers)))()

    def refuse_dead_letters(self) -> None:
        self.bench.letters.error = None if self.bench.letters.error else OSError("no room")

    def fill_or_free_disk(self) -> None:
        self.bench.is_full = not self.bench.is_full

    def drop_idle(self) -> None:
        self.bench.delivery.drop_idle_subscriptions()
        self.bench.delivery.lite.drop_idle_clients()

    def restart(self) -> None:
        self.asked.clear()
        self.bench.letters.answers.clear()
        self.bench.restart()

    # -- time

    def end_pass(self) -> None:
        self.bench.end_pass()

    def let_time_pass(self) -> None:
        """Timers come when the loop has time for them. Whole wake-ups: between two a message may be there already."""
        self.bench.clock.advance(self.random.choice((0, 0.5, 0.5, 1, 1, 4, 400)))

    def run_one_timer(self) -> None:
        self.bench.timers.run_next()

    def come_to_rest(self) -> None:
        """Everything that is due has run: then nobody waits for what is there."""
        for _ in range(1_000):
            self.bench.end_pass()
            if not self.bench.timers.run_next() and not self.bench._pass:
                break
        else:
            raise AssertionError(f"it does not come to rest: {self.told}")
        assert self.bench.failures == []
        assert self.bench.reported == [] or self.bench.is_full
        self._note_given()
        if not self.bench.writer.is_full and not self.bench.is_full:
            for each in self.asked:
                self._check_waits_for_good_reason(each)

    def _check_waits_for_good_reason(self, asked: Asked) -> None:
        again, receive = self.bench.again(), Receive()
        assert asked.poll is not None
        request = asked.request._replace(attempt_id="")  # nobody waits for what the same attempt has got meanwhile
        if asked.consuming.is_lite:
            again.delivery.lite.receive(request, LITE, 0, receive)
        else:
            again.delivery.receive(request, 0, receive)
        again.end_pass()
        again.advance(0)
        assert receive.ended, "a receive that does not wait was not answered"
        where = f"{asked.consuming.group} waits for {receive.bodies}, after {len(self.told)} steps: {self.told}"
        assert not receive.messages, where
        assert not again.dead_letters.bodies, where

    # -- what was given

    def _note_given(self) -> None:
        still: list[Asked] = []
        for each in self.asked:
            if each.receive.ended:
                self.given += [(each.consuming, message) for message in each.receive.messages]
            elif each.poll is None or not each.poll.done or self.bench._pass:
                still.append(each)  # the pass of one that is done has not ended; otherwise it was cancelled
        self.asked = still

    def _try(self, act: Callable[[], object]) -> None:
        with suppress(InvalidReceiptHandle):  # it is over
            act()
