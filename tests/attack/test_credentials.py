"""Every call with credentials that are none, wrong, stale or of somebody else: nobody gets in, and nothing stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from bench.raw_client import RawClient
from tests.attack.conftest import SETTINGS, Footprint, started
from tests.attack.flooder import WRONG_SECRETS
from tests.attack.good_client import GoodClient
from tests.attack.test_floods import attack as flood
from tests.attack.test_malformed import FEW, GROWTH_KIB, STORED_KIB, attack
from tests.attack.wire import Headers, block, call, signed
from tests.e2e.accounts import WRONG_SECRET, Accounts, make_accounts
from tests.e2e.broker import Broker
from tests.hostile.caller import METHODS
from tests.hostile.test_requests import good_request

HOUR_S: Final = 3600.0
MANY: Final = 10_000

WHO: Final[dict[str, Callable[[Accounts], Headers]]] = {
    "nobody": lambda _: (),
    "garbage": lambda _: ((b"authorization", b"MQv2-HMAC-SHA1 Credential"), (b"x-mq-date-time", b"now")),
    "an unknown user": lambda _: signed("nobody-knows", WRONG_SECRET),
    "a wrong secret": lambda accounts: signed(accounts.shop.user, WRONG_SECRET),
    "a stale date": lambda accounts: signed(accounts.shop.user, accounts.shop.secret, off_s=-HOUR_S / 2),
    "a user without rules": lambda accounts: signed(accounts.stranger.user, accounts.stranger.secret),
    "a user without rules for this": lambda accounts: signed(accounts.shop.user, accounts.shop.secret),
}
"""What a caller says to be. The topics and groups of the requests are nobody's."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Accounts]]:
    """A broker that asks who calls and what they may do."""
    root = tmp_path_factory.mktemp("guarded")
    accounts = make_accounts(root / "store")
    broker = started(root, {**SETTINGS, **accounts.settings})
    try:
        yield broker, accounts
        client = GoodClient(broker.endpoint, "acme-orders", signed(*login(accounts)))
        assert client.send(0.5).per_second > 0
        client.close()
        broker.stop()
    finally:
        broker.close()


def login(accounts: Accounts) -> tuple[str, str]:
    return accounts.shop.user, accounts.shop.secret


def stats(broker: Broker, pattern: str) -> float:
    """The sum of all samples whose name and labels are like this."""
    lines = broker.get("/metrics")[1].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(pattern, line))


def assert_nobody_got_in(broker: Broker) -> None:
    """Nothing was allowed, so nothing was stored, and nothing came into being by being named."""
    assert stats(broker, r'quarry_authorizations_total\{.*decision="allow"') == 0
    assert stats(broker, "quarry_messages_stored_total ") == 0
    assert stats(broker, "quarry_clients ") == 0
    broker.assert_no_stack_trace()


@pytest.mark.parametrize("who", WHO)
def test_no_call_lets_in_who_may_not(guarded: tuple[Broker, Accounts], who: str) -> None:
    """Good requests first, then malformed ones, of each call."""
    broker, accounts = guarded
    said = WHO[who](accounts)
    before = Footprint.of(broker)
    client = RawClient(broker.endpoint, 1)
    try:
        (connection,) = client.connections
        for number, method in enumerate(METHODS):
            client.send(connection, call(number, block(method, *said), good_request(method).SerializeToString()))
        client.read_until(lambda: connection.ended >= len(METHODS))
    finally:
        client.close()
    for method in METHODS:
        attack(broker, method, FEW // 7, seed=7, who=said)
    assert_nobody_got_in(broker)
    Footprint.of(broker).assert_kept(before, growth_kib=GROWTH_KIB)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("who", WHO)
def test_tens_of_thousands_of_tries_at_each_call_let_nobody_in(guarded: tuple[Broker, Accounts], who: str) -> None:
    broker, accounts = guarded
    said = WHO[who](accounts)
    for method in METHODS:
        attack(broker, method, MANY // 10, seed=8, who=said)
    before = Footprint.of(broker)
    for method in METHODS:
        attack(broker, method, MANY, seed=9, who=said)
    print(who, before, Footprint.of(broker))
    assert_nobody_got_in(broker)
    Footprint.of(broker).assert_kept(before, growth_kib=STORED_KIB)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("connections", [1, 50])
def test_who_guesses_secrets_does_not_slow_down_who_has_one(
    connections: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("guessed")
    accounts = make_accounts(root / "store")
    broker = started(root, {**SETTINGS, **accounts.settings})
    try:
        flood(broker, WRONG_SECRETS, connections, 5, who=signed(*login(accounts)))
        broker.stop()
    finally:
        broker.close()
