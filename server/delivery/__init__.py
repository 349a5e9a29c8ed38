"""Delivery rules: who gets which message, for how long it stays hidden, when it comes back. No gRPC in here."""

from server.delivery.delivery import Delivery
from server.delivery.filters import TagFilter
from server.delivery.inflight import InFlightTable
from server.delivery.model import Delivered, DeliverySettings, NewGroupStart, ReceiveRequest
from server.delivery.receipt_handle import ReceiptHandle
from server.delivery.state_writer import StateWriter
from server.delivery.subscription import WaitingPoll

__all__ = [
    "Delivered",
    "Delivery",
    "DeliverySettings",
    "InFlightTable",
    "NewGroupStart",
    "ReceiptHandle",
    "ReceiveRequest",
    "StateWriter",
    "TagFilter",
    "WaitingPoll",
]
