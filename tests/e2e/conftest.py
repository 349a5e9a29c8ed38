"""Fixtures of the end-to-end tests: a broker in a process of its own, clients of every language."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e import languages
from tests.e2e.broker import Broker, environment_of
from tests.e2e.clients import Clients, Login
from tests.e2e.members import ClusterOfBrokers

StartBroker = Callable[..., Broker]
StartClients = Callable[..., Clients]

QUICK: Mapping[str, object] = {
    "store.segment_size": 16 * 1024 * 1024,  # no gigabyte is preallocated for a few messages
    "delivery.polling_min_ms": 100,  # a receive that finds nothing returns after the time the client asked for
    "delivery.polling_max_ms": 4000,  # a push consumer of Node.js ends only when its last receive does
}
"""Settings that make test brokers quick; all others are the defaults that users get."""

USERS_POLLING: Mapping[str, object] = {"delivery.polling_min_ms": 5000, "delivery.polling_max_ms": 20_000}
"""The defaults, in place of the quick times."""


TIMEOUT_S = 400
"""Seconds that no successful test needs, even beside other tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    """To be given members; all are ended with the test."""
    made = ClusterOfBrokers(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Return what starts a broker: `start_broker(store=…, settings={…})` runs, and waits if it is `after_cut_over`."""
    brokers: list[Broker] = []

    def start(
        *,
        store: Path | None = None,
        settings: Mapping[str, object] | None = None,
        keeps_listening: bool = False,
        after_cut_over: bool = False,
    ) -> Broker:
        broker = Broker(
            store or tmp_path / "store",
            logs=tmp_path / f"broker-{len(brokers)}",
            environment=environment_of({**QUICK, **(settings or {})}),
        )
        if keeps_listening:
            broker.keep_listening()
        brokers.append(broker)
        if after_cut_over:
            broker.options = ("--after-cut-over",)
            broker.launch()
            return broker
        return broker.start()

    yield start
    for broker in brokers:
        broker.close()


@pytest.fixture
def broker(start_broker: StartBroker) -> Broker:
    """A running broker on an empty store."""
    return start_broker()


@pytest.fixture
def start_clients(tmp_path: Path) -> Iterator[StartClients]:
    """`start_clients("python", broker.endpoint)` starts clients; all are closed with the test."""
    opened: list[Clients] = []

    def start(
        language: str, endpoint: str, *, tls_authority: Path | None = None, login: Login | None = None
    ) -> Clients:
        home = tmp_path / f"home-{len(opened)}"
        clients = Clients(languages.LANGUAGES[language](), endpoint, home, tls_authority=tls_authority, login=login)
        opened.append(clients)
        return clients

    yield start
    for clients in opened:
        clients.close()
