"""Messages that are held back: delivered when they are due, or when their producer says so."""

from server.held.copies import half_of, held_until
from server.held.delays import DelayedDelivery
from server.held.recall_handle import RecallHandle
from server.held.transactions import Transactions, TransactionSettings

__all__ = ["DelayedDelivery", "RecallHandle", "TransactionSettings", "Transactions", "half_of", "held_until"]
