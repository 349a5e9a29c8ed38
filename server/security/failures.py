"""Limit how often a caller may fail to prove who it is and still get the reason."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.addresses import network_of
from quarry_mq.server.security.terms import Source

CALLERS_MAX: Final = 8192
"""Most callers of each kind that are remembered: beyond it, the one that failed least recently is dropped."""

SOURCE_FACTOR: Final = 10
"""All users from one address together may fail this many times as often as one: many may share an address."""


class _Bucket(NamedTuple):
    """A bucket allows `left` more failures at `at_s` on the monotonic clock. It fills up evenly."""

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
    """Count failures of each user from each address, and of each address alone.

    The limit decides how a wrong proof is answered, and never whether a right one is: a limit that refused right ones
    would let anybody lock out all who share an address, or a name.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._of_user = _Buckets(per_minute, clock)
        self._of_source = _Buckets(per_minute * SOURCE_FACTOR, clock)

    def failed(self, source: Source, user: str) -> bool:
        """Count a failure; return False when there were too many already."""
        network = _network(source)
        is_within = self._of_user.left((network, user)) >= 1 and self._of_source.left(network) >= 1
        if is_within:
            self._of_user.take((network, user))
            self._of_source.take(network)
        return is_within


def _network(source: Source) -> Hashable:
    """Return the network of an address, since the owner of one IPv6 address has all of its network."""
    return None if source is None else network_of(source)
