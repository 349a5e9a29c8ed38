"""`quarry backup` backs up a stopped store, or the store of a live broker on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Final, cast

import grpc
import typer

from quarry_mq.cli.offline.opened_store import opened, reporting_errors
from quarry_mq.cli.offline.verify import show, verified
from quarry_mq.cli.online.connection.administration import admin_port, refusal
from quarry_mq.cli.online.connection.arguments import Json, broker_of
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.output import print_object
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.clock import Progress, SystemClock
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.store.backup import BackupPoint, BackupReport, plan_live, plan_stopped, write_backup
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.message import PhysicalOffset

CALL_TIMEOUT_S: Final = 60.0
RENEWALS_PER_LEASE: Final = 4
RETRY_S: Final = 1.0


def backup(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="[STORE] DEST", help="The store, unless --admin is given, and the folder of backups."),
    ],
    *,
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin", metavar="HOST:PORT", help="Admin address of the live broker to back up.", show_default=False
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0,
            help="With --admin: how long to wait for a broker that does not answer.",
        ),
    ] = 0.0,
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help="Copy all files; do not hard-link unchanged ones. A hard link shares disk errors with the original.",
        ),
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Run `quarry verify` on the backup.")] = False,
    as_json: Json = False,
) -> None:
    """Add a backup to the folder DEST: of a stopped store, or with --admin of a live broker.

    Files that never change again are linked where store and DEST share a file system, else copied once and linked
    between the backups of DEST. With --admin the command runs on the broker's machine: it reads the store itself.
    """
    admin = broker_of(admin, is_store_named=len(paths) == 2)
    if admin is None:
        if len(paths) != 2:
            raise typer.BadParameter("STORE and DEST are needed; or --admin and DEST")
        made = _of_stopped(*paths, may_link=not copy)
    else:
        if len(paths) != 1:
            raise typer.BadParameter("with --admin only DEST is given: the broker says where its store lies")
        made = _of_live(admin, paths[0], timeout_s=timeout, may_link=not copy)
    for remark in made.remarks:
        say(remark, err=True)
    print_object(_fields(made), as_json=as_json)
    if verify:
        report = verified(made.directory)
        show(report, as_json=as_json)
        raise typer.Exit(Exit.FINE if report.agrees else Exit.FINDING)


def _of_stopped(store: Path, folder: Path, *, may_link: bool) -> BackupReport:
    _require_apart(store, folder)
    with opened(store) as open_store, shown_progress() as report:
        plan = plan_stopped(open_store)
        return write_backup(PosixCopyingDisk(), plan, folder, clock=SystemClock(), report=report, may_link=may_link)


def _of_live(address: str, folder: Path, *, timeout_s: float, may_link: bool) -> BackupReport:
    disk = PosixCopyingDisk()
    with (
        reporting_errors(folder),
        admin_port(address) as broker,
        _point_in_use(broker, address, timeout_s) as (point, lease),
        shown_progress() as show_progress,
    ):
        _require_apart(point.root, folder)

        def report(progress: Progress) -> None:
            lease.require()
            show_progress(progress)

        return write_backup(
            disk,
            plan_live(disk, point),
            folder,
            clock=SystemClock(),
            report=report,
            may_link=may_link,
            confirm=lease.renew,
        )


class _Lease:
    """Keeps a broker's backup point while files are copied."""

    def __init__(self, broker: AdminServiceStub, address: str, point: pb.BackupPoint) -> None:
        self._broker = broker
        self._address = address
        self._point = point
        self._failure: str | None = None
        self._over = Event()
        self._thread = Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Renew the lease. Raises grpc.RpcError when the point is gone."""
        self._broker.RenewBackup(pb.RenewBackupRequest(name=self._point.name), timeout=CALL_TIMEOUT_S)

    def require(self) -> None:
        """End the command if the point could not be kept."""
        if self._failure is not None:
            end(Exit.COULD_NOT_RUN, self._failure)

    def give_up(self) -> None:
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._over.wait(self._point.lease_ms / 1000 / RENEWALS_PER_LEASE):
            try:
                self.renew()
            except grpc.RpcError as error:
                self._failure = refusal(error, self._address)
                return


@contextmanager
def _point_in_use(broker: AdminServiceStub, address: str, timeout_s: float) -> Iterator[tuple[BackupPoint, _Lease]]:
    """Give a backup point of the broker, and release it at the end.

    If the command is killed, the point's lease expires.
    """
    made = _begun(broker, timeout_s)
    lease = _Lease(broker, address, made)
    try:
        yield (
            BackupPoint(
                name=made.name,
                root=Path(made.store_directory),
                log_begin=PhysicalOffset(made.log_begin),
                log_end=PhysicalOffset(made.log_end),
                segment_size=made.segment_size,
            ),
            lease,
        )
    finally:
        lease.give_up()
        try:
            broker.EndBackup(pb.EndBackupRequest(name=made.name), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            say(f"the backup point of the broker ends with its lease: {refusal(error, address)}", err=True)


def _begun(broker: AdminServiceStub, timeout_s: float) -> pb.BackupPoint:
    """Begin a backup. A broker that does not answer is asked again until the time is over. Raises grpc.RpcError."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            made: pb.BackupPoint = broker.BeginBackup(pb.BeginBackupRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            # every error of a call is also that call; the type does not say so
            is_away = cast("grpc.Call", error).code() is grpc.StatusCode.UNAVAILABLE
            if not is_away or time.monotonic() + RETRY_S > until_s:
                raise
        else:
            return made
        time.sleep(RETRY_S)


def _require_apart(store: Path, folder: Path) -> None:
    if folder.resolve().is_relative_to(store.resolve()):
        end(Exit.COULD_NOT_RUN, f"{folder}: backups of {store} must be outside of the store")


def _fields(made: BackupReport) -> dict[str, object]:
    return {
        "backup": str(made.directory),
        "live": made.manifest.live,
        "files": len(made.manifest.files),
        "bytes": made.bytes,
        "copiedBytes": made.copied_bytes,
        "linkedBytes": made.linked_bytes,
        "reusedBytes": made.reused_bytes,
        "logBegin": made.manifest.log_begin,
        "logEnd": made.manifest.log_end,
    }
