"""Whether all parts of a store agree: commit log, consume queues, metadata, deliveries. For `quarry verify`.

Public face of the package: other packages import from here.
"""

from quarry_mq.store.verify.report import Check, Count, Difference, Note, VerifyReport
from quarry_mq.store.verify.verification import DIFFERENCES_MAX, verify

__all__ = ["DIFFERENCES_MAX", "Check", "Count", "Difference", "Note", "VerifyReport", "verify"]
