"""Deliveries and acknowledgements of groups, as their consumers know them: the other half of the count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from quarry_mq.server.filters import MessageFilter
from quarry_mq.store.message import QueueId
from tests.lag.scan import Queues, Scanned


class Place(NamedTuple):
    """Of a message in a queue."""

    queue: QueueId
    offset: int


@dataclass
class Given:
    """A message that a consumer was given and has not acknowledged."""

    topic: str
    """That of the receive: a retry topic's messages come with those of the topic it is beside."""
    handle: str
    attempt: int


Wants = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True)
class Taste:
    """Which messages a group wants: what it tells the broker, and the same in words of the test."""

    told: MessageFilter
    wants: Wants


@dataclass
class Reader:
    """One group. A place is done, given, or waiting if it lies where the group began or behind."""

    name: str
    taste: Taste
    is_ordered: bool = False
    attempts_max: int | None = None
    reads: set[str] = field(default_factory=set)
    begins: dict[QueueId, int] = field(default_factory=dict)
    given: dict[Place, Given] = field(default_factory=dict)
    done: set[Place] = field(default_factory=set)
    lite_wanted: dict[str, set[str]] = field(default_factory=dict)
    """Lite topics by client."""

    def starts(self, topic: str, begins: Mapping[QueueId, int]) -> None:
        """The group has a position in the topic from now on; where it is new it begins there."""
        if topic not in self.reads:
            self.reads.add(topic)
            self.begins.update(begins)

    def got(self, place: Place, given: Given) -> None:
        before = self.given.get(place)
        assert place not in self.done, f"{self.name}: {place} is done and came again"
        assert before is not None or place.offset >= self.begins.get(place.queue, 0), f"{self.name}: {place}"
        assert given.attempt == (1 if before is None else before.attempt + 1), f"{self.name}: {place}: {given.attempt}"
        self.given[place] = given

    def ends(self, place: Place) -> None:
        """Acknowledged, or buried."""
        del self.given[place]
        self.done.add(place)

    def moved(self, queue: QueueId, begin: int, *, keeps_before: bool) -> None:
        """It goes on at a place of the queue; `keeps_before`: what it has in flight before that stays so."""
        self.begins[queue] = begin
        self.given = {
            place: given
            for place, given in self.given.items()
            if place.queue != queue or (keeps_before and place.offset < begin)
        }
        self.done = {place for place in self.done if place.queue != queue}

    def delete_topic(self, topic: str) -> None:
        """As if it had never read the topic."""
        self.reads.discard(topic)
        self.begins = {queue: begin for queue, begin in self.begins.items() if queue.topic != topic}
        self.given = {place: given for place, given in self.given.items() if place.queue.topic != topic}
        self.done = {place for place in self.done if place.queue.topic != topic}

    def waiting(self, queue: QueueId, messages: Iterable[Scanned]) -> set[int]:
        """The offsets of the messages that it wants and has never got."""
        begin = self.begins.get(queue, 0)
        return {
            each.offset
            for each in messages
            if each.offset >= begin
            and Place(queue, each.offset) not in self.given
            and Place(queue, each.offset) not in self.done
            and self.taste.wants(each.properties)
        }

    def open_places(self, queues: Queues) -> set[Place]:
        """What it was given and has not done, of what the log still holds."""
        kept = {Place(queue, each.offset) for queue, messages in queues.items() for each in messages}
        return kept & self.given.keys()


def retry_names(group: str, topic: str) -> set[str]:
    return {f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}"}
