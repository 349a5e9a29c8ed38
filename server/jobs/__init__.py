"""Long work for operators: jobs with an id, progress, a result and an end, kept over restarts (ADR 39)."""

from quarry_mq.server.jobs.asked import Asked, DeadLetterResend, JobKind, MessageResend, OffsetReset
from quarry_mq.server.jobs.jobs import Jobs

__all__ = ["Asked", "DeadLetterResend", "JobKind", "Jobs", "MessageResend", "OffsetReset"]
