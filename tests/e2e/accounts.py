"""Users in a store that no broker runs on yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.security.model import Action, Resource, Rule, Secret, User, UserKind
from quarry_mq.store.security.sealer import Sealer, new_key
from quarry_mq.store.settings import Durability, StoreSettings
from tests.e2e.clients import Login

SEGMENT_SIZE: Final = 16 * 1024 * 1024
WRONG_SECRET: Final = "not-the-secret-0001"


@dataclass(frozen=True, slots=True)
class Accounts:
    """`settings` are the broker's, so that it asks who calls and what they may do."""

    settings: dict[str, object]
    shop: Login
    """May send to and receive from topics `acme-…`, as groups `billing…`."""

    stranger: Login
    """A user without any rule."""


def make_accounts(store: Path, *, operator: str | None = None, administrator: Login | None = None) -> Accounts:
    """Make the store with two users, and with super users: for `operator` stands a certificate of this subject."""
    key = new_key()
    shop, stranger = Login("shop", "secret-of-the-shop"), Login("stranger", "secret-of-the-stranger")
    opened = open_store(
        StoreSettings(root=store, durability=Durability.SYNC, segment_size=SEGMENT_SIZE),
        disk=PosixDisk(),
        clock=SystemClock(),
        report=lambda _: None,
        sealer=Sealer([key]),
    )
    try:
        for login in (shop, stranger):
            opened.users.create(User(name=login.user, secrets=(Secret(1, login.secret, 0),), next_secret_number=2))
        if operator is not None:
            opened.users.create(User(name="operator", kind=UserKind.SUPER, certificates=(operator,)))
        if administrator is not None:
            secrets = (Secret(1, administrator.secret, 0),)
            opened.users.create(User(name=administrator.user, kind=UserKind.SUPER, secrets=secrets))
        for resource, actions in (("topic:acme-*", {Action.PUB, Action.SUB}), ("group:billing*", {Action.SUB})):
            opened.policies.put_rule(shop.user, Rule(resource=Resource.parse(resource), actions=frozenset(actions)))
    finally:
        opened.close()
    settings = {
        "security.authentication": True,
        "security.authorization": True,
        "security.key": key.decode(),
    }
    return Accounts(settings, shop, stranger)
