"""Connects a command to a broker's admin port, and to RocketMQ's own admin service on that port.

Connections are opened by the chosen context. In answers, fields that are unset are None, and lists that come in pages
are read as a whole. To help a user who types a name, a live broker is asked quickly for a few names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from typing import Any, Final, TypeVar, cast

import grpc

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.contexts import chosen
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.hints import LITE, Names
from quarry_mq.cli.terminal.text import say, time_text
from quarry_mq.client import channel
from quarry_mq.client.channel import Options
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2, lite_topics_pb2, members_pb2, security_pb2, settings_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import JobServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.lite_topics_pb2_grpc import LiteTopicServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.members_pb2_grpc import MembersServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.security_pb2_grpc import SecurityServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.settings_pb2_grpc import SettingsServiceStub


def endpoint_of(address: str, context: Context | None) -> Endpoint:
    """Return the port at `host:port`, with the context's TLS and user.

    An unusable file ends the command with one line.
    """
    if context is None:
        return Endpoint(address)
    endpoint = Endpoint(
        address,
        tls=context.tls,
        ca=context.tls_ca,
        certificate=context.tls_certificate,
        key=context.tls_key,
        user=context.user,
        secret=context.secret,
    )
    if endpoint.tls:
        try:
            endpoint.check_tls_files()
        except ValueError as error:
            end(Exit.COULD_NOT_RUN, str(error))
    return endpoint


def open_channel(
    address: str, context: Context | None, *, clock: Clock | None = None, options: Options = ()
) -> grpc.Channel:
    """Open a channel to a port at `host:port`, messaging or admin, by `endpoint_of`."""
    return channel.open_channel(endpoint_of(address, context), clock=clock, options=options)


_PLAIN: Final = frozenset({grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT})
"""Status codes whose details are shown alone, because they say everything."""
_OF_GRPC: Final = re.compile(
    r"failed to connect|connections to all|dns resolution|empty address|socket closed|reset by peer|broken pipe|goaway"
    r"|stream removed|endpoint closing|transport closed|handshake|recvmsg|keepalive|ping timeout",
    re.IGNORECASE,
)
"""Matches what gRPC itself says where no broker answers. The status code is that of a broker that cannot do it now."""
_Stub = TypeVar("_Stub")


def admin_port(address: str) -> AbstractContextManager[AdminServiceStub]:
    """Give the admin service at `host:port`, as `service_port` does."""
    return service_port(address, AdminServiceStub)


@contextmanager
def service_port(
    address: str, stub: Callable[[grpc.Channel], _Stub], *, plain: Collection[grpc.StatusCode] = ()
) -> Iterator[_Stub]:
    """Give a service on the admin port at `host:port`. A refusal or a lost connection ends the command with one line.

    `plain`: codes of this service whose details, if there are any, are shown alone.
    """
    with open_channel(address, chosen()) as channel:
        try:
            yield stub(channel)
        except grpc.RpcError as error:
            end(Exit.COULD_NOT_RUN, refusal(error, address, plain=plain), asked_names(address))


def asked_names(address: str) -> Names:
    """Return the function that asks the broker at this admin port for names, when a hint needs them."""

    def names(kind: str) -> Sequence[str]:
        return names_of(kind, address, chosen())

    return names


def refusal(error: grpc.RpcError, address: str, *, plain: Collection[grpc.StatusCode] = ()) -> str:
    """Return the line that explains a failed call to the user."""
    # Every error of a call is also that call; the type does not say so.
    call = cast("grpc.Call", error)
    code, details = call.code(), call.details() or ""
    if details and code in plain and not (code is grpc.StatusCode.UNAVAILABLE and _OF_GRPC.search(details)):
        return details
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"{address}: no answer from a broker ({details})"
    if code in _PLAIN:
        return details
    return f"{address}: {code.name.lower().replace('_', ' ')}: {details}"


def known(message: Any, field: str) -> Any:
    """Return the value of a field, or None if it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def known_time(message: Any, field: str) -> str | None:
    """Return the time text of a field in milliseconds since 1970, or None if it is not set."""
    milliseconds = known(message, field)
    return None if milliseconds is None else time_text(milliseconds)


def known_seconds(message: Any, field: str) -> float | None:
    """Return the seconds of a field in milliseconds, or None if it is not set."""
    milliseconds = known(message, field)
    return None if milliseconds is None else milliseconds / 1000


