"""A broker that asks who calls, and clients that say so."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Final

from cryptography.fernet import Fernet

from quarry_mq.protocol.signature import signed_messaging_headers
from quarry_mq.store.security.model import Action, Decision, Resource, Rule, User, UserKind
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client

SECRET: Final = "correct-horse-battery"

SECURED: Final[Mapping[str, object]] = {
    "authentication": True,
    "authorization": True,
    "key": Fernet.generate_key().decode(),
}
"""The section `security` of the settings."""


def add_user(broker: RunningBroker, name: str, *rules: str, kind: UserKind = UserKind.NORMAL) -> str:
    """A user with SECRET, and rules as `topic:orders pub sub`."""
    users = broker.store.users
    users.create(User(name=name, kind=kind))
    users.add_secret(name, SECRET, broker.clock.wall_ms())
    for text in rules:
        allow(broker, name, text)
    return name


def allow(
    broker: RunningBroker, name: str, text: str, decision: Decision = Decision.ALLOW, *, source: str | None = None
) -> None:
    resource, *actions = text.split()
    rule = Rule(
        resource=Resource.parse(resource),
        actions=frozenset(map(Action, actions)),
        decision=decision,
        sources=() if source is None else (ip_network(source),),
    )
    broker.store.policies.put_rule(name, rule)


def disable(broker: RunningBroker, name: str) -> None:
    user = broker.store.users.get_sealed(name)
    assert user is not None
    broker.store.users.update(User(name=user.name, kind=user.kind, enabled=False, certificates=user.certificates))


def client_of(
    broker: RunningBroker, user: str, client_id: str | None = "", *, secret: str = SECRET, off_s: float = 0
) -> Client:
    """A client that signs its calls with a date that is `off_s` off."""
    now_ms = broker.clock.wall_ms() + int(off_s * 1000)
    return Client(broker.endpoint, client_id, headers=signed_messaging_headers(user, secret, now_ms=now_ms))
