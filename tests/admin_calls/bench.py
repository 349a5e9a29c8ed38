"""A broker that asks who calls, for the tests of a module, and calls of its admin port in every form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import grpc
import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from quarry_mq.kv.engine import KeyRange
from quarry_mq.protocol.admin_methods import methods
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official_admin
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as quarry_admin
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2, migration_pb2, verification_pb2
from quarry_mq.protocol.signature import signed_admin_headers
from quarry_mq.server.cluster.membership import Member
from quarry_mq.server.observability import logs as levels
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.security.model import UserKind
from quarry_mq.store.security.sealer import new_key
from quarry_mq.store.state.identity import FAMILIES, META, SHARED
from tests.conformance.broker import QUICK, RunningBroker, running_broker
from tests.conformance.client import Client, consumer_settings, resource
from tests.conformance.secured import SECRET, SECURED, add_user, client_of
from tests.conformance.test_order import dead_letter

CALL_TIMEOUT_S: Final = 20.0
OPERATOR: Final = "ops"
TOPIC, LITE_PARENT, GROUP, USER, CLIENT_ID = "orders", "sessions", "billing", "shop", "one"
LITE_TOPIC, KEY, MESSAGE_ID = "alice", "k1", "01AC1F"
MEMBER_AWAY: Final = "quarry-away"
OWN_TOPIC: Final = "rmq_sys_quarry"
"""One of the broker's own."""

QUICK_CLUSTER: Final = {"exchange_interval_ms": 50, "unreachable_after_ms": 500}
INDEX: Final = {
    "hash_files": True,
    "hash_slots": 7,
    "hash_items": 30,
    "tiered": True,
    "tiered_slots": 7,
    "tiered_items": 30,
}

NOT_BY_CALLS: Final = (META, SHARED)
"""Families where a broker writes how far it is, and what it has heard of others."""

METHODS: Final = methods()

T = TypeVar("T")


class Ending(NamedTuple):
    """The end of a call; a stream has several answers."""

    code: grpc.StatusCode
    text: str
    answers: list[Any]


