"""Export metrics of jobs (`server.jobs`)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from quarry_mq.server.jobs.asked import JobKind
from quarry_mq.store.state.jobs import JobState


class JobCounters:
    """Implement `server.jobs.jobs.JobMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open = Gauge("quarry_jobs_open", "Jobs that are queued or running", registry=registry)
        ended = Counter("quarry_jobs_ended", "Finished jobs by outcome", ["kind", "outcome"], registry=registry)
        done = Counter("quarry_job_items", "Queues and messages that jobs have processed", ["kind"], registry=registry)
        self._ended: Final = {
            (kind.value, state): ended.labels(kind=kind.value, outcome=state.value)
            for kind in JobKind
            for state in JobState
            if state.is_end
        }
        self._done: Final = {kind.value: done.labels(kind=kind.value) for kind in JobKind}

    def jobs_open(self, count: int) -> None:
        self._open.set(count)

    def job_did(self, kind: str, count: int) -> None:
        if kind in self._done and count > 0:
            self._done[kind].inc(count)

    def job_ended(self, kind: str, state: JobState) -> None:
        if (kind, state) in self._ended:
            self._ended[kind, state].inc()
