"""The fronts: how calls come in, behind one small interface (`contract.py`)."""

from __future__ import annotations

from typing import Literal

from quarry_mq.server.front.contract import Call, Front, FrontLimits, FrontStats, Method, Methods
from quarry_mq.server.front.grpcio import GrpcioFront
from quarry_mq.server.front.h2 import H2Front
from quarry_mq.server.front.h2.request_head import ScannerMaker
from quarry_mq.server.front.tls import LiveTls, Shown, TlsFiles

__all__ = [
    "Call",
    "Front",
    "FrontKind",
    "FrontLimits",
    "FrontStats",
    "H2Front",
    "LiveTls",
    "Method",
    "Methods",
    "ScannerMaker",
    "Shown",
    "TlsFiles",
    "make_front",
]

FrontKind = Literal["grpcio", "h2"]


def make_front(
    kind: FrontKind,
    methods: Methods,
    *,
    limits: FrontLimits | None = None,
    access_log: bool = False,
    make_scanner: ScannerMaker | None = None,
    headers: frozenset[str] | None = None,
) -> Front:
    """Return a front of the given kind, not yet listening.

    With `access_log` each ended call is logged. `make_scanner` is an option of `h2`, which can do without. So is
    `headers`: the request headers that handlers read, while others are dropped. None keeps all.
    """
    match kind:
        case "grpcio":
            return GrpcioFront(methods, limits=limits, access_log=access_log)
        case "h2":
            return H2Front(methods, limits=limits, access_log=access_log, make_scanner=make_scanner, headers=headers)
