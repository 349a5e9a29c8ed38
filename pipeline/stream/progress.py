"""How far a stream has read: per queue the next offset, and what a batch of it reads.

Spark keeps the offsets in its checkpoint, as `{"orders": {"0": 1207, "1": 1198}}`, and takes two for the same when
their texts are equal: queues come in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from quarry_mq.pipeline.source.options import InvalidOption

Offsets = dict[int, int]
"""Queue number to the next offset."""

FIRST: Final = 0
"""Where a queue begins that appeared after the query had begun."""


class Range(NamedTuple):
    """Some offsets of one queue."""

    queue: int
    begin: int
    end: int


def to_json(topic: str, offsets: Offsets) -> dict[str, Any]:
    """As Spark keeps it."""
    return {topic: {str(queue): offsets[queue] for queue in sorted(offsets)}}


def of_json(topic: str, kept: Mapping[str, Any]) -> Offsets:
    """Raises InvalidOption for the checkpoint of another topic."""
    if topic not in kept:
        raise InvalidOption(f"option 'topic': the checkpoint is of {', '.join(kept)}, not of {topic}")
    return {int(queue): int(offset) for queue, offset in kept[topic].items()}


def limited(start: Offsets, ends: Offsets, messages_max: int) -> Offsets:
    """Ends such that at most `messages_max` messages lie before them, shared out evenly, so that no queue waits long.

    What some queues do not need goes to the others. With more queues than messages they take turns.
    """
    waiting = {queue: end - begin for queue, end in ends.items() if (begin := start.get(queue, FIRST)) < end}
    taken = dict.fromkeys(waiting, 0)
    if messages_max < len(waiting):
        queues = sorted(waiting)
        turn = sum(start.values()) % len(queues)  # it moves on with each batch, and is the same after a restart
        taken.update(dict.fromkeys((queues[turn:] + queues[:turn])[:messages_max], 1))
    else:
        left = messages_max
        for done, queue in enumerate(sorted(waiting, key=lambda each: (waiting[each], each))):
            taken[queue] = min(waiting[queue], left // (len(waiting) - done))
            left -= taken[queue]
    return {queue: start.get(queue, FIRST) + taken[queue] if queue in taken else end for queue, end in ends.items()}


def parts(start: Offsets, end: Offsets, messages_max: int) -> Iterator[tuple[Range, ...]]:
    """What lies between, in parts of at most `messages_max` messages; the same each time it is asked for."""
    part: list[Range] = []
    room = messages_max
    for queue in sorted(end):
        begin = start.get(queue, FIRST)
        while begin < end[queue]:
            behind = min(begin + room, end[queue])
            part.append(Range(queue, begin, behind))
            room -= behind - begin
            begin = behind
            if room == 0:
                yield tuple(part)
                part, room = [], messages_max
    if part:
        yield tuple(part)
