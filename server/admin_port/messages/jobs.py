"""Serve `quarry.admin.v1.JobService` on the admin port: long work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import (
    JobServiceServicer,
    add_JobServiceServicer_to_server,
)
from quarry_mq.server.admin_port.calls.access import CLUSTER, job_accesses
from quarry_mq.server.admin_port.calls.edge import answers, asked_by, caller_may, not_negative, printable
from quarry_mq.server.admin_port.metadata.service import reset_target
from quarry_mq.server.errors import NoSuchJob
from quarry_mq.server.jobs import Asked, DeadLetterResend, Jobs, MessageResend, OffsetReset, asked_of
from quarry_mq.server.maintenance.verification import OnlineVerification
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.wire.status import optional_without_places, without_places
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.security.model import Action
from quarry_mq.store.state.jobs import Job, JobState
from quarry_mq.store.verify.report import Verdict, VerdictState

NAME: Final = pb.DESCRIPTOR.services_by_name["JobService"].full_name
VERIFY: Final = "verify"

VERIFY_STATES: Final = {
    VerdictState.RUNNING: JobState.RUNNING,
    VerdictState.AGREE: JobState.DONE,
    VerdictState.DIFFER: JobState.DONE,
    VerdictState.CANCELLED: JobState.CANCELLED,
    VerdictState.FAILED: JobState.FAILED,
}


class JobService(JobServiceServicer):
    """Translates requests and answers.

    A job is shown to every user who could have begun it, and to users with the right to get the broker's state. It may
    be cancelled by every user who could have begun it, and by users with the right to update the broker's state.
    """

    def __init__(
        self,
        jobs: Jobs,
        verification: OnlineVerification,
        *,
        log_end: Callable[[], PhysicalOffset],
        cluster: str,
        error_reporter: ErrorReporter,
    ) -> None:
        """`log_end` returns the log position below which consumers can see all messages now."""
        self._jobs = jobs
        self._verification = verification
        self._log_end = log_end
        self._cluster = cluster
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_JobServiceServicer_to_server(self, server)
        return NAME

    @answers
    def BeginJob(self, request: pb.BeginJobRequest) -> pb.Job:
        asked = asked_in(request, self._log_end())
        return job_message(self._jobs.begin(asked, asked_by(request.asked_by), is_dry_run=request.dry_run))

    @answers
    def GetJob(self, request: pb.GetJobRequest) -> pb.Job:
        return self._visible(request.id, Action.GET)

    @answers
    def ListJobs(self, _request: pb.ListJobsRequest) -> pb.ListJobsResponse:
        jobs = [each for each in self._all() if self._may(each, Action.GET)]
        for each in jobs:
            each.ClearField("first_errors")
        return pb.ListJobsResponse(jobs=jobs)

    @answers
    def CancelJob(self, request: pb.CancelJobRequest) -> pb.Job:
        job = self._visible(request.id, Action.UPDATE)
        if job.kind == VERIFY:
            return self._verification_message(self._verification.cancel(job.id))
        return job_message(self._jobs.cancel(job.id))

    # -- jobs

    def _all(self) -> list[pb.Job]:
        """Return all jobs, the newest first."""
        jobs = [*map(job_message, self._jobs.all()), *map(self._verification_message, self._verification.requested())]
        return sorted(jobs, key=lambda each: each.id, reverse=True)

    def _visible(self, job_id: int, action: Action) -> pb.Job:
        """Return a job. Raises NoSuchJob also if the caller may not see it."""
        job = self._found(job_id)
        if job is None or not self._may(job, action):
            raise NoSuchJob(f"there is no job {job_id}")
        return job

    def _found(self, job_id: int) -> pb.Job | None:
        with suppress(NoSuchJob):
            return job_message(self._jobs.get(job_id))
        with suppress(Invalid):
            return self._verification_message(self._verification.get(job_id))
        return None

    def _may(self, job: pb.Job, action: Action) -> bool:
        accesses = job_accesses(job)
        return caller_may([Access(CLUSTER, self._cluster, action)]) or (bool(accesses) and caller_may(accesses))

    def _verification_message(self, verdict: Verdict) -> pb.Job:
        progress = self._verification.progress_of(verdict)
        counts = {"differences": sum(differences for _, differences in verdict.checks.values())}
        return pb.Job(
            id=verdict.id,
            kind=VERIFY,
            asked_by=verdict.asked_by,
            state=VERIFY_STATES[verdict.state].value,
            done=0 if progress is None else progress.done_bytes,
            total=None if progress is None else progress.total_bytes,
            counts=counts if VERIFY_STATES[verdict.state] is JobState.DONE else {},
            first_errors=[without_places(text) for _, text in verdict.first],
            remark=optional_without_places(verdict.remark),
            ended_at_ms=verdict.ended_at_ms,
        )


def asked_in(request: pb.BeginJobRequest, log_end: PhysicalOffset) -> Asked:
    """Return a job's parameters. Raises Invalid for a request that names no work, or not where to reset to."""
    match request.WhichOneof("work"):
        case "reset_offset":
            reset = request.reset_offset
            queue = reset.queue if reset.HasField("queue") else None
            return OffsetReset.of(reset.group, reset.topic, reset_target(reset), queue)
        case "resend_dead_letters":
            letters = request.resend_dead_letters
            return DeadLetterResend(
                group=letters.group, offsets=tuple(not_negative("offsets", each) for each in letters.offsets)
            )
        case "resend_messages":
            asked = request.resend_messages
            return MessageResend(
                topic=printable("topic", asked.topic),
                to_topic=printable("to_topic", asked.to_topic) or asked.topic,
                log_end=log_end,
                key=asked.key,
                queue=asked.queue if asked.HasField("queue") else None,
                from_offset=asked.from_offset if asked.HasField("from_offset") else None,
                to_offset=asked.to_offset if asked.HasField("to_offset") else None,
                from_ms=asked.from_ms if asked.HasField("from_ms") else None,
                to_ms=asked.to_ms if asked.HasField("to_ms") else None,
            )
        case _:
            raise Invalid("work must be reset_offset, resend_dead_letters or resend_messages")


