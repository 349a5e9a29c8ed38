"""The concerns of a broker, as commands show them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

import grpc

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.online.connection.administration import open_channel
from quarry_mq.cli.terminal.text import one_line, time_text
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub

TIMEOUT_S: Final = 3.0


class Concern(NamedTuple):
    """A concern is one finding of the broker. An older broker tells its text alone: the others are None or empty."""

    kind: str
    is_fault: bool
    text: str
    since_ms: int | None
    page: str
    command: str

    @property
    def since(self) -> str | None:
        return None if self.since_ms is None else time_text(self.since_ms)

    @property
    def severity(self) -> str:
        return "fault" if self.is_fault else "warning"

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "kind": self.kind or None,
            "severity": self.severity,
            "text": self.text,
            "since": self.since,
            "page": self.page or None,
            "command": self.command or None,
        }


def concerns_of(overview: pb.Overview) -> list[Concern]:
    """Return the concerns of an overview. An older broker tells texts alone."""
    if not overview.concern_details:
        return [Concern("", False, one_line(text), None, "", "") for text in overview.concerns]
    return [
        Concern(
            one_line(each.kind),
            each.severity == pb.CONCERN_SEVERITY_FAULT,
            one_line(each.text),
            each.since_ms or None,
            one_line(each.page),
            one_line(each.command),
        )
        for each in overview.concern_details
    ]


def ask_concerns(address: str, context: Context | None) -> list[Concern] | str:
    """Ask a broker for its concerns; a text says why it does not tell them."""
    with open_channel(address, context) as channel:
        try:
            return concerns_of(OverviewServiceStub(channel).GetOverview(pb.GetOverviewRequest(), timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            call = cast("grpc.Call", error)
            return f"{call.code().name.lower().replace('_', ' ')}: {call.details()}"
