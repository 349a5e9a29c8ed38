"""Rights of users, and the time for which an answer is cached."""

from __future__ import annotations

import pytest

from quarry_mq.server.delivery.retry_topics import RetryOwners
from quarry_mq.server.errors import PermissionDenied
from quarry_mq.server.security.authorization import Authorizer, Need
from quarry_mq.server.security.credentials import Access, How, Identity
from quarry_mq.store.security.model import Action, Decision, ResourceKind, UserKind
from quarry_mq.store.security.policies import decide
from tests.security.users import Counted, MemoryPolicies, MemoryUsers, rule, user

ORDERS = Identity("orders", How.SIGNATURE)
PUBLISH: Need = (Access(ResourceKind.TOPIC, "orders", Action.PUB),)
READ: Need = (Access(ResourceKind.TOPIC, "orders", Action.SUB),)
JOIN: Need = (Access(ResourceKind.GROUP, "billing", Action.SUB),)


class Bench:
    def __init__(self) -> None:
        self.users = MemoryUsers(user("orders"), user("ops", kind=UserKind.SUPER))
        self.policies = MemoryPolicies()
        self.counted = Counted()
        self.names: set[str] = set()
        self.owners = RetryOwners(
            lambda name: f"group:{name}" in self.names, lambda name: f"topic:{name}" in self.names
        )
        self.authorizer = Authorizer(
            self.users, self.policies, decide, retry_owners=self.owners.of, metrics=self.counted
        )

    def may(self, *needs: Need, identity: Identity = ORDERS) -> bool:
        try:
            self.authorizer.require(identity, None, needs)
        except PermissionDenied:
            return False
        return True


def test_what_no_rule_allows_is_denied_and_named() -> None:
    bench = Bench()
    with pytest.raises(PermissionDenied, match=r"^user orders may not pub on topic orders$"):
        bench.authorizer.require(ORDERS, None, [PUBLISH])
    bench.policies.set("orders", rule("topic:orders", Action.PUB))
    assert bench.may(PUBLISH)
    assert not bench.may(READ)


def test_all_needs_must_be_met_each_by_any_of_its_accesses() -> None:
    bench = Bench()
    bench.policies.set("orders", rule("topic:orders", Action.SUB))
    assert not bench.may(READ, JOIN)
    assert bench.may((*PUBLISH, *READ))
    with pytest.raises(PermissionDenied, match="pub on topic orders or sub on group billing"):
        bench.authorizer.require(ORDERS, None, [(*PUBLISH, *JOIN)])


def test_super_users_may_do_everything_and_nobody_else_what_has_no_access_at_all() -> None:
    bench = Bench()
    bench.policies.set("orders", rule("*", *Action))
    dead_letters: Need = (Access(ResourceKind.TOPIC, "%DLQ%billing", Action.PUB),)
    retry: Need = (Access(ResourceKind.TOPIC, "%RETRY%billing", Action.PUB),)
    assert bench.may(PUBLISH, READ, JOIN)
    assert not bench.may(dead_letters)
    assert not bench.may(retry)
    assert bench.may(dead_letters, retry, identity=Identity("ops", How.CERTIFICATE))
    with pytest.raises(PermissionDenied, match="only super users"):
        bench.authorizer.require(ORDERS, None, [()])


def test_answers_are_remembered_until_a_user_or_a_rule_changes() -> None:
    bench = Bench()
    bench.policies.set("orders", rule("topic:orders", Action.PUB))
    assert bench.may(PUBLISH)
    assert bench.may(PUBLISH)
    assert bench.counted.decisions == [("allow", False), ("allow", True)]
    bench.policies.set("orders", rule("topic:orders", Action.PUB, decision=Decision.DENY))
    assert not bench.may(PUBLISH)
    bench.policies.set("orders", rule("topic:orders", Action.PUB))
    assert bench.may(PUBLISH)
    bench.users.disable("orders")
    assert not bench.may(PUBLISH)


def test_names_that_are_none_are_not_kept() -> None:
    bench = Bench()
    bench.policies.set("orders", rule("topic:orders-*", Action.PUB))
    endless: Need = (Access(ResourceKind.TOPIC, "payments" * 1_000_000, Action.PUB),)
    with pytest.raises(PermissionDenied) as denied:
        bench.authorizer.require(ORDERS, None, [endless])
    assert len(str(denied.value)) < 400
    assert not list(bench.authorizer._known)


def test_who_is_no_user_may_do_nothing() -> None:
    assert not Bench().may(PUBLISH, identity=Identity("gone", How.SIGNATURE))


@pytest.mark.parametrize(
    ("action", "decision", "administers"),
    [
        (Action.GET, Decision.ALLOW, True),
        (Action.PUB, Decision.ALLOW, True),
        (Action.SUB, Decision.ALLOW, False),
        (Action.GET, Decision.DENY, False),
    ],
)
def test_who_has_anything_to_do_on_the_admin_port(action: Action, decision: Decision, *, administers: bool) -> None:
    bench = Bench()
    assert not bench.authorizer.administers("orders")
    bench.policies.set("orders", rule("topic:orders", action, decision=decision))
    assert bench.authorizer.administers("orders") is administers
    assert bench.authorizer.administers("ops"), "a super user"
    bench.users.disable("ops")
    assert not bench.authorizer.administers("ops")
    assert not bench.authorizer.administers("nobody")


def test_a_retry_topic_is_read_by_who_may_read_all_that_its_name_may_stand_for() -> None:
    bench = Bench()
    both: Need = (Access(ResourceKind.TOPIC, "%RETRY%billing_paid", Action.SUB),)
    bench.policies.set("orders", rule("group:billing_paid", Action.SUB), rule("topic:%RETRY%billing_paid", Action.SUB))
    assert bench.may(both), "there is nothing else that it can be"
    bench.names |= {"group:billing", "topic:paid"}
    assert not bench.may(both), "it is beside a topic of another group"
    bench.policies.set("orders", rule("group:billing", Action.SUB), rule("topic:*", Action.SUB))
    assert bench.may(both)
    bench.names |= {"group:billing_paid"}
    assert not bench.may(both), "it may be of either"
    bench.policies.set("orders", rule("group:billing*", Action.SUB), rule("topic:paid", Action.SUB))
    assert bench.may(both)
    bench.policies.set("orders", rule("group:*", Action.SUB), rule("topic:paid", Action.SUB, decision=Decision.DENY))
    assert not bench.may(both)


def test_the_newer_name_of_a_retry_topic_leaves_nothing_open() -> None:
    bench = Bench()
    retry: Need = (Access(ResourceKind.TOPIC, "%RETRY%a_b+c_d", Action.SUB),)
    bench.names |= {"group:a", "topic:b+c_d", "group:a_b+c_d"}
    bench.policies.set("orders", rule("group:a_b", Action.SUB), rule("topic:c_d", Action.SUB))
    assert bench.may(retry)
    bench.policies.set("orders", rule("group:a*", Action.SUB), rule("topic:b*", Action.SUB))
    assert not bench.may(retry)
