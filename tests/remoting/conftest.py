"""Fixtures of the remoting tests: a whole broker that serves the protocol, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

import pytest

from quarry_mq.server.front.remoting import RemotingFront
from tests.conformance.broker import RunningBroker, run, running_broker
from tests.e2e.conftest import start_broker, start_clients
from tests.remoting.client import RemotingClient

__all__ = ["start_broker", "start_clients"]

REMOTING: Mapping[str, object] = {"listen": "127.0.0.1:0", "names_listen": "127.0.0.1:0"}

RemotingTest = Callable[[RunningBroker, RemotingClient], Coroutine[object, object, None]]
Serve = Callable[..., None]


def address_of(broker: RunningBroker, name: str = "listen") -> str:
    """Return the address where the broker listens for the protocol."""
    address: str = broker.broker._remoting.listening[name]
    return address


def front_of(broker: RunningBroker) -> RemotingFront:
    """The front that serves the protocol."""
    front = broker.broker._remoting._front
    assert front is not None
    return front


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """`serve(test, delivery={…})` runs `test(broker, client)`."""

    def start(test: RemotingTest, **changes: Mapping[str, object]) -> None:
        async def whole() -> None:
            remoting = {**REMOTING, **changes.pop("remoting", {})}
            async with running_broker(tmp_path, monkeypatch, remoting=remoting, **changes) as broker:
                client = await RemotingClient.connect(address_of(broker))
                try:
                    await test(broker, client)
                finally:
                    await client.close()

        run(whole())

    return start
