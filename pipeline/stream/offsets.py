"""Offsets of queues: their text in options and checkpoints, the end of a batch, and what each task reads.

Nothing here calls a broker. A queue is named `broker/number`, because each broker of a cluster has queues of its own.
An option may name a queue by its number alone if one broker has the topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from quarry_mq.pipeline.source.options import InvalidOption

FIRST: Final = 0
"""Offset at which a query begins a queue that appeared after the query had begun."""


class Queue(NamedTuple):
    """A queue of a topic at one broker."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"topic {self.topic}, queue {self.name}"

    @property
    def name(self) -> str:
        """The name within the topic."""
        return f"{self.broker}/{self.number}"


Offsets = dict[Queue, int]
"""Maps a queue to its next offset."""


class Range(NamedTuple):
    """A range of offsets of one queue."""

    queue: Queue
    begin: int
    end: int


def to_json(offsets: Offsets) -> dict[str, Any]:
    """Return the offsets in the form that Spark keeps in its checkpoint; equal offsets have equal texts."""
    kept: dict[str, Any] = {}
    for queue in sorted(offsets):
        kept.setdefault(queue.topic, {})[queue.name] = offsets[queue]
    return kept


def by_queue_of(option: str, text: str, *, minimum: int) -> dict[str, dict[str, int]]:
    """Parse the JSON of an option that has a number for each queue of each topic. Raises InvalidOption."""
    shape = f'option {option!r}: {text!r} is not JSON such as {{"orders": {{"0": 23, "1": 45}}}}'
    try:
        parsed = json.loads(text)
    except ValueError:
        raise InvalidOption(shape) from None
    if not isinstance(parsed, dict) or not parsed or not all(isinstance(each, dict) for each in parsed.values()):
        raise InvalidOption(shape)
    for topic, numbers in parsed.items():
        for name, number in numbers.items():
            if type(number) is not int or number < minimum:
                raise InvalidOption(
                    f"option {option!r}: topic {topic}, queue {name}: {number!r} is no whole number of at least "
                    f"{minimum}"
                )
    return parsed


def queue_named(option: str, topic: str, name: str, brokers: Sequence[str]) -> Queue:
    """Return the queue of this name. Raises InvalidOption if the name has no broker, and several have the topic."""
    broker, _, number = name.rpartition("/")
    if not number.isdecimal():
        raise InvalidOption(f"option {option!r}: topic {topic}: {name!r} is neither a queue number nor broker/number")
    if broker or len(brokers) == 1:
        return Queue(topic, broker or brokers[0], int(number))
    raise InvalidOption(
        f"option {option!r}: topic {topic}: {name!r} names no broker; the topic is at {', '.join(brokers)}: "
        f"write {brokers[0]}/{number}"
        if brokers
        else f"option {option!r}: topic {topic} is not read"
    )


def waiting(start: Offsets, ends: Offsets) -> int:
    """Return the number of messages between the offsets."""
    return sum(max(0, end - start.get(queue, FIRST)) for queue, end in ends.items())


def limited(start: Offsets, ends: Offsets, messages_max: int) -> Offsets:
    """Return ends with at most `messages_max` messages before them, spread evenly so that no queue waits long.

    The share that some queues do not need goes to the others. With more queues than messages they take turns.
    """
    left_of = {queue: end - begin for queue, end in ends.items() if (begin := start.get(queue, FIRST)) < end}
    taken = dict.fromkeys(left_of, 0)
    if messages_max < len(left_of):
        queues = sorted(left_of)
        turn = sum(start.values()) % len(queues)  # it moves on with each batch, and is the same after a restart
        taken.update(dict.fromkeys((queues[turn:] + queues[:turn])[:messages_max], 1))
    else:
        left = messages_max
        for done, queue in enumerate(sorted(left_of, key=lambda each: (left_of[each], each))):
            taken[queue] = min(left_of[queue], left // (len(left_of) - done))
            left -= taken[queue]
    return {queue: start.get(queue, FIRST) + taken[queue] if queue in taken else end for queue, end in ends.items()}


def parts(start: Offsets, end: Offsets, *, messages_max: int, count_min: int = 1) -> Iterator[tuple[Range, ...]]:
    """Yield the messages between the offsets in parts of nearly equal size; the same parts at every call.

    A part has at most `messages_max` messages. There are at least `count_min` parts, if there are as many messages.
    """
    total = waiting(start, end)
    count = max(-(-total // messages_max), min(count_min, total))
    part: list[Range] = []
    done = number = 0
    for queue in sorted(end):
        begin = start.get(queue, FIRST)
        while begin < end[queue]:
            # part i has the messages from i * total / count to (i + 1) * total / count
            stop = min(begin + (number + 1) * total // count - done, end[queue])
            part.append(Range(queue, begin, stop))
            done += stop - begin
            begin = stop
            if done == (number + 1) * total // count:
                yield tuple(part)
                part, number = [], number + 1
