"""Pauses before a shard is started again."""

from __future__ import annotations

from quarry_mq.server.shards.supervisor import Backoff


def test_pauses_double_up_to_half_a_minute_and_begin_anew_after_a_minute_up() -> None:
    backoff = Backoff()
    assert [backoff.pause_s(ran_s=1) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.pause_s(ran_s=59.9) == 30
    assert backoff.pause_s(ran_s=60) == 0.5
    assert backoff.pause_s(ran_s=0) == 1
