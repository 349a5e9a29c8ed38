"""How calls come in, behind one small interface (`contract.py`)."""

from __future__ import annotations

from typing import Literal

from server.front.contract import Call, Front, FrontLimits, GrpcStatus, Method, Methods, TlsFiles
from server.front.grpcio import GrpcioFront
from server.front.h2 import H2Front

__all__ = ["Call", "Front", "FrontKind", "FrontLimits", "GrpcStatus", "Method", "Methods", "TlsFiles", "make_front"]

FrontKind = Literal["grpcio", "h2"]


def make_front(kind: FrontKind, methods: Methods, *, limits: FrontLimits | None = None) -> Front:
    """The front of that name, not yet listening."""
    match kind:
        case "grpcio":
            return GrpcioFront(methods, limits=limits)
        case "h2":
            return H2Front(methods, limits=limits)
