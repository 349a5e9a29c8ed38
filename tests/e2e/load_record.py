"""A record of messages sent and received under load, which finds losses, and message groups out of order.

A message is named by its body: `NAME NUMBER`, with the numbers of each name counted from 0. A message group has the
name of its messages. Each name is sent by one producer, which goes on to the next number of a message group only when
the one before was acknowledged.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tests.e2e.clients import Delivery

SHOWN_MAX: Final = 5


class First(NamedTuple):
    """The first delivery of a message."""

    at_ms: int
    who: str
    number: int
    """Counts the deliveries of this consumer."""


class Refusal(NamedTuple):
    """What a client library raised to its application."""

    who: str
    what: str
    text: str
    took_s: float
    at_s: float
    """Since the record began."""


def body_of(name: str, number: int) -> str:
    return f"{name} {number}"


class LoadRecord:
    """Used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._acknowledged: dict[str, set[int]] = defaultdict(set)
        self._first: dict[str, dict[int, First]] = defaultdict(dict)
        self._deliveries_of: Counter[str] = Counter()
        self.message_groups: set[str] = set()
        self.deliveries = 0
        self.refusals: list[Refusal] = []
        self.repeated_sends: Counter[str] = Counter()
        """Per producer: how often it sent a message of a message group again."""
        self.longest_send_s: dict[str, float] = {}
        """Per producer: from the first try of a message of a message group to its acknowledgement."""
        self.faults: list[str] = []

    # -- what happens

    def note_acknowledged(self, name: str, number: int) -> None:
        with self._lock:
            self._acknowledged[name].add(number)

    def note_group_sent(self, who: str, took_s: float) -> None:
        with self._lock:
            self.longest_send_s[who] = max(took_s, self.longest_send_s.get(who, 0.0))

    def note_repeated(self, who: str) -> None:
        with self._lock:
            self.repeated_sends[who] += 1

    def note_refused(self, who: str, what: str, text: str, began_s: float) -> None:
        now_s = time.monotonic()
        with self._lock:
            self.refusals.append(Refusal(who, what, text, now_s - began_s, now_s - self._began_s))

    def note_delivered(self, who: str, deliveries: Sequence[Delivery]) -> None:
        """In the order in which the consumer was given them."""
        with self._lock:
            for each in deliveries:
                name, _, number = each.body.decode().rpartition(" ")
                self.deliveries += 1
                self._deliveries_of[who] += 1
                self._first[name].setdefault(int(number), First(each.at_ms, who, self._deliveries_of[who]))

    def note_fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)

    # -- what is found

    @property
    def acknowledged_count(self) -> int:
        with self._lock:
            return sum(map(len, self._acknowledged.values()))

    def acknowledged_of(self, kind: str) -> int:
        """Messages whose names begin so."""
        with self._lock:
            return sum(len(numbers) for name, numbers in self._acknowledged.items() if name.startswith(kind))

    def delivered_by(self) -> Counter[str]:
        with self._lock:
            return self._deliveries_of.copy()

    def lost(self) -> list[str]:
        """Messages that were acknowledged and never delivered."""
        with self._lock:
            return [
                body_of(name, number)
                for name, numbers in self._acknowledged.items()
                for number in sorted(numbers - self._first[name].keys())
            ]

    def breaks(self) -> list[str]:
        """Where a message group came out of order: a first delivery before that of a lower number."""
        with self._lock:
            return [each for group in sorted(self.message_groups) for each in _breaks_of(group, self._first[group])]

    def refused(self, kind: str) -> Counter[str]:
        """By what was raised, of the clients whose names begin so."""
        with self._lock:
            return Counter(f"{each.who}: {each.what}" for each in self.refusals if each.who.startswith(kind))

    def refusals_of(self, kind: str) -> list[Refusal]:
        with self._lock:
            return [each for each in self.refusals if each.who.startswith(kind)]


def _breaks_of(group: str, first: dict[int, First]) -> Iterator[str]:
    last_number, last = -1, First(0, "", 0)
    for number, came in sorted(first.items()):
        is_earlier = came.at_ms < last.at_ms
        if came.at_ms == last.at_ms and came.who == last.who:
            is_earlier = came.number < last.number
        if is_earlier:
            yield (
                f"{body_of(group, number)} came to {came.who} {last.at_ms - came.at_ms} ms before "
                f"{last_number} to {last.who}"
            )
        else:
            last_number, last = number, came
