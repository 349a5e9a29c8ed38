"""Delivery rules: who gets which message, for how long it stays hidden, when it comes back. No gRPC in here."""

from server.delivery.delivery import Delivery
from server.delivery.fetch.fetch import DeadLetters, Forwarded
from server.delivery.model import Delivered, DeliverySettings, MessageSource, NewGroupStart, ReceiveRequest
from server.delivery.receipt_handle import ReceiptHandle
from server.delivery.retry_topics import retry_topic_name
from server.delivery.state.inflight import InFlightTable
from server.delivery.state.state_writer import StateWriter
from server.delivery.state.subscription import Subscription, WaitingPoll

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
