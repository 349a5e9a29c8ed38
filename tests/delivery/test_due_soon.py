"""Messages that become visible within moments of each other: a look ahead passes none of them over."""

from __future__ import annotations

import pytest

from quarry_mq.server.delivery.redelivery_timers import ENTRIES_READ_AT_ONCE, LOOKED_AHEAD_MS
from quarry_mq.server.delivery.state.inflight import DueEntry, InFlightTable
from tests.delivery.broker import DeliveryBench

FAR_MS = 60_000


def hidden_for(bench: DeliveryBench, times_ms: list[int]) -> None:
    """One message each, hidden so long from now."""
    for number, time_ms in enumerate(times_ms):
        bench.send(b"%d" % number)
        assert len(bench.receive(batch=1, invisible_s=time_ms / 1000).messages) == 1


@pytest.mark.parametrize(
    "times_ms",
    [
        [1],
        [LOOKED_AHEAD_MS],
        [LOOKED_AHEAD_MS + 1],
        [5, 3, 4, FAR_MS, LOOKED_AHEAD_MS, 2 * LOOKED_AHEAD_MS, LOOKED_AHEAD_MS + 1, 3],
        [7] * (2 * ENTRIES_READ_AT_ONCE + 1),
    ],
)
def test_each_comes_at_its_millisecond_and_not_before(times_ms: list[int]) -> None:
    bench = DeliveryBench(queues=1)
    hidden_for(bench, times_ms)
    for now_ms in range(3 * LOOKED_AHEAD_MS):
        due = {b"%d" % number for number, time_ms in enumerate(times_ms) if time_ms == now_ms}
        assert set(bench.receive(batch=len(times_ms), invisible_s=FAR_MS / 1000).bodies) == due, now_ms
        bench.clock.advance(0.001)
    bench.clock.advance(2 * FAR_MS / 1000)
    assert len(bench.receive(batch=len(times_ms)).messages) == len(times_ms)


def test_one_that_is_hidden_for_a_moment_after_a_look_ahead_is_not_passed_over() -> None:
    bench = DeliveryBench(queues=1)
    hidden_for(bench, [FAR_MS])
    assert not bench.receive().messages, "the look ahead finds nothing"
    hidden_for(bench, [3])
    bench.clock.advance(0.003)
    assert len(bench.receive().messages) == 1


def test_receives_that_find_nothing_to_hand_out_again_do_not_look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DeliveryBench(queues=1)
    hidden_for(bench, [FAR_MS] * 3)
    bench.receive()
    due, looks = InFlightTable.due, 0

    def counted(self: InFlightTable, prefix: bytes, start: DueEntry, until_ms: int, limit: int) -> list[DueEntry]:
        nonlocal looks
        found = due(self, prefix, start, until_ms, limit)
        looks += 1
        return found

    monkeypatch.setattr(InFlightTable, "due", counted)
    for _ in range(LOOKED_AHEAD_MS):
        bench.receive()
        bench.clock.advance(0.001)
    assert looks <= 1
