"""Serve `quarry.admin.v1.MigrationService` on the admin port: the migration of the consume queues."""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

import grpc
import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import migration_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.migration_pb2_grpc import (
    MigrationServiceServicer,
    add_MigrationServiceServicer_to_server,
)
from quarry_mq.server.admin_port.calls.edge import answered, asked_by
from quarry_mq.server.maintenance.queue_migration import MigrationStatus
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.wire.status import optional_without_places
from quarry_mq.store.layout.queue_phase import QueuePhase, QueuePlace
from quarry_mq.store.migration import AgreementReport

NAME: Final = pb.DESCRIPTOR.services_by_name["MigrationService"].full_name

_Context = grpc.aio.ServicerContext[Any, Any]
_Result = TypeVar("_Result")


class AdministeredMigration(Protocol):
    """The part of `server.maintenance.queue_migration` that the service uses."""

    async def advance(self, asked_by: str) -> QueuePhase | None: ...

    async def roll_back(self, asked_by: str) -> QueuePhase: ...

    def status(self) -> MigrationStatus: ...


class MigrationService(MigrationServiceServicer):
    """Translates requests and answers."""

    def __init__(self, migration: AdministeredMigration, error_reporter: ErrorReporter) -> None:
        self._migration = migration
        self._error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_MigrationServiceServicer_to_server(self, server)
        return NAME

    async def GetMigration(self, _request: pb.GetMigrationRequest, context: _Context) -> pb.Migration:
        async def status() -> pb.Migration:
            return migration_message(self._migration.status())

        return await answered(context, status(), self._error_reporter)

    async def AdvanceMigration(
        self, request: pb.AdvanceMigrationRequest, context: _Context
    ) -> pb.AdvanceMigrationResponse:
        async def advance() -> QueuePhase | None:
            return await self._migration.advance(asked_by(request.asked_by))

        phase = await answered(context, advance(), self._error_reporter)
        return pb.AdvanceMigrationResponse(phase=None if phase is None else phase.value)

    async def RollBackMigration(
        self, request: pb.RollBackMigrationRequest, context: _Context
    ) -> pb.RollBackMigrationResponse:
        async def roll_back() -> QueuePhase:
            return await self._migration.roll_back(asked_by(request.asked_by))

        phase = await answered(context, roll_back(), self._error_reporter)
        return pb.RollBackMigrationResponse(phase=phase.value)


def migration_message(status: MigrationStatus) -> pb.Migration:
    backfill = None
    if status.backfilled_to is not None and status.backfill_end is not None:
        backfill = pb.Backfill(log_begin=status.log_begin, done=status.backfilled_to, end=status.backfill_end)
    comparing = status.comparing
    return pb.Migration(
        phase=status.phase.value,
        read=_place(is_rocksdb=status.read_rocksdb),
        assign=_place(is_rocksdb=status.assign_rocksdb),
        advance_to=None if status.advance_to is None else status.advance_to.value,
        advance_refused=status.advance_refused,
        comparison_first=status.comparison_first,
        rollback_to=None if status.rollback_to is None else status.rollback_to.value,
        rollback_refused=status.rollback_refused,
        backfill=backfill,
        lag_bytes=status.lag_bytes,
        comparing=None if comparing is None else pb.ComparisonProgress(queues=comparing.queues, units=comparing.units),
        report=None if status.report is None else report_message(status.report),
        at_start=None if status.at_start is None else report_message(status.at_start),
        removing=status.is_removing,
        problem=optional_without_places(status.problem),
        steps=[
            pb.MigrationStep(
                at_ms=each.at_ms, to=each.target.value, asked_by=each.asked_by, **{"from": each.origin.value}
            )
            for each in status.steps
        ],
    )


def report_message(report: AgreementReport) -> pb.AgreementReport:
    return pb.AgreementReport(
        began_at_ms=report.began_at_ms,
        ended_at_ms=report.ended_at_ms,
        asked_by=report.asked_by,
        log_begin=report.log_begin,
        log_end=report.log_end,
        queues=report.queues,
        units=report.units,
        differences=dict(report.differences),
        first=[
            pb.QueueDifference(
                kind=each.kind,
                topic=each.topic,
                queue=each.queue_number,
                queue_offset=each.queue_offset,
                text=each.text,
            )
            for each in report.first
        ],
        doubt=report.doubt,
    )


def _place(*, is_rocksdb: bool) -> str:
    place = QueuePlace.ROCKSDB if is_rocksdb else QueuePlace.FILE
    return place.value
