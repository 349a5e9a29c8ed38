"""Random changes of what members of a cluster share, made on them by their admin ports, and what may be there then.

Every write has a number, and says with it all that is looked at here: who reads a thing knows which write it is from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import grpc

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, security_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.security_pb2_grpc import SecurityServiceStub

CALL_TIMEOUT_S: Final = 10.0
TRIES_MAX: Final = 6
QUEUES: Final = 64
"""A topic's two numbers of queues are the digits of the number of its write, to this base."""

UNKNOWN: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    }
)
"""After these nobody knows whether the change was made."""
MEMBER_AWAY: Final = "not all members could be asked"
"""The number of queues of a topic does not change while a member is away that may have unread messages in order."""


class Thing(NamedTuple):
    """What can be changed."""

    kind: str
    name: str


class MemberAdmin:
    """The admin port of one member, over its restarts. Raises grpc.RpcError."""

    def __init__(self, address: str) -> None:
        # quick to find a member that is back
        self._channel = grpc.insecure_channel(
            address, options=(("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))
        )
        # the stubs have no types
        self._admin: Any = AdminServiceStub(self._channel)
        self._security: Any = SecurityServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def write(self, thing: Thing, number: int) -> None:
        """Change it to what this number stands for, or make it."""
        update, create = self._writes(thing, number)
        for _ in range(TRIES_MAX):
            for call, passed_over in ((update, "NOT_FOUND"), (create, "ALREADY_EXISTS")):
                try:
                    call()
                except grpc.RpcError as error:
                    if error.code().name != passed_over:
                        raise
                else:
                    return
        raise AssertionError(f"{thing} is neither there nor can it be made")

    def remove(self, thing: Thing) -> None:
        """Gone, whether it was there or not."""
        removals: dict[str, Callable[[], Any]] = {
            "topic": lambda: _called(self._admin.DeleteTopic, admin_pb2.DeleteTopicRequest(name=thing.name)),
            "group": lambda: _called(self._admin.DeleteGroup, admin_pb2.DeleteGroupRequest(name=thing.name)),
            "user": lambda: _called(self._security.DeleteUser, security_pb2.DeleteUserRequest(name=thing.name)),
            "rule": lambda: _called(
                self._security.RemoveRule, security_pb2.RemoveRuleRequest(user=thing.name, resource="topic:orders")
            ),
        }
        try:
            removals[thing.kind]()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise

    def create_user(self, name: str) -> None:
        _called(self._security.CreateUser, security_pb2.CreateUserRequest(name=name, without_secret=True))

    def found(self) -> dict[Thing, bytes]:
        """All that is shared, as it is told."""
        lists = {
            "topic": (self._admin.ListTopics, admin_pb2.ListTopicsRequest(), "topics", "name"),
            "group": (self._admin.ListGroups, admin_pb2.ListGroupsRequest(), "groups", "name"),
            "user": (self._security.ListUsers, security_pb2.ListUsersRequest(), "users", "name"),
            "rule": (self._security.ListPolicies, security_pb2.ListPoliciesRequest(), "policies", "user"),
        }
        return {
            Thing(kind, getattr(row, name)): row.SerializeToString(deterministic=True)
            for kind, (method, request, rows, name) in lists.items()
            for page in method(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
            for row in getattr(page, rows)
        }

    def _writes(self, thing: Thing, number: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        admin, security, name = self._admin, self._security, thing.name
        match thing.kind:
            case "topic":
                read, write = number // QUEUES + 1, number % QUEUES + 1
                changed = admin_pb2.UpdateTopicRequest(name=name, read_queues=read, write_queues=write)
                made = admin_pb2.CreateTopicRequest(name=name, read_queues=read, write_queues=write)
                return lambda: _called(admin.UpdateTopic, changed), lambda: _called(admin.CreateTopic, made)
            case "group":
                return (
                    lambda: _called(admin.UpdateGroup, admin_pb2.UpdateGroupRequest(name=name, max_attempts=number)),
                    lambda: _called(admin.CreateGroup, admin_pb2.CreateGroupRequest(name=name, max_attempts=number)),
                )
            case "user":
                subjects = [f"CN=number-{number}"]
                update = security_pb2.UpdateUserRequest(
                    name=name, certificates=security_pb2.Certificates(subjects=subjects)
                )
                create = security_pb2.CreateUserRequest(name=name, certificates=subjects, without_secret=True)
                return lambda: _called(security.UpdateUser, update), lambda: _called(security.CreateUser, create)
            case _:
                address = f"10.1.{number // 256}.{number % 256}/32"
                rule = security_pb2.Rule(resource="topic:orders", actions=["pub"], decision="allow", sources=[address])
                request = security_pb2.SetRuleRequest(user=name, rule=rule)
                return (lambda: _called(security.SetRule, request),) * 2


def _called(method: Any, request: Any) -> Any:
    return method(request, timeout=CALL_TIMEOUT_S)


def number_of(thing: Thing, row: bytes | None) -> int | None:
    """The write that a row comes from, 0 for a user whom none has changed; None for what is not there."""
    if row is None:
        return None
    match thing.kind:
        case "topic":
            topic = admin_pb2.Topic.FromString(row)
            return (topic.read_queues - 1) * QUEUES + topic.write_queues - 1
        case "group":
            return admin_pb2.Group.FromString(row).max_attempts
        case "user":
            user = security_pb2.User.FromString(row)
            return int(user.certificates[0].rpartition("-")[2]) if user.certificates else 0
        case _:
            ((address,),) = (rule.sources for rule in security_pb2.Policy.FromString(row).rules)
            high, low = address.removesuffix("/32").split(".")[2:]
            return int(high) * 256 + int(low)


class Changes:
    """What was written where. A value is the number of a write, or None for a removal."""

    def __init__(self) -> None:
        self._possible: dict[Thing, dict[str, set[int | None]]] = {}
        self.outcomes: Counter[str] = Counter()

    def make(self, member: str, admin: MemberAdmin, thing: Thing, value: int | None) -> None:
        """On one member, which may die of something else meanwhile."""
        try:
            if value is None:
                admin.remove(thing)
            else:
                admin.write(thing, value)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION and MEMBER_AWAY in (error.details() or ""):
                self.outcomes["refused"] += 1
                return
            if error.code() not in UNKNOWN:
                raise
            self.outcomes["unknown"] += 1
            self._possible.setdefault(thing, {}).setdefault(member, {None}).add(value)
        else:
            self.outcomes["made"] += 1
            self._possible.setdefault(thing, {})[member] = {value}

    def possible(self, thing: Thing) -> set[int | None]:
        """What may be there when all agree: what some member was told last. One value, where one was told all."""
        by_member = self._possible.get(thing, {})
        return set().union(*by_member.values()) if by_member else {None}

    @property
    def things(self) -> list[Thing]:
        return sorted(self._possible)

    @property
    def determined(self) -> int:
        """How many things can be but one thing."""
        return sum(len(self.possible(thing)) == 1 for thing in self._possible)
