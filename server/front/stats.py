"""The metrics of a front, as plain numbers: counting must cost next to nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.server.counters.stages import BucketHistogram

PASS_BUCKETS_S: Final = tuple(0.000_025 * 2**step for step in range(15))
"""25 µs … 0.4 s: from one small call to a loop that was blocked for all clients."""

CALL_BUCKETS: Final = tuple(2**step for step in range(12))
"""1 … 2048 calls: as many as one read of 256 KiB can hold, from several connections."""


FRONT_LIMITS: Final = (
    "connections",
    "connections_per_address",
    "calls_per_connection",
    "open_calls",
    "metadata_size",
    "request_size",
    "incoming_size",
    "unread_size",
    "unhandled_size",
    "frames_that_carry_nothing",
)
"""Names of the limits by which a front refuses something before any handler is called."""


@dataclass(slots=True)
class FrontStats:
    """The front's metrics: totals since the start, unless the name says open."""

    connections: int = 0
    connections_open: int = 0
    connections_refused: int = 0
    connections_ended: Counter[str] = field(default_factory=Counter)
    """Connections closed by the broker, by HTTP/2 error code.

    `HTTP_1`, `NO_ALPN`, `NO_TLS` and `SILENT` count peers that did not speak HTTP/2.
    """

    limits_met: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FRONT_LIMITS, 0)))
    """Refusals and losses because of a limit, by the limit's name (docs/limits.md)."""

    calls: int = 0
    calls_open: int = 0
    calls_failed: Counter[GrpcStatus] = field(default_factory=Counter)
    """Calls that ended with another gRPC status than OK, by status."""

    resets_received: Counter[str] = field(default_factory=Counter)
    resets_sent: Counter[str] = field(default_factory=Counter)
    bytes_received: int = 0
    bytes_sent: int = 0
    pass_seconds: BucketHistogram = field(default_factory=lambda: BucketHistogram(PASS_BUCKETS_S))
    pass_calls: BucketHistogram = field(default_factory=lambda: BucketHistogram(CALL_BUCKETS))
