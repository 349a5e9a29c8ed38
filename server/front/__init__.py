"""How calls come in, behind one small interface (`contract.py`)."""

from __future__ import annotations

from typing import Literal

from server.front.contract import Call, Front, FrontLimits, Method, Methods, TlsFiles
from server.front.figures import FrontFigures
from server.front.grpcio import GrpcioFront
from server.front.h2 import H2Front
from server.front.status import GrpcStatus
from server.front.tls import LiveTls, Shown

__all__ = [
    "Call",
    "Front",
    "FrontFigures",
    "FrontKind",
    "FrontLimits",
    "GrpcStatus",
    "LiveTls",
    "Method",
    "Methods",
    "Shown",
    "TlsFiles",
    "make_front",
]

FrontKind = Literal["grpcio", "h2"]


def make_front(
    kind: FrontKind, methods: Methods, *, limits: FrontLimits | None = None, access_log: bool = False
) -> Front:
    """The front of that name, not yet listening. With `access_log` each call that has ended is a line of the log."""
    match kind:
        case "grpcio":
            return GrpcioFront(methods, limits=limits, access_log=access_log)
        case "h2":
            return H2Front(methods, limits=limits, access_log=access_log)
