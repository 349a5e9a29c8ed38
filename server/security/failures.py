"""How often a caller may fail to prove who it is: who guesses secrets must not get far, nor cost much."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple

from server.addresses import network_of
from server.security.source import Source
from store.clock import Clock

CALLERS_MAX: Final = 8192
"""Callers of each kind that are kept apart: who failed least recently is forgotten."""

SOURCE_FACTOR: Final = 10
"""All users from one address together may fail so much more often than one: many may share it."""


class _Bucket(NamedTuple):
    """`left` failures at `at_s` on the monotonic clock. It fills up evenly."""

    left: float
    at_s: float


class _Buckets:
    def __init__(self, per_minute: float, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def left(self, key: Hashable) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return self._per_minute
        grown = (self._clock.monotonic_s() - bucket.at_s) * self._per_minute / 60
        return min(self._per_minute, bucket.left + grown)

    def take(self, key: Hashable) -> None:
        self._buckets[key] = _Bucket(max(0.0, self.left(key) - 1), self._clock.monotonic_s())
        self._buckets.move_to_end(key)
        if len(self._buckets) > CALLERS_MAX:
            self._buckets.popitem(last=False)


class FailureLimit:
    """Counts failures of each user from each address, and of each address alone.

    Where a user has proved itself, failures of others from there do not stop it: behind one address may be a whole
    cluster, and in it one program with yesterday's secret.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._of_user = _Buckets(per_minute, clock)
        self._of_source = _Buckets(per_minute * SOURCE_FACTOR, clock)
        self._proved: OrderedDict[Hashable, None] = OrderedDict()

    def may_try(self, source: Source, user: str) -> bool:
        network = _network(source)
        if self._of_user.left((network, user)) < 1:
            return False
        return (network, user) in self._proved or self._of_source.left(network) >= 1

    def failed(self, source: Source, user: str) -> None:
        network = _network(source)
        self._of_user.take((network, user))
        self._of_source.take(network)

    def succeeded(self, source: Source, user: str) -> None:
        key = _network(source), user
        self._proved[key] = None
        self._proved.move_to_end(key)
        if len(self._proved) > CALLERS_MAX:
            self._proved.popitem(last=False)


def _network(source: Source) -> Hashable:
    """Whoever has one address of IPv6 has all of its network."""
    return None if source is None else network_of(source)
