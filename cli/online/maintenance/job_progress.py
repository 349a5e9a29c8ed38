"""Begins jobs for commands, and waits for them with progress, or leaves them running.

`quarry job` shows and cancels long work that a broker does for operators.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Final, NoReturn, TypeVar, cast

import grpc
import typer

from quarry_mq.cli.online.connection.administration import known, known_time, service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.maintenance.migration import who
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say, word
from quarry_mq.protocol.clock import Progress
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


COLUMNS: Final = ("id", "kind", "state", "done", "total", "by", "ended")

commands: Final = typer.Typer(no_args_is_help=True)

Id = Annotated[int, typer.Argument(metavar="ID", help="Number of the job.", show_default=False)]


@commands.command(name="list")
def list_(*, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the jobs that are kept, the newest first."""
    with service_port(admin, JobServiceStub) as broker:
        answer = broker.ListJobs(pb.ListJobsRequest(), timeout=CALL_TIMEOUT_S)
    print_rows(map(job_fields, answer.jobs), COLUMNS, as_json=as_json, kind="jobs")


@commands.command()
def show(job_id: Id, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show the progress or the result of a job.

    Exit status 1 when some messages could not be sent, 2 when the job failed or was cancelled.
    """
    with service_port(admin, JobServiceStub) as broker:
        job = broker.GetJob(pb.GetJobRequest(id=job_id), timeout=CALL_TIMEOUT_S)
    show_job(job, as_json=as_json)
    end_as(job)


@commands.command()
def cancel(job_id: Id, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Cancel a job that has not ended. Finished work is not undone."""
    with service_port(admin, JobServiceStub, plain=PLAIN) as broker:
        job = broker.CancelJob(pb.CancelJobRequest(id=job_id), timeout=CALL_TIMEOUT_S)
        while job.state in OPEN:
            time.sleep(POLL_S / 3)
            job = broker.GetJob(pb.GetJobRequest(id=job_id), timeout=CALL_TIMEOUT_S)
    print_object(job_fields(job), as_json=as_json)