def job_message(job: Job) -> pb.Job:
    message = pb.Job(
        id=job.id,
        kind=job.kind,
        asked_by=job.asked_by,
        dry_run=job.is_dry_run,
        state=job.state.value,
        done=job.done,
        total=job.total,
        counts=job.counts,
        first_errors=map(without_places, job.first_errors),
        remark=optional_without_places(job.remark),
        ended_at_ms=job.ended_at_ms,
    )
    try:
        _fill_work(message, asked_of(job))
    except Invalid:
        return message  # the job is of a newer version: its parameters are not known
    return message


def _fill_work(message: pb.Job, asked: Asked) -> None:
    match asked:
        case OffsetReset():
            message.reset_offset.CopyFrom(_reset_message(asked))
        case DeadLetterResend():
            letters = pb.DeadLettersResend(group=asked.group, offsets=asked.offsets)
            message.resend_dead_letters.CopyFrom(letters)
        case MessageResend():
            message.resend_messages.CopyFrom(
                pb.MessagesResend(
                    topic=asked.topic,
                    to_topic=asked.to_topic,
                    key=asked.key,
                    queue=asked.queue,
                    from_offset=asked.from_offset,
                    to_offset=asked.to_offset,
                    from_ms=asked.from_ms,
                    to_ms=asked.to_ms,
                )
            )


def _reset_message(asked: OffsetReset) -> pb.OffsetsReset:
    reset = pb.OffsetsReset(group=asked.group, topic=asked.topic, queue=asked.queue)
    match asked.to:
        case "earliest":
            reset.earliest.SetInParent()
        case "latest":
            reset.latest.SetInParent()
        case "offset":
            reset.offset = asked.at
        case _:
            reset.stored_since_ms = asked.at
    return reset
