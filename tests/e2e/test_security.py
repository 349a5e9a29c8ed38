"""Official clients with TLS, as a user, and both; what they see of a wrong secret and of a missing right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import make_tls
from tests.e2e.accounts import WRONG_SECRET, Accounts, make_accounts
from tests.e2e.clients import ClientError, Clients, Login, Outgoing, content_of
from tests.e2e.conftest import StartBroker, StartClients

TOPIC = "acme-orders"
UNAUTHORIZED = 40100

slow = pytest.mark.slow
LANGUAGES = ["python", *(pytest.param(each, marks=slow) for each in ("node", "java", "go", "rust"))]
ACCESS = [
    pytest.param((True, False), id="tls", marks=slow),
    pytest.param((False, True), id="user", marks=slow),
    pytest.param((True, True), id="tls-and-user"),
]
Connect = Callable[..., Clients]


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    return make_accounts(tmp_path / "store")


@pytest.fixture
def secured(
    language: str, accounts: Accounts, start_broker: StartBroker, start_clients: StartClients, tmp_path: Path
) -> Connect:
    """`secured(login)` starts clients of a user on a broker that wants TLS and a signature."""
    tls = make_tls(tmp_path)
    broker = start_broker(settings={**accounts.settings, **tls.settings()})
    return lambda login: start_clients(language, broker.endpoint, tls_authority=tls.authority_path, login=login)


@pytest.fixture(params=ACCESS)
def clients(
    request: pytest.FixtureRequest,
    language: str,
    accounts: Accounts,
    start_broker: StartBroker,
    start_clients: StartClients,
    tmp_path: Path,
) -> Clients:
    with_tls, with_user = request.param
    tls = make_tls(tmp_path)
    settings: dict[str, object] = dict(accounts.settings) if with_user else {}
    if with_tls:
        settings |= tls.settings()
    broker = start_broker(settings=settings)
    return start_clients(
        language,
        broker.endpoint,
        tls_authority=tls.authority_path if with_tls else None,
        login=accounts.shop if with_user else None,
    )


def test_a_client_sends_receives_and_acknowledges(clients: Clients) -> None:
    """POP consumption under access control: rmq#9518, #9862."""
    sent = [Outgoing(TOPIC, b"order %d" % number, tag="created") for number in range(8)]
    clients.producer(TOPIC).send(sent)
    consumer = clients.simple_consumer(TOPIC, group="billing", await_s=1)

    deliveries = consumer.receive_until(len(sent))
    consumer.ack(deliveries)

    assert sorted(each.content() for each in deliveries) == sorted(content_of(each) for each in sent)
    assert consumer.receive() == []


def test_a_wrong_secret_is_refused_as_unauthorized(secured: Connect, accounts: Accounts) -> None:
    refused_as_unauthorized(secured(Login(accounts.shop.user, WRONG_SECRET)))


def test_a_user_without_a_rule_is_refused_as_unauthorized(secured: Connect, accounts: Accounts) -> None:
    refused_as_unauthorized(secured(accounts.stranger))


@slow
def test_a_client_in_another_zone_is_a_user_once_the_broker_knows_the_zone(
    language: str,
    accounts: Accounts,
    start_broker: StartBroker,
    start_clients: StartClients,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Libraries write the local time with a `Z` behind it; those for Node.js and Rust say what time it is."""
    broker = start_broker(settings={**accounts.settings, "security.client_zones": '["Asia/Kathmandu"]'})
    monkeypatch.setenv("TZ", "Asia/Kathmandu")  # five hours and three quarters ahead
    start_clients(language, broker.endpoint, login=accounts.shop).producer(TOPIC).send([Outgoing(TOPIC, b"known")])
    monkeypatch.setenv("TZ", "America/St_Johns")
    clients = start_clients(language, broker.endpoint, login=accounts.shop)
    if language in {"node", "rust"}:
        clients.producer(TOPIC).send([Outgoing(TOPIC, b"no matter where")])
    else:
        refused_as_unauthorized(clients)


def refused_as_unauthorized(clients: Clients) -> None:
    """Libraries differ in when they say so: most end the start-up of their program, with their reason on its errors."""
    with pytest.raises((ClientError, AssertionError)) as refusal:
        clients.producer(TOPIC).send([Outgoing(TOPIC, b"never stored")])
    # the Python client raises that it has no route, and keeps the reason to its log
    told = str(refusal.value) + clients.logged()
    assert str(UNAUTHORIZED) in told or "UNAUTHORIZED" in told, told
