"""A denied call leaves nothing behind: rows, files, the log, and all registries are as they were before it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server._generated.apache.rocketmq.v2 import service_pb2 as service
from server._generated.quarry.cluster.v1 import cluster_pb2
from server.cluster.signing import ClusterKeys
from server.rpc.access import NEEDS
from server.rpc.admin_port.access import ACCESSES, SUPER_SERVICES, admin_needs, short_name
from server.rpc.admin_port.methods import methods, path_of
from server.rpc.methods import METHOD_NAMES
from server.security.signature import signed_admin_headers, signed_messaging_headers
from store.metadata import TopicType
from store.security.model import Decision, UserKind
from store.security.sealing import new_key
from tests.conformance.broker import RunningBroker
from tests.conformance.client import consumer_settings, message, producer_settings
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.secured import SECRET, SECURED, add_user, allow, client_of
from tests.conformance.test_access import REQUESTS
from tests.conformance.test_transactions import half
from tests.conformance.whole_state import difference, state_of

PATIENCE_S: Final = 3.0
QUIET_S: Final = 1.2
"""Longer than what a broker does once a second takes."""
_calls = count()

Callers = Mapping[str, tuple[str, str]]
"""By what they are: user and secret."""

CALLERS: Final[Callers] = {
    "a stranger": ("nobody", SECRET),
    "a user without rules": ("outsider", SECRET),
    "a user that is denied what it is about": ("denied", SECRET),
}

LET_IN: Final = frozenset({"JobService/GetJob", "JobService/ListJobs", "JobService/CancelJob"})
"""Calls that every user may make: of which jobs is decided job by job."""


# -- requests that would do something

TEXTS: Final[Mapping[str, str]] = {
    "topic": "orders",
    "bind_topic": "orders",
    "to_topic": "orders",
    "group": "billing",
    "name": "new-thing",
    "user": "ops",
    "key": "k",
    "resource": "topic:new",
    "id": "0" * 32,
    "message_id": "0" * 32,
    "client_id": "c",
    "transaction_id": "0" * 32,
}
SKIPPED_FIELDS: Final = frozenset({"dry_run", "wildcard"})


def filled(made: Message, depth: int = 3) -> Message:
    """The request with something in all of its fields, of a choice in the last one."""
    for field in made.DESCRIPTOR.fields:
        if field.name not in SKIPPED_FIELDS:
            _fill(made, field, depth)
    return made


def _fill(made: Message, field: Any, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if depth:
            part = getattr(made, field.name)
            filled(part.add() if field.is_repeated else part, depth - 1)
            if not field.is_repeated:
                part.SetInParent()
            if field.message_type.name == "Resource" and field.name in {"topic", "group"}:
                part.name = TEXTS[field.name]
                part.resource_namespace = ""
        return
    value: Any = 1
    if field.type == FieldDescriptor.TYPE_STRING:
        value = TEXTS.get(field.name, "text")
    elif field.type == FieldDescriptor.TYPE_BYTES:
        value = b"bytes"
    elif field.type == FieldDescriptor.TYPE_BOOL:
        value = True
    elif field.type == FieldDescriptor.TYPE_ENUM:
        value = field.enum_type.values[-1].number
    if field.is_repeated:
        getattr(made, field.name).append(value)
    else:
        setattr(made, field.name, value)


def request_of(method: MethodDescriptor) -> Message:
    return filled(message_factory.GetMessageClass(method.input_type)())


# -- a broker that has something of everything


async def prepare(broker: RunningBroker) -> None:
    broker.topic("orders")
    broker.topic("sure", TopicType.TRANSACTION)
    broker.group("billing")
    for name in ("ops", "honest"):
        add_user(broker, name, kind=UserKind.SUPER)
    add_user(broker, "outsider")
    add_user(broker, "denied", "* pub sub create update delete get list")
    for resource_ in ("topic:orders", "topic:new*", "topic:%*", "group:billing", "group:new*", "cluster:*"):
        allow(broker, "denied", f"{resource_} pub sub create update delete get list", Decision.DENY)
    for kind in ("topic:*", "group:*"):  # what lists of all need
        allow(broker, "denied", f"{kind} list", Decision.DENY)
    async with client_of(broker, "honest") as honest:
        await honest.sent(message("orders", b"one", keys=["k"]), message("orders", b"two"))
        await honest.sent(half("sure", recovery_s=3600))
        await honest.receive("billing", "orders", count=1, invisible_s=3600)


class Watch:
    """Holds the state after each call against that before it."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._before = state_of(broker)
        self.changed: list[str] = []

    async def settle(self) -> None:
        """Wait until what was begun has come to its end."""
        while True:
            await asyncio.sleep(QUIET_S)
            before, self._before = self._before, state_of(self._broker)
            if not difference(before, self._before):
                return

    async def look(self, what: str) -> None:
        """What is another than before, however long it is given to become the same again, is noted."""
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        while changes := difference(self._before, now := state_of(self._broker)):
            if asyncio.get_running_loop().time() > deadline_s:
                self.changed += [f"{what}: {path}: {was} -> {is_now}" for path, (was, is_now) in changes.items()]
                self._before = now
                return
            await asyncio.sleep(0.01)


