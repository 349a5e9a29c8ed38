"""The last hour of single topics and groups: those that are counted one by one, the busiest and those furthest behind.

Each has a ring of its own of some 17 KB, and there are NAMES_MAX of each kind at most (ADR 60).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import isnan, nan
from typing import Final, NamedTuple, Protocol

from quarry_mq.server.admin.stats import Excerpt, History, Series
from quarry_mq.server.counters import OTHER, RatesNow
from quarry_mq.server.lag.consumer_lag import PairLag

NAMES_MAX: Final = 64

SERIES: Final = (
    Series("sent_per_second", "messages/s"),
    Series("received_per_second", "messages/s"),
    Series("ready_messages", "messages"),
    Series("in_flight_messages", "messages"),
    Series("lag_seconds", "seconds"),
)
"""The series of a name. The first one is unknown of a group, which sends nothing."""


class Named(Enum):
    """The two kinds of names that have an hour of their own."""

    TOPIC = "topic"
    GROUP = "group"


class NamedRates(Protocol):
    def now(self) -> RatesNow: ...


class Lag(Protocol):
    """The lag of each pair that is counted by itself, as of the last sweep."""

    @property
    def pairs(self) -> Sequence[PairLag]: ...


class _Kept(NamedTuple):
    history: History
    sample: int
    """The number of the last sample that had something to tell of the name."""


class NameHistory:
    """Samples of topics and groups. Lives on the event loop's thread.

    A name is kept from the first sample that has it on. If there is no room, it takes the place of the name that has
    been without a rate and a lag for the longest time; if all others have one, it has to wait.
    """

    def __init__(self, rates: NamedRates, lag: Lag, names_max: int = NAMES_MAX) -> None:
        self._rates = rates
        self._lag = lag
        self._names_max = names_max
        self._kept: dict[Named, dict[str, _Kept]] = {each: {} for each in Named}
        self._samples = 0

    def sample(self, at_ms: int) -> None:
        """Add a sample to each name that is kept. Times are those of the other samples."""
        self._samples += 1
        rates, pairs = self._rates.now(), self._lag.pairs
        for kind in Named:
            kept, present, received = self._kept[kind], _present(kind, rates, pairs), _received(kind, rates)
            for name in present:
                self._keep(kept, name)
            for name, own in kept.items():
                sent = rates.sent_to(name) if kind is Named.TOPIC else None
                own.history.add(at_ms, _values(sent, received.get(name, 0.0), present.get(name, ())))

    def excerpt(self, kind: Named, name: str, names: Sequence[str] = (), after_ms: int | None = None) -> Excerpt:
        """Return series of a topic or group; no samples of one that is not kept. Raises Invalid for an unknown one."""
        kept = self._kept[kind].get(name)
        return (History(SERIES, 1) if kept is None else kept.history).excerpt(names, after_ms)

    def _keep(self, kept: dict[str, _Kept], name: str) -> None:
        own = kept.get(name)
        if own is None and len(kept) >= self._names_max:
            longest = min(kept, key=lambda each: kept[each].sample)
            if kept[longest].sample >= self._samples - 1:
                return
            del kept[longest]
        kept[name] = _Kept(History(SERIES) if own is None else own.history, self._samples)


def _present(kind: Named, rates: RatesNow, pairs: Sequence[PairLag]) -> Mapping[str, list[PairLag]]:
    """Return the names with a rate or a lag of their own, each with its pairs; busy ones first."""
    found: dict[str, list[PairLag]] = {}
    busy: Iterable[str] = rates.sent if kind is Named.TOPIC else (group for group, _ in rates.received)
    for name in busy:
        found.setdefault(name, [])
    for pair in pairs:
        if OTHER not in (pair.group, pair.topic):
            found.setdefault(pair.topic if kind is Named.TOPIC else pair.group, []).append(pair)
    return found


def _received(kind: Named, rates: RatesNow) -> dict[str, float]:
    found: dict[str, float] = {}
    for (group, topic), rate in rates.received.items():
        name = topic if kind is Named.TOPIC else group
        found[name] = found.get(name, 0.0) + rate
    return found


def _values(sent: float | None, received: float, pairs: Sequence[PairLag]) -> Sequence[float]:
    """Return a number for each of SERIES; NaN: not known."""
    sent = nan if sent is None else sent
    if not pairs:
        return sent, received, nan, nan, nan
    in_flight = [nan if each.in_flight is None else each.in_flight for each in pairs]
    ages_ms = [nan if each.lag_ms is None else each.lag_ms for each in pairs]
    oldest_ms = nan if any(isnan(each) for each in ages_ms) else max(ages_ms)
    return sent, received, sum(each.ready for each in pairs), sum(in_flight), oldest_ms / 1000
