"""`quarry call` makes any call of the admin port, in JSON."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Final

import typer
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor

from quarry_mq.cli.online.connection.administration import asked_names, service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.hints import near
from quarry_mq.cli.terminal.output import json_line
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.admin_methods import methods, stub_of
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

CALL_TIMEOUT_S: Final = 600.0


def call(
    method: Annotated[
        str, typer.Argument(metavar="SERVICE/METHOD", help="The call, such as Admin/GetTopicRoute.", show_default=False)
    ],
    request: Annotated[
        str, typer.Argument(metavar="[REQUEST]", help="The request in JSON; - reads it from standard input.")
    ] = "{}",
    *,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Make a call of the admin port with a request in protobuf's JSON, and show the answer.

    The service's package may be left out. Calls are signed where the context names a user, which grpcurl cannot do.
    Exit status 2 when the answer's status is not OK.
    """
    called = _method(method)
    try:
        text = sys.stdin.read() if request == "-" else request
        message = json_format.Parse(text, message_factory.GetMessageClass(called.input_type)())
    except (json_format.ParseError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"no {called.input_type.full_name}: {error}", param_hint="REQUEST") from None
    with service_port(admin, lambda channel: stub_of(channel, called)) as calling:
        answering = calling(message, timeout=CALL_TIMEOUT_S)
        for answer in answering if called.server_streaming else (answering,):
            fields = json_format.MessageToDict(answer)
            say(json_line(fields) if as_json else json.dumps(fields, indent=2, ensure_ascii=False))
            _require_ok(admin, answer)


def _method(name: str) -> MethodDescriptor:
    known = methods()
    found = [path for path in known if path == name or path.endswith(f".{name}")]
    if not found:
        meant = ", ".join(near(name, [path.rpartition(".")[2] for path in known]))
        advice = f"did you mean {meant}?" if meant else "one looks like Admin/GetTopicRoute"
        raise typer.BadParameter(f"no call {name!r}; {advice}", param_hint="SERVICE/METHOD")
    return known[found[0]]


def _require_ok(address: str, answer: Any) -> None:
    status = getattr(answer, "status", None)
    if isinstance(status, definition.Status) and status.code != definition.OK:
        end(Exit.COULD_NOT_RUN, f"{address}: {status.message}", asked_names(address))
