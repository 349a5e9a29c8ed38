"""Messages, consumers, time and crashes in any order, against a plain model of what was promised.

No message is lost to a group, none comes again once its acknowledgement was answered and written down, none is with two
consumers at once, attempts count up by one, and ordered groups see each queue in its order. In the end every group gets
through all there is, and nothing is left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from quarry_mq.kv.engine import KeyRange
from quarry_mq.server.delivery import Forwarded, InFlightTable, ReceiveRequest
from quarry_mq.server.delivery.deliveries import Deliveries, Event
from quarry_mq.server.delivery.redelivery_timers import DueWalk
from quarry_mq.server.delivery.retry_topics import retry_topic_name
from quarry_mq.server.delivery.state.subscription import GroupMessage
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.server.filters import TagFilter
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import DeliverySection, NewGroupStart
from quarry_mq.store.message import QueueId
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.state.identity import INFLIGHT
from tests.delivery.broker import TOPIC, DeliveryBench, Receive
from tests.delivery.model import Group, Place, Promises, Request

QUEUES: Final = 3
RETRIES: Final = 100
GROUPS: Final = (
    Group("plain"),
    Group("blue-only", tags="blue"),
    Group("limited", attempts_max=2),
    Group("ordered", is_ordered=True),
    Group("ordered-limited", is_ordered=True, attempts_max=2),
)
CLIENTS: Final = ("one", "two")
SETTINGS: Final = BrokerSettings(delivery=DeliverySection(new_group_start=NewGroupStart.EARLIEST))
DAY_S: Final = 86_400

groups = st.sampled_from(GROUPS)
clients = st.sampled_from(CLIENTS)
queues = st.integers(0, QUEUES - 1)


class _DeadLetters:
    """Keeps what was buried of each group, or refuses."""

    def __init__(self) -> None:
        self.dead_lettered: list[tuple[str, Place]] = []
        self.error: Exception | None = None

    def forward(self, group: str, topic: str, record: StoredMessage, attempts: int, forwarded: Forwarded) -> None:
        assert topic == TOPIC
        if self.error is None:
            self.dead_lettered.append((group, place_of(record)))
        forwarded(self.error)


def place_of(record: StoredMessage) -> Place:
    """Queues of retry topics are told apart by their groups: those of `Place` are numbered from `RETRIES` on."""
    if record.topic == TOPIC:
        return Place(record.queue_number, record.queue_offset)
    (index,) = [at for at, group in enumerate(GROUPS) if retry_topic_name(group.name, TOPIC) == record.topic]
    return Place(RETRIES + index, record.queue_offset)


class _Bench(DeliveryBench):
    def __init__(self) -> None:
        self.graves = _DeadLetters()
        super().__init__(queues=QUEUES, settings=SETTINGS)

    def _make(self, *, after_crash: bool = False):  # type: ignore[no-untyped-def]
        self.dead_letters = self.graves  # type: ignore[assignment]
        return super()._make(after_crash=after_crash)


class DeliveryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = _Bench()
        self.bench.alive.update(CLIENTS)
        self.promises = Promises(
            GROUPS, place_of, lambda group, place: place.queue in (*range(QUEUES), RETRIES + GROUPS.index(group))
        )
        self.requests: list[Request] = []

    @property
    def now_ms(self) -> int:
        return self.bench.clock.wall_ms()

    # -- producers and consumers

    @rule(queue=queues, tag=st.sampled_from(("blue", "red")), count=st.integers(1, 4))
    def send(self, queue: int, tag: str, count: int) -> None:
        for _ in range(count):
            place = Place(queue, len(self.bench.source.queues[QueueId(TOPIC, queue)]))
            body = b"%d at %d" % place
            self.promises.sent[place] = body, tag
            self.bench.send(body, queue=queue, tag=tag)
        self.look()

    @rule(group=groups, tag=st.sampled_from(("blue", "red")))
    def send_to_one_group(self, group: Group, tag: str) -> None:
        """As dead letters are that are sent again."""
        topic = retry_topic_name(group.name, TOPIC)
        place = Place(RETRIES + GROUPS.index(group), len(self.bench.source.queues[QueueId(topic, 0)]))
        body = b"%d at %d" % place
        self.promises.sent[place] = body, tag
        self.bench.send(body, tag=tag, topic=topic)
        self.look()

    @rule(
        group=groups,
        client=clients,
        batch=st.integers(1, 5),
        invisible_s=st.sampled_from((None, 0, 5, 30)),
        polling_s=st.sampled_from((0, 0, 20)),
        attempt_id=st.sampled_from(("", "a", "b")),
        times=st.integers(1, 3),
        crash=st.integers(0, 9),
    )
    def receive(
        self,
        group: Group,
        client: str,
        batch: int,
        invisible_s: int | None,
        polling_s: int,
        attempt_id: str,
        times: int,
        crash: int,
    ) -> None:
        """Several in one millisecond, too."""
        self.bench.alive.add(client)
        invisible_ms = None if invisible_s is None else invisible_s * 1_000
        for _ in range(times):
            self.requests.append(self._ask(group, client, batch, invisible_ms, polling_s, attempt_id))
            if crash == 0:
                # before the rows were written: nobody was given anything
                self.die()
            self.look()

    @rule(data=st.data(), group=groups, crash=st.integers(0, 9), together=st.booleans())
    def acknowledge(self, data: st.DataObject, group: Group, crash: int, together: bool) -> None:
        """`together`: as one of several, which go the ordinary way if they have to."""
        place = self._some_place(data, group)
        if place is None:
            return
        known = self.promises.known[group][place]
        could = self._handle_must_be_valid(group, place)
        done = known.is_done and not known.is_in_doubt
        try:
            if not together or self.bench.acknowledge_all([known.handle], group.name) == [False]:
                self.bench.delivery.acknowledge(group.name, TOPIC, known.handle)
        except InvalidReceiptHandle:
            assert not could or done
            return
        if crash == 0:
            self.die()
            return
        self.bench.end_pass()
        self.promises.acknowledged(group, place)
        self.look()

    @rule(data=st.data(), group=groups, invisible_s=st.sampled_from((0, 10, 100)))
    def change(self, data: st.DataObject, group: Group, invisible_s: int) -> None:
        place = self._some_place(data, group)
        if place is None:
            return
        known, could = self.promises.known[group][place], self._handle_must_be_valid(group, place)
        try:
            handle = self.bench.delivery.change_invisible(
                group.name, TOPIC, known.handle, invisible_s * 1_000
            ).receipt_handle
        except InvalidReceiptHandle:
            assert not could
            return
        assert not known.is_done or known.is_in_doubt, "what was acknowledged was hidden again"
        self.promises.changed(group, place, handle, self.now_ms + invisible_s * 1_000)
        self.bench.end_pass()
        self.look()
        with pytest.raises(InvalidReceiptHandle):
            self.bench.delivery.acknowledge(group.name, TOPIC, known.handle if known.handle != handle else "")

    @rule(data=st.data(), group=groups)
    def dead_letter(self, data: st.DataObject, group: Group) -> None:
        place = self._some_place(data, group)
        if place is None:
            return
        known, could = self.promises.known[group][place], self._handle_must_be_valid(group, place)
        answers: list[Exception | None] = []
        try:
            self.bench.delivery.dead_letter(group.name, TOPIC, known.handle, answers.append)
        except InvalidReceiptHandle:
            assert not could
            return
        assert answers == [self.bench.graves.error]
        if answers == [None]:
            assert (group.name, place) in self.bench.graves.dead_lettered
        else:
            # it comes back after a while, under another handle
            self.promises.changed(group, place, "", self.now_ms)
        self.bench.end_pass()
        self.look()

    @rule(data=st.data(), group=groups, has_begun=st.booleans())
    def answer_did_not_get_through(self, data: st.DataObject, group: Group, has_begun: bool) -> None:
        place = self._some_place(data, group)
        if place is None or not self._handle_must_be_valid(group, place):
            return
        handle = self.promises.known[group][place].handle
        self.bench.delivery.undeliverable(group.name, TOPIC, [handle], has_begun=has_begun)
        self.promises.given_back(group, place, self.now_ms)
        if not has_begun:
            self.promises.known[group][place].attempt -= 1
        self.bench.end_pass()
        self.look()

    @rule(client=clients)
    def lose_client(self, client: str) -> None:
        self.bench.alive.discard(client)
        self.bench.delivery.client_lost(client)
        self.promises.client_lost(client, self.now_ms)
        self.bench.end_pass()
        self.look()

    @rule(refuse=st.booleans())
    def dead_letters(self, refuse: bool) -> None:
        self.bench.graves.error = OSError("no room for dead letters") if refuse else None

    # -- time and the broker

    @rule(seconds=st.sampled_from((1, 4, 5, 20, 31, 61)))
    def advance(self, seconds: int) -> None:
        self.bench.advance(seconds)
        self.look()

    @rule()
    def write_durably(self) -> None:
        self.bench.delivery.store_durably()
        self.bench.end_pass()
        self.look()
        self.bench.delivery.store_durably()
        self.promises.written_durably()

    @rule()
    def drop_idle(self) -> None:
        self.bench.clock.advance(0)
        self.bench.delivery.drop_idle_subscriptions()

    @rule()
    def die(self) -> None:
        """The process dies in the middle of a pass, or between two."""
        self.requests.clear()
        self.bench.restart()

    @rule(survived=st.integers(0, 30))
    @precondition(lambda self: self.promises.sent)
    def lose_power(self, survived: int) -> None:
        self.bench.engine.crash(survived, power_loss=True)
        self.promises.power_lost()
        self.bench.clock.advance(1)  # no machine is back within a millisecond: handles rest on that
        self.die()

    # -- looking

    def look(self) -> None:
        """Enter what the receives have got, and who was buried."""
        self.bench.end_pass()
        self._enter_buried()
        for request in list(self.requests):
            if request.receive.ended:
                self.requests.remove(request)
                assert request.receive.error is None
                self.promises.handed_out(request, request.receive.messages, self.now_ms)
        assert self.bench.reported == []

    def _enter_buried(self) -> None:
        for name, place in self.bench.graves.dead_lettered:
            (group,) = (each for each in GROUPS if each.name == name)
            self.promises.is_buried(group, place)

    def _ask(
        self,
        group: Group,
        client: str,
        batch: int,
        invisible_ms: int | None,
        polling_s: int = 0,
        attempt_id: str = "",
    ) -> Request:
        receive = Receive()
        request = ReceiveRequest(
            group.name,
            TOPIC,
            range(QUEUES),
            TagFilter.parse(group.tags),
            batch,
            invisible_ms,
            client,
            group.is_ordered,
            attempt_id if group.is_ordered else "",
            group.attempts_max,
        )
        self.bench.delivery.receive(request, polling_s, receive)
        return Request(group, client, request.attempt_id, invisible_ms, receive)

    def _some_place(self, data: st.DataObject, group: Group) -> Place | None:
        places = sorted(place for place, known in self.promises.known[group].items() if known.handle)
        return data.draw(st.sampled_from(places)) if places else None

    def _handle_must_be_valid(self, group: Group, place: Place) -> bool:
        known = self.promises.known[group][place]
        if known.is_done or known.is_in_doubt or place in self.promises.dead_lettered[group]:
            return False
        return self.now_ms < known.hidden_until_ms

    def teardown(self) -> None:
        """Every group gets through all of it."""
        self.bench.graves.error = None
        for client in CLIENTS:
            self.lose_client(client)
            self.bench.delivery.end_waiting(client)
        self.look()
        self.bench.advance(DAY_S)
        rounds = 0
        while self._consume_some():
            rounds += 1
            assert rounds < 10 * (len(self.promises.sent) + 10), "it does not come to an end"
        self.promises.check_all_done()
        assert self.bench.delivery.inflight_count == 0
        rows = self.bench.engine.family(INFLIGHT).scan(KeyRange(b"", None))
        assert rows == [], "nothing is in flight, but rows are left"

    def _consume_some(self) -> int:
        """Each group receives and acknowledges once; then a minute goes by. Returns how many messages that were."""
        before = len(self.bench.graves.dead_lettered)
        count = 0
        for group in GROUPS:
            request = self._ask(group, "one", 5, 30_000)
            self.bench.end_pass()
            self._enter_buried()
            assert request.receive.ended
            messages = request.receive.messages
            places = self.promises.handed_out(request, messages, self.now_ms)
            handles = [each.receipt_handle for each in messages]
            done = self.bench.acknowledge_all(handles, group.name)
            for place, handle, is_done in zip(places, handles, done, strict=True):
                if not is_done:
                    self.bench.delivery.acknowledge(group.name, TOPIC, handle)
                self.bench.end_pass()
                self.promises.acknowledged(group, place)
            count += len(places)
        self.look()
        self.bench.advance(61)
        return count + len(self.bench.graves.dead_lettered) - before


def run(examples: int, steps: int, *, derandomize: bool, phases: Sequence[Phase] = tuple(Phase)) -> None:
    wanted = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=derandomize,
        database=None,
        print_blob=True,
        phases=phases,
    )
    run_state_machine_as_test(DeliveryMachine, settings=wanted)


def test_random_histories_break_no_promise() -> None:
    run(100, 50, derandomize=True)


@pytest.mark.slow
def test_many_random_histories_break_no_promise() -> None:
    run(5_000, 80, derandomize=False)


def plant_acknowledgements_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Deliveries._change

    def forgetful(self: Deliveries, message: GroupMessage, before: Any, event: Event, after: Any) -> None:
        change(self, message, before, event, after)
        if event is Event.ACKNOWLEDGED and message.offset % 5 == 4:
            self._table.put(self._writer.batch(), message.subscription.prefix, 0, message.offset, before)

    monkeypatch.setattr(Deliveries, "_change", forgetful)


def plant_next_offset_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InFlightTable, "put", lambda *_: None)


def plant_index_not_walked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DueWalk, "__exit__", lambda walk, *_: setattr(walk._subscription, "due_from", walk._at))


def plant_queues_never_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deliveries, "rows_of", lambda *_: {})


def plant_old_handles_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deliveries, "_new_id", lambda _: 1)


def plant_attempts_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Deliveries.begin
    monkeypatch.setattr(
        Deliveries,
        "begin",
        lambda self, message, record, request, previous=None: begin(
            self, message, record, request, previous and previous._replace(attempt=0)
        ),
    )


@pytest.mark.parametrize(
    "plant",
    [
        plant_acknowledgements_not_kept,
        plant_next_offset_without_rows,
        pytest.param(plant_index_not_walked_again, marks=pytest.mark.slow),  # is found after half a minute
        plant_queues_never_blocked,
        plant_old_handles_stand,
        plant_attempts_not_counted,
    ],
)
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof that passes whatever delivery does proves nothing."""
    plant(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is that the mistake leads to
        run(3_000, 50, derandomize=True, phases=(Phase.generate,))
