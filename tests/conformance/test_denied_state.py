"""A denied call leaves nothing behind: rows, files, the log, and all registries are as they were before it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from quarry_mq.protocol.admin_methods import methods, path_of, short_name
from quarry_mq.protocol.limits import ENTRIES_MAX
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.quarry.cluster.v1 import cluster_pb2
from quarry_mq.protocol.signature import signed_admin_headers, signed_messaging_headers
from quarry_mq.server.admin_port.calls.access import ACCESSES, SUPER_SERVICES, admin_needs
from quarry_mq.server.cluster.signing import ClusterKeys
from quarry_mq.server.rpc.access import NEEDS, needs_of
from quarry_mq.server.rpc.messaging import METHOD_NAMES
from quarry_mq.server.security.authorization import Need
from quarry_mq.server.security.credentials import Access
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.security.model import Action, Decision, Resource, ResourceKind, UserKind
from quarry_mq.store.security.sealer import new_key
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import consumer_settings, message, producer_settings
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.lite import GROUP, PARENT, LiteClient
from tests.conformance.secured import SECRET, SECURED, add_user, allow, client_of
from tests.conformance.state import difference, state_of
from tests.conformance.test_access import REQUESTS
from tests.conformance.test_transactions import half

PATIENCE_S: Final = 3.0
QUIET_S: Final = 1.2
"""Longer than what a broker does once a second takes."""
_calls = count()

TOPICS: Final = ("orders", "lite", "new-topic")
GROUPS: Final = ("billing", "new-group")
LET_FAIL: Final = {**SECURED, "failures_per_minute": 100_000}

May = Callable[[Access], bool]


class Caller(NamedTuple):
    """Somebody who calls, and what he may do of what the calls here are about."""

    user: str
    secret: str
    may: May


def nothing(_access: Access) -> bool:
    return False


def use_groups(access: Access) -> bool:
    return access.kind is ResourceKind.GROUP and access.action is Action.SUB


def use_topics(access: Access) -> bool:
    actions = {Action.SUB} if access.name == "new-topic" else {Action.PUB, Action.SUB}
    return access.kind is ResourceKind.TOPIC and access.name in TOPICS and access.action in actions


def are_met(needs: Iterable[Need], may: May) -> bool:
    return all(any(map(may, need)) for need in needs)


CALLERS: Final[Mapping[str, Caller]] = {
    "a stranger": Caller("nobody", SECRET, nothing),
    "a user without rules": Caller("outsider", SECRET, nothing),
    "a user that is denied what it is about": Caller("denied", SECRET, nothing),
    "a member of the groups": Caller("member", SECRET, use_groups),
    "a member of the groups that is denied the topics": Caller("banned", SECRET, use_groups),
    "a user of the topics": Caller("reader", SECRET, use_topics),
}

DENIED: Final = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})
LET_IN: Final = frozenset(
    {"JobService/GetJob", "JobService/ListJobs", "JobService/CancelJob", "AllMembersService/AskMembers"}
)
"""Calls that every user may make: each job, and each call that members are asked for, has rights of its own."""


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
    broker.topic("lite", TopicType.LITE)
    broker.group("billing")
    for name in ("ops", "honest"):
        add_user(broker, name, kind=UserKind.SUPER)
    add_user(broker, "outsider")
    add_user(broker, "denied", "* pub sub create update delete get list")
    for resource_ in (
        "topic:orders",
        "topic:lite",
        "topic:new*",
        "topic:%*",
        "group:billing",
        "group:new*",
        "cluster:*",
    ):
        allow(broker, "denied", f"{resource_} pub sub create update delete get list", Decision.DENY)
    add_user(broker, "member", "group:* sub")
    add_user(broker, "banned", "topic:* pub sub get", "group:* sub")
    for name in ("orders", "lite", "new*"):
        allow(broker, "banned", f"topic:{name} pub sub get", Decision.DENY)
    add_user(broker, "reader", "topic:orders pub sub", "topic:lite pub sub", "topic:new-topic sub")
    for kind in ("topic:*", "group:*"):  # what lists of all need
        allow(broker, "denied", f"{kind} list", Decision.DENY)
    async with client_of(broker, "honest") as honest:
        await honest.sent(message("orders", b"one", keys=["k"]), message("orders", b"two"))
        await honest.sent(half("sure", recovery_s=3600))
        await honest.receive("billing", "orders", count=1, invisible_s=3600)


class Watch:
    """Holds the state after calls against that before them."""

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

    async def see(self, path: str) -> None:
        """Wait until something there is another than before."""
        await until(lambda: path in difference(self._before, state_of(self._broker)), f"{path} has changed")


# -- the messaging port


Call = tuple[str, bytes]
"""Method and request."""


def messaging_calls(may: May) -> Mapping[str, Sequence[Call]]:
    """Return the calls that a caller with these rights must be denied, by method, for existing and for new names."""
    calls: dict[str, dict[Call, None]] = {}
    for topic, group in itertools.product(TOPICS, GROUPS):
        requests: list[tuple[str, Message]] = [(name, renamed(each, topic, group)) for name, each in REQUESTS.items()]
        for settings in (consumer_settings(group, topic), producer_settings(topic)):
            requests += [("Telemetry", service.TelemetryCommand(settings=settings))]
        for method, request in requests:
            if not are_met(needs_of(type(request))(request), may):
                calls.setdefault(method, {})[method, request.SerializeToString()] = None
    return {method: list(each) for method, each in calls.items()}


def renamed(request: Message, topic: str, group: str) -> Message:
    """The request with other names of topics and groups."""
    copy = type(request)()
    copy.CopyFrom(request)
    _rename(copy, {"topic": topic, "group": group})
    return copy


def _rename(request: Message, names: Mapping[str, str]) -> None:
    for field, value in request.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if field.is_repeated else [value]:
            if isinstance(part, definition.Resource):
                part.name = names.get(field.name, part.name)
            else:
                _rename(part, names)


def test_every_row_of_the_messaging_table_is_denied_here() -> None:
    assert messaging_calls(CALLERS["a user without rules"].may).keys() == METHOD_NAMES
    kinds = {getattr(service, f"{each}Request") for each in METHOD_NAMES - {"Telemetry"}} | {service.TelemetryCommand}
    assert set(NEEDS) == kinds
    for caller in CALLERS.values():
        assert sum(map(len, messaging_calls(caller.may).values())) > 20


@pytest.mark.parametrize("front", ["h2", pytest.param("grpcio", marks=pytest.mark.slow)])
@both_ways
def test_a_denied_call_of_the_messaging_port_changes_nothing(with_broker: WithBroker, front: str) -> None:
    """Rights are asked for before anything is looked up, made, counted or opened.

    Names that exist and names that do not; what a caller lacks is the right to the topic, to the group, or to both.
    """

    async def test(broker: RunningBroker) -> None:
        await prepare(broker)
        watch = Watch(broker)
        async with grpc.aio.insecure_channel(broker.endpoint) as channel:
            await channel.channel_ready()
            await watch.settle()
            for caller, (user, secret, may) in CALLERS.items():
                for method, calls in messaging_calls(may).items():
                    for _, body in calls:
                        headers = signed_messaging_headers(user, secret, now_ms=broker.clock.wall_ms())
                        metadata = (*headers, ("x-mq-client-id", f"client {next(_calls)}"))
                        answers = await asked(channel, method, body, metadata)
                        assert is_refused(method, answers), f"{caller}: {method}: {answers}"
                    await watch.look(f"{method} by {caller}")
        assert not watch.changed, "\n".join(watch.changed)

    with_broker(test, security=LET_FAIL, network={"front": front}, delivery={"new_group_start": "earliest"})


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

    async def test(broker: RunningBroker) -> None:
        await prepare(broker)
        async with client_of(broker, "ops") as client:
            watch = Watch(broker)
            await client.sent(message("new-topic"))
            await watch.see("log")
            watch = Watch(broker)
            await client.receive("new-group", "orders")
            await watch.see("broker._delivery._subscriptions._by_name")
            watch = Watch(broker)
            await client.declare(consumer_settings("new-group", "new-topic"))
            await watch.see("broker._clients._clients")

    with_broker(test, security=SECURED)


def naming(light_queues: str) -> definition.Message:
    made = message("orders")
    made.user_properties["INNER_MULTI_DISPATCH"] = light_queues
    return made


@both_ways
def test_a_lite_topic_that_a_message_names_needs_the_right_to_its_topic(with_broker: WithBroker) -> None:
    """Who may send to every topic but one reached the consumers of that one's lite topics through another."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic(PARENT, TopicType.LITE)
        add_user(broker, "producer", "topic:* pub")
        allow(broker, "producer", f"topic:{PARENT} pub", Decision.DENY)
        add_user(broker, "consumer", f"topic:{PARENT} pub sub", f"group:{GROUP} sub")
        consumer = LiteClient(
            broker.endpoint, headers=signed_messaging_headers("consumer", SECRET, now_ms=broker.clock.wall_ms())
        )
        async with consumer, client_of(broker, "producer") as producer:
            await consumer.start()
            await consumer.add("kitchen")
            assert not (await consumer.got()).messages
            await producer.sent(message("orders"))
            watch = Watch(broker)
            await watch.settle()
            for names in (
                f"%LMQ%${PARENT}$kitchen",
                f"%LMQ%mine,%LMQ%${PARENT}$kitchen",
                f"%LMQ%mine,%LMQ%mine,,x,%LMQ%${PARENT}$kitchen",
            ):
                status = (await producer.send(message("orders"), naming(names))).status
                assert status.code == definition.UNAUTHORIZED
                assert f"may not pub on topic {PARENT}" in status.message
            too_many = ",".join(["%LMQ%mine"] * ENTRIES_MAX + [f"%LMQ%${PARENT}$kitchen", "x"])
            assert (await producer.send(naming(too_many))).status.code == definition.PAYLOAD_TOO_LARGE
            await watch.look("sends")
            assert not watch.changed, "\n".join(watch.changed)
            assert not (await consumer.got()).messages
            broker.store.policies.remove_rule("producer", Resource.parse(f"topic:{PARENT}"), Decision.DENY)
            await producer.sent(naming(f"%LMQ%${PARENT}$kitchen"))
            assert len((await consumer.got(polling_s=5)).messages) == 1

    with_broker(test, security=SECURED, delivery={"new_group_start": "earliest"})


