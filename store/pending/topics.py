"""RocketMQ's topics for messages that wait, and the properties that say for what (docs/formats/held-messages.md)."""

from __future__ import annotations

from typing import Final

from quarry_mq.store.record.tags import SCHEDULE_TOPIC

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATION_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HELD_TOPICS: Final = frozenset({TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC})

DELIVER_AT_MS: Final = "TIMER_DELIVER_MS"
"""When the sender wants it delivered."""
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""When RocketMQ delivers it: the same, rounded down to its precision."""
DEQUEUED_MS: Final = "TIMER_DEQUEUE_MS"
"""On the copy that was delivered."""
RECALLED_KEY: Final = "TIMER_DEL_UNIQKEY"
"""On a record that recalls another one: real topic, `+`, and the other one's id."""
ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
"""On a record that takes the place of an earlier one: how often that was done."""
RECOVERY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""How long the producer of a half message wants to be left alone."""
CHECKED_TIMES: Final = "TRANSACTION_CHECK_TIMES"
"""On a half message that RocketMQ has written anew after a check: the one before it with its id waits no longer."""
OPERATION_DONE: Final = "d"
"""Tag of a record whose body lists half messages that are resolved."""
