"""Routes and assignments of a cluster: the queues of all who can be reached, the same from every member."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.cluster.membership import ANNOUNCE_AGAIN_S, Member, Members, MemberState
from quarry_mq.store.metadata import TopicType
from tests.replication.members import member
from tests.rpc.broker import Broker, resource

UNREACHABLE_S = 10.0


class Seen:
    """What one member knows of others, and the broker that answers with it."""

    def __init__(self, own: str, *others: str, kind: TopicType = TopicType.NORMAL, queues: int = 2) -> None:
        self.clock = ManualClock()
        self.members = Members(own, member(own).replicated, self.clock, unreachable_after_s=UNREACHABLE_S)
        self.members.announce(self.of(own))
        for other in others:
            self.add(self.of(other))
        self.broker = Broker(members=self.members)
        self.broker.add_topic("orders", kind, read=queues, write=queues)

    @staticmethod
    def of(name: str, state: MemberState = MemberState.ACTIVE, *, tls: str | None = None) -> Member:
        return Member(name=name, address=f"{name}:8081", tls_address=tls, admin_address=f"{name}:8082", state=state)

    def add(self, other: Member) -> None:
        self.members._put(other)
        self.members.heard(other.name, other.admin_address, is_ready=True)

    def route(self) -> list[tuple[str, int, str]]:
        request = service.QueryRouteRequest(topic=resource("orders"), endpoints=dialled("broker-a"))
        response = self.broker.ask("QueryRoute", request, service.QueryRouteResponse)
        return [shown(queue) for queue in response.message_queues]


def dialled(host: str) -> definition.Endpoints:
    return definition.Endpoints(scheme=definition.DOMAIN_NAME, addresses=[definition.Address(host=host, port=8081)])


def shown(queue: definition.MessageQueue) -> tuple[str, int, str]:
    (address,) = queue.broker.endpoints.addresses
    assert address.host == queue.broker.name
    assert queue.broker.id == 0
    return queue.broker.name, queue.id, definition.Permission.Name(queue.permission)


def test_queues_of_all_members_come_in_turns() -> None:
    seen = Seen("broker-a", "broker-c", "broker-b")
    names = ["broker-a", "broker-b", "broker-c"]
    assert seen.route() == [(name, number, "READ_WRITE") for number in (0, 1) for name in names]


def test_what_stands_for_all_members_is_not_said_to_be_one_of_them() -> None:
    """An acknowledgement would come to a member that never handed the message out."""
    seen = Seen("broker-a", "broker-b")
    everybody = definition.Endpoints(
        scheme=definition.DOMAIN_NAME,
        addresses=[definition.Address(host=host, port=8081) for host in ("broker-a", "broker-b", "cluster.example")],
    )
    for endpoints in (everybody, dialled("cluster.example")):
        request = service.QueryRouteRequest(topic=resource("orders"), endpoints=endpoints)
        response = seen.broker.ask("QueryRoute", request, service.QueryRouteResponse)
        assert {shown(queue)[0] for queue in response.message_queues} == {"broker-a", "broker-b"}


def test_who_was_not_heard_of_for_long_is_left_out_until_it_is() -> None:
    seen = Seen("broker-a", "broker-b", "broker-c")
    seen.clock.advance(UNREACHABLE_S - 1)
    seen.members.heard("broker-c", "broker-c:8082", is_ready=True)
    seen.clock.advance(1)
    assert {name for name, *_ in seen.route()} == {"broker-a", "broker-c"}
    seen.members.heard("broker-b", "broker-b:8082", is_ready=True)
    assert {name for name, *_ in seen.route()} == {"broker-a", "broker-b", "broker-c"}


def test_who_has_just_started_lists_those_it_knows_from_its_disk_until_they_had_time_to_be_heard_of() -> None:
    seen = Seen("broker-a", "broker-b")
    seen.members._put(Seen.of("broker-c"))
    assert {name for name, *_ in seen.route()} == {"broker-a", "broker-b", "broker-c"}
    seen.clock.advance(UNREACHABLE_S - 1)
    seen.members.heard("broker-b", "broker-b:8082", is_ready=True)
    assert {name for name, *_ in seen.route()} == {"broker-a", "broker-b", "broker-c"}
    seen.clock.advance(1)
    assert {name for name, *_ in seen.route()} == {"broker-a", "broker-b"}
    assert [each.name for each in seen.members.others()] == ["broker-b"]


def test_who_drains_is_read_only_also_in_answers_that_are_kept() -> None:
    seen = Seen("broker-a", "broker-b")
    seen.broker.add_topic("wide", read=64, write=64)
    request = service.QueryRouteRequest(topic=resource("wide"), endpoints=dialled("broker-a"))
    permissions = []
    for state in (MemberState.ACTIVE, MemberState.DRAINING, MemberState.ACTIVE):
        seen.members.set_state("broker-b", state)
        response = seen.broker.ask("QueryRoute", request, service.QueryRouteResponse)
        permissions.append({(queue.broker.name, queue.permission) for queue in response.message_queues})
    assert (
        permissions[0]
        == permissions[2]
        == {
            ("broker-a", definition.READ_WRITE),
            ("broker-b", definition.READ_WRITE),
        }
    )
    assert permissions[1] == {("broker-a", definition.READ_WRITE), ("broker-b", definition.READ)}


def test_queues_of_message_groups_are_at_their_owners() -> None:
    """A client that hashes a group over them calls its owner; Go's does so over all that are listed."""
    seen = Seen("broker-a", "broker-b", "broker-c", kind=TopicType.FIFO)
    owners = seen.members.view.owners
    assert seen.route() == [(owner, slot % 2, "READ_WRITE") for slot, owner in enumerate(owners)]


