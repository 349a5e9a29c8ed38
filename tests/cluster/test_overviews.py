"""The overviews of all members, from any of them; who does not answer is told of."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub
from quarry_mq.server.admin.stats import OverviewsOfMembers
from quarry_mq.server.cluster.membership import Member, Members
from quarry_mq.server.errors import MemberUnreachable
from tests.cluster.brokers import BrokerCluster
from tests.cluster.conftest import WithCluster
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message
from tests.replication.members import member


async def overviews(broker: RunningBroker) -> list[Any]:
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        answer = await OverviewServiceStub(channel).ListOverviews(pb.ListOverviewsRequest())
    return list(answer.members)


def test_each_member_tells_of_all(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("m0", "m1", "m2")
        await cluster.settled("m0", "m1", "m2")
        cluster["m1"].topic("orders", queues=1)
        async with Client(cluster["m1"].endpoint) as client:
            await client.sent(message("orders"))
        found = await overviews(cluster["m0"])
        assert [(each.name, each.is_self, each.is_reachable, each.state) for each in found] == [
            ("m0", True, True, "active"),
            ("m1", False, True, "active"),
            ("m2", False, True, "active"),
        ]
        assert [each.overview.sent for each in found] == [0, 1, 0]
        assert found[1].admin_address == cluster["m1"].admin
        await cluster.stop("m2")
        await until(lambda: not cluster["m0"].cluster.members.is_reachable("m2"), "m2 is gone")
        found = await overviews(cluster["m0"])
        assert [each.HasField("overview") for each in found] == [True, True, False]
        assert (found[2].is_reachable, found[2].problem != "") == (False, True)
        (concern,) = found[0].overview.concerns
        assert concern.startswith("member m2 is not reachable: no answer for ")

    with_cluster(test)


def test_a_member_that_was_taken_away_is_told_of_with_the_time_and_the_command(with_cluster: WithCluster) -> None:
    """A shard that was scaled away stayed `active` and not reachable for ever, and nothing said what to do."""

    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("m0", "m1")
        await cluster.settled("m0", "m1")
        await cluster.stop("m1")
        cluster["m0"].clock.push(2 * 3_600)
        (away,) = (await overviews(cluster["m0"]))[0].overview.concern_details
        assert away.text.startswith("member m1 is not reachable: no answer for 2 h")
        assert away.command == "quarry cluster remove m1"
        assert cluster["m0"].clock.wall_ms() - away.since_ms >= 2 * 3_600_000
        await cluster.stop("m0")
        await cluster.start("m0")
        members_of_m0 = cluster["m0"].cluster.members
        await until(lambda: bool(members_of_m0.seen("m1").problem), "it is away")
        (away,) = (await overviews(cluster["m0"]))[0].overview.concern_details
        assert away.text.startswith("member m1 is not reachable: no answer for ")
        assert away.command == "quarry cluster members", "it may come back"
        members_of_m0.remove("m1")
        assert not (await overviews(cluster["m0"]))[0].overview.concern_details

    with_cluster(test)


@pytest.mark.parametrize("reason", ["silent", "refused"])
def test_one_that_is_silent_keeps_nobody_waiting(reason: str) -> None:
    replicated = member("m0").replicated
    members = Members("m0", replicated, ManualClock(), unreachable_after_s=10)
    for name in ("m0", "m1", "m2"):
        members.announce(Member(name=name, address="a:1", tls_address=None, admin_address="a:2"))

    async def ask(name: str) -> bytes:
        if name == "m2":
            return b"all is well"
        if reason == "refused":
            raise MemberUnreachable("a:2: refused")
        await asyncio.sleep(60)
        return b"too late"

    found = asyncio.run(OverviewsOfMembers(members, ask, timeout_s=0.05).all())
    problem = "no answer within 0.05 s" if reason == "silent" else "a:2: refused"
    assert [(each.seen.member.name, each.overview, each.problem) for each in found] == [
        ("m0", None, ""),
        ("m1", None, problem),
        ("m2", b"all is well", ""),
    ]
