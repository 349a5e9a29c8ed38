"""Begins jobs for commands, and waits for them with progress, or leaves them running."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Final, NoReturn, TypeVar, cast

import grpc
import typer

from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.known import known, known_time
from quarry_mq.cli.online.maintenance.migration import who
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import print_object
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say, word
from quarry_mq.protocol.progress import Progress
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import JobServiceStub

CALL_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.3
OPEN: Final = frozenset({"waiting", "running"})
PLAIN: Final = (grpc.StatusCode.UNAVAILABLE,)
"""Status codes whose details are shown alone: too many jobs have not ended."""

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the job to end, or only start it and show it.")]

_Answer = TypeVar("_Answer")


def unless_too_much(call: Callable[[], _Answer]) -> _Answer | None:
    """Return the answer of the call, or None if the broker says that it needs a job. Raises grpc.RpcError."""
    try:
        return call()
    except grpc.RpcError as error:
        if cast("grpc.Call", error).code() is grpc.StatusCode.OUT_OF_RANGE:
            return None
        raise


def run_job(admin: str, request: pb.BeginJobRequest, *, wait: bool, as_json: bool) -> NoReturn:
    """Begin the job, show its result, and end the command: with status 1 when not all could be done."""
    request.asked_by = who()
    with service_port(admin, JobServiceStub, plain=PLAIN) as broker:
        job = broker.BeginJob(request, timeout=CALL_TIMEOUT_S)
        if wait:
            job = _followed(broker, job)
    show_job(job, as_json=as_json)
    end_as(job)


def _followed(broker: JobServiceStub, job: pb.Job) -> pb.Job:
    """Wait for the job and return it when it has ended. If the user interrupts the wait, the job goes on."""
    try:
        with shown_progress() as report:
            while job.state in OPEN:
                time.sleep(POLL_S)
                job = broker.GetJob(pb.GetJobRequest(id=job.id), timeout=CALL_TIMEOUT_S)
                if job.HasField("total"):
                    report(Progress(job.kind, job.done, job.total))
    except (KeyboardInterrupt, grpc.RpcError) as error:
        say(f"job {job.id} goes on: quarry job show {job.id}, quarry job cancel {job.id}", err=True)
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(Exit.COULD_NOT_RUN) from error
        raise
    return job


def job_fields(job: pb.Job) -> dict[str, object]:
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "by": job.asked_by,
        "dryRun": job.dry_run,
        "asked": _asked(job),
        "done": job.done,
        "total": known(job, "total"),
        "counts": dict(job.counts),
        "remark": known(job, "remark"),
        "ended": known_time(job, "ended_at_ms"),
    }


def _asked(job: pb.Job) -> dict[str, object]:
    """Return the fields of the job's request that are set, by their JSON names."""
    work = job.WhichOneof("work")
    if work is None:
        return {}
    found: dict[str, object] = {}
    for field, value in getattr(job, work).ListFields():
        if field.message_type is not None:
            found["to"] = field.name
        else:
            found[field.json_name] = value if isinstance(value, int | str) else list(value)
    return found


def show_job(job: pb.Job, *, as_json: bool) -> None:
    fields = job_fields(job)
    if as_json:
        print_object({**fields, "firstErrors": list(job.first_errors)}, as_json=True)
        return
    for text in job.first_errors:
        say(word(text, err=True), err=True)
    shown = {name: value for name, value in fields.items() if value is not None and value is not False and value != {}}
    print_object(shown, as_json=False)


def end_as(job: pb.Job) -> NoReturn:
    """End the command: with status 1 if some messages could not be sent, with 2 if the job failed or was cancelled."""
    codes = {"failed": Exit.COULD_NOT_RUN, "cancelled": Exit.COULD_NOT_RUN}
    raise typer.Exit(codes.get(job.state, Exit.FINDING if job.counts.get("refused") else Exit.FINE))
