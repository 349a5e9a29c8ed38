"""Decide whether a caller may make a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from quarry_mq.server.errors import PermissionDenied
from quarry_mq.server.security.credentials import NAME_SHOWN_MAX, Access, Identity, Policies, Source, Users
from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.security.model import Action, Decision, Policy, ResourceKind, UserKind

DECISIONS_MAX: Final = 16_384
"""Decisions kept in each of two generations."""

INTERNAL_PREFIXES: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
"""Prefixes of topics that only the broker writes, whatever a rule for all topics says."""

ADMINISTRATION: Final = frozenset(Action) - {Action.SUB}
"""Actions that calls of the admin port need: messages can be sent there, too, but not received."""

Need = tuple[Access, ...]
"""Accesses any of which is enough to meet one need of a call. An empty need is met by super users alone."""

SUPER_USERS_ONLY: Final[tuple[Need, ...]] = ((),)
"""Needs of a call that is in no table."""

Decide = Callable[[Policy, ResourceKind, str, Action, Source], Decision]
"""Type of `store.security.policies.decide`."""


class AuthorizationMetrics(Protocol):
    def decided(self, decision: Decision, *, cached: bool) -> None: ...


class _Question(NamedTuple):
    user: str
    access: Access
    source: Source


class Authorizer:
    """Decide by users and rules, and remember decisions until a user or a rule changes."""

    def __init__(
        self,
        users: Users,
        policies: Policies,
        decide: Decide,
        *,
        retry_owners: Callable[[str], Sequence[tuple[str, str | None]]],
        metrics: AuthorizationMetrics,
    ) -> None:
        """`retry_owners` returns the groups that a retry topic's name may belong to, each with its topic, if any."""
        self._retry_owners = retry_owners
        self._users = users
        self._policies = policies
        self._decide = decide
        self._metrics = metrics
        self._generation = self.generation
        self._known: LruCache[_Question, Decision] = LruCache(DECISIONS_MAX)

    @property
    def generation(self) -> tuple[int, int]:
        """Return a value that differs after each change of a user or a rule."""
        return self._users.generation, self._policies.generation

    def require(self, identity: Identity, source: Source, needs: Iterable[Need]) -> None:
        """Raise PermissionDenied, which names the missing right, unless all needs are met."""
        for need in needs:
            if not self._meets(identity.user, source, need):
                raise PermissionDenied(_denial(identity.user, need))

    def administers(self, name: str) -> bool:
        """Return whether there is anything that the user may do on the admin port."""
        user = self._users.get(name)
        if user is None or not user.enabled:
            return False
        rules = self._policies.get(name).rules.values()
        return user.kind is UserKind.SUPER or any(
            rule.decision is Decision.ALLOW and not rule.actions.isdisjoint(ADMINISTRATION) for rule in rules
        )

    def _meets(self, user: str, source: Source, need: Need) -> bool:
        if need:
            return any(self._allows_all(user, source, self._needed_accesses(access)) for access in need)
        found = self._users.get(user)
        return found is not None and found.enabled and found.kind is UserKind.SUPER

    def _needed_accesses(self, access: Access) -> Sequence[Access]:
        """Return the accesses to check: to read a retry topic is to read messages of its topic as its group."""
        kind, name, action = access
        if not (kind is ResourceKind.TOPIC and action is Action.SUB and name.startswith(RETRY_PREFIX)):
            return (access,)
        accesses = []
        for group, topic in self._retry_owners(name):
            accesses.append(Access(ResourceKind.GROUP, group, action))
            if topic is not None:
                accesses.append(Access(ResourceKind.TOPIC, topic, action))
        return accesses

    def _allows_all(self, user: str, source: Source, accesses: Sequence[Access]) -> bool:
        return all(self._allows(_Question(user, access, source)) for access in accesses)

    def _allows(self, question: _Question) -> bool:
        if self._generation != self.generation:
            self._generation = self.generation
            self._known = LruCache(DECISIONS_MAX)
        known = self._known.get(question)
        decision = self._decision(question) if known is None else known
        self._metrics.decided(decision, cached=known is not None)
        if known is None and len(question.access.name) <= NAME_SHOWN_MAX:
            if self._known.is_full:
                self._known.rotate()
            self._known.put(question, decision)
        return decision is Decision.ALLOW

    def _decision(self, question: _Question) -> Decision:
        name, (kind, resource, action), source = question
        user = self._users.get(name)
        if user is None or not user.enabled:
            return Decision.DENY
        if user.kind is UserKind.SUPER:
            return Decision.ALLOW
        if kind is ResourceKind.TOPIC and action is Action.PUB and resource.startswith(INTERNAL_PREFIXES):
            return Decision.DENY
        return self._decide(self._policies.get(name), kind, resource, action, source)


def _denial(user: str, need: Need) -> str:
    if not need:
        return f"user {user} may not do this: only super users may"
    return f"user {user} may not {' or '.join(map(str, need))}"
