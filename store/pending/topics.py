"""The module names RocketMQ's topics for pending messages, and their properties (docs/formats/held-messages.md)."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.names import SCHEDULE_TOPIC

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATION_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HELD_TOPICS: Final = frozenset({TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC})

DELIVER_AT_MS: Final = "TIMER_DELIVER_MS"
"""The time at which the sender wants the message delivered."""
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""The time at which RocketMQ delivers the message: the sender's, rounded down to RocketMQ's precision."""
DEQUEUED_MS: Final = "TIMER_DEQUEUE_MS"
"""The time of delivery, on the copy that was delivered."""
RECALLED_KEY: Final = "TIMER_DEL_UNIQKEY"
"""The message that this record recalls: real topic, `+`, and the id of the message."""
ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
"""The number of times that a record was replaced, on a record that replaces an earlier one."""
RECOVERY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""Seconds during which the producer of a half message must not be asked."""
CHECKED_TIMES: Final = "TRANSACTION_CHECK_TIMES"
"""The number of checks, on a half message that RocketMQ wrote again after a check: the earlier one with
its id is done.
"""
OPERATION_DONE: Final = "d"
"""Tag of a record whose body lists half messages that are resolved."""
