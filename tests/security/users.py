"""Users and rules in memory, with nothing behind them."""

from __future__ import annotations

from dataclasses import replace

from quarry_mq.store.security.model import Action, Decision, Policy, Resource, Rule, Secret, User, UserKind

SECRET = "correct-horse-battery"


def user(name: str, *secrets: str, kind: UserKind = UserKind.NORMAL, certificates: tuple[str, ...] = ()) -> User:
    texts = secrets or (SECRET,)
    live = tuple(Secret(number, text, 0) for number, text in enumerate(texts, start=1))
    return User(name=name, kind=kind, secrets=live, certificates=certificates)


def rule(resource: str, *actions: Action, decision: Decision = Decision.ALLOW) -> Rule:
    return Rule(resource=Resource.parse(resource), actions=frozenset(actions), decision=decision)


class MemoryUsers:
    """Implements `server.security.credentials.Users`."""

    def __init__(self, *users: User) -> None:
        self._users = {each.name: each for each in users}
        self.generation = 0
        self.asked = 0

    def get(self, name: str) -> User | None:
        self.asked += 1
        return self._users.get(name)

    def by_certificate(self, subject: str) -> User | None:
        return next((each for each in self._users.values() if subject in each.certificates), None)

    def put(self, changed: User) -> None:
        self._users[changed.name] = changed
        self.generation += 1

    def disable(self, name: str) -> None:
        self.put(replace(self._users[name], enabled=False))


class MemoryPolicies:
    """Implements `server.security.credentials.Policies`."""

    def __init__(self) -> None:
        self._policies: dict[str, Policy] = {}
        self.generation = 0

    def get(self, user: str) -> Policy:
        return self._policies.get(user, Policy(user))

    def set(self, user: str, *rules: Rule) -> None:
        self._policies[user] = Policy(user, {(each.resource, each.decision): each for each in rules})
        self.generation += 1


class Counted:
    """Implements the metrics of authentication and authorization."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.decisions: list[tuple[str, bool]] = []

    def authenticated(self, outcome: object, seconds: float) -> None:
        self.outcomes.append(getattr(outcome, "value", ""))

    def remembered(self) -> None:
        self.outcomes.append("remembered")

    def decided(self, decision: Decision, *, cached: bool) -> None:
        self.decisions.append((decision.value, cached))
