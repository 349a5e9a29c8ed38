"""The consumers of a group are told of each other: at once if they are few, together if they are very many."""

from __future__ import annotations

from typing import cast

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.remoting.codes import RequestCode
from quarry_mq.protocol.remoting.frames import Language
from quarry_mq.server.front.remoting import RemotingConnection
from quarry_mq.server.remoting.sessions import NOTIFY_MAX_S, Heartbeat, RemotingSessions
from tests.delivery.broker import ManualTimers

HEARTBEAT = Heartbeat("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", {})
STEP_S = 0.0005


class Consumer:
    """Acts as a connection, and notes when it is told that its group has changed."""

    def __init__(self, clock: ManualClock) -> None:
        self.lost: dict[object, object] = {}
        self.is_registered = self.is_closed = False
        self.told: list[float] = []
        self._clock = clock

    def tell(self, code: int, fields: dict[str, str]) -> None:
        assert (code, fields) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
        self.told.append(self._clock.monotonic_s())


class Group:
    """Holds the consumers of a group, on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.sessions = RemotingSessions(self.clock, self.timers, topics_max=lambda: 1_000)
        self.consumers: list[Consumer] = []

    def join(self) -> None:
        consumer = Consumer(self.clock)
        self.consumers.append(consumer)
        client = self.sessions.info(f"c{len(self.consumers)}", Language.JAVA, 0)
        self.sessions.register_consumer(cast("RemotingConnection", consumer), "G", client, HEARTBEAT)

    def leave(self) -> None:
        self.sessions.lost(cast("RemotingConnection", self.consumers.pop()))

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.clock.advance(STEP_S)
            self.timers.run_due()


def test_few_consumers_are_told_of_a_change_at_once() -> None:
    """Until they are told, two of them read the same queue and both get its messages."""
    group = Group()
    for count in range(1, 4):
        group.join()
        group.wait(0.002)
        assert [len(each.told) for each in group.consumers] == list(range(count, 0, -1))
    group.leave()
    group.wait(0.002)
    assert [len(each.told) for each in group.consumers] == [4, 3]


def test_a_thousand_consumers_that_start_together_are_told_a_few_times() -> None:
    """All know the last of them at most 100 ms after it came, and each was told some ten times and not a thousand."""
    group = Group()
    for _ in range(500):
        group.join()
        group.join()
        group.wait(STEP_S)
    last_s = group.clock.monotonic_s()
    group.wait(1.0)
    assert all(last_s - STEP_S <= each.told[-1] <= last_s + NOTIFY_MAX_S for each in group.consumers)
    assert sum(len(each.told) for each in group.consumers) < 10_000
