"""The address at which members call each other is theirs alone, whatever address clients are sent to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from ipaddress import ip_address
from typing import Any

import grpc.aio
import pytest
from structlog.testing import capture_logs

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.quarry.admin.v1 import members_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.members_pb2_grpc import MembersServiceStub
from quarry_mq.server.addresses import Address
from quarry_mq.server.admin_port.calls import guard
from quarry_mq.server.admin_port.cluster.client import PeerClient
from quarry_mq.server.cluster.cluster import own_member
from quarry_mq.server.errors import MemberUnreachable
from quarry_mq.server.routing import BrokerIdentity
from quarry_mq.server.settings.broker_settings import BrokerSettings
from tests.cluster.brokers import BrokerCluster, groups_of
from tests.cluster.conftest import WithCluster
from tests.cluster.nodes import Network, Node
from tests.cluster.test_message_groups import grouped, send
from tests.cluster.test_overviews import overviews
from tests.cluster.test_service import KEYS, serving
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message

FOR_CLIENTS = "192.0.2.17:31080"
OLD = "127.0.0.9"


@pytest.mark.parametrize(
    ("network", "advertise", "told"),
    [
        ({"admin": "10.0.0.1:8082"}, None, "10.0.0.1:8082"),
        ({"admin": "0.0.0.0:8082"}, None, "192.0.2.17:8082"),
        ({"admin": "0.0.0.0:8082"}, "quarry-0.quarry:8082", "quarry-0.quarry:8082"),
        ({"admin": "10.0.0.1:8082"}, "quarry-0.quarry:18082", "quarry-0.quarry:18082"),
    ],
)
def test_the_address_for_members_is_that_of_the_setting(
    network: dict[str, object], advertise: str | None, told: str
) -> None:
    settings = BrokerSettings.model_validate(
        {
            "network": {"listen": "0.0.0.0:8081", "advertise": FOR_CLIENTS, "plain_text": "everywhere", **network},
            "security": {"open_admin": True},
            "cluster": {"dns": "quarry:8082", "key_file": "/cluster.key", "advertise": advertise},
        }
    )
    identity = BrokerIdentity.of("quarry-0", settings.network)
    own = own_member(settings, identity, Address.parse(settings.network.admin))
    assert (own.address, own.admin_address) == (FOR_CLIENTS, told)


async def members_of(broker: RunningBroker) -> dict[str, pb.Member]:
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        answer = await MembersServiceStub(channel).ListMembers(pb.ListMembersRequest())
    return {each.name: each for each in answer.members}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_message_groups_go_to_members_whose_clients_have_another_address(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        cluster.sections = {"network": {"listen": "127.0.0.1:0", "advertise": FOR_CLIENTS}}
        await cluster.start("a", "b")
        await cluster.settled("a", "b")
        await cluster.make_topic()
        for owner in ("a", "b"):
            for group in groups_of(owner, ["a", "b"], count=4):
                await send(cluster["a"], group, "1", "2")
                await send(cluster["b"], group, "3")
        assert {name: each.address for name, each in (await members_of(cluster["a"])).items()} == {
            "a": FOR_CLIENTS,
            "b": FOR_CLIENTS,
        }

    with_cluster(test)


def test_members_call_each_other_where_operators_of_other_machines_are_not_served(
    with_cluster: WithCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(cluster: BrokerCluster) -> None:
        cluster.sections = {"security": {"admin_callers": "this-machine"}}
        await cluster.start("a", "b")
        await cluster.settled("a", "b")
        monkeypatch.setattr(guard, "source_of", lambda _peer: ip_address("10.0.0.9"))
        await cluster.start("c")
        await cluster.settled("a", "b", "c")
        await cluster.make_topic()
        for owner in ("a", "b", "c"):
            await send(cluster["a"], groups_of(owner, ["a", "b", "c"])[0], "1")
        with pytest.raises(grpc.aio.AioRpcError, match="operators on other machines are not served"):
            await members_of(cluster["a"])

    with_cluster(test)


def test_a_cluster_of_one_grows_under_sends(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("a")
        await cluster.settled("a")
        await cluster.make_topic()
        cluster["a"].topic("plain")
        growing = asyncio.create_task(grow(cluster))
        number = 0
        async with Client(cluster["a"].endpoint) as client:
            while not growing.done():
                number += 1
                await client.sent(message("plain"))
                await client.sent(grouped(f"g{number % 16}", str(number)))
        await growing
        assert len(cluster["a"].cluster.members.routed()) == 2

    with_cluster(test)


async def grow(cluster: BrokerCluster) -> None:
    await cluster.start("b", "c")
    await cluster.settled("a", "b", "c")


def test_a_member_that_cannot_be_called_is_told_of_with_the_reason(with_cluster: WithCluster) -> None:
    """The member was `reachable`, nothing was logged, and all sends of message groups were refused."""

    async def test(cluster: BrokerCluster) -> None:
        answers_at = f"127.0.0.1:{free_port()}"
        cluster.cluster = {"members": [answers_at]}
        await cluster.start("a")
        cluster.sections = {"network": {"admin": answers_at}}
        cluster.cluster = {"advertise": f"127.0.0.1:{free_port()}"}
        with capture_logs() as lines:
            await cluster.start("b")
            await until(lambda: bool(cluster["a"].cluster.groups.waiting_for), "the handover waits")
            await until(lambda: any(each["event"] == "a call of a member failed" for each in lines), "it is logged")
            known = cluster["a"].cluster.members
            await until(lambda: bool(known.seen("b").problem), "the reason is known")
        seen = (await members_of(cluster["a"]))["b"]
        assert not seen.is_reachable
        assert seen.is_waited_for
        assert seen.problem.startswith(f"{cluster.cluster['advertise']}: unavailable: ")
        assert [each.name for each in cluster["a"].cluster.members.routed()] == ["b"]
        (concern,) = (await overviews(cluster["a"]))[0].overview.concerns
        assert concern.startswith("member b answers, but not at its admin address: 127.0.0.1:")

        await cluster.stop("b")
        cluster.cluster = {}
        await cluster.start("b")
        await cluster.settled("a", "b")
        await cluster.make_topic()
        await send(cluster["a"], groups_of("b", ["a", "b"])[0], "1")

    with_cluster(test)


class Names(asyncio.DatagramProtocol):
    """Answers questions for names with one address, which may be changed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, question: bytes, peer: Any) -> None:
        end = question.index(b"\0", 12) + 5
        is_v4 = question[end - 4 : end - 2] == b"\0\1"
        self.asked += is_v4
        answer = b"\xc0\x0c\0\1\0\1" + bytes(4) + b"\0\4" + socket.inet_aton(self.address) if is_v4 else b""
        head = question[:2] + b"\x81\x80\0\1" + bytes([0, int(is_v4)]) + bytes(4)
        self._transport.sendto(head + question[12:end] + answer, peer)


