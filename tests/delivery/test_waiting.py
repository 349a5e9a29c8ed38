"""No wake-up is lost: who waits gets what comes, whatever else happens in the same moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from quarry_mq.server.delivery import Delivery, ReceiveRequest, fetch, open_subscriptions
from quarry_mq.server.delivery import deliveries as deliveries_module
from quarry_mq.server.delivery.deliveries import Deliveries
from quarry_mq.server.delivery.fetch import ENTRIES_SCANNED_MAX
from quarry_mq.server.delivery.lite import LiteDelivery
from quarry_mq.server.delivery.model import Received
from quarry_mq.server.delivery.pulls import LongPolls, PullRequest, Pulls
from quarry_mq.server.delivery.redelivery_timers import DueWalk
from quarry_mq.server.delivery.state.subscription import Subscription
from quarry_mq.server.filters import TagFilter
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.record import StoredMessage
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench, Receive
from tests.delivery.waiting import GROUPS, Consuming, Schedule, WaitingBench


@pytest.fixture(autouse=True)
def little_is_scanned_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ENTRIES_SCANNED_MAX", 3)


def run_all(seeds: Iterable[int], groups: Sequence[Consuming] = GROUPS) -> None:
    for seed in seeds:
        Schedule(seed, groups).run()


@pytest.mark.parametrize("begin", [0, 200])
def test_in_hundreds_of_orders_of_events_nobody_waits_for_what_is_there(begin: int) -> None:
    run_all(range(begin, begin + 200))


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.group)
def test_nor_do_the_receives_of_one_group_alone(group: Consuming) -> None:
    run_all(range(50), (group,))


@pytest.mark.slow
@pytest.mark.parametrize("begin", range(0, 30_000, 2_500))
def test_nor_in_thirty_thousand(begin: int) -> None:
    run_all(range(begin, begin + 2_500))


# -- what such schedules have found


def test_what_is_made_visible_while_others_of_its_millisecond_are_looked_through_is_found() -> None:
    """It belongs before them in the index, where it is not written yet: it was passed over until a restart."""
    bench = DeliveryBench(queues=2)
    for queue in (0, 1):
        bench.send(b"%d" % queue, queue=queue)
    first = bench.receive(batch=1, invisible_s=30).messages[0]
    number = first.record.queue_number
    other = bench.receive(batch=1, invisible_s=10)
    assert number == 0, "the one that is given back has to come first"
    bench.advance(10)
    receive = Receive()
    bench.delivery.change_invisible(GROUP, TOPIC, first.receipt_handle, 0)
    bench.delivery.receive(_request(bench), 0, receive)
    bench.end_pass()
    assert receive.bodies == other.bodies
    assert bench.receive().bodies == [b"0"]


def test_of_very_many_times_none_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries_module, "TIMES_MAX", 2)
    bench = DeliveryBench(queues=1)
    for number in range(7):
        bench.send(b"%d" % number)
        bench.receive(batch=1, invisible_s=number + 1)
    bench.restart()
    waiting = [bench.receive(batch=1, polling_s=60) for _ in range(7)]
    for number in range(7):
        bench.advance(1)
        assert [each.bodies for each in waiting if each.ended] == [[b"%d" % at] for at in range(number + 1)]


def test_who_repeats_a_receive_gets_its_messages_though_others_wait() -> None:
    bench = DeliveryBench(queues=1)
    for body in (b"1", b"2"):
        bench.send(body)
    bench.receive(batch=1, ordered=True, attempt_id="a")
    waiting = bench.receive(batch=1, ordered=True, attempt_id="b", polling_s=20)
    assert bench.receive(batch=1, ordered=True, attempt_id="a", polling_s=20).bodies == [b"1"]
    assert not waiting.ended


def test_what_became_visible_while_the_disk_was_full_wakes_who_waits_once_there_is_room() -> None:
    bench = WaitingBench()
    bench.send(b"m")
    [message] = bench.receive(invisible_s=30).messages
    bench.is_full = True
    bench.delivery.change_invisible(GROUP, TOPIC, message.receipt_handle, 1_000)
    bench.end_pass()
    waiting = bench.receive(polling_s=60)
    bench.advance(1)
    bench.is_full = False
    assert not waiting.ended
    bench.delivery.drop_idle_subscriptions()  # as it is called every few seconds
    bench.end_pass()
    bench.end_pass()
    assert waiting.bodies == [b"m"]


def test_who_waits_after_a_dead_letter_gets_the_next_though_little_is_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_subscriptions, "QUEUES_KEPT_MAX", 0)
    bench = WaitingBench()
    for body in (b"1", b"2"):
        bench.send(body)
    bench.receive(batch=1, ordered=True, invisible_s=1, attempts_max=1)
    bench.advance(1)
    assert bench.receive(batch=1, ordered=True, attempts_max=1).bodies == []
    bench.clock.advance(0.1)
    bench.delivery.drop_idle_subscriptions()
    waiting = bench.receive(batch=1, ordered=True, attempts_max=1, polling_s=20)
    [answer] = bench.letters.answers
    answer()
    bench.end_pass()
    assert waiting.bodies == [b"2"]


def test_an_answer_that_fails_keeps_nothing_from_the_others() -> None:
    bench = DeliveryBench(queues=2)
    bench.receive()
    answered: list[int] = []

    def failing(_messages: object, _error: object) -> None:
        raise ValueError("this answer cannot be made")

    receives = [Receive() for _ in range(3)]
    answers: list[Received] = [receives[0], failing, *receives[1:]]
    for receive in answers:
        bench.delivery.receive(_request(bench), 20, receive)
    requests = [bench.source.add(QueueId(TOPIC, number % 2), b"%d" % number, None) for number in range(4)]
    bench.writer.when_written(lambda _: answered.append(1))
    bench.delivery.messages_arrived(requests)
    bench.writer.when_written(lambda _: answered.append(2))
    bench.end_pass()
    assert [len(each.bodies) for each in receives] == [1, 1, 1]
    assert answered == [1, 2]
    bench.advance(31)
    assert len(bench.receive().bodies) == 4


def test_a_pull_that_waits_ends_where_one_look_does_not_go_through_all_that_came() -> None:
    bench = DeliveryBench(queues=1)
    queue = QueueId(TOPIC, 0)
    pulls = Pulls(bench.source, bench.timers, bench.settings)
    ended: list[tuple[int, QueueOffset]] = []

    def pulled(messages: Iterable[StoredMessage], following: QueueOffset, error: Exception | None) -> None:
        assert error is None
        ended.append((len(list(messages)), following))

    def pull(offset: QueueOffset) -> None:
        pulls.pull(PullRequest(queue, offset, TagFilter.parse("blue"), 32, 20.0), pulled)

    pull(QueueOffset(0))
    scanned = ENTRIES_SCANNED_MAX
    arrived = [bench.source.add(queue, b"", "red") for _ in range(scanned + 1)]
    pulls.messages_arrived([*arrived, bench.source.add(queue, b"", "blue")])
    assert ended == [(0, QueueOffset(scanned))]
    pull(ended[0][1])
    assert ended[1:] == [(1, QueueOffset(scanned + 2))]


def test_a_full_disk_is_tried_again_though_nothing_changes() -> None:
    bench = WaitingBench()
    bench.send(b"m")
    [message] = bench.receive().messages
    bench.is_full = True
    bench.delivery.acknowledge(GROUP, TOPIC, message.receipt_handle)
    bench.end_pass()
    for is_full in (True, False):
        bench.is_full = is_full
        bench.delivery.drop_idle_subscriptions()
        bench.end_pass()
        assert bench.writer.is_full is is_full
    bench.restart()
    assert bench.delivery.inflight_count == 0


# -- mistakes that are planted


def plant_only_the_first_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongPolls, "_serve_later", lambda *_: None)


def plant_times_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deliveries, "_wake", lambda *_: None)


def plant_what_is_given_back_at_once_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Deliveries._written

    def quiet(self: Deliveries, error: Exception | None) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "_wake", lambda _: None)
            written(self, error)

    monkeypatch.setattr(Deliveries, "_written", quiet)


def plant_acknowledgements_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delivery, "_serve_after_pass", lambda *_: None)


def plant_walks_that_pass_over_what_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(self: DueWalk, *_: object) -> None:
        self._subscription.due_from = min(self._subscription.due_from, self._at)

    monkeypatch.setattr(DueWalk, "__exit__", leave)


def plant_queues_that_are_taken_for_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subscription, "served", lambda self, number, *, drained: self.candidates.pop(number, None))


def plant_lite_topics_that_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiteDelivery, "ready", lambda *_: None)


@pytest.mark.parametrize(
    "plant",
    [
        plant_only_the_first_is_served,
        plant_times_are_not_looked_at,
        plant_what_is_given_back_at_once_wakes_nobody,
        plant_acknowledgements_wake_nobody,
        plant_walks_that_pass_over_what_is_not_written,
        plant_queues_that_are_taken_for_drained,
        plant_lite_topics_that_are_evicted,
    ],
)
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="waits for"):
        run_all(range(1_000))


def _request(bench: DeliveryBench) -> ReceiveRequest:
    return ReceiveRequest(GROUP, TOPIC, range(bench.queues), TagFilter.parse("*"), 1, 30_000, "client")
