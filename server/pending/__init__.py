"""Pending messages: scheduled ones are delivered when they are due, prepared ones when their producer commits them."""

from quarry_mq.server.pending.copies import half_of, scheduled
from quarry_mq.server.pending.delays import DelayedDelivery, RecallHandle
from quarry_mq.server.pending.transactions import TransactionChecks, Transactions

__all__ = ["DelayedDelivery", "RecallHandle", "TransactionChecks", "Transactions", "half_of", "scheduled"]
