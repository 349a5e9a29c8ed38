"""Topics, groups, users and rules are changed on members at random while members are killed: all agree in the end.

`E2E_METADATA_CHANGES` is how many changes, `E2E_SEED` which; what was counted is in `figures.json`.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from quarry_mq.store.security.sealer import new_key
from tests.e2e.broker import Broker
from tests.e2e.member_changes import Changes, MemberAdmin, Thing, number_of
from tests.e2e.members import ClusterOfBrokers, reachable

CHANGES: Final = int(os.environ.get("E2E_METADATA_CHANGES", "1000"))
MEMBERS: Final = 4
KINDS: Final = ("topic", "group", "user", "rule")
NAMES_PER_MEMBER: Final = 6
"""Of each kind, changed on this member only."""
SHARED_NAMES: Final = 8
"""Of each kind, changed on any."""
TWO_AT_ONCE: Final = 0.15
REMOVALS: Final = 0.25
LAST_CHANGES: Final = 50
"""Without a pause, when all members are there: what they still have to tell each other when it is looked at."""
PAUSE_S: Final = 0.02
EXCHANGE_INTERVAL_S: Final = 1.0
"""The default, which users get."""
AGREED_WITHIN_S: Final = EXCHANGE_INTERVAL_S + 5.0

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    key = tmp_path / "security.key"
    key.write_bytes(new_key())
    key.chmod(0o600)
    settings = {"security.key_file": key, "cluster.exchange_interval_ms": round(EXCHANGE_INTERVAL_S * 1000)}
    made = ClusterOfBrokers(tmp_path, settings=settings)
    try:
        yield made
    finally:
        made.close()


class Deaths:
    """One member after the other is killed and comes back, on a thread of its own."""

    def __init__(self, cluster: ClusterOfBrokers, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._kill)
        self._away: Broker | None = None
        self.count = 0
        self.failure: BaseException | None = None
        self._thread.start()

    def running(self) -> list[Broker]:
        """Members that are there, as far as anybody knows."""
        away = self._away
        return [broker for broker in self._cluster.brokers if broker is not away]

    def stop(self) -> None:
        """All are there then."""
        self._stop.set()
        self._thread.join(120)

    def _kill(self) -> None:
        try:
            while not self._stop.wait(self._chance.uniform(0.5, 2.0)):
                broker = self._chance.choice(self._cluster.brokers)
                broker.kill()
                self.count += 1
                self._away = broker  # told late, so that changes are made on one that dies
                self._stop.wait(self._chance.uniform(0.0, 3.0))
                self._cluster.start(broker)
                self._away = None
        except BaseException as error:  # the thread of the test tells it
            self.failure = error


class Changing:
    """Makes the changes, one after the other or two at once."""

    def __init__(self, cluster: ClusterOfBrokers, chance: random.Random) -> None:
        self._chance = chance
        self._number = 0
        self.admins = {broker.store.name: MemberAdmin(broker.admin) for broker in cluster.brokers}
        self.changes = Changes()
        self.two_at_once = 0

    def close(self) -> None:
        for admin in self.admins.values():
            admin.close()

    def make_users(self) -> None:
        """Whose rules are changed; they stay."""
        first = next(iter(self.admins.values()))
        own = [f"{member}-{each}" for member in self.admins for each in range(NAMES_PER_MEMBER)]
        for name in (*own, *(f"shared-{each}" for each in range(SHARED_NAMES))):
            first.create_user(rule_name(name))

    def one(self, running: list[Broker]) -> None:
        kind, member = self._chance.choice(KINDS), self._chance.choice(running).store.name
        if self._chance.random() < 0.5:
            name = f"{member}-{self._chance.randrange(NAMES_PER_MEMBER)}"
        else:
            name = f"shared-{self._chance.randrange(SHARED_NAMES)}"
        self.changes.make(member, self.admins[member], thing_of(kind, name), self._value())

    def two(self, running: list[Broker], threads: ThreadPoolExecutor) -> None:
        """The same thing is changed on two members at once."""
        thing = thing_of(self._chance.choice(KINDS), f"shared-{self._chance.randrange(SHARED_NAMES)}")
        members = [broker.store.name for broker in self._chance.sample(running, 2)]
        made = [
            threads.submit(self.changes.make, member, self.admins[member], thing, self._value()) for member in members
        ]
        for each in made:
            each.result()
        self.two_at_once += 1

    def _value(self) -> int | None:
        self._number += 1
        return None if self._chance.random() < REMOVALS else self._number


def thing_of(kind: str, name: str) -> Thing:
    return Thing(kind, rule_name(name) if kind == "rule" else name)


def rule_name(name: str) -> str:
    """Of the user whose rule is changed."""
    return f"ruled-{name}"


def until_agreed(admins: dict[str, MemberAdmin]) -> tuple[float, dict[Thing, bytes]]:
    """How long it took until all members said the same, and what that is. Fails with what differs."""
    began_s = time.monotonic()
    while True:
        found = {member: admin.found() for member, admin in admins.items()}
        first = next(iter(found.values()))
        things = sorted(set().union(*found.values()))
        differing = [thing for thing in things if len({each.get(thing) for each in found.values()}) > 1]
        took_s = time.monotonic() - began_s
        if not differing:
            return took_s, first
        shown = {thing: [number_of(thing, each.get(thing)) for each in found.values()] for thing in differing[:5]}
        assert took_s < AGREED_WITHIN_S, f"after {took_s:.1f} s members differ in {len(differing)}: {shown}"
        time.sleep(0.05)


def conflicts_told(cluster: ClusterOfBrokers) -> int:
    return sum(
        broker.words(last=1 << 30).count("a change was overwritten by a later one") for broker in cluster.brokers
    )


@pytest.mark.timeout(900)
def test_members_agree_on_all_changes_whoever_died_meanwhile(cluster: ClusterOfBrokers, tmp_path: Path) -> None:
    seed = int(os.environ.get("E2E_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"E2E_SEED={seed}")
    chance = random.Random(seed)
    for _ in range(MEMBERS):
        cluster.add()
    cluster.agree(reachable, [broker.store.name for broker in cluster.brokers])
    changing = Changing(cluster, chance)
    try:
        changing.make_users()
        until_agreed(changing.admins)
        deaths = Deaths(cluster, random.Random(seed + 1))
        try:
            change(changing, deaths.running, chance)
        finally:
            deaths.stop()
        assert deaths.failure is None, deaths.failure
        for _ in range(LAST_CHANGES):
            changing.one(cluster.brokers)
        took_s, agreed = until_agreed(changing.admins)
        time.sleep(2 * EXCHANGE_INTERVAL_S)
        _, later = until_agreed(changing.admins)
    finally:
        changing.close()
    assert later == agreed, "what all had agreed on has changed"
    changes = changing.changes
    stats: dict[str, Any] = {
        "seed": seed,
        "changes": changes.outcomes,
        "two_at_once": changing.two_at_once,
        "kills": deaths.count,
        "things": len(changes.things),
        "determined": changes.determined,
        "conflicts_told": conflicts_told(cluster),
        "agreed_s": round(took_s, 2),
    }
    print(json.dumps(stats))
    (tmp_path / "figures.json").write_text(json.dumps(stats))
    for thing in changes.things:
        assert number_of(thing, agreed.get(thing)) in changes.possible(thing), (
            f"{thing} is {number_of(thing, agreed.get(thing))} and may be {changes.possible(thing)}; {stats}"
        )


def change(changing: Changing, running: Callable[[], list[Broker]], chance: random.Random) -> None:
    with ThreadPoolExecutor(2) as threads:
        while sum(changing.changes.outcomes.values()) < CHANGES:
            if chance.random() < TWO_AT_ONCE:
                changing.two(running(), threads)
            else:
                changing.one(running())
            time.sleep(PAUSE_S)