# -- the messaging port


def messaging_requests() -> Iterator[tuple[str, str, bytes]]:
    """Of each row of the table a request that is about what there is and one about what is not: name, method, bytes."""
    for method, request in REQUESTS.items():
        yield f"{method}, what there is", method, request.SerializeToString()
        other = type(request).FromString(request.SerializeToString())
        _rename(other)
        yield f"{method}, what is new", method, other.SerializeToString()
    for name, settings in {
        "a consumer": consumer_settings("billing", "orders"),
        "a new consumer": consumer_settings("new-group", "new-topic"),
        "a producer": producer_settings("orders"),
        "a new producer": producer_settings("new-topic"),
    }.items():
        yield f"Telemetry, {name}", "Telemetry", service.TelemetryCommand(settings=settings).SerializeToString()


def _rename(request: Message) -> None:
    """Let it be about topics and groups that nobody has made."""
    for field, value in request.ListFields():
        if field.message_type is None or field.message_type.name not in {"Resource", "Message", "MessageQueue"}:
            continue
        for part in value if field.is_repeated else [value]:
            if isinstance(part, definition.Resource):
                part.name = f"new-{field.name}"
            else:
                _rename(part)


def test_every_row_of_the_messaging_table_is_denied_here() -> None:
    assert {method for _, method, _ in messaging_requests()} == METHOD_NAMES
    kinds = {getattr(service, f"{each}Request") for each in METHOD_NAMES - {"Telemetry"}} | {service.TelemetryCommand}
    assert set(NEEDS) == kinds


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("front", ["h2", pytest.param("grpcio", marks=pytest.mark.slow)])
@both_ways
def test_a_denied_call_of_the_messaging_port_changes_nothing(with_broker: WithBroker, front: str, caller: str) -> None:
    user, secret = CALLERS[caller]

    async def test(broker: RunningBroker) -> None:
        await prepare(broker)
        watch = Watch(broker)
        async with grpc.aio.insecure_channel(broker.endpoint) as channel:
            await channel.channel_ready()
            await watch.settle()
            for name, method, body in messaging_requests():
                headers = signed_messaging_headers(user, secret, now_ms=broker.clock.wall_ms())
                answers = await asked(channel, method, body, (*headers, ("x-mq-client-id", f"client {next(_calls)}")))
                assert is_refused(method, answers), f"{name}: {answers}"
                await watch.look(name)
        assert not watch.changed, "\n".join(watch.changed)

    with_broker(
        test,
        security={**SECURED, "failures_per_minute": 100_000},
        network={"front": front},
        delivery={"new_group_start": "earliest"},
    )


async def asked(channel: Any, method: str, body: bytes, metadata: Any) -> list[bytes]:
    """The bytes of all answers; none where the call ended with an error."""
    path = f"/apache.rocketmq.v2.MessagingService/{method}"
    try:
        if method == "Telemetry":
            return [each async for each in channel.stream_stream(path)(iter([body]), metadata=metadata, timeout=10)]
        return [each async for each in channel.unary_stream(path)(body, metadata=metadata, timeout=10)]
    except grpc.aio.AioRpcError as error:
        return [] if error.code() is grpc.StatusCode.UNAUTHENTICATED else [repr(error).encode()]


def is_refused(method: str, answers: list[bytes]) -> bool:
    if not answers:
        return True
    kind = service.TelemetryCommand if method == "Telemetry" else getattr(service, f"{method}Response")
    return bool(kind.FromString(answers[0]).status.code == definition.UNAUTHORIZED)


