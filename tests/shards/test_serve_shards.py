"""`quarry serve --shards 2`, with brokers as users get them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from tests.conformance.broker import run
from tests.conformance.client import Client, message
from tests.e2e.broker import environment_of, quarry, until
from tests.e2e.conftest import QUICK
from tests.shards.running import Supervisor, flags, is_running, kill, ports_of_two_shards, reachable


@pytest.fixture
def ports() -> list[int]:
    return ports_of_two_shards()


@pytest.fixture
def shards(tmp_path: Path, ports: Sequence[int]) -> Iterator[Supervisor]:
    """Two brokers that are ready, on `tmp_path / "store"`."""
    arguments = ["quarry_mq.cli.main", "serve", "--shards", "2", *flags(tmp_path / "store", ports)]
    supervisor = Supervisor(arguments, tmp_path, environment=environment_of(QUICK))
    try:
        supervisor.until_said("2 shards are ready.")
        yield supervisor
    finally:
        supervisor.close()


def send(port: int) -> None:
    async def test() -> None:
        async with Client(f"127.0.0.1:{port}") as client:
            await client.sent(message("orders"))

    run(test())


def aborts(store: Path) -> list[str]:
    """The shards that have not stopped in good order."""
    return [path.parent.name for path in store.glob("shard-*/abort")]


def test_each_shard_is_a_broker_a_killed_one_comes_back_and_all_stop_well(
    shards: Supervisor, tmp_path: Path, ports: Sequence[int]
) -> None:
    store = tmp_path / "store"
    assert sorted(os.listdir(store)) == ["cluster.key", "shard-0", "shard-1"]
    for port in (ports[0], ports[0] + 100):
        send(port)
    for admin in (ports[1], ports[1] + 100):
        until(lambda: reachable(admin) == ["quarry-0", "quarry-1"], "they are one cluster")  # noqa: B023 - `until` calls it at once
    killed = shards.process_of("shard-1")
    kill(killed)
    shards.until_said("shard-1 | Quarry is ready.", times=2)
    assert shards.process_of("shard-1") != killed
    send(ports[0] + 100)
    (event,) = shards.events("a shard has ended, it is started again")
    assert (event["shard"], event["signal"]) == ("shard-1", "SIGKILL")

    shards.tell(SIGTERM)
    assert shards.ended() == 0, shards.words()
    assert aborts(store) == []
    shown = quarry("decode", str(store / "shard-1"), "--json").stdout.splitlines()
    assert len(shown) == 2
    refused = quarry("serve", "--shards", "1", *flags(store, ports))
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"{store}: --shards 1 would leave out shard-1")


def test_brokers_stop_well_when_the_supervisor_is_killed(shards: Supervisor, tmp_path: Path) -> None:
    processes = [shards.process_of(f"shard-{number}") for number in (0, 1)]
    assert sorted(aborts(tmp_path / "store")) == ["shard-0", "shard-1"]
    shards.tell(SIGKILL)
    shards.ended()
    until(lambda: not any(map(is_running, processes)), "the end of both brokers")
    assert aborts(tmp_path / "store") == []
