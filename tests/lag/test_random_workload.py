"""Lag equals a count of the raw log's records, whatever producers, consumers and operators do, and crashes.

The count knows two things: what the records of the log say, read one by one, and what each group was given and has
acknowledged, kept by what its consumers heard. How far a group has come in queues whose messages its filter passes over
is read from the database's rows by their format. Complaints that this answers: lag that is wrong or unknown
(rmq#8764), a range that is not brought back into the queue (rmq#10953), unknown lag that looks like none
(rocketmq-dashboard#4516).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from quarry_mq.server.delivery.deliveries import Deliveries
from quarry_mq.server.lag import group_progress
from quarry_mq.server.lag.consumer_lag import ConsumerLag
from quarry_mq.server.lag.group_progress import GroupProgress
from quarry_mq.server.lag.measurement import GroupTopic, Measured, QueuePosition, RunningCount
from quarry_mq.server.lite.subscriptions import WantedLiteTopics
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import Topic
from tests.lag.machine import LagMachine


class OnDisk(LagMachine):
    on_disk = True


def test_lag_is_the_independent_count() -> None:
    run(12, 50, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_lag_is_the_independent_count_in_many_workloads() -> None:
    run(1_500, 80, derandomize=False)


@pytest.mark.slow
def test_lag_is_the_independent_count_with_the_real_databases() -> None:
    run(60, 60, derandomize=False, machine=OnDisk)


def plant_offsets_not_brought_back_into_the_queue(patch: pytest.MonkeyPatch) -> None:
    """rmq#10953"""

    def position(self: GroupProgress, group: str, queue: QueueId) -> QueuePosition:
        bounds, stored = self._source.bounds(queue), self._progress.next_offset(group, queue)
        return QueuePosition(queue, bounds, bounds.minimum if stored is None else stored)

    patch.setattr(GroupProgress, "position", position)


def plant_queues_that_nobody_has_opened_left_out(patch: pytest.MonkeyPatch) -> None:
    add_ready = ConsumerLag._add_ready

    def of_opened(self: ConsumerLag, measured: Measured, group: str, queue: QueueId, *, with_passed: bool) -> None:
        subscription = self._in_memory.get(GroupTopic(group, queue.topic))
        opened = [] if subscription is None else [each.queue for each in subscription.queues.values()]
        if queue in opened:
            add_ready(self, measured, group, queue, with_passed=with_passed)

    patch.setattr(ConsumerLag, "_add_ready", of_opened)


def plant_queues_beyond_the_last_left_out(patch: pytest.MonkeyPatch) -> None:
    def queues(_: GroupProgress, topic: Topic) -> Iterator[QueueId]:
        return iter([QueueId(topic.name, number) for number in range(topic.queue_count)])

    patch.setattr(GroupProgress, "queues", queues)


def plant_retry_topics_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_progress, "retry_topics", lambda *_: ())


def plant_expired_messages_in_flight(patch: pytest.MonkeyPatch) -> None:
    def in_flight(self: ConsumerLag, group: str, queue: QueueId) -> Generator[None, None, tuple[int, Any]]:
        yield
        first = self._progress.first_in_flight(group, queue, QueueOffset(0))
        return 0, None if first is None else self._entry(queue, first)

    patch.setattr(ConsumerLag, "_in_flight", in_flight)


def plant_what_is_committed_stays_in_flight(patch: pytest.MonkeyPatch) -> None:
    delete_from = Deliveries.delete_from
    patch.setattr(Deliveries, "delete_from", lambda *args: None if len(args) > 3 else delete_from(*args))


def plant_changes_in_flight_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningCount, "value", lambda self, _: self._counted)


def plant_lite_topics_that_are_only_wanted_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WantedLiteTopics, "of", lambda *_: iter(()))


@pytest.mark.parametrize(
    "plant",
    [
        plant_offsets_not_brought_back_into_the_queue,
        plant_queues_that_nobody_has_opened_left_out,
        pytest.param(plant_queues_beyond_the_last_left_out, marks=pytest.mark.slow),
        pytest.param(plant_retry_topics_left_out, marks=pytest.mark.slow),
        pytest.param(plant_expired_messages_in_flight, marks=pytest.mark.slow),
        pytest.param(plant_what_is_committed_stays_in_flight, marks=pytest.mark.slow),
        plant_changes_in_flight_not_counted,
        pytest.param(plant_lite_topics_that_are_only_wanted_left_out, marks=pytest.mark.slow),
    ],
)
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count that agrees with whatever it is told proves nothing."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, Refused)):
        run(400, 50, derandomize=True, phases=(Phase.generate,))


def run(
    examples: int,
    steps: int,
    *,
    derandomize: bool,
    machine: type[LagMachine] = LagMachine,
    phases: tuple[Phase, ...] = tuple(Phase),
) -> None:
    wanted = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=derandomize,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=phases,
    )
    run_state_machine_as_test(machine, settings=wanted)
