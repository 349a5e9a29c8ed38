"""The module holds what users may do: the table of their rules, and the choice of the rule that decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_network
from threading import Lock
from types import MappingProxyType
from typing import Final

from quarry_mq.kv import KeyValueEngine, WriteBatch
from quarry_mq.store.errors import Invalid, RuleNotFound, UserNotFound
from quarry_mq.store.metadata.rows import Document, Fields, NamedRows, Resolve, RowJournal, encode_document
from quarry_mq.store.security.model import (
    RULES_MAX,
    USERS_FAMILY,
    Action,
    Decision,
    Policy,
    Resource,
    ResourceKind,
    Rule,
    SourceNetwork,
)

POLICIES_FAMILY: Final = "policies"

SOURCES_MAX: Final = 32
"""The most networks of one rule."""

RESOURCE_NAME_MAX: Final = 255
"""The most characters of a resource's name: those of the longest topic name."""

CACHED_POLICIES_MAX: Final = 2_048
"""The most cached policies. Usual ones take a few kilobytes, one with the most rules some hundred."""

SourceAddress = IPv4Address | IPv6Address


class PolicyTable:
    """The table holds the rules of all users, in the family `policies`. Any thread may call; changes are durable on
    return.
    """

    def __init__(self, engine: KeyValueEngine, journal: RowJournal | None = None) -> None:
        self._users = engine.family(USERS_FAMILY)
        self._rows = NamedRows[Policy](
            engine,
            POLICIES_FAMILY,
            kind="rules of user",
            not_found=UserNotFound,
            encode=encode_policy,
            decode=decode_policy,
            cached_max=CACHED_POLICIES_MAX,
            journal=journal,
        )
        self.changing = Lock()
        """The lock that every change of users and rules holds: no rule is set for a user that is just being deleted."""
        self._generation = 0

    @property
    def generation(self) -> int:
        """Return a number that grows after every change; a cached decision is valid for the number read before it."""
        return self._generation

    def get(self, user: str) -> Policy:
        """Return the rules of a user, empty when there are none. Raises StoreDamaged."""
        return self._rows.get(user) or Policy(user)

    def list(self, prefix: str = "") -> Iterator[Policy]:
        """Iterate over the policies of users with this name prefix, in name order, read a page at a time."""
        return self._rows.list(prefix)

    def put_rule(self, user: str, rule: Rule) -> Rule:
        """Add a rule, in place of the one with the same resource and decision; return it as it is stored.

        Raises UserNotFound, Invalid.
        """
        rule = checked_rule(rule)
        with self.changing:
            if self._users.get(user.encode(errors="surrogatepass")) is None:
                raise UserNotFound(f"no user {user}")
            before = self._rows.get(user)
            rules = {**(before.rules if before else {}), (rule.resource, rule.decision): rule}
            if len(rules) > RULES_MAX:
                raise Invalid(f"user {user} has {RULES_MAX} rules, the most: remove one, or use a longer prefix")
            policy = Policy(user, MappingProxyType(rules))
            if before is None:
                self._rows.insert(user, policy)
            else:
                self._rows.replace(user, policy)
            self._generation += 1
        return rule

    def remove_rule(self, user: str, resource: Resource, decision: Decision | None) -> None:
        """Remove the rule of a resource; without a decision both the one that allows and the one that denies.

        Raises RuleNotFound.
        """
        decisions = tuple(Decision) if decision is None else (decision,)
        with self.changing:
            before = self.get(user).rules
            rules = {key: rule for key, rule in before.items() if key[0] != resource or key[1] not in decisions}
            if len(rules) == len(before):
                which = "" if decision is None else f" that says {decision.value}"
                raise RuleNotFound(f"user {user} has no rule of {resource}{which}")
            if rules:
                self._rows.replace(user, Policy(user, MappingProxyType(rules)))
            else:
                self._rows.remove(user)
            self._generation += 1

    def stage_removal(self, batch: WriteBatch, user: str) -> None:
        """Delete all rules of a user with the caller's batch; after that is written, call `removed`."""
        self._rows.stage_removal(batch, user)

    def removed(self, user: str) -> None:
        self._rows.evict(user)
        self._generation += 1

    def take_over(self, resolve: Resolve) -> None:
        """Take over rows of another store, as `NamedRows.take_over` does."""
        with self.changing:
            if self._rows.take_over(resolve):
                self._generation += 1