# -- the admin port


def test_every_row_of_the_admin_tables_is_denied_here() -> None:
    assert {short_name(path) for path in methods()} >= set(ACCESSES)
    assert {path.partition("/")[0] for path in methods()} >= set(SUPER_SERVICES)


def test_a_denied_call_of_the_admin_port_changes_nothing(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        await prepare(broker)
        watch = Watch(broker)
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            await channel.channel_ready()
            await watch.settle()
            for method in methods().values():
                path = path_of(method)
                needs = list(admin_needs(path, request_of(method), "DefaultCluster"))
                assert needs or short_name(path) in LET_IN, path
                for caller, (user, secret, may) in CALLERS.items():
                    if not are_met(needs, may):
                        code = await admin_code(broker, channel, method, user, secret)
                        assert code in {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}, (
                            caller,
                            path,
                        )
                await watch.look(path)
        assert not watch.changed, "\n".join(watch.changed)

    with_broker(test, security=LET_FAIL)


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


def test_a_call_of_who_is_no_member_changes_nothing(with_broker: WithBroker, tmp_path: Path) -> None:
    """Neither signed by nobody nor with another key."""
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
                for metadata in ((), other.sign_call(path, body, broker.clock.wall_ms() // 1000)):
                    code = await code_of(channel, path, body, metadata)
                    assert code not in {grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}, path
                await watch.look(path)
        assert not watch.changed, "\n".join(watch.changed)

    with_broker(test, security=LET_FAIL, cluster={"members": ["127.0.0.1:1"], "key_file": key})
