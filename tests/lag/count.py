"""The count that everything told of lag is held against."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from quarry_mq.store.message import QueueId
from tests.lag.readers import Place
from tests.lag.scan import Queues, Scanned


class Count(NamedTuple):
    """Of some queues. Times are ms: how long the oldest message is there, and when the last passed one was stored."""

    in_flight: int
    ready: int
    delay_ms: int
    open_ms: int
    """How long the oldest one is there that is ready or in flight."""
    passed_ms: int

    @classmethod
    def of(
        cls,
        queues: Queues,
        topics: Collection[str],
        positions: Mapping[QueueId, int],
        given: Collection[Place],
        now_ms: int,
    ) -> Count:
        """`positions` are where the group goes on; a queue without one is new to it, and read from its beginning."""
        ready: list[Scanned] = []
        in_flight: list[Scanned] = []
        passed: list[Scanned] = []
        for queue, messages in queues.items():
            if queue.topic in topics:
                position = positions.get(queue, 0)
                ready += [each for each in messages if each.offset >= position]
                in_flight += [each for each in messages if Place(queue, each.offset) in given]
                passed += [each for each in messages if each.offset == position - 1]
        return cls(
            len(in_flight),
            len(ready),
            _age_ms(ready, now_ms),
            _age_ms(ready + in_flight, now_ms),
            max((each.stored_ms for each in passed), default=0),
        )


def _age_ms(messages: Collection[Scanned], now_ms: int) -> int:
    return now_ms - min((each.stored_ms for each in messages), default=now_ms)


def total(counts: Collection[Count]) -> Count:
    """Of all of them together."""
    return Count(
        sum(each.in_flight for each in counts),
        sum(each.ready for each in counts),
        max((each.delay_ms for each in counts), default=0),
        max((each.open_ms for each in counts), default=0),
        max((each.passed_ms for each in counts), default=0),
    )
