"""The package checks for `quarry verify` whether the parts of a store agree: log, consume queues, metadata,
deliveries.

Other packages import from here, not from the modules.
"""

from quarry_mq.store.verify.log_check import LogCheck, LogPiece, check_readable
from quarry_mq.store.verify.report import Check, Count, Difference, Note, VerifyReport
from quarry_mq.store.verify.verification import DIFFERENCES_MAX, verify

__all__ = [
    "DIFFERENCES_MAX",
    "Check",
    "Count",
    "Difference",
    "LogCheck",
    "LogPiece",
    "Note",
    "VerifyReport",
    "check_readable",
    "verify",
]
