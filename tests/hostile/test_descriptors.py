"""Strangers who open connections and say nothing, at a broker that may have few files open."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from tests.e2e.broker import Broker, environment_of, until
from tests.hostile.caller import Client
from tests.hostile.conftest import SETTINGS

LIMIT = 1_024
CROWD = 1_200
SMALL = {**SETTINGS, "store.segment_size": "2MiB", "limits.body_size": "256KiB", "store.queue_flush_size": "1MiB"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """The soft limit is the shell's usual one; the hard one is all there is."""
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(SMALL))
    broker.launch(under=("sh", "-c", f'ulimit -S -n 256; ulimit -H -n {LIMIT}; exec "$@"', "sh"))
    with closing(broker):
        assert broker.ready_or_ended() is None, broker.words()
        yield broker


def open_files(broker: Broker) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


@pytest.mark.parametrize("port", ["endpoint", "admin", "http"])
def test_idle_connections_take_no_descriptor_from_the_store(broker: Broker, port: str) -> None:
    assert "fewer connections than the settings allow" in broker.words(last=100_000)
    host, _, number = getattr(broker, port).rpartition(":")
    with ExitStack() as crowd, Client(broker.endpoint) as client:
        for sent in range(CROWD):
            with suppress(ConnectionError):
                crowd.enter_context(socket.create_connection((host, int(number)), timeout=10))
            if sent % 4 == 0:
                client.send("orders", f"m{sent:05d}", 20_000)
        until(lambda: open_files(broker) < LIMIT * 15 // 16, "connections that are too many leave")
        for sent in range(100):
            client.send("orders", f"n{sent:05d}", 20_000)
        got: set[str] = set()
        while received := client.receive("workers", "orders", polling_s=0.1, invisible_s=30):
            got.update(received)
        assert len(got) == CROWD // 4 + 100
    until(lambda: broker.get("/readyz") == (200, "ready\n"), "the broker is as before")
    assert "poisoned" not in broker.words(last=100_000)
    assert "Too many open files" not in broker.words(last=100_000)
    broker.stop()


def test_too_few_descriptors_are_refused_by_name(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs")
    broker.launch(under=("sh", "-c", 'ulimit -n 256; exec "$@"', "sh"))
    with closing(broker):
        assert broker.ready_or_ended() == 2
        assert "this process may open 256 files" in broker.words()
        assert not (tmp_path / "store").exists()
