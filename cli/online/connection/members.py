"""Ask all members of a broker's cluster: the option for it, and the members whose part is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, TypeVar

import typer
from google.protobuf.message import Message

from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.proto.quarry.admin.v1 import members_pb2 as pb

AllMembers = Annotated[
    bool, typer.Option("--all", help="Of all members of the broker's cluster together; those that are away are named.")
]
OK: Final = "OK"

_Answer = TypeVar("_Answer", bound=Message)


def name_missing(members: Iterable[Any]) -> None:
    """Name the members whose part is missing, on standard error."""
    for each in members:
        if each.code not in {"", OK}:
            say(f"{each.name}: {each.problem}; its part is missing", err=True)


def asked(
    broker: Any, method: str, request: Message, answer: type[_Answer], timeout_s: float
) -> Iterator[tuple[str, _Answer]]:
    """Make a call on all members; yield each answer with its member. Those that do not answer are named at the end."""
    asking = pb.AskMembersRequest(method=method, request=request.SerializeToString())
    missing = []
    for each in broker.AskMembers(asking, timeout=timeout_s):
        if each.HasField("answer"):
            yield each.member, answer.FromString(each.answer)
        else:
            missing.append(pb.MemberPart(name=each.member, code=each.code, problem=each.problem))
    name_missing(missing)
