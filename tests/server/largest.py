"""Messages that have as much of everything as a message may have."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.limits import (
    BORN_HOST_SIZE_MAX,
    DEFAULT_LIMITS,
    ENTRIES_MAX,
    MESSAGE_ID_SIZE_MAX,
    NAME_SIZE_MAX,
    TRACE_CONTEXT_SIZE_MAX,
    WireLimits,
)
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.wire.validate import ROOM_FOR_SENDERS

TOPIC: Final = "t" * 127
GROUP: Final = "g" * 120
LARGEST_LIMITS: Final = WireLimits(
    user_properties_max=1_000, user_properties_size_max=ROOM_FOR_SENDERS - 2_000 - 63, message_group_size_max=63
)
"""As far as the settings allow."""

KINDS: Final[dict[str, dict[str, Any]]] = {
    "normal": {},
    "fifo": {"message_type": definition.FIFO, "message_group": "g" * 63},
    "delay": {"message_type": definition.DELAY},
    "transaction": {
        "message_type": definition.TRANSACTION,
        "orphaned_transaction_recovery_duration": Duration(seconds=3_600),
    },
    "lite": {"message_type": definition.LITE, "lite_topic": "l" * 64},
    "priority": {"message_type": definition.PRIORITY, "priority": 2**31 - 1},
    "light queues": {},
}


def largest(kind: str, due_ms: int, limits: WireLimits = DEFAULT_LIMITS, topic: str = TOPIC) -> definition.Message:
    """A message of the kind, from which nothing can be added; a delayed one is due then."""
    made = definition.Message(topic=definition.Resource(name=topic), body=b"body")
    system = made.system_properties
    system.tag = "t" * 200
    system.keys.extend(["k"] * ENTRIES_MAX)
    system.message_id = "i" * MESSAGE_ID_SIZE_MAX
    system.born_host = "h" * BORN_HOST_SIZE_MAX
    system.trace_context = "c" * TRACE_CONTEXT_SIZE_MAX
    system.born_timestamp.FromMilliseconds(due_ms)
    system.delivery_attempt = 2**31 - 1
    left = limits.user_properties_size_max - len(system.tag) - ENTRIES_MAX
    if kind == "light queues":
        names = ",".join("%LMQ%".ljust(NAME_SIZE_MAX, letter) for letter in "abcde")
        made.user_properties["INNER_MULTI_DISPATCH"] = names
        left -= len("INNER_MULTI_DISPATCH") + len(names) + 5 * 20
    count = limits.user_properties_max - len(made.user_properties)
    for number in range(count):
        made.user_properties[f"p{number:04}"] = ""
    made.user_properties["p0000"] = "v" * (left - 5 * count)
    for name, value in KINDS[kind].items():
        if isinstance(value, (str, int)):
            setattr(system, name, value)
        else:
            getattr(system, name).CopyFrom(value)
    if kind == "delay":
        system.delivery_timestamp.CopyFrom(Timestamp(seconds=due_ms // 1000))
    return made