def test_queues_beyond_the_slots_are_listed_for_who_reads_queue_by_queue() -> None:
    seen = Seen("broker-a", "broker-b", kind=TopicType.FIFO, queues=130)
    read = [(name, number, "READ") for name in ("broker-a", "broker-b") for number in (128, 129)]
    assert seen.route()[128:] == read
    assert {number for _, number, _ in seen.route()} == set(range(130))


def test_calls_for_an_owner_that_is_away_go_to_others_and_all_else_stays() -> None:
    seen = Seen("broker-a", "broker-b", "broker-c", kind=TopicType.FIFO)
    before = seen.route()
    seen.clock.advance(UNREACHABLE_S + 1)
    seen.members.heard("broker-b", "broker-b:8082", is_ready=True)
    after = seen.route()
    assert len(after) == len(before)
    assert all(new == old for old, new in zip(before, after, strict=True) if old[0] != "broker-c")
    assert {name for name, _, _ in after} == {"broker-a", "broker-b"}


@pytest.mark.parametrize("state", [MemberState.DRAINING, MemberState.STOPPING])
def test_who_drains_or_stops_is_read_and_owns_nothing(state: MemberState) -> None:
    seen = Seen("broker-a", "broker-b", kind=TopicType.FIFO)
    seen.add(Seen.of("broker-b", state))
    *slots, first, second = seen.route()
    assert set(slots) == {("broker-a", 0, "READ_WRITE"), ("broker-a", 1, "READ_WRITE")}
    assert (first, second) == (("broker-b", 0, "READ"), ("broker-b", 1, "READ"))


def test_a_member_that_runs_is_not_shown_as_stopping_for_long() -> None:
    """A member that has lost its disk may hear from others that it stops."""
    seen = Seen("broker-a", "broker-b")
    seen.members._put(Seen.of("broker-a", MemberState.STOPPING))
    seen.members.notice()
    assert seen.members.seen("broker-a").member.state is MemberState.STOPPING  # the start may be known to others soon
    seen.clock.advance(ANNOUNCE_AGAIN_S + 1)
    seen.members.notice()
    assert seen.members.seen("broker-a").member.state is MemberState.ACTIVE
    seen.members.heard("broker-b", "broker-b:8082", is_ready=True)
    assert seen.members.leave()
    seen.clock.advance(ANNOUNCE_AGAIN_S + 1)
    seen.members.notice()
    assert seen.members.seen("broker-a").member.state is MemberState.STOPPING


def test_this_member_says_of_itself_that_it_drains() -> None:
    seen = Seen("broker-a", "broker-b")
    seen.members.set_state("broker-a", MemberState.DRAINING)
    assert {(name, permission) for name, _, permission in seen.route()} == {
        ("broker-a", "READ"),
        ("broker-b", "READ_WRITE"),
    }


def test_members_that_such_a_client_cannot_reach_are_left_out() -> None:
    seen = Seen("broker-a")
    seen.add(Member(name="broker-b", address=None, tls_address="broker-b:8443", admin_address="broker-b:8082"))
    assert {name for name, *_ in seen.route()} == {"broker-a"}


def test_assignments_are_of_all_members() -> None:
    seen = Seen("broker-a", "broker-b")
    request = service.QueryAssignmentRequest(
        topic=resource("orders"), group=resource("billing"), endpoints=dialled("broker-a")
    )
    seen.broker.add_group("billing")
    response = seen.broker.ask("QueryAssignment", request, service.QueryAssignmentResponse)
    found = [shown(each.message_queue) for each in response.assignments]
    assert found == [("broker-a", -1, "READ_WRITE"), ("broker-b", -1, "READ_WRITE")]