def decide(policy: Policy, kind: ResourceKind, name: str, action: Action, source: SourceAddress | None) -> Decision:
    """Return what the rules decide; without a rule it is a denial. `kind` is not `any`. `source` is
    None if not known.
    """
    rule = deciding_rule(policy, kind, name, action, source)
    return Decision.DENY if rule is None else rule.decision


def deciding_rule(
    policy: Policy, kind: ResourceKind, name: str, action: Action, source: SourceAddress | None
) -> Rule | None:
    """Return the rule that decides, in RocketMQ's order; None when no rule applies.

    A rule applies if it covers resource, action and source. The most specific one wins: a kind of resource before `*`;
    then a whole name before a prefix, and a longer prefix before a shorter one; then a rule that denies.
    """
    address = _plain(source)
    return min(
        (
            rule
            for rule in policy.rules.values()
            if action in rule.actions and rule.resource.covers(kind, name) and _comes_from(rule, address)
        ),
        key=_precedence,
        default=None,
    )


def _precedence(rule: Rule) -> tuple[bool, bool, int, bool]:
    """Return the sort key of a rule: the rule with the least one decides."""
    resource = rule.resource
    return (
        resource.kind is ResourceKind.ANY,
        resource.is_prefix,
        -len(resource.name),
        rule.decision is Decision.ALLOW,
    )


def _comes_from(rule: Rule, address: SourceAddress | None) -> bool:
    if not rule.sources:
        return True
    if address is None:
        # whoever hides the origin of a call must gain nothing by it
        return rule.decision is Decision.DENY
    return any(address in network for network in rule.sources)


def _plain(address: SourceAddress | None) -> SourceAddress | None:
    """Return IPv4 as such, also where a socket for both kinds reports it as `::ffff:192.0.2.1`."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def parse_source(text: str) -> SourceNetwork:
    """Return a network such as `10.0.0.0/8`, or one address. Raises Invalid."""
    try:
        network = ip_network(text)
    except ValueError as cause:
        raise Invalid(f"source {text!r} is neither an address nor a network: {cause}") from None
    if isinstance(network.network_address, IPv6Address) and network.network_address.ipv4_mapped:
        raise Invalid(f"source {text!r}: write IPv4 addresses as IPv4")
    return network


def checked_rule(rule: Rule) -> Rule:
    """Return the rule, if it may be stored. Raises Invalid that names the field."""
    resource = Resource.parse(str(rule.resource))
    if resource != rule.resource:
        raise Invalid(f"resource {str(rule.resource)!r} does not match its text")
    if len(resource.name) > RESOURCE_NAME_MAX or not resource.name.isprintable():
        raise Invalid(f"resource {resource.name[:60]!r}: at most {RESOURCE_NAME_MAX} printable characters are allowed")
    if not rule.actions:
        raise Invalid(f"rule of {resource}: no actions")
    if len(rule.sources) > SOURCES_MAX:
        raise Invalid(f"rule of {resource}: {len(rule.sources)} sources, at most {SOURCES_MAX} are allowed")
    return replace(rule, sources=tuple(parse_source(str(each)) for each in dict.fromkeys(rule.sources)))


def ordered_rules(policy: Policy) -> Sequence[Rule]:
    """Return the rules ordered by resource, then decision."""
    return sorted(policy.rules.values(), key=lambda rule: (str(rule.resource), rule.decision.value))


def encode_policy(policy: Policy) -> bytes:
    """Return the row of docs/formats/metadata.md §8."""
    return encode_document(
        {
            "rules": [
                {
                    "resource": str(rule.resource),
                    "actions": [action.value for action in Action if action in rule.actions],
                    "decision": rule.decision.value,
                    "sources": [str(each) for each in rule.sources],
                }
                for rule in ordered_rules(policy)
            ]
        }
    )


def decode_policy(user: str, value: bytes) -> Policy:
    """Decode a policy. Raises StoreDamaged."""
    document = Document(POLICIES_FAMILY, user, value)
    try:
        rules = [_rule(part) for part in document.parts("rules")]
    except (ValueError, Invalid) as cause:
        document.damaged(str(cause))
    return Policy(user, MappingProxyType({(rule.resource, rule.decision): rule for rule in rules}))


def _rule(fields: Fields) -> Rule:
    return Rule(
        resource=Resource.parse(fields.text("resource")),
        actions=frozenset(map(Action, fields.text_list("actions"))),
        decision=Decision(fields.text("decision")),
        sources=tuple(map(parse_source, fields.text_list("sources"))),
    )