def known_rounded(message: Any, field: str, digits: int = 1) -> float | None:
    value = known(message, field)
    return None if value is None else round(value, digits)


def listed(
    ask: Callable[[Any], Any], request: Any, rows: str, key: Callable[[Any], Any], *, limit: int, page_rows: int
) -> Iterator[Any]:
    """Yield at most `limit` items of the answers' field `rows`, page after page.

    The request is changed: its `after` is set to the `key` of the last item, and its `limit`.
    """
    while limit > 0:
        request.limit = min(limit, page_rows)
        page = ask(request)
        found = getattr(page, rows)
        yield from found
        limit -= len(found)
        if not page.has_more or not found:
            return
        request.after = key(found[-1])


TIMEOUT_S: Final = 1.0
NAMES_MAX: Final = 500


def names_of(kind: str, address: str, context: Context | None, *, prefix: str = "") -> Sequence[str]:
    """Return at most `NAMES_MAX` names of a kind (see `terminal.hints.Names`) with this prefix.

    The list is empty if the broker does not answer within a second, or refuses: callers can do without names.
    """
    found: list[str] = []
    with suppress(grpc.RpcError, ValueError), open_channel(address, context) as channel:
        for name in islice(_names(kind, channel, prefix), NAMES_MAX):
            found.append(name)  # noqa: PERF402 - what came before an error is kept
    return found


def _names(kind: str, channel: grpc.Channel, prefix: str) -> Iterator[str]:
    stub: Any
    match kind:
        case "topic":
            stub = AdminServiceStub(channel)
            for page in stub.ListTopics(pb.ListTopicsRequest(prefix=prefix), timeout=TIMEOUT_S):
                yield from (each.name for each in page.topics)
        case "group":
            stub = AdminServiceStub(channel)
            for page in stub.ListGroups(pb.ListGroupsRequest(prefix=prefix), timeout=TIMEOUT_S):
                yield from (each.name for each in page.groups)
        case "user":
            stub = SecurityServiceStub(channel)
            for page in stub.ListUsers(security_pb2.ListUsersRequest(prefix=prefix), timeout=TIMEOUT_S):
                yield from (each.name for each in page.users)
        case "setting":
            stub = SettingsServiceStub(channel)
            for setting in stub.ListSettings(settings_pb2.ListSettingsRequest(), timeout=TIMEOUT_S).settings:
                if setting.key.startswith(prefix):
                    yield setting.key
        case "job":
            stub = JobServiceStub(channel)
            yield from (str(each.id) for each in stub.ListJobs(jobs_pb2.ListJobsRequest(), timeout=TIMEOUT_S).jobs)
        case "member":
            stub = MembersServiceStub(channel)
            answer = stub.ListMembers(members_pb2.ListMembersRequest(), timeout=TIMEOUT_S)
            yield from (each.name for each in answer.members if each.name.startswith(prefix))
        case _ if kind.startswith(LITE):
            stub = LiteTopicServiceStub(channel)
            request = lite_topics_pb2.ListLiteTopicsRequest(
                topic=kind.removeprefix(LITE), prefix=prefix, limit=NAMES_MAX
            )
            yield from (each.name for each in stub.ListLiteTopics(request, timeout=TIMEOUT_S).lite_topics)


class OfficialAdmin:
    """The service at one address. An answer with an error status ends the command with one line."""

    def __init__(self, stub: Any, address: str) -> None:
        self._stub = stub
        self._address = address

    def call(self, method: str, request: Any, *, timeout_s: float, accepted: Collection[int] = (definition.OK,)) -> Any:
        """Return the answer, whose status is one of `accepted`.

        Remarks in an OK status are printed on standard error.
        """
        answer = getattr(self._stub, method)(request, timeout=timeout_s)
        status = answer.status
        if status.code not in accepted:
            end(Exit.COULD_NOT_RUN, f"{self._address}: {status.message}", asked_names(self._address))
        if status.code == definition.OK and status.message != "OK":
            say(f"{self._address}: {status.message}", err=True)
        return answer


@contextmanager
def official_port(address: str) -> Iterator[OfficialAdmin]:
    """Give the service. A refusal or a lost connection ends the command with one line."""
    with service_port(address, AdminStub) as stub:
        yield OfficialAdmin(stub, address)