def test_a_call_that_is_served_is_seen_to_change_something(with_broker: WithBroker) -> None:
    """The state that is compared has what calls change."""
    expected = {
        "SendMessage, what is new": "log",
        "ReceiveMessage, what is new": "broker._delivery._subscriptions._by_name",
        "Telemetry, a new consumer": "broker._clients._clients",
    }

    async def test(broker: RunningBroker) -> None:
        await prepare(broker)
        watch = Watch(broker)
        async with grpc.aio.insecure_channel(broker.endpoint) as channel:
            await channel.channel_ready()
            await watch.settle()
            for name, method, body in messaging_requests():
                if name not in expected:
                    continue
                headers = signed_messaging_headers("ops", SECRET, now_ms=broker.clock.wall_ms())
                metadata = (*headers, ("x-mq-client-id", f"client {next(_calls)}"))
                if method == "Telemetry":
                    path = f"/apache.rocketmq.v2.MessagingService/{method}"
                    stream: Any = channel.stream_stream(path)(metadata=metadata)
                    await stream.write(body)
                    await stream.read()
                else:
                    await asked(channel, method, body, metadata)
                watch.changed.clear()
                await watch.look(name)
                assert any(f"{expected[name]}: " in each for each in watch.changed), (name, watch.changed)

    with_broker(test, security=SECURED)


# -- the admin port


def test_every_row_of_the_admin_tables_is_denied_here() -> None:
    assert {short_name(path) for path in methods()} >= set(ACCESSES)
    assert {path.partition("/")[0] for path in methods()} >= set(SUPER_SERVICES)


@pytest.mark.parametrize("caller", CALLERS)
def test_a_denied_call_of_the_admin_port_changes_nothing(caller: str, with_broker: WithBroker) -> None:
    user, secret = CALLERS[caller]

    async def test(broker: RunningBroker) -> None:
        await prepare(broker)
        watch = Watch(broker)
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            await channel.channel_ready()
            await watch.settle()
            for method in methods().values():
                path = path_of(method)
                is_for_all = not admin_needs(path, request_of(method), "DefaultCluster")
                assert is_for_all <= (short_name(path) in LET_IN), path
                if not is_for_all:
                    code = await admin_code(broker, channel, method, user, secret)
                    assert code in {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}, path
                    await watch.look(path)
        assert not watch.changed, "\n".join(watch.changed)

    with_broker(test, security={**SECURED, "failures_per_minute": 100_000})


async def admin_code(
    broker: RunningBroker, channel: Any, method: MethodDescriptor, user: str, secret: str
) -> grpc.StatusCode:
    path = path_of(method)
    nonce = f"{user:-<10}{next(_calls):010}"
    headers = signed_admin_headers(user, secret, path, now_ms=broker.clock.wall_ms(), nonce=nonce)
    return await code_of(channel, path, request_of(method).SerializeToString(), headers)


async def code_of(channel: Any, path: str, body: bytes, metadata: Any) -> grpc.StatusCode:
    try:
        async for _ in channel.unary_stream(path)(body, metadata=metadata, timeout=10):
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


# -- members of the cluster


CLUSTER_SERVICE: Final = cluster_pb2.DESCRIPTOR.services_by_name["ClusterService"]


@pytest.mark.parametrize("signed_by", ["nobody", "another key"])
def test_a_call_of_who_is_no_member_changes_nothing(signed_by: str, with_broker: WithBroker, tmp_path: Path) -> None:
    key = tmp_path / "cluster.key"
    key.write_bytes(new_key())
    key.chmod(0o600)
    other = ClusterKeys([b"another key that is as long as they are"])

    async def test(broker: RunningBroker) -> None:
        await prepare(broker)
        watch = Watch(broker)
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            await channel.channel_ready()
            await watch.settle()
            for method in CLUSTER_SERVICE.methods:
                path, body = path_of(method), request_of(method).SerializeToString()
                signed = other.sign_call(path, body, broker.clock.wall_ms() // 1000)
                code = await code_of(channel, path, body, signed if signed_by == "another key" else ())
                assert code not in {grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}, path
                await watch.look(path)
        assert not watch.changed, "\n".join(watch.changed)

    with_broker(
        test,
        security={**SECURED, "failures_per_minute": 100_000},
        cluster={"members": ["127.0.0.1:1"], "key_file": key},
    )
