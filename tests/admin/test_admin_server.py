"""The admin port as its clients see it: values, status codes, health, reflection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quarry_mq.kv import EngineCorrupt, EngineFull
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.server.admin_port import server as admin_port
from quarry_mq.server.admin_port.calls.edge import STATUS_CODES, status_code
from quarry_mq.server.admin_port.calls.guard import CallSlots
from quarry_mq.server.admin_port.metadata.service import PERMISSIONS, SERVICE_NAME, TOPIC_TYPES
from quarry_mq.server.admin_port.server import AdminServer
from quarry_mq.server.maintenance.retention import Expiring, ExpiryReport
from quarry_mq.server.rpc.context import LimitsMet
from quarry_mq.server.wire.status import INTERNAL_TEXT
from quarry_mq.store import errors
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import IllegalTopicName, Permission, Topic, TopicType
from quarry_mq.store.retention import Cause, Unread
from tests.admin.broker import FACTS, AdminBench
from tests.delivery.broker import GROUP, TOPIC


def admin_server(bench: AdminBench, *, connections_max: int = 100) -> AdminServer:
    return AdminServer(
        bench.service,
        CallSlots(256, LimitsMet()),
        connections_max=connections_max,
    )


@asynccontextmanager
async def serving(bench: AdminBench) -> AsyncIterator[tuple[Any, grpc.aio.Channel]]:
    server = admin_server(bench)
    address = await server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield AdminServiceStub(channel), channel
    finally:
        await server.stop(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def test_a_topics_life() -> None:
    async def test() -> None:
        bench = AdminBench()
        async with serving(bench) as (stub, _):
            made = await stub.CreateTopic(pb.CreateTopicRequest(name="orders", type=pb.TOPIC_TYPE_FIFO, read_queues=3))
            assert made == pb.Topic(
                name="orders",
                type=pb.TOPIC_TYPE_FIFO,
                read_queues=3,
                write_queues=3,
                permission=pb.PERMISSION_READ_WRITE,
            )
            changed = await stub.UpdateTopic(
                pb.UpdateTopicRequest(name="orders", permission=pb.PERMISSION_NONE, attributes={"owner": "shop"})
            )
            assert changed.permission == pb.PERMISSION_NONE
            assert dict(changed.attributes) == {"owner": "shop"}
            assert changed.type == pb.TOPIC_TYPE_FIFO
            assert await stub.GetTopic(pb.GetTopicRequest(name="orders")) == changed
            assert bench.topics.get("orders") == Topic("orders", TopicType.FIFO, 3, 3, Permission(0), {"owner": "shop"})
            await stub.DeleteTopic(pb.DeleteTopicRequest(name="orders"))
            code, message = await refusal(stub.GetTopic(pb.GetTopicRequest(name="orders")))
            assert (code, message) == (grpc.StatusCode.NOT_FOUND, "no topic orders")

    run(test())


def test_a_groups_life() -> None:
    async def test() -> None:
        async with serving(AdminBench()) as (stub, _):
            made = await stub.CreateGroup(pb.CreateGroupRequest(name="billing", fifo=True))
            assert (made.fifo, made.enabled, made.max_attempts) == (True, True, 17)
            assert made.customized.delays_ms[0] == 1_000
            exponential = pb.ExponentialBackoff(initial_ms=10, maximum_ms=1000, multiplier=2)
            changed = await stub.UpdateGroup(
                pb.UpdateGroupRequest(name="billing", fifo=False, enabled=False, exponential=exponential)
            )
            assert (changed.fifo, changed.enabled, changed.exponential) == (False, False, exponential)
            customized = pb.CustomizedBackoff(delays_ms=[1000, 2000])
            again = await stub.UpdateGroup(pb.UpdateGroupRequest(name="billing", customized=customized))
            assert again.customized == customized
            assert await stub.GetGroup(pb.GetGroupRequest(name="billing")) == again
            await stub.DeleteGroup(pb.DeleteGroupRequest(name="billing"))
            assert (await refusal(stub.GetGroup(pb.GetGroupRequest(name="billing"))))[0] is grpc.StatusCode.NOT_FOUND

    run(test())


def test_lists_are_ordered_filtered_and_cut_into_pages() -> None:
    async def test() -> None:
        bench = AdminBench()
        bench.topics.create(Topic("RMQ_SYS_TRACE_TOPIC", TopicType.NORMAL, 1, 1), internal=True)
        for number in range(600):
            bench.topics.create(Topic(f"t{number:04d}", TopicType.NORMAL, 1, 1))
        async with serving(bench) as (stub, _):
            sizes = []
            names: list[str] = []
            async for page in stub.ListTopics(pb.ListTopicsRequest()):
                sizes.append(len(page.topics))
                names += [topic.name for topic in page.topics]
            assert names == [f"t{number:04d}" for number in range(600)]
            assert sizes == [256, 256, 88]
            found = [page async for page in stub.ListTopics(pb.ListTopicsRequest(prefix="t059"))]
            assert [topic.name for topic in found[0].topics] == [f"t059{digit}" for digit in range(10)]
            system = [page async for page in stub.ListTopics(pb.ListTopicsRequest(prefix="R", include_system=True))]
            assert system[0].topics[0].name == "RMQ_SYS_TRACE_TOPIC"

            await stub.CreateGroup(pb.CreateGroupRequest(name="b"))
            await stub.CreateGroup(pb.CreateGroupRequest(name="a"))
            groups = [page async for page in stub.ListGroups(pb.ListGroupsRequest())]
            assert [group.name for page in groups for group in page.groups] == ["a", "b"]

    run(test())


def test_offsets_and_queues() -> None:
    async def test() -> None:
        bench = AdminBench()
        async with serving(bench) as (stub, _):
            await stub.CreateTopic(pb.CreateTopicRequest(name=TOPIC, read_queues=2))
            await stub.CreateGroup(pb.CreateGroupRequest(name=GROUP))
            for body in (b"1", b"2"):
                bench.delivery.send(body)
            queues = await stub.ListQueues(pb.ListQueuesRequest(topic=TOPIC))
            assert [(each.queue, each.minimum_offset, each.maximum_offset) for each in queues.queues] == [
                (0, 0, 2),
                (1, 0, 0),
            ]
            request = pb.ResetOffsetRequest(group=GROUP, topic=TOPIC, queue=0, offset=1, dry_run=True)
            told = await stub.ResetOffset(request)
            assert not told.queues[0].HasField("previous_offset")
            assert told.queues[0].new_offset == 1
            await stub.ResetOffset(pb.ResetOffsetRequest(group=GROUP, topic=TOPIC, latest=pb.Latest()))
            back = await stub.ResetOffset(pb.ResetOffsetRequest(group=GROUP, topic=TOPIC, earliest=pb.Earliest()))
            assert [(each.previous_offset, each.new_offset) for each in back.queues] == [(2, 0), (0, 0)]

    run(test())


def test_facts_and_stats_of_the_broker() -> None:
    async def test() -> None:
        bench = AdminBench()
        bench.delivery.send(b"1")
        async with serving(bench) as (stub, _):
            broker = await stub.GetBroker(pb.GetBrokerRequest())
        assert (broker.name, broker.cluster, broker.version) == (FACTS.name, FACTS.cluster, FACTS.version)
        assert broker.advertised_address == "broker.example:8081"
        assert broker.durability == "sync"
        assert broker.started_at_ms == FACTS.started_at_ms
        assert broker.log == pb.Log(appended_offset=100, flushed_offset=100, dispatched_offset=100)

    run(test())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IllegalTopicName("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.Unavailable("43 %"), grpc.StatusCode.UNAVAILABLE),
        (errors.Busy("full"), grpc.StatusCode.UNAVAILABLE),
        (errors.DiskRefused("no segment"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.StorePoisoned("flush"), grpc.StatusCode.DATA_LOSS),
        (errors.BrokerError("?"), grpc.StatusCode.INTERNAL),
    ],
)
def test_the_nearest_class_decides_the_code(error: errors.BrokerError, code: grpc.StatusCode) -> None:
    assert status_code(error) is code


def test_a_full_disk_is_named_and_heals() -> None:
    """As on the messaging port. Nothing may be called done that is not stored."""
    full = EngineFull("IO error: No space left on device: While appending to file: /data/quarry/000012.log")

    async def test() -> None:
        bench = AdminBench()
        async with serving(bench) as (stub, _):
            await stub.CreateTopic(pb.CreateTopicRequest(name=TOPIC))
            await stub.CreateGroup(pb.CreateGroupRequest(name=GROUP))
            bench.delivery.send(b"m")
            bench.delivery.receive()
            reset = pb.ResetOffsetRequest(group=GROUP, topic=TOPIC, earliest=pb.Earliest())
            with failing_writes(bench, full):
                for call in (
                    stub.CreateTopic(pb.CreateTopicRequest(name="new")),
                    stub.CreateGroup(pb.CreateGroupRequest(name="new")),
                    stub.UpdateTopic(pb.UpdateTopicRequest(name=TOPIC, read_queues=9)),
                    stub.ResetOffset(reset),
                    stub.DeleteGroup(pb.DeleteGroupRequest(name=GROUP)),
                    stub.DeleteTopic(pb.DeleteTopicRequest(name=TOPIC)),
                ):
                    code, text = await refusal(call)
                    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
                    assert text == f"the disk is full: {full}".replace("/data/", "")
            assert (await stub.GetTopic(pb.GetTopicRequest(name=TOPIC))).read_queues == 8
            assert bench.delivery.delivery.position(GROUP, QueueId(TOPIC, 0)) == (1, 1), "nothing refused is done"
            await stub.CreateTopic(pb.CreateTopicRequest(name="new"))
            await stub.ResetOffset(reset)
            bench.delivery.restart()
            assert bench.delivery.receive().bodies == [b"m"]

    run(test())


def test_an_unexpected_error_reaches_the_log_and_not_the_caller() -> None:
    async def test() -> None:
        bench = AdminBench()
        async with serving(bench) as (stub, _):
            with structlog.testing.capture_logs() as logs, failing_writes(bench, RuntimeError("secret")):
                refused = await refusal(stub.CreateTopic(pb.CreateTopicRequest(name="new")))
            assert refused == (grpc.StatusCode.INTERNAL, INTERNAL_TEXT)
            assert [type(entry["exc_info"]) for entry in logs] == [RuntimeError]

    run(test())


@pytest.mark.parametrize("method", ["ListTopics", "ListGroups"])
def test_a_listing_that_meets_damage_ends_with_its_status(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        bench = AdminBench()

        def damaged(_prefix: str) -> Iterator[Topic]:
            yield Topic("orders", TopicType.NORMAL, 1, 1)
            raise EngineCorrupt("block checksum mismatch in 000012.sst")

        monkeypatch.setattr(bench.administration, method.removeprefix("List").lower(), damaged)
        async with serving(bench) as (stub, _):
            request = getattr(pb, f"{method}Request")()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await getattr(stub, method)(request).read()
            assert caught.value.code() is grpc.StatusCode.DATA_LOSS
            assert caught.value.details() == "block checksum mismatch in 000012.sst"

    run(test())


@contextmanager
def failing_writes(bench: AdminBench, error: Exception) -> Iterator[None]:
    """All engines refuse what is written meanwhile."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        for engine in (bench.engine, bench.delivery.engine):
            patch.setattr(engine, "write", refuse)
        yield


