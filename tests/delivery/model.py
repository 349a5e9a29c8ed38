"""Promises of a delivery, in plain dictionaries: each message of each group, as its consumers know it."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quarry_mq.server.delivery import Delivered
from quarry_mq.store.record import StoredMessage
from tests.delivery.broker import Receive

HIDDEN_AT_LEAST_MS = 60_000
"""How long a lease is not less than, while its client lives."""


@dataclass(frozen=True)
class Group:
    """How a group consumes."""

    name: str
    is_ordered: bool = False
    attempts_max: int | None = None
    tags: str = "*"


class Place(NamedTuple):
    """Of a message in its topic."""

    queue: int
    offset: int


@dataclass
class Known:
    """What the consumers of a group know of a message that they were given."""

    attempt: int
    handle: str
    hidden_until_ms: int
    """Nobody may get it before."""
    attempt_id: str
    client: str
    is_leased: bool
    is_done: bool = False
    is_in_doubt: bool = False
    """The power went since it was last written down for good."""


class Request(NamedTuple):
    """A receive, and what it was asked with."""

    group: Group
    client: str
    attempt_id: str
    invisible_ms: int | None
    receive: Receive


class Promises:
    """Of all groups. Each method tells of what a consumer or the broker's operator has seen."""

    def __init__(
        self,
        groups: Sequence[Group],
        place_of: Callable[[StoredMessage], Place],
        is_for: Callable[[Group, Place], bool],
    ) -> None:
        self._place_of = place_of
        self._is_for = is_for
        self.sent: dict[Place, tuple[bytes, str]] = {}
        self.known: dict[Group, dict[Place, Known]] = {group: {} for group in groups}
        self.dead_lettered: dict[Group, set[Place]] = {group: set() for group in groups}
        self._touched: list[Known] = []  # since the last durable write

    def wants(self, group: Group, place: Place) -> bool:
        return self._is_for(group, place) and group.tags in ("*", self.sent[place][1])

    def is_done(self, group: Group, place: Place) -> bool:
        known = self.known[group].get(place)
        return place in self.dead_lettered[group] or (known is not None and known.is_done)

    def handed_out(self, request: Request, messages: Iterable[Delivered], now_ms: int) -> list[Place]:
        """Check one answer against everything that was promised, and enter it."""
        places: list[Place] = []
        again: set[int] = set()
        for message in messages:
            place = self._place_of(message.record)
            if request.group.is_ordered:
                before = self.known[request.group].get(place)
                assert before is not None or place.queue not in again, "a new one came with some that come again"
                again.update([place.queue] if before is not None and not before.is_in_doubt else [])
            assert bytes(message.record.body) == self.sent[place][0]
            assert self.wants(request.group, place), "the filter does not want it"
            if request.group.is_ordered:
                self._check_order(request, place, places, now_ms)
            self._enter(request, place, message, now_ms)
            places.append(place)
        return places

    def _enter(self, request: Request, place: Place, message: Delivered, now_ms: int) -> None:
        group, before = request.group, self.known[request.group].get(place)
        again = before is not None and _delivery_of(message.receipt_handle) == _delivery_of(before.handle)
        if again:
            assert group.is_ordered, "a delivery was handed out twice"
            assert before is not None
            assert before.attempt_id == request.attempt_id != ""
        if before is not None and not before.is_in_doubt:
            assert not before.is_done, "an acknowledged message came again"
            assert again or not self._is_hidden(before, now_ms), "two consumers have it"
            wanted = before.attempt + (0 if again else 1)
            assert message.attempt == wanted, f"{group.name}: attempt {message.attempt} at {place}, after {before}"
        elif before is None:
            assert message.attempt == 1
        if group.attempts_max is not None:
            assert message.attempt <= group.attempts_max
        if again:
            return
        hidden_ms = HIDDEN_AT_LEAST_MS if request.invisible_ms is None else request.invisible_ms
        entered = Known(
            message.attempt,
            message.receipt_handle,
            now_ms + hidden_ms,
            request.attempt_id,
            request.client,
            request.invisible_ms is None,
        )
        self.known[group][place] = entered
        self._touched.append(entered)

    def _check_order(self, request: Request, place: Place, taken: Sequence[Place], now_ms: int) -> None:
        """Nothing before it in its queue is open, but for what the same answer brings."""
        for offset in range(place.offset):
            earlier = Place(place.queue, offset)
            if earlier in taken or not self.wants(request.group, earlier) or self.is_done(request.group, earlier):
                continue
            known = self.known[request.group].get(earlier)
            assert known is not None, f"{place} came before {earlier} had come at all"
            assert known.is_in_doubt, f"{place} came while {earlier} was open"
            assert known.is_done, f"{place} came while {earlier} was open"
        for known_place, known in self.known[request.group].items():
            if known_place.queue == place.queue and known_place not in taken and not known.is_in_doubt:
                is_repeated = bool(request.attempt_id) and known.attempt_id == request.attempt_id
                is_done = self.is_done(request.group, known_place)
                assert is_done or is_repeated or not self._is_hidden(known, now_ms), "the queue was blocked"

    def _is_hidden(self, known: Known, now_ms: int) -> bool:
        return now_ms < known.hidden_until_ms

    # -- what consumers say, and hear that it was done

    def acknowledged(self, group: Group, place: Place) -> None:
        known = self.known[group][place]
        known.is_done = True
        self._touched.append(known)

    def changed(self, group: Group, place: Place, handle: str, hidden_until_ms: int) -> None:
        known = self.known[group][place]
        known.handle, known.hidden_until_ms, known.is_leased = handle, hidden_until_ms, False
        self._touched.append(known)

    def given_back(self, group: Group, place: Place, now_ms: int) -> None:
        """Within a second it may be anybody's."""
        known = self.known[group][place]
        known.hidden_until_ms = min(known.hidden_until_ms, now_ms)
        known.is_leased = False
        self._touched.append(known)

    def client_lost(self, client: str, now_ms: int) -> None:
        for group, places in self.known.items():
            for place, known in places.items():
                if known.is_leased and known.client == client and not known.is_done:
                    self.given_back(group, place, now_ms)

    def is_buried(self, group: Group, place: Place) -> None:
        self.dead_lettered[group].add(place)
        if place in self.known[group]:
            self._touched.append(self.known[group][place])

    # -- what happens to the broker

    def written_durably(self) -> None:
        """What was in doubt before stays so: nobody can tell which way it went."""
        self._touched = []

    def power_lost(self) -> None:
        for known in self._touched:
            known.is_in_doubt = True
            known.hidden_until_ms = 0

    def check_all_done(self) -> None:
        for group in self.known:
            for place in self.sent:
                assert self.is_done(group, place) or not self.wants(group, place), f"{group.name} never got {place}"


def _delivery_of(handle: str) -> bytes | None:
    """Which delivery a handle names: one that was given back has another time in it, too."""
    return urlsafe_b64decode(handle)[13:21] if handle else None
