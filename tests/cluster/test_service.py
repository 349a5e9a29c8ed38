"""Members' calls on a real port: what is signed is served, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from quarry_mq.protocol.clock import ManualClock, SystemClock
from quarry_mq.protocol.proto.quarry.cluster.v1 import cluster_pb2 as pb
from quarry_mq.server.admin_port.cluster.client import PeerClient
from quarry_mq.server.admin_port.cluster.service import EXCHANGE, RELAY, ClusterService, GroupCalls
from quarry_mq.server.cluster.handover import Consumed, Pair
from quarry_mq.server.cluster.peers import CallEnded, Confirmation, ForwardedSend, LiteChange, RelayedCall
from quarry_mq.server.cluster.reading_order import GroupLeft
from quarry_mq.server.cluster.signing import SIGNATURE, ClusterKeys
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.server.front.grpcio import bind
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.process.certificates import PeerTls
from quarry_mq.store.errors import Invalid
from tests.certificates import Tls, make_tls
from tests.cluster.nodes import Network, Node


async def left_in_order(topic: str) -> list[GroupLeft]:
    return [GroupLeft("billing", 3), GroupLeft("", 1)] if topic == "orders" else []


async def relayed(call: RelayedCall, answer: Callable[[bytes], Awaitable[None]]) -> None:
    for part in call.request.split():
        await answer(part + call.user.encode())
    if call.method != "All/Well":
        raise CallEnded("NOT_FOUND", f"{call.method} by {call.how} from {call.peer}")


GROUPS = GroupCalls(
    confirmation=lambda: Confirmation(b"view", 7),
    consumed=lambda position, pairs: Consumed([pair for pair in pairs if pair.group == "all"], position < 5),
    take_forwarded=lambda send, answered: answered(
        None if send.peer == "later" else send.client_id.encode() + send.body
    ),
    change_lite=lambda change, done: done(Invalid("no such group") if change.body == b"no" else None),
    overview=lambda: b"at a glance",
    left_in_order=left_in_order,
    relayed=relayed,
)
KEYS, OTHER_KEYS = ClusterKeys([b"key"]), ClusterKeys([b"other"])


def run(test: Callable[[Node, str], Awaitable[None]], keys: ClusterKeys = KEYS) -> None:
    async def all_of_it() -> None:
        node = Node(Network(), "m0", set())
        node.store.topic("orders", 4)
        async with serving(node, keys) as address:
            await test(node, address)

    asyncio.run(asyncio.wait_for(all_of_it(), 30))


@asynccontextmanager
async def serving(node: Node, keys: ClusterKeys, tls: Tls | None = None) -> AsyncIterator[str]:
    server = grpc.aio.server()
    clock = SystemClock()
    error_reporter = ErrorReporter(clock, damage_met=_nothing, passed_over=_nothing)
    ClusterService(node.exchange, GROUPS, keys, clock, error_reporter).add_to(server)
    port = bind(server, "127.0.0.1:0", None if tls is None else tls.live())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def _nothing(*_: Any) -> None:
    pass


def test_what_is_asked_about_message_groups_travels_whole() -> None:
    async def test(node: Node, address: str) -> None:
        peer = PeerClient(address, KEYS, SystemClock())
        try:
            assert await peer.confirm() == Confirmation(b"view", 7)
            some, every = Pair("some", "orders"), Pair("all", "orders")
            assert await peer.consumed(5, [some, every]) == Consumed([every], False)
            assert await peer.consumed(4, [some]) == Consumed([], True)
            sends = [
                ForwardedSend("a", "1.2.3.4:5", b"x"),
                ForwardedSend("b", "later", b"y"),
                ForwardedSend("", "", b""),
            ]
            assert await peer.forward(sends) == [b"ax", None, b""]
            await peer.change_lite(LiteChange("client", b"yes"))
            assert await peer.overview() == b"at a glance"
            assert await peer.left_in_order("orders") == [GroupLeft("billing", 3), GroupLeft("", 1)]
            assert await peer.left_in_order("other") == []
            with pytest.raises(MemberUnreachable, match="no such group"):
                await peer.change_lite(LiteChange("client", b"no"))
        finally:
            await peer.close()

    run(test)


def test_a_call_for_an_operator_travels_whole() -> None:
    async def test(_: Node, address: str) -> None:
        peer = PeerClient(address, KEYS, SystemClock())
        found: list[bytes] = []

        async def take(answer: bytes) -> None:
            found.append(answer)

        try:
            await peer.relay(RelayedCall("All/Well", b"one two", "ops", "signature", "1.2.3.4:5"), take)
            assert found == [b"oneops", b"twoops"]
            with pytest.raises(CallEnded, match=r"Not/Well by certificate from 1\.2\.3\.4:5") as ended:
                await peer.relay(RelayedCall("Not/Well", b"", "", "certificate", "1.2.3.4:5"), take)
            assert ended.value.code == "NOT_FOUND"
        finally:
            await peer.close()

    run(test)


@pytest.mark.parametrize("wrong", ["missing", "signature", "end"])
def test_a_stream_of_answers_that_somebody_changed_is_not_taken(wrong: str) -> None:
    async def stream(_body: bytes, context: Any) -> None:
        signature = dict(context.invocation_metadata())[SIGNATURE]
        for number in (1, 3) if wrong == "missing" else (1, 2):
            body = pb.RelayAnswer(number=number, answer=b"x").SerializeToString()
            ((_, signed),) = KEYS.sign_answer(signature, body)
            if wrong == "signature" and number == 2:
                body += b" "
            await context.write(pb.SignedAnswer(body=body, signature=signed).SerializeToString())

    async def test() -> None:
        server = grpc.aio.server()
        handler: Any = grpc.unary_stream_rpc_method_handler(stream)
        service, method = RELAY.strip("/").split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        port = bind(server, "127.0.0.1:0")
        await server.start()
        peer = PeerClient(f"127.0.0.1:{port}", KEYS, SystemClock())

        async def take(answer: bytes) -> None:
            assert answer == b"x"

        try:
            with pytest.raises((NotAMember, MemberUnreachable), match=r"missing|not signed|ended early"):
                await peer.relay(RelayedCall("All/Well", b"", "", "", ""), take)
        finally:
            await peer.close()
            await server.stop(0)

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_page_travels_whole() -> None:
    async def test(node: Node, address: str) -> None:
        peer = PeerClient(address, KEYS, SystemClock())
        page = await peer.exchange("m1", "m1:8082", None, 100)
        here = node.store.replicated.changes(0, 100)
        assert (page.name, page.rows, page.since, page.more) == ("m0", list(here.rows), 0, False)
        assert (page.until.incarnation, page.until.sequence) == (node.store.replicated.incarnation, here.until)
        assert (await peer.exchange("m1", "m1:8082", page.until, 100)).rows == []
        await peer.nudge("m1", "m1:8082")
        await peer.close()

    run(test)


def test_a_caller_without_the_key_gets_nothing() -> None:
    async def test(node: Node, address: str) -> None:
        peer = PeerClient(address, OTHER_KEYS, SystemClock())
        with pytest.raises(MemberUnreachable, match="unauthenticated: the call is not signed with the cluster's key"):
            await peer.exchange("m1", "m1:8082", None, 100)
        await peer.close()
        assert not node.exchange._told

    run(test)


def test_a_caller_whose_clock_is_wrong_is_told() -> None:
    async def test(_: Node, address: str) -> None:
        peer = PeerClient(address, KEYS, ManualClock(1_000_000_000))
        with pytest.raises(MemberUnreachable, match="check the clocks"):
            await peer.exchange("m1", "m1:8082", None, 100)
        await peer.close()

    run(test)


def test_an_answer_of_somebody_else_is_not_taken() -> None:
    class OnlyListening(ClusterKeys):
        """Knows no key, lets everybody in and signs with its own."""

        def check_call(self, *_: Any) -> str:
            return "0" * 64

    async def test(_: Node, address: str) -> None:
        peer = PeerClient(address, KEYS, SystemClock())
        with pytest.raises(NotAMember, match="the answer is not signed"):
            await peer.exchange("m1", "m1:8082", None, 100)
        await peer.close()

    run(test, OnlyListening([b"another"]))


@pytest.mark.parametrize(("name", "is_right"), [(None, True), ("localhost", True), ("mq.example.com", False)])
def test_a_certificate_is_for_the_address_or_for_the_name_it_was_found_by(
    tmp_path: Path, name: str | None, is_right: bool
) -> None:
    tls = make_tls(tmp_path)

    async def test() -> None:
        async with serving(Node(Network(), "m0", set()), KEYS, tls) as address:
            peer = PeerClient(address, KEYS, SystemClock(), PeerTls(tls.authority_path, None, None), name)
            if is_right:
                assert (await peer.exchange("m1", "m1:8082", None, 100)).name == "m0"
            else:
                with pytest.raises(MemberUnreachable, match="unavailable"):
                    await peer.exchange("m1", "m1:8082", None, 100)
            await peer.close()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_nobody_there_is_an_error_with_a_reason() -> None:
    async def test(_: Node, address: str) -> None:
        host, port = address.split(":")
        peer = PeerClient(f"{host}:{int(port) ^ 1}", KEYS, SystemClock())
        with pytest.raises(MemberUnreachable, match="unavailable"):
            await peer.exchange("m1", "m1:8082", None, 100)
        await peer.close()

    run(test)


@pytest.mark.parametrize("body", [b"\xff\xff", pb.ExchangeRequest(name="m1", rows_max=1).SerializeToString() + b"\x07"])
def test_bytes_that_are_no_request_are_refused(body: bytes) -> None:
    async def test(_: Node, address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(EXCHANGE)
            signed = KEYS.sign_call(EXCHANGE, body, SystemClock().wall_ms() // 1000)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(body, metadata=signed)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(body, metadata=((SIGNATURE, "x" * 64),))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

    run(test)
