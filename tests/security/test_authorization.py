"""What users may do, and for how long an answer is remembered."""

from __future__ import annotations

import pytest

from server.security.access import Access
from server.security.authorization import Authorizer, Need
from server.security.credentials import How, Identity
from server.security.errors import PermissionDenied
from store.security.model import Action, Decision, ResourceKind, UserKind
from store.security.policies import decide
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
        self.authorizer = Authorizer(self.users, self.policies, decide, self.counted)

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
