"""Every limit of the messaging protocol by name, with the defaults of RocketMQ (docs/formats/protocol.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS

ENTRIES_MAX: Final = 4_096
"""Messages or acknowledgements of one request, topics of one client's settings.

Libraries send one to 32. Reading each costs microseconds of the loop's time, and a request of 16 MiB has room for
eight million empty ones: counting comes before reading.
"""


MESSAGE_ID_SIZE_MAX: Final = 255
"""Bytes. Libraries make ids of 34 characters."""
BORN_HOST_SIZE_MAX: Final = 512
TRACE_CONTEXT_SIZE_MAX: Final = 2_048
"""Bytes. A trace parent has 55, the state that goes with it 512 or a few more."""
NAME_SIZE_MAX: Final = 255
"""Bytes of the name of any topic or light queue, whoever makes it: none of them has another place in a record."""

SETTINGS_SQL_MAX: Final = 64 * 1024
"""Characters of all SQL expressions of one client's settings: reading them takes 0.2 s at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WireLimits:
    """What requests may ask for. Sizes are in bytes of UTF-8."""

    body_size_max: int = 4 * 1024 * 1024
    """Also announced to producers, which hold themselves to it."""
    accept_empty_body: bool = False
    user_properties_max: int = 128
    user_properties_size_max: int = 16 * 1024
    """Of property names, values, tag and keys together."""
    message_group_size_max: int = 63
    lite_topic_size_max: int = 64
    """Also announced to consumers of lite topics."""
    lite_subscription_quota: int = 2_000
    """Lite topics of one client; announced, since its library counts them itself."""
    delivery_delay_max_ms: int = 24 * HOUR_MS
    transaction_recovery_max_ms: int = HOUR_MS

    batch_size_max: int = 32
    polling_min_ms: int = 5_000
    polling_max_ms: int = 20_000
    """Also announced to push consumers as the time to poll for."""
    polling_reserve_ms: int = 200
    """Kept of the client's deadline, so that the answer is there before the client gives up."""
    strict_polling: bool = False
    """Refuse a receive whose deadline is nearer than its polling time, as RocketMQ does; else poll for less.

    Go's simple consumer with default settings is refused by the strict rule every time.
    """
    invisible_min_ms: int = 1_000
    """RocketMQ's own default is 10 s; nothing here needs so much."""
    invisible_max_ms: int = 12 * HOUR_MS

    def __post_init__(self) -> None:
        if not 0 <= self.polling_min_ms <= self.polling_max_ms:
            raise ValueError("polling_min_ms must not exceed polling_max_ms")
        if not 0 < self.invisible_min_ms <= self.invisible_max_ms:
            raise ValueError("invisible_min_ms must be positive and not exceed invisible_max_ms")
        if self.batch_size_max < 1:
            raise ValueError("batch_size_max must be at least 1")


DEFAULT_LIMITS: Final = WireLimits()
