"""A shard whose volume is lost comes back from a backup of its own, and its cluster stays as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from tests.conformance.broker import run
from tests.conformance.client import Client, message
from tests.e2e.broker import environment_of, quarry, until
from tests.e2e.conftest import QUICK
from tests.shards.running import Supervisor, ports_of_two_shards

GATHERED = {**QUICK, "cluster.exchange_interval_ms": 200}


@contextmanager
def running(directory: Path, ports: Sequence[int]) -> Iterator[Supervisor]:
    """Two shards on `directory / "store"`; they stop in good order at the end of the block."""
    listen, admin, http = (f"127.0.0.1:{port}" for port in ports)
    arguments = ["quarry_mq.cli.main", "serve", "--shards", "2", "--store", str(directory / "store")]
    arguments += ["--listen", listen, "--admin", admin, "--http", http]
    supervisor = Supervisor(arguments, directory, environment=environment_of(GATHERED))
    try:
        supervisor.until_said("2 shards are ready.")
        yield supervisor
        supervisor.tell(SIGTERM)
        assert supervisor.ended() == 0, supervisor.words()
    finally:
        supervisor.close()


def tell(admin: int, *command: str) -> list[dict[str, Any]]:
    done = quarry(*command, "--json", "--admin", f"127.0.0.1:{admin}")
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def send(port: int, count: int) -> None:
    async def test() -> None:
        async with Client(f"127.0.0.1:{port}") as client:
            for _ in range(count):
                await client.sent(message("orders"))

    run(test())


def topics(admin: int) -> dict[str, int]:
    """Names and numbers of queues."""
    return {each["name"]: each["readQueues"] for each in tell(admin, "topic", "list")}


def messages(admin: int) -> int:
    (shown,) = tell(admin, "topic", "show", "orders")
    return sum(queue["maxOffset"] - queue["minOffset"] for queue in shown["queues"])


def agree(admins: Sequence[int], found: Callable[[int], Any], expected: object) -> None:
    for admin in admins:
        until(lambda: found(admin) == expected, f"{admin} says {expected}")  # noqa: B023 - `until` calls it at once


@pytest.mark.slow
def test_a_shard_that_is_restored_has_its_old_messages_and_the_clusters_new_topics(tmp_path: Path) -> None:
    ports = ports_of_two_shards()
    first, second = ports[1], ports[1] + 100
    with running(tmp_path, ports):
        tell(first, "topic", "create", "orders", "--queues", "4")
        tell(first, "topic", "create", "gone", "--queues", "4")
        agree([second], topics, {"gone": 4, "orders": 4})
        send(ports[0] + 100, 3)
        for name, admin in (("shard-0", first), ("shard-1", second)):
            tell(admin, "backup", str(tmp_path / "backups" / name))
        send(ports[0] + 100, 2)
        tell(second, "topic", "create", "later", "--queues", "2")
        agree([first], topics, {"gone": 4, "later": 2, "orders": 4})
        tell(first, "topic", "update", "orders", "--queues", "16")
        tell(first, "topic", "delete", "--yes", "gone")
        assert messages(second) == 5
        done = quarry("restore", str(tmp_path / "backups" / "shard-1"), str(tmp_path / "restored"))
        assert done.returncode == 0, done.stderr
    lost = tmp_path / "store" / "shard-1"
    shutil.rmtree(lost)
    (tmp_path / "restored").rename(lost)
    with running(tmp_path, ports):
        agree([first, second], topics, {"later": 2, "orders": 16})
        assert messages(second) == 3
        tell(second, "topic", "create", "newest", "--queues", "1")
        agree([first], topics, {"later": 2, "newest": 1, "orders": 16})
