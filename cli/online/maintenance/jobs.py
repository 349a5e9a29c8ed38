"""`quarry job` shows and cancels long work that a broker does for operators."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.maintenance.job_progress import (
    CALL_TIMEOUT_S,
    OPEN,
    PLAIN,
    POLL_S,
    end_as,
    job_fields,
    show_job,
)
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import JobServiceStub

COLUMNS: Final = ("id", "kind", "state", "done", "total", "by", "ended")

commands: Final = typer.Typer(no_args_is_help=True)

Id = Annotated[int, typer.Argument(metavar="ID", show_default=False)]


@commands.command(name="list")
def list_(*, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the jobs that are kept, the newest first."""
    with service_port(admin, JobServiceStub) as broker:
        answer = broker.ListJobs(pb.ListJobsRequest(), timeout=CALL_TIMEOUT_S)
    print_rows(map(job_fields, answer.jobs), COLUMNS, as_json=as_json)


@commands.command()
def show(job_id: Id, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show the progress or the result of a job.

    Ends with status 1 when some messages could not be sent, and with 2 when the job failed or was cancelled.
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
