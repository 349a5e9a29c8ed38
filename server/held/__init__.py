"""Pending messages: scheduled ones are delivered when they are due, prepared ones when their producer commits them."""

from quarry_mq.server.held.copies import half_of, held_until
from quarry_mq.server.held.delays import DelayedDelivery, RecallHandle
from quarry_mq.server.held.transactions import TransactionChecks, Transactions

__all__ = ["DelayedDelivery", "RecallHandle", "TransactionChecks", "Transactions", "half_of", "held_until"]
