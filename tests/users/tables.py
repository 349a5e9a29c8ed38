"""Tables of users on a real database, and what the tests put there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quarry_mq.kv import KeyValueEngine
from quarry_mq.store.security.model import Action, Decision, Resource, Rule, Secret, User
from quarry_mq.store.security.policies import PolicyTable, parse_source
from quarry_mq.store.security.sealer import Sealer
from quarry_mq.store.security.users import UserTable
from quarry_mq.store.state.identity import open_state_engine

FIRST_KEY = b"MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA="
SECOND_KEY = b"MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE="
SECRET = "correct-horse-battery"


class Tables:
    """Both tables over one engine."""

    def __init__(self, engine: KeyValueEngine, *keys: bytes) -> None:
        self.policies = PolicyTable(engine)
        self.users = UserTable(engine, Sealer(keys) if keys else None, self.policies)


@contextmanager
def tables_in(directory: Path, *keys: bytes) -> Iterator[Tables]:
    engine = open_state_engine(directory, create=not directory.exists())
    try:
        yield Tables(engine, *keys)
    finally:
        engine.close()


def orders(text: str = SECRET) -> User:
    return User(name="orders", secrets=(Secret(1, text, 1_000),), created_at_ms=1_000)


def rule(resource: str, *actions: Action, decision: Decision = Decision.ALLOW, sources: tuple[str, ...] = ()) -> Rule:
    return Rule(
        resource=Resource.parse(resource),
        actions=frozenset(actions or Action),
        decision=decision,
        sources=tuple(map(parse_source, sources)),
    )
