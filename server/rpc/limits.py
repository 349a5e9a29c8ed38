"""Limits on what clients may have the broker keep or do: counted here, refused with TOO_MANY_REQUESTS.

Each limit has a name, which is a label of `quarry_limits_met_total` and a row of docs/limits.md. Refusals by the front
itself are counted in `server.front.stats`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.errors import OverLimit

RATES_KEPT_MAX: Final = 65_536
"""Number of clients whose rate is remembered. A client that was evicted begins with a full second's requests again."""

BURST_S: Final = 1.0


EDGE_LIMITS: Final = (
    "requests_per_client",
    "waiting_sends",
    "waiting_sends_per_client",
    "waiting_polls",
    "waiting_polls_per_client",
    "waiting_filters",
    "clients",
    "streams_per_client",
    "client_topics",
    "subscriptions",
    "in_flight_per_group",
    "topics_per_user",
    "groups_per_user",
    "lite_topics_per_client",
    "lite_topics_per_topic",
    "admin_calls",
    "admin_strangers",
)
"""The limits that are checked outside of the front; `server.front.stats` has the front's."""


class LimitsMet(Counter[str]):
    """The number of times that each limit was met, by the limit's name."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(EDGE_LIMITS, 0))

    def count(self, error: Exception) -> None:
        """Count a refusal if a limit is its reason."""
        if isinstance(error, OverLimit):
            self[error.limit] += 1


class WaitingSizes:
    """Counts the bytes that wait on behalf of clients, in all and for each client, and enforces the limits on them."""

    def __init__(self, name: str, *, total_max: int, client_max: int) -> None:
        """`name` is the name of the limit in all; the limit of each client has the suffix `_per_client`."""
        self._name = name
        self._sizes: dict[str, int] = {}
        self._total = 0
        self.configure(total_max=total_max, client_max=client_max)

    def configure(self, *, total_max: int, client_max: int) -> None:
        self._total_max = total_max
        self._client_max = client_max

    @property
    def total(self) -> int:
        return self._total

    def take(self, client_id: str, size: int) -> None:
        """Add waiting bytes of a client.

        Raises OverLimit, unless none are waiting: a request of allowed size must pass.
        """
        waiting = self._sizes.get(client_id, 0)
        if waiting and waiting + size > self._client_max:
            raise OverLimit(f"{self._name}_per_client", f"{waiting} bytes of this client are already waiting")
        if self._total and self._total + size > self._total_max:
            raise OverLimit(self._name, f"{self._total} bytes of all clients are already waiting")
        self._sizes[client_id] = waiting + size
        self._total += size

    def give(self, client_id: str, size: int) -> None:
        """Subtract waiting bytes of a client."""
        self._total -= size
        left = self._sizes[client_id] - size
        if left:
            self._sizes[client_id] = left
        else:
            del self._sizes[client_id]


class RequestRates:
    """Limits the requests per second of each client; 0 means any number."""

    def __init__(self, clock: Clock, per_second: int) -> None:
        self._clock = clock
        self._free_at_s: OrderedDict[str, float] = OrderedDict()
        """The time, for each client, when its allowed rate has caught up with its requests so far."""
        self.configure(per_second)

    def configure(self, per_second: int) -> None:
        self._interval_s = 1 / per_second if per_second else 0.0
        self._free_at_s.clear()

    def request(self, client_id: str) -> None:
        """Count a request of a client. Raises OverLimit when it was a second's requests ahead of its rate."""
        if not self._interval_s:
            return
        now_s = self._clock.monotonic_s()
        free_at_s = max(now_s, self._free_at_s.get(client_id, 0.0)) + self._interval_s
        if free_at_s - self._interval_s / 2 > now_s + max(BURST_S, self._interval_s):  # half: sums are not exact
            raise OverLimit("requests_per_client", "flow limit: this client makes too many requests per second")
        self._free_at_s[client_id] = free_at_s
        self._free_at_s.move_to_end(client_id)
        if len(self._free_at_s) > RATES_KEPT_MAX:
            self._free_at_s.popitem(last=False)