class Bench:
    """The broker goes on while a call is made, and stands still in between."""

    def __init__(self, broker: RunningBroker, runner: asyncio.Runner, channel: grpc.aio.Channel) -> None:
        self.broker = broker
        self._runner = runner
        self.channel = channel
        self._numbers = count()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(coroutine, CALL_TIMEOUT_S))

    def name(self, kind: str) -> str:
        """One that nothing has."""
        return f"{kind}-{next(self._numbers)}"

    def topic(self) -> str:
        return self.broker.topic(self.name("topic"), TopicType.NORMAL, 2)

    def group(self) -> str:
        return self.broker.group(self.name("group"))

    def read(self, topic: str, group: str) -> None:
        """Let the group have read the topic to its end."""
        request = quarry_admin.ResetOffsetRequest(group=group, topic=topic, latest=quarry_admin.Latest())
        self._done("quarry.admin.v1.AdminService/ResetOffset", request)

    def send(self, topic: str, **system: Any) -> None:
        self.run(self.sent(topic, **system))

    async def sent(self, topic: str, **system: Any) -> None:
        properties = definition.SystemProperties(**system)
        request = official_admin.AdminSendMessageRequest(topic=resource(topic), body=b"x", system_properties=properties)
        ending = await self.ask("apache.rocketmq.v2.Admin/AdminSendMessage", request)
        assert ending.answers[0].status.code == definition.OK, ending

    def backup(self) -> str:
        """The name of a backup point."""
        point: quarry_admin.BackupPoint = self._done(
            "quarry.admin.v1.AdminService/BeginBackup", quarry_admin.BeginBackupRequest()
        )
        return point.name

    def verification(self, *, is_over: bool) -> int:
        """The id of one that is over, and none is under way; or of one that is under way for some time."""
        path = "quarry.admin.v1.VerificationService/"
        newest = self.call(f"{path}GetVerification", verification_pb2.GetVerificationRequest())
        if not newest.answers or not is_over:
            busy = 100 if is_over else 1
            self._done(f"{path}BeginVerification", verification_pb2.BeginVerificationRequest(busy_percent=busy))
        while True:
            found = self._done(f"{path}GetVerification", verification_pb2.GetVerificationRequest())
            if not is_over or found.state != "running":
                return int(found.id)

    def job(self, group: str, topic: str) -> int:
        """The id of one that resets nothing."""
        reset = jobs_pb2.OffsetsReset(group=group, topic=topic, latest=quarry_admin.Latest())
        request = jobs_pb2.BeginJobRequest(dry_run=True, reset_offset=reset)
        return int(self._done("quarry.admin.v1.JobService/BeginJob", request).id)

    def migrate(self, step: str, *, to: str) -> None:
        """Take a step of the migration of consume queues, unless the phase is that already."""
        path = "quarry.admin.v1.MigrationService/"
        if self._done(f"{path}GetMigration", migration_pb2.GetMigrationRequest()).phase != to:
            self._done(f"{path}{step}", getattr(migration_pb2, f"{step}Request")())

    def member(self) -> str:
        """One that is not there any more."""
        name = self.name("member")
        self.run(self.announce(name))
        return name

    async def announce(self, name: str) -> None:
        away = Member(name=name, address="127.0.0.1:1", tls_address=None, admin_address="127.0.0.1:1", version="0")
        self.broker.cluster.members._put(away)

    def user(self, *rules: str) -> str:
        return add_user(self.broker, self.name("user"), *rules)

    def call(self, path: str, request: Message | bytes, *, user: str | None = OPERATOR) -> Ending:
        return self.run(self.ask(path, request, user=user))

    async def ask(self, path: str, request: Message | bytes, *, user: str | None = OPERATOR) -> Ending:
        """`path` is `package.Service/Method`. Signed by the user; None: by nobody."""
        method = METHODS[path]
        headers = () if user is None else self.signed(f"/{path}", user)
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        calling: Any = make(f"/{path}", request_serializer=_bytes, response_deserializer=_reader_of(method))
        try:
            answering = calling(request, metadata=headers, timeout=CALL_TIMEOUT_S)
            answers = [each async for each in answering] if method.server_streaming else [await answering]
        except grpc.aio.AioRpcError as error:
            return Ending(error.code(), error.details() or "", [])
        return Ending(grpc.StatusCode.OK, "", answers)

    def _done(self, path: str, request: Message) -> Any:
        ending = self.call(path, request)
        assert ending.code is grpc.StatusCode.OK, ending
        return ending.answers[0]

    def state(self) -> Mapping[str, object]:
        """Return everything that calls may change, in a form that can be compared."""
        return self.run(self._state())

    async def _state(self) -> Mapping[str, object]:
        self.broker.delivery.store_durably()
        engine = self.broker.store.state_engine
        rows = {
            name: list(engine.family(name).iterate(KeyRange(b"", None)))
            for name in FAMILIES
            if name not in NOT_BY_CALLS
        }
        broker = self.broker.broker
        return {
            **rows,
            "log": self.broker.store.messages.appended_up_to,
            "settings": broker._live.current,
            # not the checks of the log, which the broker begins by itself
            "verifications": len(list(broker._maintenance.verification.requested())),
            "members": [] if broker.cluster is None else [each.member for each in broker.cluster.members.all()],
        }

    def signed(self, path: str, user: str = OPERATOR) -> Any:
        now_ms = self.broker.clock.wall_ms()
        return signed_admin_headers(user, SECRET, path, now_ms=now_ms, nonce=f"{self.name('nonce'):->20}")


