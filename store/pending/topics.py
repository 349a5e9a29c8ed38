"""The module names RocketMQ's topics for pending messages (docs/formats/held-messages.md)."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.names import HALF_TOPIC, OPERATION_TOPIC, SCHEDULE_TOPIC

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
PENDING_TOPICS: Final = frozenset({TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC})

OPERATION_DONE: Final = "d"
"""Tag of a record whose body lists half messages that are resolved."""
