"""Delivery rules: who gets which message, for how long it stays hidden, when it comes back. No gRPC in here."""

from server.delivery.delivery import Delivery
from server.delivery.inflight import InFlightTable
from server.delivery.model import Delivered, DeliverySettings, MessageSource, NewGroupStart, ReceiveRequest
from server.delivery.receipt_handle import ReceiptHandle
from server.delivery.retry_topics import retry_topic_name
from server.delivery.state_writer import StateWriter
from server.delivery.subscription import Subscription, WaitingPoll
from server.delivery.taking import DeadLetters, Forwarded

__all__ = [
    "DeadLetters",
    "Delivered",
    "Delivery",
    "DeliverySettings",
    "Forwarded",
    "InFlightTable",
    "MessageSource",
    "NewGroupStart",
    "ReceiptHandle",
    "ReceiveRequest",
    "StateWriter",
    "Subscription",
    "WaitingPoll",
    "retry_topic_name",
]
