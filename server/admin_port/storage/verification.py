"""Serve `quarry.admin.v1.VerificationService` on the admin port: verification of the running store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import verification_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.verification_pb2_grpc import (
    VerificationServiceServicer,
    add_VerificationServiceServicer_to_server,
)
from quarry_mq.server.admin_port.calls.edge import asked_by, refuse
from quarry_mq.server.maintenance.verification import OnlineVerification
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.wire.status import optional_without_places, without_places
from quarry_mq.store.verify.report import Verdict

NAME: Final = pb.DESCRIPTOR.services_by_name["VerificationService"].full_name

_Context = grpc.aio.ServicerContext[Any, Any]
_Result = TypeVar("_Result")


class VerificationService(VerificationServiceServicer):
    """Translates requests and answers."""

    def __init__(self, verification: OnlineVerification, error_reporter: ErrorReporter) -> None:
        self._verification = verification
        self._error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_VerificationServiceServicer_to_server(self, server)
        return NAME

    async def BeginVerification(self, request: pb.BeginVerificationRequest, context: _Context) -> pb.Verification:
        return await self._answer(
            context,
            lambda: self._message(self._verification.begin(asked_by(request.asked_by), request.busy_percent)),
        )

    async def GetVerification(self, request: pb.GetVerificationRequest, context: _Context) -> pb.Verification:
        wanted = request.id if request.HasField("id") else None
        return await self._answer(context, lambda: self._message(self._verification.get(wanted)))

    async def ListVerifications(
        self, _request: pb.ListVerificationsRequest, context: _Context
    ) -> pb.ListVerificationsResponse:
        return await self._answer(
            context,
            lambda: pb.ListVerificationsResponse(verifications=map(self._message, self._verification.all())),
        )

    async def CancelVerification(self, request: pb.CancelVerificationRequest, context: _Context) -> pb.Verification:
        return await self._answer(context, lambda: self._message(self._verification.cancel(request.id)))

    async def _answer(self, context: _Context, call: Callable[[], _Result]) -> _Result:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self._error_reporter)

    def _message(self, verdict: Verdict) -> pb.Verification:
        progress = self._verification.progress_of(verdict)
        return pb.Verification(
            id=verdict.id,
            asked_by=verdict.asked_by,
            state=verdict.state.value,
            ended_at_ms=verdict.ended_at_ms,
            progress=None
            if progress is None
            else pb.VerificationProgress(phase=progress.phase, done=progress.done_bytes, total=progress.total_bytes),
            log_begin=verdict.log_begin,
            log_end=verdict.log_end,
            checks=[
                pb.VerificationCheck(name=name, checked=checked, differences=differences)
                for name, (checked, differences) in verdict.checks.items()
            ],
            notes=verdict.notes,
            first=[pb.VerificationDifference(check=check, text=without_places(text)) for check, text in verdict.first],
            remark=optional_without_places(verdict.remark),
        )
