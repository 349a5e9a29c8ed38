"""Delivery rules: which consumer gets a message, how long it stays hidden, when it is redelivered. There is no gRPC
here.
"""

from quarry_mq.server.delivery.delivery import Delivery
from quarry_mq.server.delivery.fetch import GIVE_UP_COMMAND, DeadLetters, Forwarded, command_past
from quarry_mq.server.delivery.handles import ReceiptHandle, TimedHandle
from quarry_mq.server.delivery.model import Delivered, MessageSource, ReceiveRequest
from quarry_mq.server.delivery.retry_topics import retry_topic_name
from quarry_mq.server.delivery.state.inflight import GroupState, InFlightTable, StateWriter
from quarry_mq.server.delivery.state.subscription import Subscription, WaitingPoll

__all__ = [
    "GIVE_UP_COMMAND",
    "DeadLetters",
    "Delivered",
    "Delivery",
    "Forwarded",
    "GroupState",
    "InFlightTable",
    "MessageSource",
    "ReceiptHandle",
    "ReceiveRequest",
    "StateWriter",
    "Subscription",
    "TimedHandle",
    "WaitingPoll",
    "command_past",
    "retry_topic_name",
]
