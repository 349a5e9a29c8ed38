"""A thousand waiting and two hundred working clients on one broker: no error, no loss, bounded memory.

rmq#9581 (waiting polls fill a map), rmq#9035 (a thread per client), rmq#7948 (unbounded requests).
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from tests.e2e.broker import PROJECT
from tests.e2e.clients import ClientProcess
from tests.e2e.conftest import USERS_POLLING, StartBroker

IDLE = 1000
BUSY = 200
SECONDS = 30
MEMORY_MAX_KIB = 400 * 1024
GROWTH_PER_CLIENT_MAX_KIB = 150

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_a_thousand_long_polls_and_two_hundred_busy_clients(tmp_path: Path, start_broker: StartBroker) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * (IDLE + BUSY):
        pytest.skip("needs 2,400 open files (ulimit -n)")
    broker = start_broker(settings=USERS_POLLING)
    before_kib = broker.resident_kib()
    options = ["--idle", IDLE, "--busy", BUSY, "--seconds", SECONDS]
    command = [sys.executable, "-m", "tests.e2e.load.many_clients", "--endpoint", broker.endpoint]
    load = ClientProcess([*command, *map(str, options)], directory=PROJECT, home=tmp_path / "home")
    try:
        waiting_kib = broker.resident_kib()
        load.say("go on")
        stats = load.next_line(SECONDS + 120)
        busy_kib = broker.resident_kib()
        load.say("go on")
        load.close()
    finally:
        load.kill()
    print()
    print(f"{stats=} {before_kib=} {waiting_kib=} {busy_kib=}")
    assert stats["errors"] == {}
    assert stats["still_waiting"] == IDLE
    assert stats["lost"] == 0
    assert stats["unknown"] == 0
    assert stats["sent"] > BUSY
    assert (waiting_kib - before_kib) / IDLE < GROWTH_PER_CLIENT_MAX_KIB
    assert busy_kib < MEMORY_MAX_KIB
    broker.stop()
