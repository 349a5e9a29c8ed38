"""Define every limit of the messaging protocol by name, with the defaults of RocketMQ (docs/formats/protocol.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS

ENTRIES_MAX: Final = 4_096
"""Messages or acknowledgements that one request may have, and topics of one client's settings.

Libraries send one to 32. Reading each costs microseconds of the loop's time, and a request of 16 MiB has space for
eight million empty ones; so they are counted before they are read.
"""


MESSAGE_ID_SIZE_MAX: Final = 255
"""Bytes that a message id may have. Libraries make ids of 34 characters."""
BORN_HOST_SIZE_MAX: Final = 512
TRACE_CONTEXT_SIZE_MAX: Final = 2_048
"""Bytes that a trace context may have. A trace parent has 55, the state that goes with it 512 or a few more."""
NAME_SIZE_MAX: Final = 255
"""Bytes that the name of any topic or light queue may have, whoever creates it: records have no more space for it."""

SETTINGS_SQL_MAX: Final = 64 * 1024
"""Characters that all SQL expressions of one client's settings may have: reading them takes 0.2 s at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WireLimits:
    """The limits that requests are checked against. Sizes are in bytes of UTF-8."""

    body_size_max: int = 4 * 1024 * 1024
    """Bytes that a body may have. Producers are told it and keep to it."""
    accept_empty_body: bool = False
    user_properties_max: int = 128
    user_properties_size_max: int = 16 * 1024
    """Bytes that property names, values, tag and keys may have together."""
    message_group_size_max: int = 63
    lite_topic_size_max: int = 64
    """Bytes that the name of a lite topic may have. Consumers of lite topics are told it."""
    lite_subscription_quota: int = 2_000
    """Lite topics that one client may subscribe to. Clients are told it, since their library counts them itself."""
    delivery_delay_max_ms: int = 24 * HOUR_MS
    transaction_recovery_max_ms: int = HOUR_MS

    batch_size_max: int = 32
    polling_min_ms: int = 5_000
    polling_max_ms: int = 20_000
    """Longest time for which a receive may poll. Push consumers are told it as the time to poll for."""
    polling_reserve_ms: int = 200
    """Time that is left of the client's deadline, so that the answer arrives before the client gives up."""
    strict_polling: bool = False
    """Refuse a receive whose deadline is nearer than its polling time, as RocketMQ does; otherwise poll for a shorter
    time.

    Go's simple consumer with default settings is refused by the strict rule every time.
    """
    invisible_min_ms: int = 1_000
    """Shortest invisible time. RocketMQ's own default is 10 s; nothing here needs that much."""
    invisible_max_ms: int = 12 * HOUR_MS

    def __post_init__(self) -> None:
        if not 0 <= self.polling_min_ms <= self.polling_max_ms:
            raise ValueError("polling_min_ms must not exceed polling_max_ms")
        if not 0 < self.invisible_min_ms <= self.invisible_max_ms:
            raise ValueError("invisible_min_ms must be positive and not exceed invisible_max_ms")
        if self.batch_size_max < 1:
            raise ValueError("batch_size_max must be at least 1")


DEFAULT_LIMITS: Final = WireLimits()
