"""Places of the admin port: no number of strangers' calls keeps known callers or members of the cluster out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.server.admin_port.calls import guard as reading
from quarry_mq.server.admin_port.calls.guard import CALLS_LIMIT, STRANGERS_LIMIT, CallSlots, RequestReader, Slot
from quarry_mq.server.admin_port.cluster.client import PeerClient
from quarry_mq.server.admin_port.cluster.service import EXCHANGE, ClusterService
from quarry_mq.server.admin_port.server import AdminServer, MoreService
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.rpc.context import LimitsMet
from tests.admin.broker import AdminBench
from tests.admin.test_admin_server import refusal, run
from tests.attack.wire import SHUT_GREETING, STREAM_OF
from tests.cluster.nodes import Network, Node
from tests.cluster.test_service import GROUPS, KEYS
from tests.conformance.broker import until
from tests.hostile.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    call_headers,
    frame,
    grpc_message,
    header_block,
)

CALLS_MAX: Final = 64
STRANGERS_MAX: Final = 16
ADDRESS_MAX: Final = 4
WATCH: Final = "/grpc.health.v1.Health/Watch"
CHECK: Final = "/grpc.health.v1.Health/Check"
CREATE_TOPIC: Final = "/quarry.admin.v1.AdminService/CreateTopic"


@asynccontextmanager
async def serving(more: Sequence[MoreService] = ()) -> AsyncIterator[tuple[AdminServer, str]]:
    bench = AdminBench()
    server = AdminServer(
        bench.service,
        CallSlots(CALLS_MAX, LimitsMet()),
        more=more,
    )
    address = await server.start("127.0.0.1:0")
    try:
        yield server, address
    finally:
        await server.stop(0)


@asynccontextmanager
async def stranger(
    address: str, path: str, calls: int, *, host: str = "127.0.0.1", says: bytes | None = None, greeting: bytes = b""
) -> AsyncIterator[asyncio.StreamReader]:
    """Opens so many calls at once on a connection from `host`, each with one message or with its headers only."""
    to_host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(to_host, int(port), local_addr=(host, 0))
    block = header_block(call_headers("", path=path.encode()))
    writer.write(greeting or PREFACE + frame(SETTINGS, 0, 0))
    for stream in STREAM_OF[:calls]:
        writer.write(frame(HEADERS, END_HEADERS, stream, block))
        if says is not None:
            writer.write(frame(DATA, END_STREAM, stream, grpc_message(says)))
    await writer.drain()
    try:
        yield reader
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def settled(condition: Callable[[], bool]) -> None:
    await until(condition, "calls have their places")


@pytest.mark.parametrize("says", [b"", None], ids=["watches", "headers alone"])
def test_calls_of_one_stranger_end_each_other_and_nobody_elses(says: bytes | None) -> None:
    async def test() -> None:
        async with serving() as (server, address), stranger(address, WATCH, 60, says=says) as reader:
            await settled(lambda: server.slots.strangers == ADDRESS_MAX)
            assert await asyncio.wait_for(reader.readuntil(b"this call was dropped"), 60), "the oldest are told"
            async with grpc.aio.insecure_channel(address) as channel:
                stub: Any = AdminServiceStub(channel)
                for number in range(2 * CALLS_MAX):
                    await stub.CreateTopic(pb.CreateTopicRequest(name=f"t{number}"))
                health: Any = health_pb2_grpc.HealthStub(channel)
                assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
            assert 0 < server.slots.strangers <= ADDRESS_MAX
            assert server.slots.known == 0

    run(test())


def test_strangers_of_many_addresses_keep_no_member_out() -> None:
    async def test() -> None:
        node = Node(Network(), "m0", set())
        cluster = ClusterService(node.exchange, GROUPS, KEYS, SystemClock(), AdminBench().error_reporter)
        async with serving([cluster]) as (server, address), asyncio.TaskGroup() as group:
            enough = asyncio.Event()

            async def attack(host: str, path: str) -> None:
                async with stranger(address, path, 30, host=host, says=None if path == EXCHANGE else b""):
                    await enough.wait()

            for number in range(8):
                group.create_task(attack(f"127.0.1.{number + 1}", (WATCH, EXCHANGE)[number % 2]))
            await settled(lambda: server.slots.strangers == STRANGERS_MAX)
            peer = PeerClient(address, KEYS, SystemClock())
            for _ in range(CALLS_MAX):
                assert (await peer.exchange("m1", "127.0.0.1:1", None, 10)).name == "m0"
            assert server.slots.strangers <= STRANGERS_MAX
            await peer.close()
            enough.set()

    run(test())


def test_a_call_that_sends_no_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "REQUEST_WAIT_S", 0.05)

    async def test() -> None:
        async with serving() as (server, address), grpc.aio.insecure_channel(address) as typed:
            channel: Any = typed
            for path in (CREATE_TOPIC, CHECK):
                code, text = await refusal(channel.stream_unary(path)())
                assert (code, text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, reading.NO_REQUEST)
            code, text = await refusal(channel.stream_unary(CREATE_TOPIC)(iter(())))
            assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
            await settled(lambda: server.slots.strangers == 0)

    run(test())


def test_nobody_watches_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "STRANGER_S", 0.1)

    async def test() -> None:
        async with serving() as (server, address), grpc.aio.insecure_channel(address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            code, text = await refusal(watch.read())
            assert (code, text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, reading.TOO_LONG)
            await settled(lambda: server.slots.strangers == 0)

    run(test())


def test_a_watcher_that_takes_no_answer_holds_up_no_stop() -> None:
    async def test() -> None:
        async with (
            serving() as (server, address),
            stranger(address, WATCH, 1, says=b"", greeting=SHUT_GREETING),
        ):
            await settled(lambda: server.slots.strangers == 1)
            await asyncio.wait_for(server.stop(0.1), 60)

    run(test())


def test_an_answer_that_is_not_taken_keeps_its_place() -> None:
    """A call whose caller does not read is open as long as any other."""

    async def test() -> None:
        async with serving() as (server, address):
            async with stranger(address, CHECK, 30, says=b"", greeting=SHUT_GREETING):
                await settled(lambda: server.slots.strangers == ADDRESS_MAX)
            await settled(lambda: server.slots.strangers == 0)

    run(test())


class _Calls:
    """Slots and what they ended."""

    def __init__(self) -> None:
        self.met = LimitsMet()
        self.slots = CallSlots(CALLS_MAX, self.met)
        self.ended: list[str] = []

    def open(self, peer: str) -> Slot:
        return self.slots.open(peer, lambda _reason: self.ended.append(peer))


def test_the_busiest_address_gives_way_and_its_oldest_call_first() -> None:
    calls = _Calls()
    for number in range(3):
        calls.open(f"192.0.2.1:{number}")
    for number in range(STRANGERS_MAX - 3):
        calls.open(f"198.51.100.{number}:1")
    assert calls.ended == []
    calls.open("203.0.113.1:1")
    assert calls.ended == ["192.0.2.1:0"]
    assert calls.slots.strangers == STRANGERS_MAX
    assert calls.met[STRANGERS_LIMIT] == 1


def test_one_network_of_ipv6_is_one_address() -> None:
    calls = _Calls()
    for number in range(ADDRESS_MAX + 1):
        calls.open(f"[2001:db8::{number}]:1")
    assert calls.ended == ["[2001:db8::0]:1"]


def test_each_caller_has_half_of_the_places_and_members_have_their_own() -> None:
    calls = _Calls()
    for caller in ("user a", "user b"):
        for _ in range(CALLS_MAX // 2):
            calls.open("192.0.2.1:1").admit(caller)
        with pytest.raises(OverLimit, match=f"32 calls of {caller} are already open"):
            calls.open("192.0.2.1:1").admit(caller)
    with pytest.raises(OverLimit):
        calls.open("192.0.2.1:1").admit("user c")
    members = [calls.open("192.0.2.9:1") for _ in range(CALLS_MAX)]
    for member in members:
        member.admit_member()
        member.close()
    assert calls.slots.known == CALLS_MAX
    for _ in range(CALLS_MAX):
        calls.open("192.0.2.9:1").admit_member()
    with pytest.raises(OverLimit, match="64 calls of members") as over:
        calls.open("192.0.2.9:1").admit_member()
    assert over.value.limit == CALLS_LIMIT


def test_what_is_over_is_counted_no_longer() -> None:
    calls = _Calls()
    for caller in range(1_000):
        slot = calls.open(f"192.0.2.1:{caller}")
        if caller % 2:
            slot.admit(f"user {caller}")
        slot.close()
        slot.close()
    assert (calls.slots.strangers, calls.slots.known, calls.ended) == (0, 0, [])
    assert not calls.slots._callers
    assert not calls.slots._strangers


class _WritingContext:
    """A call whose answer is still being written: gRPC takes no status meanwhile."""

    def __init__(self) -> None:
        self.closers: list[Callable[[object], None]] = []

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def done(self) -> bool:
        return False

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.closers.append(callback)

    async def abort(self, _code: grpc.StatusCode, _details: str) -> None:
        raise grpc.aio.InternalError("ExecuteBatchError: TOO_MANY_OPERATIONS")


def test_a_call_whose_caller_leaves_under_a_write_ends_without_an_error() -> None:
    async def write_to_nobody(_context: Any, _slot: Slot) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")

    async def test() -> None:
        context: Any = _WritingContext()
        reader = RequestReader(CallSlots(CALLS_MAX, LimitsMet()), asks_who_calls=True)
        with pytest.raises(asyncio.CancelledError):
            await reader._in_slot(context, write_to_nobody, is_for_strangers=False)

    run(test())


def test_a_call_that_has_to_go_while_its_answer_is_written_ends_without_an_error() -> None:
    async def test() -> None:
        slots = CallSlots(CALLS_MAX, LimitsMet())
        taken: list[Slot] = []

        async def write_for_long(_context: Any, slot: Slot) -> None:
            taken.append(slot)
            await asyncio.Event().wait()

        context: Any = _WritingContext()
        reader = RequestReader(slots, asks_who_calls=True)
        call = asyncio.create_task(reader._in_slot(context, write_for_long, is_for_strangers=False))
        await until(lambda: bool(taken), "the call has its place")
        taken[0].end("this call was dropped")
        with pytest.raises(asyncio.CancelledError):
            await call
        for closer in context.closers:
            closer(context)
        assert slots.strangers == 0

    run(test())