def _bytes(request: Message | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


def _reader_of(method: MethodDescriptor) -> Any:
    return message_factory.GetMessageClass(method.output_type).FromString


@contextmanager
def running_bench(runner: asyncio.Runner, directory: Path, *, is_other: bool = False) -> Iterator[Bench]:
    """Start a broker with topics, groups, users, a client and messages: the names at the top of this module.

    The other broker is a member of a cluster, and its consume queues are in files.
    """
    if is_other:
        _make_file_store(directory / "store")
    with _level_as_before():
        bench, serving, may_end = runner.run(_begun(runner, directory, is_other=is_other))
        try:
            yield bench
        finally:
            may_end.set()
            runner.run(asyncio.wait_for(serving, CALL_TIMEOUT_S))


@contextmanager
def _level_as_before() -> Iterator[None]:
    """Calls change how much this process logs. At DEBUG gRPC logs what it is just freeing, and pytest keeps that."""
    root = logging.getLogger()
    before = root.level, levels._Shown.number
    try:
        yield
    finally:
        root.setLevel(before[0])
        levels._Shown.number = before[1]


async def _begun(
    runner: asyncio.Runner, directory: Path, *, is_other: bool
) -> tuple[Bench, asyncio.Future[None], asyncio.Event]:
    """The broker lives in a task, which ends some time after the event was set."""
    begun, may_end = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def serve() -> None:
        with pytest.MonkeyPatch.context() as patch:
            async with (
                running_broker(directory, patch, **_settings(directory, is_other=is_other)) as broker,
                grpc.aio.insecure_channel(broker.admin) as channel,
                client_of(broker, _user(broker), CLIENT_ID) as client,
            ):
                bench = Bench(broker, runner, channel)
                await _furnish(bench, client)
                obeying = asyncio.ensure_future(_obey(client))
                begun.set_result(bench)
                await may_end.wait()
                obeying.cancel()

    serving = asyncio.ensure_future(serve())
    await asyncio.wait([serving, begun], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    return begun.result(), serving, may_end


def _settings(directory: Path, *, is_other: bool) -> dict[str, Mapping[str, object]]:
    settings: dict[str, Mapping[str, object]] = {
        "security": {**SECURED, "failures_per_minute": 1_000_000},
        "index": {**INDEX, "upload_to": str(directory / "objects")},
        "delivery": {"new_group_start": "earliest"},
        "broker": {"name": "quarry-here"},
    }
    if is_other:
        key = directory / "cluster.key"
        key.write_bytes(new_key())
        key.chmod(0o600)
        settings["cluster"] = {**QUICK_CLUSTER, "members": ["127.0.0.1:1"], "key_file": key}
    return settings


def _make_file_store(root: Path) -> None:
    """Make a store with consume queues in files: a broker whose settings say so could not be migrated."""
    store = {"directory": root, **QUICK["store"]}
    settings = BrokerSettings.model_validate({"store": store, "consume_queue": {"mode": "file"}})
    open_store(settings.for_store(), disk=PosixDisk(), clock=SystemClock(), report=lambda _: None).close()


def _user(broker: RunningBroker) -> str:
    add_user(broker, USER, f"topic:{TOPIC} get")
    return add_user(broker, OPERATOR, kind=UserKind.SUPER)


async def _furnish(bench: Bench, client: Client) -> None:
    """A consumer, a message with a key, one of a lite topic, and a dead letter."""
    broker = bench.broker
    broker.topic(TOPIC, queues=2)
    broker.store.topics.create(Topic(OWN_TOPIC, TopicType.NORMAL, 1, 1), internal=True)
    broker.topic(LITE_PARENT, TopicType.LITE, 1)
    broker.group(GROUP)
    await client.declare(consumer_settings(GROUP, TOPIC, kind=definition.PUSH_CONSUMER))
    for topic, properties in (
        (TOPIC, {"message_id": MESSAGE_ID, "keys": [KEY]}),
        (TOPIC, {"message_id": MESSAGE_ID + "2"}),
        (LITE_PARENT, {"lite_topic": LITE_TOPIC}),
    ):
        await bench.sent(topic, **properties)
    (handle,) = (await client.receive(GROUP, TOPIC, count=1, polling_s=5)).handles
    await dead_letter(client, GROUP, TOPIC, handle)
    if broker.broker.cluster is not None:
        await bench.announce(MEMBER_AWAY)


async def _obey(client: Client) -> None:
    """Do what the broker commands: say where threads are, and consume what is to be verified."""
    while True:
        with suppress(TimeoutError):
            command = await client.told()
            done = service.TelemetryCommand(status=definition.Status(code=definition.OK))
            if command.HasField("print_thread_stack_trace_command"):
                done.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
                done.thread_stack_trace.thread_stack_trace = "main: waits"
            elif command.HasField("verify_message_command"):
                done.verify_message_result.nonce = command.verify_message_command.nonce
            else:
                continue
            client._said.put_nowait(done)
