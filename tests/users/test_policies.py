"""Rules: how they are kept, and which of them decides, compared with a model that tries all of them in turn."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.errors import Invalid, RuleNotFound
from quarry_mq.store.security.model import RULES_MAX, Action, Decision, Policy, Resource, ResourceKind, Rule
from quarry_mq.store.security.policies import SOURCES_MAX, decide, deciding_rule, parse_source
from quarry_mq.store.state.identity import FAMILIES
from tests.users.tables import FIRST_KEY, Tables, orders, rule, tables_in

ALLOW, DENY = Decision.ALLOW, Decision.DENY
TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP
SOMEWHERE = ip_address("192.0.2.7")


def policy(*rules: Rule) -> Policy:
    return Policy("orders", {(each.resource, each.decision): each for each in rules})


@pytest.fixture
def tables() -> Tables:
    tables = Tables(MemoryEngine(FAMILIES, write_ahead_log=True), FIRST_KEY)
    tables.users.create(orders())
    return tables


# The order of precedence.


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("topic:orders", "topic:order*"),
        ("topic:orders*", "topic:order*"),
        ("topic:o*", "topic:*"),
        ("topic:*", "*"),
        ("topic:orders", "*"),
    ],
)
@pytest.mark.parametrize("decision", [ALLOW, DENY])
def test_the_more_particular_resource_decides(first: str, second: str, decision: Decision) -> None:
    other = DENY if decision is ALLOW else ALLOW
    rules = policy(rule(second, Action.PUB, decision=other), rule(first, Action.PUB, decision=decision))
    assert decide(rules, TOPIC, "orders", Action.PUB, SOMEWHERE) is decision


@pytest.mark.parametrize("resource", ["topic:orders", "topic:ord*", "topic:*", "*"])
def test_on_the_same_resource_a_denial_decides(resource: str) -> None:
    rules = policy(rule(resource, Action.PUB, decision=ALLOW), rule(resource, Action.PUB, decision=DENY))
    assert decide(rules, TOPIC, "orders", Action.PUB, SOMEWHERE) is DENY


def test_what_no_rule_is_about_is_denied() -> None:
    rules = policy(rule("topic:orders", Action.PUB))
    assert decide(Policy("orders"), TOPIC, "orders", Action.PUB, SOMEWHERE) is DENY
    assert decide(rules, TOPIC, "orders", Action.SUB, SOMEWHERE) is DENY
    assert decide(rules, TOPIC, "orders2", Action.PUB, SOMEWHERE) is DENY
    assert decide(rules, GROUP, "orders", Action.PUB, SOMEWHERE) is DENY
    assert decide(rules, TOPIC, "orders", Action.PUB, SOMEWHERE) is ALLOW


def test_a_rule_about_other_actions_hides_no_rule_below_it() -> None:
    rules = policy(rule("topic:orders", Action.SUB, decision=DENY), rule("topic:*", Action.PUB))
    assert decide(rules, TOPIC, "orders", Action.PUB, SOMEWHERE) is ALLOW


def test_a_rule_holds_where_calls_come_from_its_networks() -> None:
    rules = policy(rule("*", sources=("192.0.2.0/24", "2001:db8::/32")))
    assert decide(rules, TOPIC, "orders", Action.PUB, SOMEWHERE) is ALLOW
    assert decide(rules, TOPIC, "orders", Action.PUB, ip_address("2001:db8::5")) is ALLOW
    assert decide(rules, TOPIC, "orders", Action.PUB, ip_address("192.0.3.1")) is DENY
    assert decide(rules, TOPIC, "orders", Action.PUB, ip_address("::192.0.2.7")) is DENY


def test_an_ipv4_address_in_the_spelling_of_ipv6_is_the_same_address() -> None:
    rules = policy(rule("*"), rule("topic:orders", decision=DENY, sources=("192.0.2.0/24",)))
    assert decide(rules, TOPIC, "orders", Action.PUB, ip_address("::ffff:192.0.2.7")) is DENY


def test_nobody_gains_by_an_address_that_is_not_known() -> None:
    here = ("192.0.2.0/24",)
    assert decide(policy(rule("*", sources=here)), TOPIC, "orders", Action.PUB, None) is DENY
    rules = policy(rule("*"), rule("*", decision=DENY, sources=here))
    assert decide(rules, TOPIC, "orders", Action.PUB, None) is DENY


# Against a model.

NAMES = st.text("ab", max_size=3)
KINDS = st.sampled_from([ResourceKind.CLUSTER, TOPIC, GROUP])
NETWORKS = ("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "::/0", "2001:db8::1")
ADDRESSES = ("10.1.2.3", "10.1.9.9", "10.9.9.9", "11.0.0.1", "2001:db8::1", "::ffff:10.1.2.3")


@st.composite
def resources(draw: st.DrawFn) -> Resource:
    if draw(st.integers(0, 4)) == 0:
        return Resource.parse("*")
    name = draw(NAMES)
    return Resource.parse(f"{draw(KINDS).value}:{name}{'*' if not name or draw(st.booleans()) else ''}")


RULES = st.builds(
    Rule,
    resource=resources(),
    actions=st.frozensets(st.sampled_from([Action.PUB, Action.SUB]), min_size=1),
    decision=st.sampled_from(Decision),
    sources=st.lists(st.sampled_from(NETWORKS), max_size=2).map(lambda each: tuple(map(parse_source, each))),
)


def model(
    rules: list[Rule], kind: ResourceKind, name: str, action: Action, source: IPv4Address | IPv6Address | None
) -> Decision:
    """Level by level, from the most particular one on, as the documentation says."""
    if isinstance(source, IPv6Address) and source.ipv4_mapped:
        source = source.ipv4_mapped

    def holds(each: Rule) -> bool:
        if not each.sources or (source is None and each.decision is DENY):
            return action in each.actions
        return action in each.actions and source is not None and any(source in network for network in each.sources)

    levels = [f"{kind.value}:{name}"]
    levels += [f"{kind.value}:{name[:length]}*" for length in range(len(name), -1, -1)]
    for level in [*levels, "*"]:
        said = {each.decision for each in rules if str(each.resource) == level and holds(each)}
        if said:
            return DENY if DENY in said else ALLOW
    return DENY


@given(
    st.lists(RULES, max_size=12),
    KINDS,
    NAMES,
    st.sampled_from([Action.PUB, Action.SUB]),
    st.sampled_from(ADDRESSES).map(ip_address) | st.none(),
)
def test_decisions_are_those_of_the_model(
    given_rules: list[Rule], kind: ResourceKind, name: str, action: Action, source: IPv4Address | IPv6Address | None
) -> None:
    made = policy(*given_rules)
    assert decide(made, kind, name, action, source) is model(list(made.rules.values()), kind, name, action, source)


@given(st.lists(RULES, max_size=8), st.randoms(use_true_random=False))
def test_the_order_in_which_rules_were_set_does_not_matter(given_rules: list[Rule], random: object) -> None:
    made = list(policy(*given_rules).rules.values())
    question = (TOPIC, "ab", Action.PUB, ip_address("10.1.2.3"))
    expected = deciding_rule(policy(*made), *question)
    random.shuffle(made)  # type: ignore[attr-defined]
    found = deciding_rule(policy(*made), *question)
    assert found == expected


# The table.


def test_rules_come_back_after_a_restart(tmp_path: Path) -> None:
    made = [
        rule("topic:orders", Action.PUB, Action.SUB, sources=("10.0.0.0/8", "2001:db8::1")),
        rule("topic:orders", Action.DELETE, decision=DENY),
        rule("group:%DLQ%x*", Action.SUB),
        rule("*", Action.GET, Action.LIST),
    ]
    with tables_in(tmp_path / "quarry", FIRST_KEY) as tables:
        tables.users.create(orders())
        for each in made:
            tables.policies.put_rule("orders", each)
        assert tables.policies.get("orders") == policy(*made)
    with tables_in(tmp_path / "quarry") as tables:
        assert tables.policies.get("orders") == policy(*made)
        assert list(tables.policies.list("ord")) == [policy(*made)]
        assert list(tables.policies.list("x")) == []


def test_a_rule_takes_the_place_of_the_one_of_its_resource_and_decision(tables: Tables) -> None:
    policies = tables.policies
    policies.put_rule("orders", rule("topic:a", Action.PUB))
    policies.put_rule("orders", rule("topic:a", Action.SUB))
    policies.put_rule("orders", rule("topic:a", Action.PUB, decision=DENY))
    assert policies.get("orders") == policy(rule("topic:a", Action.SUB), rule("topic:a", Action.PUB, decision=DENY))


def test_rules_are_removed_one_or_both(tables: Tables) -> None:
    policies, resource = tables.policies, Resource.parse("topic:a")
    for decision in Decision:
        policies.put_rule("orders", rule("topic:a", decision=decision))
    generation = policies.generation
    policies.remove_rule("orders", resource, DENY)
    assert policies.generation > generation
    assert policies.get("orders") == policy(rule("topic:a"))
    with pytest.raises(RuleNotFound, match="user orders has no rule of topic:a that says deny"):
        policies.remove_rule("orders", resource, DENY)
    policies.put_rule("orders", rule("topic:a", decision=DENY))
    policies.remove_rule("orders", resource, None)
    assert list(policies.list()) == []
    with pytest.raises(RuleNotFound, match=r"user orders has no rule of topic:a$"):
        policies.remove_rule("orders", resource, None)


def test_rules_of_a_policy_cannot_be_changed_from_outside(tables: Tables) -> None:
    tables.policies.put_rule("orders", rule("topic:a"))
    with pytest.raises(TypeError):
        del tables.policies.get("orders").rules[Resource.parse("topic:a"), ALLOW]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Rule(resource=Resource.parse("*"), actions=frozenset()), "no actions"),
        (Rule(resource=Resource(ResourceKind.ANY, "a"), actions=frozenset(Action)), "must be"),
        (Rule(resource=Resource(TOPIC, "a*b"), actions=frozenset(Action)), "a \\* before its end"),
        (Rule(resource=Resource(TOPIC, "a" * 256), actions=frozenset(Action)), "at most 255"),
        (Rule(resource=Resource(TOPIC, "a\nb"), actions=frozenset(Action)), "printable"),
        (rule("*", sources=tuple(f"10.0.0.{number}" for number in range(SOURCES_MAX + 1))), "33 sources, at most 32"),
    ],
)
def test_rules_that_make_no_sense_are_refused(tables: Tables, wrong: Rule, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        tables.policies.put_rule("orders", wrong)
    assert not tables.policies.get("orders").rules


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "10.0.0", "::ffff:10.0.0.1", "localhost", "10.0.0.0/33"])
def test_sources_that_are_no_network_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="source"):
        parse_source(text)


def test_a_user_has_so_many_rules_and_not_one_more(tables: Tables) -> None:
    for number in range(RULES_MAX):
        tables.policies.put_rule("orders", rule(f"topic:{number}"))
    with pytest.raises(Invalid, match=f"has {RULES_MAX} rules, the most"):
        tables.policies.put_rule("orders", rule("topic:another"))
    tables.policies.put_rule("orders", rule("topic:7", Action.PUB))