def test_every_kind_of_topic_and_permission_has_a_name_on_the_wire() -> None:
    assert set(TOPIC_TYPES.values()) == set(TopicType)
    assert set(TOPIC_TYPES) == set(pb.TopicType.values()) - {0}
    assert set(PERMISSIONS.values()) == {Permission(bits) for bits in (0, 2, 4, 6)}
    assert set(PERMISSIONS) == set(pb.Permission.values()) - {0}
    assert Exception in STATUS_CODES


def test_health_and_reflection_answer() -> None:
    async def test() -> None:
        async with serving(AdminBench()) as (_, channel):
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", SERVICE_NAME):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # made for both
            call = stub.ServerReflectionInfo()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            services = {each.name for each in (await call.read()).list_services_response.service}
            for symbol, files in ((f"{SERVICE_NAME}.GetTopic", 1), (f"{SERVICE_NAME}.GetNothing", 0), ("no.Such", 0)):
                await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
                found = (await call.read()).file_descriptor_response.file_descriptor_proto
                assert len(found) == files, symbol
            await call.done_writing()
            assert SERVICE_NAME in services
            assert "grpc.health.v1.Health" in services

    run(test())


GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)


@pytest.mark.parametrize("said", [b"", GREETING], ids=["nothing", "a greeting"])
def test_silent_connections_fill_the_port_for_a_short_time_and_never_the_socket(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent connections end soon; the console is served meanwhile, because it has a listener of its own."""
    assert (admin_port.HANDSHAKE_MS, admin_port.IDLE_MS) == (5_000, 15_000)
    options = dict(admin_port._OPTIONS)
    assert (options["grpc.server_handshake_timeout_ms"], options["grpc.max_connection_idle_ms"]) == (5_000, 15_000)
    shorter = {"grpc.server_handshake_timeout_ms": 1_000, "grpc.max_connection_idle_ms": 1_000}
    monkeypatch.setattr(admin_port, "_OPTIONS", tuple({**options, **shorter}.items()))

    async def is_served(address: str) -> bool:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                return bool((await stub.Check(health_pb2.HealthCheckRequest())).status)
            except grpc.aio.AioRpcError:
                return False

    async def test() -> None:
        server = admin_server(AdminBench(), connections_max=3)
        also = f"unix:{tmp_path / 'admin'}"
        address = await server.start("127.0.0.1:0", also=also)
        host, _, port = address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        try:
            for _, writer in silent:
                writer.write(said)
            assert await is_served(also)
            for reader, _ in silent:
                await reader.read()  # to its end
            assert await is_served(address)
        finally:
            for _, writer in silent:
                writer.close()
            await server.stop(0)

    run(test())


def test_bytes_that_are_no_request_end_the_librarys_calls_too() -> None:
    async def test() -> None:
        async with serving(AdminBench()) as (_, typed):
            channel: Any = typed
            check = channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff")
            named = "the request is not a grpc.health.v1.HealthCheckRequest"
            assert await refusal(check) == (grpc.StatusCode.INVALID_ARGUMENT, named)
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\xff")
            assert await refusal(watch.read()) == (grpc.StatusCode.INVALID_ARGUMENT, named)
            look = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(
                iter([b"\xff"])
            )
            named = "the request is not a grpc.reflection.v1alpha.ServerReflectionRequest"
            assert await refusal(look.read()) == (grpc.StatusCode.INVALID_ARGUMENT, named)

    run(test())


def test_a_taken_address_is_named() -> None:
    async def test() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            bench = AdminBench()
            server = AdminServer(
                bench.service,
                CallSlots(256, LimitsMet()),
            )
            with pytest.raises(OSError, match=address):
                await server.start(address)

    run(test())


def test_expiring_tells_segments_and_who_loses_messages() -> None:
    async def test() -> None:
        bench = AdminBench()
        bench.expiring = ExpiryReport(
            [
                Expiring("00000000000000000000", 1 << 30, 1_700_000_000_000, Cause.AGE),
                Expiring("00000000001073741824", 1 << 30, None, Cause.ROOM),
            ],
            Unread({"a little": 1, "much": 500}, complete=False),
        )
        expected = pb.ExpireSegmentsResponse(
            segments=[
                pb.ExpiringSegment(
                    name="00000000000000000000", size=1 << 30, newest_at_ms=1_700_000_000_000, cause="age"
                ),
                pb.ExpiringSegment(name="00000000001073741824", size=1 << 30, cause="room"),
            ],
            unread=[pb.UnreadMessages(group="much", messages=500), pb.UnreadMessages(group="a little", messages=1)],
            unread_complete=False,
        )
        async with serving(bench) as (stub, _):
            assert await stub.ExpireSegments(pb.ExpireSegmentsRequest(dry_run=True)) == expected
            assert await stub.ExpireSegments(pb.ExpireSegmentsRequest()) == expected
            assert await stub.ExpireSegments(pb.ExpireSegmentsRequest()) == pb.ExpireSegmentsResponse(
                unread_complete=True
            )

    run(test())


def test_expiring_that_fails_is_a_status() -> None:
    async def test() -> None:
        bench = AdminBench()

        async def refuse(*, dry_run: bool, rewrite_queues: bool) -> ExpiryReport:
            raise EngineCorrupt("block checksum mismatch")

        bench.expire = refuse  # type: ignore[method-assign]
        async with serving(bench) as (stub, _):
            code, text = await refusal(stub.ExpireSegments(pb.ExpireSegmentsRequest(dry_run=True)))
            assert (code, text) == (grpc.StatusCode.DATA_LOSS, "block checksum mismatch")

    run(test())


def test_a_point_for_a_backup_is_made_held_and_given_up() -> None:
    """No remote call names a path: the broker chooses the name, and says where its store lies."""

    async def test() -> None:
        async with serving(AdminBench()) as (admin, _):
            point = await admin.BeginBackup(pb.BeginBackupRequest())
            assert (point.store_directory, point.log_begin, point.log_end) == ("/data/store", 0, 4_400)
            assert (point.segment_size, point.lease_ms) == (1 << 30, 60_000)
            await admin.RenewBackup(pb.RenewBackupRequest(name=point.name))
            await admin.EndBackup(pb.EndBackupRequest(name=point.name))
            with pytest.raises(grpc.aio.AioRpcError) as gone:
                await admin.RenewBackup(pb.RenewBackupRequest(name=point.name))
            assert gone.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(test())