@asynccontextmanager
async def proxy(to_port: int) -> AsyncIterator[asyncio.Event]:
    """Run a machine that passes connections on to the member; once the event is cleared it is gone without a word."""
    passes = asyncio.Event()
    passes.set()
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while data := await reader.read(65_536):
                await passes.wait()
                writer.write(data)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await passes.wait()
        back, forth = await asyncio.open_connection("127.0.0.1", to_port)
        tasks.update(map(asyncio.ensure_future, (copy(reader, forth), copy(back, writer))))

    async with await asyncio.start_server(connected, OLD, to_port):
        yield passes
        passes.set()  # connections end with those of the member
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("before", ["refuses", "is silent", "was connected"])
def test_a_member_that_comes_back_with_another_address_is_called_there_soon(before: str) -> None:
    """A replaced pod has its name, and another address; what is sent to the old one may get no answer."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            transport, names = await loop.create_datagram_endpoint(lambda: Names(OLD), local_addr=("127.0.0.1", 0))
            stack.callback(transport.close)
            port = Address.parse(await stack.enter_async_context(serving(Node(Network(), "m0", set()), KEYS))).port
            peer = PeerClient(f"dns://127.0.0.1:{names.port}/quarry-0.members:{port}", KEYS, SystemClock(), member="m0")
            stack.push_async_callback(peer.close)
            if before != "refuses":
                passes = await stack.enter_async_context(proxy(port))
                if before == "was connected":
                    await peer.confirm()
                passes.clear()
            with pytest.raises(MemberUnreachable):
                await peer.confirm()
            names.address = "127.0.0.1"
            async with asyncio.timeout(10):
                await called(peer)

    asyncio.run(asyncio.wait_for(test(), 60))


async def called(peer: PeerClient) -> None:
    while True:
        try:
            await peer.confirm()
        except MemberUnreachable:
            await asyncio.sleep(0.1)
        else:
            return
