"""Property names that belong to the broker. They are refused from senders and never shown to receivers.

Whatever a record holds under any other name came from the sender, so what is left without these names is
exactly what the sender set.
"""

from __future__ import annotations

from typing import Final

TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
UNIQUE_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY_LEVEL: Final = "DELAY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
"""The topic that a message in a retry topic was sent to."""
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
"""The group that a message in a retry topic is for."""
LIGHT_QUEUES: Final = "INNER_MULTI_DISPATCH"
LIGHT_QUEUE_OFFSETS: Final = "INNER_MULTI_QUEUE_OFFSET"

TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
"""Prefix of properties that live only between the parts of a running broker: they are never stored."""

TRANSACTION: Final = "TRAN_MSG"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_RECOVERY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""Seconds during which the producer of a half message must not be asked."""
CHECKED_TIMES: Final = "TRANSACTION_CHECK_TIMES"
"""The number of checks, on a half message that RocketMQ wrote again after a check: the earlier one with
its id is done.
"""
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
DELAY_S: Final = "TIMER_DELAY_SEC"
DELAY_MS: Final = "TIMER_DELAY_MS"
MESSAGE_GROUP: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
LITE_TOPIC: Final = "__LITE_TOPIC"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
BORN_HOST: Final = "__BORNHOST"
PRODUCER_GROUP: Final = "PGROUP"
CRC_PROPERTY: Final = "__CRC32#"
RECONSUME_TIMES: Final = "RECONSUME_TIME"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
"""The offset id of the message that a copy in a retry topic was first made from."""
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CLUSTER: Final = "CLUSTER"
"""The cluster of the broker that stored the message: replies to it go there."""
POP_CHECKPOINT: Final = "POP_CK"
DEAD_LETTER_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

COMPRESSED_BY: Final = "QUARRY_COMPRESSED_BY"
"""User property of a message whose body is compressed and could not be uncompressed: the name of the method."""

RESENT_FROM: Final = "QUARRY_RESENT_FROM"
"""Property of a message that a job sends again: topic, queue and queue offset of the original."""
RESENT_ID: Final = "QUARRY_RESENT_ID"
"""Property of a message that a job sends again: the original's message id."""
REPLAYED_FROM: Final = "QUARRY_REPLAYED_FROM"
"""Property of a message that `pipeline replay` sends: topic, queue and queue offset of the original."""
REPLAYED_ID: Final = "QUARRY_REPLAYED_ID"
"""Property of a message that `pipeline replay` sends: the original's message id."""

_BY_PROTOCOL: Final = frozenset(
    {
        TAGS,
        KEYS,
        UNIQUE_KEY,
        WAIT,
        TRANSACTION,
        DELIVER_AT_MS,
        DELAY_S,
        DELAY_MS,
        DELAY_LEVEL,
        PRIORITY,
        BORN_TIMESTAMP,
        BORN_HOST,
        PRODUCER_GROUP,
        RECONSUME_TIMES,
        DEAD_LETTER_TOPIC,
        DEAD_LETTER_MESSAGE_ID,
        LIGHT_QUEUE_OFFSETS,
        "TRACE_ON",
        "MSG_REGION",
        RETRY_TOPIC,
        REAL_TOPIC,
        REAL_QUEUE,
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        ORIGIN_MESSAGE_ID,
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        POP_CHECKPOINT,
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INSTANCE_ID",
        "CORRELATION_ID",
        REPLY_TO_CLIENT,
        "TTL",
        "ARRIVE_TIME",
        PUSH_REPLY_TIME,
        CLUSTER,
        "MSG_TYPE",
        "TIMER_ENQUEUE_MS",
        DEQUEUED_MS,
        ROLL_TIMES,
        TIMER_OUT_MS,
        RECALLED_KEY,
        "TIMER_DELAY_LEVEL",
        CRC_PROPERTY,
    }
)

_BY_THIS_BROKER: Final = frozenset(
    {
        # the protocol's list lacks these, so RocketMQ shows them to receivers and lets senders forge them
        MESSAGE_GROUP,
        TRACE_CONTEXT,
        TRANSACTION_RECOVERY_S,
        TRANSACTION_ID,
        LITE_TOPIC,
        ORIGIN_GROUP,
        CHECKED_TIMES,
        "INNER_NUM",
        "INNER_BASE",
    }
)

RESERVED_PROPERTIES: Final = _BY_PROTOCOL | _BY_THIS_BROKER
RESERVED_PREFIX: Final = TRANSIENT_PREFIX
