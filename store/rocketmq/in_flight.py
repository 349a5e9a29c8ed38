"""Messages that RocketMQ 5 had in flight: delivered by gRPC or POP, and not acknowledged.

The position of such a group is above its messages in flight. RocketMQ knows them by notes, which are records in the
topics `rmq_sys_REVIVE_LOG_…`. A note arrives there when the invisible time of its messages is over; until then it is
a timer. Then RocketMQ writes the messages that were not acknowledged into a retry topic, and its own group
`CID_RMQ_SYS_REVIVE_GROUP` moves behind the note.

| tag    | says         | body (JSON) |
|--------|--------------|-------------|
| `ck`   | delivered    | `t`, `c`, `q`: topic, group, queue; `so`: first offset; `n`: number of messages, |
|        |              | `d`: their distances from `so`; `bm`: bits of those acknowledged; `pt`: time of the |
|        |              | delivery, `it`: how long it is invisible (ms) |
| `ack`  | acknowledged | `t`, `c`, `q`, `so`, `pt` of the delivery; `ao`: the offset |
| `bAck` | acknowledged | the same, with `aol`: several offsets |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from quarry_mq.store.message import QueueId, QueueOffset

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
DELIVERED: Final = "ck"
ACKNOWLEDGED: Final = "ack"
ACKNOWLEDGED_TOGETHER: Final = "bAck"
VISIBLE_MAX_MS: Final = 2**53
"""The last time at which a message becomes visible, whatever a note says."""
QUEUES_MAX: Final = 2**31
COUNT_MAX: Final = 127
"""Messages of one delivery: RocketMQ counts them in a byte."""


class Note(NamedTuple):
    """A note has a tag, and a body in JSON."""

    tag: str
    body: bytes


class Unacknowledged(NamedTuple):
    """A message was delivered to a group, and comes again at a time unless it is acknowledged."""

    group: str
    queue: QueueId
    offset: QueueOffset
    visible_at_ms: int


_Delivery = tuple[str, str, int, int, int]
"""The topic, group, queue, first offset and time of a delivery."""


def unacknowledged(notes: Iterable[Note]) -> Iterator[Unacknowledged]:
    """Yield the messages in flight that the notes tell of, each once. The order of the notes has no meaning."""
    delivered: dict[_Delivery, tuple[set[int], int]] = {}
    acknowledged: dict[_Delivery, set[int]] = {}
    for tag, text in notes:
        try:
            body = json.loads(text)
            key = (str(body["t"]), str(body["c"]), int(body["q"]), int(body["so"]), int(body["pt"]))
            if key[2] not in range(QUEUES_MAX):
                continue
            if tag == DELIVERED:
                delivered[key] = _offsets(body), max(0, min(key[4] + int(body["it"]), VISIBLE_MAX_MS))
            elif tag == ACKNOWLEDGED:
                acknowledged.setdefault(key, set()).add(int(body["ao"]))
            elif tag == ACKNOWLEDGED_TOGETHER:
                acknowledged.setdefault(key, set()).update(map(int, body["aol"]))
        except (ValueError, TypeError, KeyError):
            continue  # of a version that writes other notes
    times: dict[tuple[str, QueueId, QueueOffset], int] = {}
    for key, (offsets, visible_at_ms) in delivered.items():
        topic, group, number, *_ = key
        for offset in offsets - acknowledged.get(key, set()):
            message = group, QueueId(topic, number), QueueOffset(offset)
            times[message] = max(visible_at_ms, times.get(message, 0))
    for (group, queue, at), visible_at_ms in times.items():
        yield Unacknowledged(group, queue, at, visible_at_ms)


def _offsets(body: dict[str, Any]) -> set[int]:
    first, bits = int(body["so"]), int(body.get("bm", 0))
    distances = body.get("d") or range(min(int(body["n"]), COUNT_MAX))
    return {first + int(distance) for at, distance in enumerate(distances) if not bits >> at & 1}
