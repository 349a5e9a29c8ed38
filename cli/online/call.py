"""`quarry call`: any call of the admin port, as JSON."""

from __future__ import annotations

import json
import pkgutil
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import grpc
import typer
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor

from cli.exit import Exit, end
from cli.online.administration import asked_names, service_port
from cli.online.arguments import ADMIN_DEFAULT, Admin, Json
from cli.online.output import json_line
from server._generated.apache.rocketmq.v2 import admin_pb2 as official
from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server._generated.quarry.admin import v1

CALL_TIMEOUT_S: Final = 600.0


def call(
    method: Annotated[str, typer.Argument(metavar="SERVICE/METHOD", show_default=False)],
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The request in JSON; - reads it.")] = "{}",
    *,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Make a call of the admin port (docs/admin-calls.md) with a request in protobuf's JSON, and show what it answers.

    The service's package may be left out. Calls are signed where the context names a user, which grpcurl cannot do.
    Ends with status 2 when the answer's status is not OK.
    """
    called = _method(method)
    try:
        text = sys.stdin.read() if request == "-" else request
        message = json_format.Parse(text, message_factory.GetMessageClass(called.input_type)())
    except (json_format.ParseError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"no {called.input_type.full_name}: {error}", param_hint="REQUEST") from None
    with service_port(admin, lambda channel: _stub(channel, called)) as calling:
        answering = calling(message, timeout=CALL_TIMEOUT_S)
        for answer in answering if called.server_streaming else (answering,):
            fields = json_format.MessageToDict(answer)
            typer.echo(json_line(fields) if as_json else json.dumps(fields, indent=2, ensure_ascii=False))
            _require_ok(admin, answer)


def methods() -> dict[str, MethodDescriptor]:
    """Those of all services of the admin port that are for operators, by `package.Service/Method`."""
    names = (f"{v1.__name__}.{module.name}" for module in pkgutil.iter_modules(v1.__path__))
    modules = [import_module(name) for name in names if name.endswith("_pb2")]
    return {
        f"{service.full_name}/{method.name}": method
        for module in (official, *modules)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def _method(name: str) -> MethodDescriptor:
    known = methods()
    found = [path for path in known if path == name or path.endswith(f".{name}")]
    if not found:
        raise typer.BadParameter(f"no call {name!r}; docs/admin-calls.md has all of them", param_hint="SERVICE/METHOD")
    return known[found[0]]


def _stub(channel: grpc.Channel, method: MethodDescriptor) -> Any:
    assert method.containing_service is not None
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    return make(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )


def _require_ok(address: str, answer: Any) -> None:
    status = getattr(answer, "status", None)
    if isinstance(status, definition.Status) and status.code != definition.OK:
        end(Exit.COULD_NOT_RUN, f"{address}: {status.message}", asked_names(address))
