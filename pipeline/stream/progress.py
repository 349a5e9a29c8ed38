"""Computes how far a stream has read: the next offset of each queue, and the ranges that a batch reads.

Spark keeps the offsets in its checkpoint, as `{"orders": {"0": 1207, "1": 1198}}`, and takes two for equal when their
texts are equal: so queues are written in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from quarry_mq.pipeline.source.options import InvalidOption

Offsets = dict[int, int]
"""Maps a queue number to the next offset."""

FIRST: Final = 0
"""Offset at which the stream begins a queue that appeared after the query had begun."""


class Range(NamedTuple):
    """A range of offsets of one queue."""

    queue: int
    begin: int
    end: int


def to_json(topic: str, offsets: Offsets) -> dict[str, Any]:
    """Return the offsets in the form that Spark keeps in its checkpoint."""
    return {topic: {str(queue): offsets[queue] for queue in sorted(offsets)}}


def of_json(topic: str, kept: Mapping[str, Any]) -> Offsets:
    """Parse the offsets of a checkpoint. Raises InvalidOption for the checkpoint of another topic."""
    if topic not in kept:
        raise InvalidOption(f"option 'topic': the checkpoint is of {', '.join(kept)}, not of {topic}")
    return {int(queue): int(offset) for queue, offset in kept[topic].items()}


def limited(start: Offsets, ends: Offsets, messages_max: int) -> Offsets:
    """Return ends with at most `messages_max` messages before them, spread evenly so that no queue waits long.

    The share that some queues do not need goes to the others. With more queues than messages they take turns.
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
    """Yield the messages between the offsets in parts of at most `messages_max`; the same parts at every call."""
    part: list[Range] = []
    room = messages_max
    for queue in sorted(end):
        begin = start.get(queue, FIRST)
        while begin < end[queue]:
            stop = min(begin + room, end[queue])
            part.append(Range(queue, begin, stop))
            room -= stop - begin
            begin = stop
            if room == 0:
                yield tuple(part)
                part, room = [], messages_max
    if part:
        yield tuple(part)
